"""The figures of the grouped benchmarks and of the selector's grouped op kinds, on made-up results."""

import math
from pathlib import Path

import pytest

from benchmarks import grouped_speedup, selector, stale, summary
from benchmarks.group_sizes import count_masked_bytes
from benchmarks.stamp import DATA, read_json, write_json
from benchmarks.tables import TITLES
from tests.cpu.benchmarks.test_selector_figures import make_evaluation, write_training
from tests.cpu.benchmarks.test_summary import make_host

ROUNDS = 20
FAMILIES = {
    "m_grouped_contiguous": ("m_grouped_fp8_gemm_contiguous", "m_grouped_bf16_gemm_contiguous"),
    "m_grouped_masked": ("m_grouped_fp8_gemm_masked", "m_grouped_bf16_gemm_masked"),
    "k_grouped": ("k_grouped_fp8_gemm_contiguous", "k_grouped_bf16_gemm_contiguous"),
}
SKEWED_US = 100.0


def make_row(name: str, baseline: dict, factor: float) -> dict:
    """Return a row whose own product takes `factor` times upstream's time, the heuristic's config 1.1 times as long,
    and a slower peer.
    """
    key = {field: value for field, value in baseline.items() if not field.startswith("deepgemm")}
    us, main = (
        factor * baseline.get("deepgemm_us", SKEWED_US),
        ("nt" if key["dtype"] == "fp8" else "tn") if name == "k_grouped" else None,
    )
    main = main or ("mn_major" if key["dtype"] == "fp8" else "nt")
    times = {"cublaslt": [2.0 * us] * ROUNDS, "grouped_mm": [1.5 * us] * ROUNDS, "floor": [0.5 * us] * ROUNDS}
    times |= {f"auto {main}": [us] * ROUNDS, f"tile {main}": [us] * ROUNDS, f"other {main}": [1.1 * us] * ROUNDS}
    times |= {"auto row_major": [us] * ROUNDS, "auto joint": [1.25 * us] * ROUNDS} if key["dtype"] == "fp8" else {}
    choices = {role: {"config": "tile", "source": "any"} for role in ("auto", "best", "model")} | {
        "heuristic": {"config": "other", "source": "analytic"}
    }
    return {**key, "choices": choices, "times": times}


def make_result(name: str, factor: float) -> dict:
    """Return a finished result of one grouping."""
    meta = {
        "kernel_hash": {op: stale.current_kernel_hash(op) for op in FAMILIES[name]},
        "date": "2026-01-02",
        "complete": True,
    }
    return {
        "meta": meta,
        "rows": [make_row(name, baseline, factor) for baseline in read_json(DATA / f"{name}.json")["rows"]],
    }


def test_contiguous_against_upstream():
    entry = grouped_speedup.make_p7(make_result("m_grouped_contiguous", 0.9))
    assert entry["value"] == entry["fp8"] == entry["bf16"] == entry["out_of_fold"] == pytest.approx(1 / 0.9, abs=1e-3)
    assert entry["heuristic"] == pytest.approx(1 / 0.99, abs=1e-3) and entry["heuristic_regret"] == pytest.approx(
        0.1, abs=1e-3
    )
    assert (entry["over_cublaslt"], entry["over_grouped_mm"]) == (2.0, 1.5) and entry["row_major"] > entry["fp8"]
    assert entry["problems"] == 16 and entry["below"] == 0 and entry["is_met"]
    fastest = read_json(DATA / "m_grouped_contiguous.json")["rows"][0]
    assert (
        entry["peak_tflops"] >= 2e-6 * fastest["m"] * fastest["n"] * fastest["k"] / (0.9 * fastest["deepgemm_us"]) - 0.1
    )


def test_one_slow_contiguous_problem_misses_the_target():
    result = make_result("m_grouped_contiguous", 0.8)
    result["rows"][9] = make_row("m_grouped_contiguous", read_json(DATA / "m_grouped_contiguous.json")["rows"][9], 1.1)
    entry = grouped_speedup.make_p7(result)
    assert (
        entry["value"] > 1.03
        and entry["worst"] == pytest.approx(1 / 1.1, abs=1e-3)
        and entry["below"] == 1
        and not entry["is_met"]
    )
    assert entry["worst_problem"] == [
        result["rows"][9][name] for name in ("dtype", "num_groups", "mean_m", "n", "k", "m")
    ]


def test_noise_counts_in_favour():
    result = make_result("m_grouped_contiguous", 1.0)
    for row in result["rows"]:
        row["times"] = {
            name: [us * (0.95 + index / 200) for index, us in enumerate(times)] for name, times in row["times"].items()
        }
    entry = grouped_speedup.make_p7(result)
    assert entry["worst"] > entry["value"] and entry["worst"] < 1 / 0.95


def test_masked_decode_against_upstream_and_the_floor():
    result = make_result("m_grouped_masked", 0.8)
    entry = grouped_speedup.make_p8(result)
    assert (
        entry["value"] == pytest.approx(1.25, abs=1e-3)
        and entry["problems"] == 8
        and entry["all_fp8"] == entry["all_bf16"] == 1.25
    )
    rated = [
        row
        for row in result["rows"]
        if row["dtype"] == "fp8" and row["load"] == "uniform" and (row["num_groups"], row["mean_m"]) == (32, 20)
    ]
    shares = [0.5 * count_masked_bytes(row) / (32 * row["n"] * row["k"]) for row in rated]
    assert (
        entry["read_share"] == pytest.approx(min(shares), abs=1e-4)
        and 0.5 < entry["read_share"] < 0.6
        and not entry["is_met"]
    )
    for row in rated:
        row["times"]["floor"] = [0.9 * us for us in row["times"]["auto mn_major"]]
    near = grouped_speedup.make_p8(result)
    assert near["read_share"] > 0.9 and near["mean_read_share"] >= near["read_share"] and near["is_met"]


def test_skewed_loads_stand_beside_uniform_ones():
    result = make_result("m_grouped_masked", 0.8)
    entry = grouped_speedup.make_p8(result)
    assert set(entry["skewed_over_uniform"]) == {"fp8 20", "fp8 192", "bf16 20", "bf16 192"}
    rows = [
        row
        for row in read_json(DATA / "m_grouped_masked.json")["rows"]
        if row["dtype"] == "fp8" and (row["num_groups"], row["mean_m"]) == (32, 20)
    ]
    uniform = [row["deepgemm_us"] for row in rows if row["load"] == "uniform" and row["n"] >= 6144]
    expected = math.exp(sum(math.log(SKEWED_US / us) for us in uniform) / len(uniform))
    assert len(uniform) == 2 and entry["skewed_over_uniform"]["fp8 20"] == pytest.approx(expected, abs=1e-3)


def test_k_grouped_against_upstream():
    entry = grouped_speedup.make_p9(make_result("k_grouped", 0.8))
    assert entry["value"] == entry["bf16"] == pytest.approx(1.25, abs=1e-3) and entry[
        "with_transposes"
    ] == pytest.approx(1.0, abs=1e-3)
    assert (
        entry["problems"] == 6
        and entry["is_met"]
        and not grouped_speedup.make_p9(make_result("k_grouped", 0.9))["is_met"]
    )


def test_a_role_or_peer_measured_on_some_problems_only_has_no_mean():
    result = make_result("k_grouped", 0.8)
    del result["rows"][2]["choices"]["model"], result["rows"][3]["times"]["grouped_mm"]
    entry = grouped_speedup.make_p9(result)
    assert (
        entry["out_of_fold"] is None
        and entry["model_regret"] is None
        and entry["over_grouped_mm"] is None
        and entry["over_cublaslt"] == 2.0
    )


def test_entries_follow_from_the_files_and_go_stale_with_their_kernels(tmp_path):
    for name in FAMILIES:
        write_json(tmp_path / f"{name}.json", make_result(name, 0.8))
    entries = summary.make_summary(tmp_path)
    assert set(entries) == {"P7", "P8", "P9"} <= set(TITLES)
    for entry, (name, ops) in zip(entries.values(), FAMILIES.items(), strict=True):
        assert (
            entry["result"] == f"{name}.json"
            and (DATA.parents[1] / entry["script"]).exists()
            and set(entry["kernel_hash"]) == set(ops)
        )
    assert entries["P7"]["met"] and entries["P7"]["stale"] is None
    old = make_result("m_grouped_contiguous", 0.8)
    old["meta"]["kernel_hash"][FAMILIES["m_grouped_contiguous"][1]] = "0" * 64
    write_json(tmp_path / "m_grouped_contiguous.json", old)
    entries = summary.make_summary(tmp_path)
    assert entries["P7"]["stale"] and not entries["P7"]["met"] and entries["P9"]["stale"] is None


def make_joined(tmp_path, means: dict[str, float]) -> dict:
    """Return the selector's result of several op kinds with these mean regrets."""
    parts = []
    for op, mean in means.items():
        split = {
            "model": make_evaluation(mean=mean),
            "model_alone": make_evaluation(),
            "heuristic": make_evaluation(mean=2 * mean),
        }
        write_training(tmp_path / op, split)
        part = selector.make_result(tmp_path / op)
        part["meta"] |= {
            "kernel_hash": {op: stale.current_kernel_hash(op)},
            stale.ESTIMATES: stale.estimate_revision(op),
        }
        parts.append(part)
    return selector.join_results(parts)


def test_regrets_of_another_estimate_are_stale(tmp_path):
    joined = make_joined(tmp_path, {"fp8_gemm": 0.01, "m_grouped_fp8_gemm_masked": 0.014})
    assert joined["meta"][stale.ESTIMATES] == {"fp8_gemm": 3, "m_grouped_fp8_gemm_masked": 4}
    joined["meta"][stale.ESTIMATES]["m_grouped_fp8_gemm_masked"] = 1
    write_json(tmp_path / "evaluation.json", joined)
    assert summary.make_summary(tmp_path)["S1_grouped"]["stale"]
    assert stale.find_recorded(Path("evaluation.json"), {"kernel_hash": {"fp8_gemm": "a"}})[stale.ESTIMATES] == {
        "fp8_gemm": 1
    }


def test_grouped_op_kinds_have_selector_targets_of_their_own(tmp_path):
    means = {"fp8_gemm": 0.01, "m_grouped_fp8_gemm_masked": 0.014, "k_grouped_fp8_gemm_contiguous": 0.005}
    write_json(tmp_path / "evaluation.json", make_joined(tmp_path, means))
    entries = summary.make_summary(tmp_path)
    assert set(entries) == {"S1", "S2", "S3", "S1_grouped", "S2_grouped", "S3_grouped"} <= set(TITLES)
    assert entries["S1"]["value"] == 0.01 and set(entries["S1"]["by_op"]) == {"fp8_gemm"} and entries["S1"]["met"]
    assert (
        entries["S1_grouped"]["value"] == 0.014
        and set(entries["S1_grouped"]["by_op"]) == set(means) - {"fp8_gemm"}
        and entries["S1_grouped"]["met"]
    )
    assert entries["S3_grouped"]["value"] == 0.028 and not entries["S3_grouped"]["met"]  # its rates have seen these
    write_json(tmp_path / "evaluation.json", make_joined(tmp_path, {**means, "m_grouped_fp8_gemm_masked": 0.016}))
    assert not summary.make_summary(tmp_path)["S1_grouped"]["met"]


def test_the_share_of_regret_that_goes_is_of_dense_products_and_of_all_others(tmp_path):
    means = {"fp8_gemm": 0.01, "bf16_gemm": 0.01, "fp8_mqa_logits": 0.01, "m_grouped_fp8_gemm_masked": 0.01}
    write_json(tmp_path / "evaluation.json", make_joined(tmp_path, means))
    entries = summary.make_summary(tmp_path)
    assert set(entries["S2"]["by_op"]) == {"fp8_gemm", "bf16_gemm"}
    assert set(entries["S2_grouped"]["by_op"]) == {"fp8_mqa_logits", "m_grouped_fp8_gemm_masked"}
    assert "fp8_mqa_logits" in entries["S1"]["by_op"]


@pytest.mark.parametrize("change", [{"seeds": 4}, {"nested": False}])
def test_a_selector_is_met_by_five_seeds_and_settings_of_each_fold_alone(tmp_path, change):
    joined = make_joined(tmp_path, {"fp8_gemm": 0.01, "bf16_gemm": 0.01})
    joined["ops"]["bf16_gemm"]["meta"] |= change
    entry = selector.make_s1(joined)
    assert not entry["is_met"] and selector.make_s1(make_joined(tmp_path, {"fp8_gemm": 0.01}))["is_met"]


def test_host_time_of_grouped_ops_stands_beside_the_target():
    result = make_host(4.5)
    assert "grouped" not in summary.make_p11(result)
    result["host"]["cuda"]["m_grouped_fp8_gemm_nt_masked"] = {"best_us": 9.0, "median_us": 9.5}
    entry = summary.make_p11(result)
    assert (
        entry["value"] == 4.5
        and entry["grouped"] == {"m_grouped_fp8_gemm_nt_masked": 9.0}
        and entry["is_met"]
        and entry["problems"] == 2
    )
