"""Storing choices out of fold for the benchmarks, and which of them a benchmark takes."""

import pytest

from benchmarks import choices, out_of_fold, stale
from benchmarks.choices import Choices, find_out_of_fold
from benchmarks.stale import OUT_OF_FOLD
from benchmarks.stamp import read_json, write_json
from deep_gemm import _C
from deep_gemm.jit.hashing import kernel_hash
from tuner.problems.fields import PROBLEM_DEFAULTS, to_problem

DEVICE = _C.Device.known("h200")
ROLES = ("heuristic", "model")
#: Of dense_fp8.json, of dense_bf16.json in another layout, and of no benchmark.
KNOWN = {"m": 64, "n": 2112, "k": 7168}
SMALLEST = {"m": 1, "n": 2112, "k": 7168}  # whose m is the default
OTHER = {"op": "bf16_gemm", "m": 128, "n": 2112, "k": 7168, "b_major": "mn"}
UNKNOWN = {"m": 65, "n": 2112, "k": 7168}


def make_folder(path, fields: dict, *others: dict, estimator: str = "e", sku: str = DEVICE.sku):
    """Write the files of an evaluated training folder whose choice is always the third candidate."""
    op = fields.get("op", "fp8_gemm")
    rows = []
    for each in (fields, *others):
        problem = to_problem(PROBLEM_DEFAULTS | {"op": op} | each)
        config = _C.get_candidates(problem, DEVICE)[2]
        rows.append(problem.as_dict() | {"problem": problem.key, "config": config.as_dict(), "source": "learned"})
    path.mkdir()
    write_json(path / "training.json", {"estimator_sha256": "e", "newest_row": "2026-11-30T00:00:00Z"})
    identity = {"op": op, "sku": sku, "kernel_hash": kernel_hash(op)}
    write_json(path / OUT_OF_FOLD, {"estimator_sha256": estimator, "identity": identity, "rows": rows})
    return path


def test_benchmarks_take_the_choices_stored_for_their_problems(tmp_path, monkeypatch):
    folders = [make_folder(tmp_path / "a", KNOWN, SMALLEST, UNKNOWN), make_folder(tmp_path / "b", OTHER)]
    monkeypatch.setattr(choices, "results_of", lambda sku: tmp_path)
    assert find_out_of_fold("fp8_gemm", DEVICE.sku) is None
    assert out_of_fold.main(["--training", *map(str, folders), "--out", str(tmp_path / OUT_OF_FOLD)]) == 0
    assert len(read_json(tmp_path / OUT_OF_FOLD)["rows"]) == 3  # the unknown one is left out
    for fields, op in ((KNOWN, "fp8_gemm"), (SMALLEST, "fp8_gemm"), (OTHER, "bf16_gemm")):
        problem = to_problem(PROBLEM_DEFAULTS | {"op": op} | fields)
        found = Choices(op, DEVICE, None, find_out_of_fold(op, DEVICE.sku)).of(problem, ROLES)
        assert found["model"].config == _C.get_candidates(problem, DEVICE)[2]
        assert found["model"].source == "out of fold"
    unknown = to_problem(PROBLEM_DEFAULTS | {"op": "fp8_gemm"} | UNKNOWN)
    assert "model" not in Choices("fp8_gemm", DEVICE, None, find_out_of_fold("fp8_gemm", DEVICE.sku)).of(unknown, ROLES)
    assert find_out_of_fold("m_grouped_fp8_gemm_masked", DEVICE.sku) is None


def test_choices_of_other_kernels_are_not_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(choices, "results_of", lambda sku: tmp_path)
    write_json(tmp_path / OUT_OF_FOLD, {"meta": {"kernel_hash": {"fp8_gemm": "0" * 64}}, "rows": []})
    assert find_out_of_fold("fp8_gemm", DEVICE.sku) is None


def test_op_kinds_that_are_not_given_stay(tmp_path):
    out, folders = tmp_path / "out.json", [make_folder(tmp_path / "a", KNOWN), make_folder(tmp_path / "b", OTHER)]
    for folder in folders:
        out_of_fold.main(["--training", str(folder), "--out", str(out)])
    one_by_one = out.read_bytes()
    out.unlink()
    out_of_fold.main(["--training", *map(str, folders), "--out", str(out)])
    assert out.read_bytes() == one_by_one
    meta = read_json(out)["meta"]
    assert meta["kernel_hash"] == {op: kernel_hash(op) for op in ("bf16_gemm", "fp8_gemm")}
    path = tmp_path / OUT_OF_FOLD  # whose name says what it hangs on
    recorded = stale.find_recorded(path, meta)
    assert stale.find_current(path, recorded) == recorded
    before = stale.find_recorded(path, meta | {stale.ESTIMATES: {"fp8_gemm": 1}})
    assert stale.find_current(path, before) != before


def test_what_does_not_fit_together_is_refused(tmp_path):
    good = make_folder(tmp_path / "good", KNOWN)
    wrong = {
        "evaluated another selector": [make_folder(tmp_path / "a", KNOWN, estimator="f")],
        "no problem that a benchmark times": [make_folder(tmp_path / "b", UNKNOWN)],
        "one GPU model": [good, make_folder(tmp_path / "c", OTHER, sku="nvidia-h100-80gb-hbm3-sm132")],
        "different op kinds": [good, make_folder(tmp_path / "d", KNOWN)],
    }
    for message, folders in wrong.items():
        with pytest.raises(ValueError, match=message):
            out_of_fold.main(["--training", *map(str, folders), "--out", str(tmp_path / "out.json")])
    assert not (tmp_path / "out.json").exists()
    out_of_fold.main(["--training", str(good), "--out", str(tmp_path / "out.json")])
    before = (tmp_path / "out.json").read_bytes()
    with pytest.raises(ValueError, match="name another --out"):
        out_of_fold.main(["--training", str(tmp_path / "c"), "--out", str(tmp_path / "out.json")])
    assert (tmp_path / "out.json").read_bytes() == before
