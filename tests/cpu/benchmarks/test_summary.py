"""summary.json: every committed value follows from the file it names; figures of made-up results."""

import itertools
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import dense_speedup, speedup, stale, stamp, summary
from benchmarks.cold_timer import FLUSH_NAME, add_up, cut_segments, order_calls
from benchmarks.stamp import DATA, OP, RESULTS, read_json, write_json

BASELINES = read_json(DATA / "dense_fp8.json")
ROUNDS = 20


def make_meta(**changes) -> dict:
    """Return the meta of a finished result of this tree."""
    return {"kernel_hash": {OP: stale.current_kernel_hash()}, "date": "2026-01-02", "complete": True, **changes}


def make_row(baseline: dict, factor: float, noise: float = 0.0) -> dict:
    """Return a row whose own product takes `factor` times upstream's time, in a run where everything is 10 % slower."""
    us, vendor = 1.1 * factor * baseline["deepgemm_us"], 1.1 * baseline["cublaslt_us"]
    spread = [1.0 + noise * (index - (ROUNDS - 1) / 2) / ROUNDS for index in range(ROUNDS)]
    times = {
        "cublaslt": [vendor] * ROUNDS,
        "auto mn_major": [us * share for share in spread],
        "auto row_major": [us] * ROUNDS,
    }
    times |= {"tile mn_major": [us] * ROUNDS, "tile row_major": [us] * ROUNDS, "other mn_major": [1.05 * us] * ROUNDS}
    if baseline["m"] <= 64:
        times["floor"] = [us / 1.2] * ROUNDS
    choices = {"auto": {"config": "tile", "source": "exact"}, "best": {"config": "tile", "source": "exact"}}
    choices |= {
        "model": {"config": "tile", "source": "out of fold"},
        "heuristic": {"config": "other", "source": "analytic"},
    }
    choices |= {"invariant": {"config": "other", "source": "exact", "row_major": "tile"}}
    return {"m": baseline["m"], "n": baseline["n"], "k": baseline["k"], "choices": choices, "times": times}


def make_dense(factor: float, **changes) -> dict:
    """Return a finished dense FP8 result."""
    return {"meta": make_meta(**changes), "rows": [make_row(baseline, factor) for baseline in BASELINES["rows"]]}


def make_scaled(factor: float) -> dense_speedup.Scaled:
    """Return a finished dense FP8 result as the targets take it."""
    return dense_speedup.Scaled(make_dense(factor), "dense_fp8")


@pytest.mark.parametrize("folder", summary.list_folders(), ids=lambda folder: folder.name)
def test_committed_summary_follows_from_its_files(folder):
    path = folder / "summary.json"
    recomputed = summary.make_summary(folder)
    assert (read_json(path) if path.exists() else {}) == recomputed, "run python -m benchmarks.summary"
    for entry in recomputed.values():
        assert (folder / entry["result"]).exists()
        assert not (entry["met"] and entry["stale"])
        hashes = entry["kernel_hash"]
        assert entry["stale"] or hashes == stale.holding_hashes(folder / entry["result"], hashes)


def test_recorded_peers_are_of_one_gpu_model(tmp_path, monkeypatch):
    """Of another model, times of the same run alone are compared."""
    monkeypatch.setattr(summary, "RECORDS", tmp_path)
    folder = tmp_path / "h100"
    write_json(folder / "dense_fp8.json", make_dense(0.8))
    entries = summary.make_summary(folder)
    assert set(entries) == {"P4"} and entries["P4"]["value"] > 0
    monkeypatch.setattr(summary, "RESULTS", folder)
    assert {"P1", "P2", "P3", "P4"} <= set(summary.make_summary(folder))


def test_a_relative_folder_is_of_its_gpu_model(tmp_path, monkeypatch):
    monkeypatch.setattr(summary, "RECORDS", tmp_path)
    monkeypatch.setattr(summary, "RESULTS", tmp_path / "h200")
    monkeypatch.chdir(tmp_path)
    for name, targets in (("h100", {"P4"}), ("h200", {"P1", "P2", "P3", "P4"})):
        write_json(tmp_path / name / "dense_fp8.json", make_dense(0.8))
        assert summary.main(["--folder", name]) == 0
        assert read_json(tmp_path / name / "summary.json").keys() == targets


@pytest.mark.full
def test_folders_are_told_apart_where_the_checkout_is_reached_through_a_link(tmp_path):
    """A folder that is named is resolved: so must be what it is compared with."""
    (tmp_path / "link").symlink_to(stamp.ROOT)
    code = "from benchmarks import summary; print(summary.RECORDS)"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'link')!r}); {code}"]
    found = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=120).stdout
    assert Path(found.strip()) == RESULTS.resolve().parent


def test_results_are_kept_apart_by_gpu_model(monkeypatch):
    from deep_gemm import _C

    assert stamp.results_of("nvidia-h200-sm132") == RESULTS == stamp.find_results()
    assert stamp.results_of(_C.Device.known("h100").sku).name == "h100"
    assert stamp.results_of(_C.Device.known("h20").sku).name == "h20"
    assert stamp.results_of("nvidia-h20-3e-sm78").name == "nvidia-h20-3e-sm78"
    monkeypatch.setattr(_C, "get_device", lambda: _C.Device.known("h100"))
    assert stamp.find_results().name == "h100"


def test_drift_of_the_whole_run_cancels():
    """The run is 10 % slower than the baseline's day: the corrected speed-up is 1 / 0.8, the plain ratio is lower."""
    dense = make_scaled(0.8)
    entry = dense_speedup.make_p1(dense)
    assert entry["value"] == pytest.approx(1.25, abs=1e-3) and entry["worst"] == pytest.approx(1.25, abs=1e-3)
    assert entry["plain"] == pytest.approx(1.25 / 1.1, abs=1e-3)
    assert entry["problems"] == 80 and entry["is_met"]
    assert entry["heuristic"] == pytest.approx(1.25 / 1.05, abs=1e-3)
    assert entry["heuristic_regret"] == pytest.approx(0.05, abs=1e-3) and entry["model_regret"] == pytest.approx(
        0.0, abs=1e-4
    )
    assert entry["out_of_fold"] == pytest.approx(1.25, abs=1e-3)


def test_row_major_is_compared_with_all_of_upstreams_kernels():
    entry = dense_speedup.make_p1(make_scaled(1.0))
    expected = speedup.geometric_mean([row["deepgemm_total_us"] / row["deepgemm_us"] for row in BASELINES["rows"]])
    assert entry["row_major"] == pytest.approx(expected, abs=1e-3)
    assert not entry["is_met"]


def test_one_slow_problem_misses_the_target():
    result = make_dense(0.7)
    result["rows"][5] = make_row(BASELINES["rows"][5], 1.1)
    entry = dense_speedup.make_p1(dense_speedup.Scaled(result, "dense_fp8"))
    assert entry["value"] > 1.18 and entry["worst"] == pytest.approx(1 / 1.1, abs=1e-3) and not entry["is_met"]
    assert entry["worst_problem"] == [BASELINES["rows"][5][name] for name in "mnk"]


def test_noise_counts_in_favour():
    baseline = BASELINES["rows"][0]
    measured = speedup.measure(make_row(baseline, 1.0, noise=0.2), baseline, "auto", "mn_major")
    assert 1.0 < measured.favourable < 1.1 and measured.speedup == pytest.approx(1.0, abs=0.01)


def test_groups_and_floor():
    dense = make_scaled(0.75)
    p2, p3, p4 = dense_speedup.make_p2(dense), dense_speedup.make_p3(dense), dense_speedup.make_p4(dense)
    assert p2["batch_invariant"] == pytest.approx(1 / 0.75 / 1.05, abs=1e-3)
    assert (
        p2["problems"] == 24
        and p2["near_floor"] == 24
        and p2["worst_over_floor"] == pytest.approx(1.2, abs=1e-3)
        and p2["is_met"]
    )
    assert p3["problems"] == 24 and p3["peak"] > 1.02 and p3["is_met"]
    expected = math.exp(
        sum(math.log(row["cublaslt_us"] / (0.75 * row["deepgemm_us"])) for row in BASELINES["rows"]) / 80
    )
    assert p4["value"] == pytest.approx(expected, abs=1e-3)


def test_two_microseconds_over_the_floor_are_near_enough():
    near = speedup.Measured(1, 576, 7168, us=4.3, cublaslt_us=6.0, floor_us=2.4, speedup=1.0, favourable=1.0, plain=1.0)
    assert speedup.is_near_floor(near)
    far = speedup.Measured(
        1, 7168, 16384, us=36.0, cublaslt_us=31.0, floor_us=27.0, speedup=1.0, favourable=1.0, plain=1.0
    )
    assert not speedup.is_near_floor(far)


def test_a_role_measured_on_some_problems_only_has_no_mean():
    result = make_dense(0.8)
    del result["rows"][3]["choices"]["model"]
    entry = dense_speedup.make_p1(dense_speedup.Scaled(result, "dense_fp8"))
    assert entry["out_of_fold"] is None and entry["model_regret"] is None and entry["value"] is not None


def test_a_role_may_choose_another_config_in_another_layout():
    row = make_row(BASELINES["rows"][0], 1.0)
    assert speedup.find_variant(row, "invariant", "mn_major") == row["times"]["other mn_major"]
    assert speedup.find_variant(row, "invariant", "row_major") == row["times"]["tile row_major"]
    assert speedup.find_variant(row, "absent", "mn_major") is None


def make_bf16(factor: float, slow: int = -1) -> dict:
    """Return a finished dense BF16 result in which ours takes `factor` times cuBLASLt's time; row `slow` takes as long
    again.
    """
    rows = []
    for index, baseline in enumerate(read_json(DATA / "dense_bf16.json")["rows"]):
        us, layout = factor * baseline["cublaslt_us"] * (2.0 if index == slow else 1.0), baseline["layout"]
        times = {
            "cublaslt": [baseline["cublaslt_us"]] * ROUNDS,
            f"auto {layout}": [us] * ROUNDS,
            f"tile {layout}": [us] * ROUNDS,
        }
        choices = {role: {"config": "tile", "source": "any"} for role in ("auto", "best", "model", "heuristic")}
        rows.append(
            {name: baseline[name] for name in ("m", "n", "k", "layout", "out")} | {"choices": choices, "times": times}
        )
    return {"meta": make_meta(kernel_hash={"bf16_gemm": stale.current_kernel_hash("bf16_gemm")}), "rows": rows}


def test_bf16_against_cublaslt():
    entry = dense_speedup.make_p5(make_bf16(0.9))
    assert entry["value"] == entry["out_of_fold"] == entry["layout_tt"] == pytest.approx(1 / 0.9, abs=1e-3)
    assert entry["problems"] == 71 and entry["below"] == 0 and entry["is_met"]
    assert entry["over_upstream"] == pytest.approx(1 / 0.9 / 0.935, rel=0.02)
    late = dense_speedup.make_p5(make_bf16(0.9, slow=40))
    assert late["below"] == 1 and not late["is_met"] and late["worst"] == pytest.approx(0.5556, abs=1e-3)
    row = read_json(DATA / "dense_bf16.json")["rows"][40]
    assert late["worst_problem"] == [row[name] for name in ("m", "n", "k", "layout", "out")]


def make_wgrad(factor: float) -> dict:
    """Return a finished result of weight gradients in which ours takes `factor` times upstream's time."""
    rows = []
    for baseline in read_json(DATA / "wgrad_fp8.json")["rows"]:
        us, vendor = factor * baseline["deepgemm_us"], baseline["cublaslt_us"]
        times = {
            "cublaslt": [vendor] * ROUNDS,
            "cublaslt bf16": [0.8 * vendor] * ROUNDS,
            "auto mn_major": [us] * ROUNDS,
            "auto row_major": [us] * ROUNDS,
        }
        times["auto bf16"] = [0.4 * vendor] * ROUNDS
        rows.append(
            {name: baseline[name] for name in "mnk"}
            | {"choices": {"auto": {"config": "tile", "source": "exact"}}, "times": times}
        )
    return {"meta": make_meta(), "rows": rows}


def test_weight_gradients_against_upstream():
    entry = dense_speedup.make_p6(dense_speedup.Scaled(make_wgrad(0.75), "wgrad_fp8"))
    assert entry["value"] == pytest.approx(1 / 0.75, abs=1e-3) and entry["row_major"] > entry["value"]
    assert entry["bf16_over_cublaslt"] == pytest.approx(2.0, abs=1e-3) and entry["problems"] == 7 and entry["is_met"]
    assert (
        entry["out_of_fold"] is None
        and not dense_speedup.make_p6(dense_speedup.Scaled(make_wgrad(0.9), "wgrad_fp8"))["is_met"]
    )


def make_host(us: float) -> dict:
    """Return a host-time result in which BF16 is the slowest op."""
    calls = {"fp8_gemm_nt, row-major scales": 4.0, "bf16_gemm_nt": us, "torch.mm(out=)": 10.0}
    new = {
        op: {"compiles": 0, "problems": 40, "choose_us": 5.0, "first_call_us": 90.0} for op in ("fp8_gemm", "bf16_gemm")
    }
    host = {"cuda": {name: {"best_us": value, "median_us": value + 1.0} for name, value in calls.items()}}
    return {
        "meta": make_meta(),
        "host": host,
        "selection": {"seen_us": 0.05, "new_us": 7.0, "problems": 151},
        "new_shapes": new,
    }


def test_host_time_of_the_slowest_op_counts():
    entry = summary.make_p11(make_host(4.5))
    assert entry["value"] == 4.5 and entry["slowest"] == "bf16_gemm_nt" and entry["ratio"] == 0.45 and entry["is_met"]
    assert not summary.make_p11(make_host(5.5))["is_met"]
    fast_peer = make_host(4.5)
    fast_peer["host"]["cuda"]["torch.mm(out=)"]["best_us"] = 7.0
    assert not summary.make_p11(fast_peer)["is_met"]


def test_a_new_shape_compiles_nothing():
    entry = summary.make_p13(make_host(4.5))
    assert entry["value"] == 7.0 and entry["compiles"] == 0 and entry["problems"] == 80 and entry["is_met"]
    late = make_host(4.5)
    late["new_shapes"]["bf16_gemm"]["compiles"] = 1
    assert not summary.make_p13(late)["is_met"]
    late = make_host(4.5)
    late["selection"]["new_us"] = 11.0
    assert not summary.make_p13(late)["is_met"]
    assert summary.make_p13({"selection": {}}) is None


def test_unfinished_results_are_absent_and_stale_ones_not_met(tmp_path):
    write_json(tmp_path / "dense_fp8.json", make_dense(0.5, complete=False))
    assert summary.make_summary(tmp_path) == {}
    write_json(tmp_path / "dense_fp8.json", make_dense(0.5, kernel_hash={OP: "0" * 64}))
    entries = summary.make_summary(tmp_path)
    assert set(entries) == {"P1", "P2", "P3", "P4"}
    assert all(entry["stale"] and not entry["met"] for entry in entries.values())
    write_json(tmp_path / "dense_fp8.json", make_dense(0.5))
    assert all(entry["met"] and entry["stale"] is None for entry in summary.make_summary(tmp_path).values())


def test_compile_times(tmp_path):
    shortest = {"nvrtc": 0.1, "nvcc": 1.0}
    rows = [
        {"compiler": name, "seconds": low + index / 1000, "cpu_seconds": low}
        for name, low in shortest.items()
        for index in range(100)
    ]
    write_json(tmp_path / "compile_time.json", {"meta": make_meta(), "rows": rows})
    entry = summary.make_summary(tmp_path)["P12"]
    assert (
        entry["value"] == pytest.approx(0.1495)
        and entry["p95"] == pytest.approx(0.194)
        and entry["nvcc"] == pytest.approx(1.0495)
        and entry["met"]
    )
    rows += [{"compiler": "nvrtc", "seconds": 0.9, "cpu_seconds": 0.9} for _ in range(10)]
    assert not summary.make_p12({"rows": rows})["is_met"]


def test_selection_times(tmp_path):
    write_json(
        tmp_path / "host_time.json", make_host(4.5) | {"selection": {"seen_us": 0.05, "new_us": 12.0, "problems": 80}}
    )
    entries = summary.make_summary(tmp_path)
    entry = entries["S4"]
    assert set(entries) == {"P11", "P13", "S4"} and entry["value"] == 0.05 and entry["new"] == 12.0 and not entry["met"]


def test_every_entry_says_where_it_comes_from(tmp_path):
    write_json(tmp_path / "dense_fp8.json", make_dense(0.8))
    for entry in summary.make_summary(tmp_path).values():
        assert {
            "value",
            "target",
            "met",
            "problems",
            "peer",
            "script",
            "result",
            "kernel_hash",
            "date",
            "stale",
        } <= set(entry)
        assert (DATA.parents[1] / entry["script"]).exists()


def test_summary_command_writes_the_file(tmp_path, capsys):
    write_json(tmp_path / "dense_fp8.json", make_dense(0.8))
    assert summary.main(["--folder", str(tmp_path)]) == 0
    assert read_json(tmp_path / "summary.json") == summary.make_summary(tmp_path)
    assert "P1" in capsys.readouterr().out


def test_a_trace_is_cut_at_the_flush_kernels():
    trace = [
        ("stray", 9.0),
        (FLUSH_NAME, 130.0),
        ("gemm", 5.0),
        ("reduce", 1.0),
        (f"void {FLUSH_NAME}(...)", 130.0),
        ("gemm", 6.0),
    ]
    assert cut_segments(trace) == [[5.0, 1.0], [6.0]]
    assert cut_segments(trace, "duc") == [[1.0], []]
    assert (
        add_up(["x", "y"], trace, "reduce")
        == {"x": [6.0], "y": [6.0], "x reduce": [1.0]}
        == add_up(["x", "y"], trace, "") | {"x reduce": [1.0]}
    )


def test_baselines_cover_the_benchmark_shapes():
    keys = {(row["m"], row["n"], row["k"]) for row in BASELINES["rows"]}
    floors = {(row["n"], row["k"]) for row in read_json(DATA / "stream_floor.json")["rows"]}
    assert len(keys) == 80 and {key[1:] for key in keys} == floors
    assert all(row["deepgemm_total_us"] > row["deepgemm_us"] > 0 < row["cublaslt_us"] for row in BASELINES["rows"])


def test_rounds_interleave_or_follow_each_other_after_a_rest():
    draw = random.Random(0)
    assert order_calls(["a", "b"], 3, True, draw) == [["a"] * 3, ["b"] * 3]
    (run,) = order_calls(["a", "b", "c"], 40, False, draw)
    rounds = [tuple(run[start : start + 3]) for start in range(0, 120, 3)]
    assert set(rounds) == set(itertools.permutations("abc"))
    assert order_calls(["a", "b", "c"], 40, False, draw) != [run]  # the next problem has draws of its own
    assert order_calls(["a", "b", "c"], 40, False, random.Random(0)) == [run]
