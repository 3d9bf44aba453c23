"""What the selector's targets (S1, S2, S3) make of the evaluation of a trained selector."""

import pytest

from benchmarks import selector, stale, summary
from benchmarks.stamp import OP, read_json, write_json


def make_evaluation(**changes) -> dict:
    """Return the statistics of one method in an evaluation."""
    base = {
        "mean": 0.015,
        "p95": 0.05,
        "max": 0.11,
        "answered": 0.9,
        "within_2_percent": 0.8,
        "confirmed": 1.0,
        "removed": 0.6,
    }
    return {
        **base,
        "worst_against_heuristic": 0.03,
        "wins": 40,
        "losses": 3,
        "problems": 120,
        "families": 20,
        **changes,
    }


def write_training(folder, split: dict, evaluated: str = "e") -> None:
    """Write the two files of a training folder that the selector's result is made of."""
    identity = {
        "op": OP,
        "sku": "gpu",
        "kernel_hash": stale.current_kernel_hash(),
        "compiler": "nvrtc",
        "regime": "cold",
    }
    training = {
        "estimator_sha256": "e",
        "newest_row": "2026-01-03T04:05:06",
        "data": {"problems": 600},
        "settings": {"trees": 48},
    }
    write_json(folder / "training.json", training)
    write_json(
        folder / "evaluation.json",
        {
            "identity": identity,
            "estimator_sha256": evaluated,
            "seeds": 5,
            "nested": True,
            "splits": {"family": split},
            "worst": [],
            "unconfirmed": {},
        },
    )


def test_selector_targets_follow_from_the_evaluation(tmp_path):
    heuristic = make_evaluation(mean=0.045)
    write_training(
        tmp_path / "training",
        {"model": make_evaluation(), "model_alone": make_evaluation(mean=0.02), "heuristic": heuristic},
    )
    assert selector.main(["--training", str(tmp_path / "training"), "--out", str(tmp_path / "evaluation.json")]) == 0
    entries = summary.make_summary(tmp_path)
    assert set(entries) == {"S1", "S2", "S3"}
    assert entries["S1"]["value"] == 0.015 and entries["S1"]["model_alone"] == 0.02 and entries["S1"]["met"]
    assert entries["S2"]["value"] == 0.6 and entries["S2"]["worst"] == 0.03 and entries["S2"]["met"]
    assert entries["S3"]["value"] == 0.045 and not entries["S3"]["met"] and entries["S3"]["date"] == "2026-01-03"


def test_a_model_that_rarely_answers_misses_its_target(tmp_path):
    split = {"model": make_evaluation(answered=0.5), "model_alone": make_evaluation(), "heuristic": make_evaluation()}
    write_training(tmp_path, split)
    assert not selector.make_s1(selector.make_result(tmp_path))["is_met"]


def test_of_several_op_kinds_the_worst_counts(tmp_path):
    parts = []
    for op, mean in (("fp8_gemm", 0.01), ("bf16_gemm", 0.03)):
        write_training(
            tmp_path / op,
            {
                "model": make_evaluation(mean=mean),
                "model_alone": make_evaluation(),
                "heuristic": make_evaluation(mean=2 * mean),
            },
        )
        part = selector.make_result(tmp_path / op)
        part["meta"]["kernel_hash"] = {op: stale.current_kernel_hash(op)}
        parts.append(part)
    joined = selector.join_results(parts)
    assert selector.make_s1(joined)["value"] == 0.03 and selector.make_s1(joined)["by_op"] == {
        "fp8_gemm": 0.01,
        "bf16_gemm": 0.03,
    }
    assert selector.make_s3(joined)["value"] == 0.06 and selector.make_s2(joined)["value"] == 0.6
    with pytest.raises(ValueError, match="different op kinds"):
        selector.join_results(parts[:1] * 2)


def test_other_op_kinds_of_a_result_are_kept(tmp_path):
    out = tmp_path / "evaluation.json"
    write_training(tmp_path / "training", {"model": make_evaluation(), "heuristic": make_evaluation()})
    part = selector.make_result(tmp_path / "training")
    other = part | {"meta": part["meta"] | {"kernel_hash": {"bf16_gemm": "0" * 64}}}
    write_json(out, selector.join_results([part | {"worst": ["of before"]}, other]))
    assert selector.main(["--training", str(tmp_path / "training"), "--out", str(out), "--keep"]) == 0
    kept = read_json(out)
    assert set(kept["ops"]) == set(kept["meta"]["kernel_hash"]) == {"fp8_gemm", "bf16_gemm"}
    assert kept["ops"]["fp8_gemm"]["worst"] == [] and kept["ops"]["bf16_gemm"] == other


def test_an_evaluation_without_held_out_problems_gives_no_figures(tmp_path):
    write_training(tmp_path, {})
    result = selector.make_result(tmp_path)
    assert selector.make_s1(result) is selector.make_s2(result) is selector.make_s3(result) is None


def test_an_evaluation_of_another_selector_is_refused(tmp_path):
    write_training(tmp_path, {}, evaluated="other")
    with pytest.raises(ValueError, match="another selector"):
        selector.make_result(tmp_path)
