"""Fitting the heuristic's rates: it finds rates that a recording was made with, and scores on weights that it never
saw; what S3 makes of the record.
"""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import fit_rates, selector, stale, summary
from benchmarks.stamp import read_json, write_json
from deep_gemm import _C
from tests.fakes.databases import DEVICE
from tuner.learn.families import find_families, find_near, split_families

PRESENT = _C.heuristic_constants()
#: Rates of a made-up GPU on which stores and steps cost other than on an H200.
TRUE = PRESENT | {"epilogue_row_ns": 6 * PRESENT["epilogue_row_ns"], "load_latency_ns": PRESENT["load_latency_ns"] / 3}
SIZES = [(m, n, k) for m in (48, 300, 1500) for n, k in ((2112, 7168), (4096, 1536), (24576, 1536), (7168, 16384))]


def make_entries(op: str = "fp8_gemm") -> list[fit_rates.Entry]:
    """Return problems whose times are those that the estimate gives with TRUE."""
    entries = []
    for size in SIZES:
        problem = _C.Problem(op, *size)
        tiles = _C.get_candidates(problem, DEVICE)
        times = np.log(_C.estimate_times_us(problem, tiles, DEVICE, TRUE))
        entries.append(fit_rates.Entry(op, problem, tiles, times - times.min(), float(np.exp(times.min()))))
    return entries


def make_source(op: str) -> dict:
    """Return of which rows a recording of these problems is."""
    source = {"compiler": "nvrtc", "regime": "cold", "date": "2026-01-03", "data": {"problems": 12, "timed": 400}}
    kernels = {"kernel_hash": {op: stale.current_kernel_hash(op)}, stale.ESTIMATES: stale.estimate_revision(op)}
    return source | kernels


def make_recording(*ops: str) -> fit_rates.Recording:
    """Return such problems of some op kinds as a recording."""
    entries = [entry for op in ops for entry in make_entries(op)]
    return fit_rates.Recording(entries, DEVICE, {op: make_source(op) for op in ops})


def mean_regret(entries: list[fit_rates.Entry], rates: dict[str, float]) -> float:
    """Return the mean regret of the picks of some rates."""
    return float(fit_rates.Scorer(entries, DEVICE).regrets(rates).mean())


def test_estimates_of_many_configs_are_those_of_each():
    problem = _C.Problem("fp8_gemm", 300, 4096, 7168)
    tiles = _C.get_candidates(problem, DEVICE)
    alone = [_C.estimate_time_us(problem, tile, DEVICE, TRUE) for tile in tiles]
    assert (
        _C.estimate_times_us(problem, tiles, DEVICE, TRUE) == alone and _C.estimate_times_us(problem, [], DEVICE) == []
    )


def test_the_pick_is_the_heuristic_s_where_every_candidate_was_measured():
    for entry in make_entries():
        pick = entry.tiles[int(np.argmin(_C.estimate_times_us(entry.problem, entry.tiles, DEVICE)))]
        assert _C.with_loop_knobs(entry.problem, pick, DEVICE) == _C.get_analytic_config(entry.problem, DEVICE)


def test_a_fit_finds_the_rates_of_another_gpu():
    entries = make_entries()
    fitted = fit_rates.fit(fit_rates.Scorer(entries, DEVICE), PRESENT, 40, 0)
    assert mean_regret(entries, TRUE) == 0.0
    assert mean_regret(entries, fitted) < 0.5 * mean_regret(entries, PRESENT)


def test_wrong_times_cost_and_unknown_ones_do_not():
    entries = make_entries()
    scorer = fit_rates.Scorer(entries, DEVICE)
    slower = fit_rates.Scorer([one._replace(best_us=2.0 * one.best_us) for one in entries], DEVICE)
    unknown = fit_rates.Scorer([one._replace(best_us=float("nan")) for one in entries], DEVICE)
    assert scorer.error(TRUE) == pytest.approx(0.0) and slower.error(TRUE) == pytest.approx(1.0)
    assert scorer.cost(TRUE) == pytest.approx(unknown.cost(TRUE))
    assert slower.cost(TRUE) == pytest.approx(scorer.cost(TRUE) + fit_rates.ABSOLUTE * np.log(2.0) ** 2)


def test_no_generation_leaves_the_rates_alone():
    assert fit_rates.fit(fit_rates.Scorer(make_entries(), DEVICE), PRESENT, 0, 0) == PRESENT


def test_only_rates_that_an_estimate_depends_on_are_fitted():
    dense, bf16 = (
        fit_rates.find_rates(fit_rates.Scorer(make_entries(op), DEVICE), PRESENT) for op in ("fp8_gemm", "bf16_gemm")
    )
    assert {"launch_us", "epilogue_row_ns"} <= set(dense) & set(bf16)
    assert "bf16_slope_ns" in bf16 and "step_slope_128_ns" not in bf16
    assert "step_slope_128_ns" in dense and "bf16_slope_ns" not in dense


def test_a_fit_sees_no_weight_near_one_that_it_is_scored_on_of_any_op_kind(monkeypatch):
    entries, seen = make_entries() + make_entries("bf16_gemm"), []

    def fit(scorer, start, generations, seed) -> dict:
        seen.append([entry.problem for entry in scorer.entries])
        return start

    monkeypatch.setattr(fit_rates, "fit", fit)
    folds = fit_rates.run_folds(entries, DEVICE, fit_rates.parse(["--folds", "3", "--jobs", "1"]))
    held_out = [fold.split.held_out for fold in folds]
    assert (np.sum(held_out, axis=0) == 1).all() and len(folds) == len(seen) == 3
    problems = [entry.problem for entry in entries]
    for fold, learned in zip(folds, seen, strict=True):
        near = find_near(problems, fold.split.held_out)
        assert set(learned) == {problem for problem, is_near in zip(problems, near, strict=True) if not is_near}
        assert fold.seen == len(learned) > 0 and fold.blurred != PRESENT


def test_the_command_scores_left_out_families_and_writes_rates(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fit_rates, "load_recording", lambda args: make_recording("fp8_gemm"))
    words = ["--folds", "2", "--generations", "3", "--jobs", "1", "--write", str(tmp_path / "rates.json")]
    assert fit_rates.main(words) == 0
    shown = capsys.readouterr().out
    assert "| fp8_gemm | 12 |" in shown and "fitted to a sample of these" in shown
    assert (tmp_path / "rates.json").read_text().count(":") == len(PRESENT)


def test_figures_of_a_record_follow_from_its_rates(tmp_path, monkeypatch):
    recording = make_recording("fp8_gemm", "bf16_gemm")
    few = recording.entries[0]._replace(is_counted=False)
    recording = recording._replace(entries=[few, *recording.entries[1:]])
    monkeypatch.setattr(fit_rates, "load_recording", lambda args: recording)
    words = ["--folds", "2", "--generations", "2", "--jobs", "1", "--whole", "--record"]
    assert fit_rates.main([*words, "--out", str(tmp_path / selector.RATES)]) == 0
    record = read_json(tmp_path / selector.RATES)
    problems = [entry.problem for entry in recording.entries]
    splits = split_families(problems, find_families(problems), 2)
    found: dict = {op: [] for op in record["ops"]}
    for split, fold in zip(splits, record["folds"], strict=True):
        for index in np.flatnonzero(split.held_out):
            entry = recording.entries[index]
            picks = fit_rates.Scorer([entry], DEVICE).regrets(fold["refitted"])
            found[entry.op] += picks.tolist() if entry.is_counted else []
    for op, regrets in found.items():
        part = record["ops"][op]
        assert part["problems"] == len(regrets) == (11 if op == "fp8_gemm" else 12)
        assert part["refitted"]["mean"] == pytest.approx(np.expm1(np.log1p(regrets).mean()), abs=1e-4)
        assert part["refitted"]["max"] == pytest.approx(max(regrets), abs=1e-4)
    assert record["meta"]["heuristic_version"] == _C.heuristic_version(DEVICE.sku) and record["meta"]["complete"]


def test_op_kinds_of_the_present_record_can_stay(tmp_path, monkeypatch):
    """Where an evaluation is of rows that the database of the others lacks."""
    monkeypatch.setattr(fit_rates, "load_recording", lambda args: make_recording("fp8_gemm", "bf16_gemm"))
    path = tmp_path / selector.RATES
    words = ["--folds", "2", "--generations", "2", "--jobs", "1", "--whole", "--record", "--out", str(path)]
    assert fit_rates.main(words) == 0
    record = read_json(path)
    record["ops"]["bf16_gemm"] |= {"problems": 99}
    record["ops"]["fp8_gemm"] |= {"problems": 98}
    assert record["meta"]["kept"] == [] and record["meta"]["estimate_revision"] == {"bf16_gemm": 3, "fp8_gemm": 3}
    write_json(path, record)
    assert fit_rates.main([*words, "--keep", "bf16_gemm"]) == 0
    found = read_json(path)
    assert {op: part["problems"] for op, part in found["ops"].items()} == {"bf16_gemm": 99, "fp8_gemm": 12}
    assert found["meta"]["kept"] == ["bf16_gemm"] and found["meta"]["kernel_hash"] == record["meta"]["kernel_hash"]
    monkeypatch.setattr(fit_rates, "run_folds", lambda *_: pytest.fail("what is wrong is said before the fits"))
    with pytest.raises(ValueError, match="batched_fp8_gemm: not in"):
        fit_rates.main([*words, "--keep", "batched_fp8_gemm"])
    with pytest.raises(SystemExit):
        fit_rates.main(["--keep", "bf16_gemm"])
    write_json(path, found | {"meta": found["meta"] | {"heuristic_version": "another"}})
    with pytest.raises(ValueError, match="of another heuristic_version"):
        fit_rates.main([*words, "--keep", "bf16_gemm"])
    write_json(path, found)
    monkeypatch.setattr(_C, "estimate_revision", lambda op: 7)
    with pytest.raises(ValueError, match="of another estimate"):
        fit_rates.main([*words, "--keep", "bf16_gemm"])
    path.unlink()
    with pytest.raises(ValueError, match="no such file"):
        fit_rates.main([*words, "--keep", "bf16_gemm"])


@pytest.mark.parametrize("words", [
    [], ["--whole", "--folds", "0"], ["--whole", "--ops", "bf16_gemm"], ["--whole", "--blur", "0"],
    ["--whole", "--generations", "0"],
])  # fmt: skip
def test_a_record_is_of_folds_of_whole_problems_of_every_op_kind(words):
    with pytest.raises(SystemExit):
        fit_rates.parse(["--record", *words])


def make_figures(sku: str = DEVICE.sku, **regrets: float) -> tuple[dict, dict]:
    """Return an evaluation and a record of rates of the same rows, with these mean regrets of refitted rates; that of
    the package's rates is 0.01.
    """
    evaluation, rates = {"ops": {}}, {"ops": {}, "meta": {"sku": sku, "complete": True}}
    rates["meta"]["heuristic_version"] = _C.heuristic_version(sku)
    for op, mean in regrets.items():
        meta = make_source(op)
        figures = {"mean": 0.01, "p95": 0.05, "max": 0.1, "problems": 12}
        split = {"model": {"mean": 0.0}, "heuristic": figures}
        evaluation["ops"][op] = {"meta": meta | {"data": {**meta["data"], "families": 4}}, "splits": {"family": split}}
        if not selector.OP_KINDS[op].is_logits:
            refitted = {"mean": mean, "p95": 0.06, "max": 0.2}
            rates["ops"][op] = {"meta": meta, "problems": 12, "present": {"mean": 0.01}, "refitted": refitted}
    return evaluation, rates


def test_the_heuristic_alone_is_met_by_refitted_rates_only():
    evaluation, rates = make_figures(fp8_gemm=0.02, bf16_gemm=0.03, fp8_mqa_logits=0.0)
    entry = selector.make_s3(evaluation, rates)
    assert entry["is_met"] and entry["in_sample"] == [] and entry["value"] == 0.03 and entry["problems"] == 36
    assert entry["by_op"] == {"fp8_gemm": 0.02, "bf16_gemm": 0.03, "fp8_mqa_logits": 0.01}
    assert set(entry["packaged"].values()) == {0.01}
    without = selector.make_s3(evaluation)
    assert not without["is_met"] and without["in_sample"] == ["bf16_gemm", "fp8_gemm"] and without["value"] == 0.01
    assert not selector.make_s3(*make_figures(fp8_gemm=0.031))["is_met"]
    assert selector.make_s3(*make_figures(m_grouped_fp8_gemm_masked=0.03), target="S3_grouped")["is_met"]


@pytest.mark.parametrize("change", [
    {"date": "2026-01-04"}, {"kernel_hash": {"fp8_gemm": "0" * 64}}, {"data": {"problems": 12, "timed": 401}},
])  # fmt: skip
def test_rates_fitted_to_other_rows_do_not_count(change):
    evaluation, rates = make_figures(fp8_gemm=0.02, bf16_gemm=0.02)
    rates["ops"]["fp8_gemm"]["meta"] |= change
    entry = selector.make_s3(evaluation, rates)
    assert not entry["is_met"] and entry["in_sample"] == ["fp8_gemm"]
    assert entry["by_op"] == {"fp8_gemm": 0.01, "bf16_gemm": 0.02}


@pytest.mark.parametrize("change", [{"present": {"mean": 0.02}}, {"problems": 11}])
def test_figures_of_another_best_or_of_fewer_problems_do_not_count(change):
    """A snapshot lacks search rows, so that its best configs are luckier than those of the evaluation."""
    evaluation, rates = make_figures(fp8_gemm=0.02)
    rates["ops"]["fp8_gemm"] |= change
    assert selector.make_s3(evaluation, rates)["in_sample"] == ["fp8_gemm"]


def test_rates_of_another_heuristic_do_not_count():
    evaluation, rates = make_figures(fp8_gemm=0.02)
    rates["meta"]["heuristic_version"] = "0" * 16
    assert selector.make_s3(evaluation, rates)["in_sample"] == ["fp8_gemm"]


def test_the_summary_reads_the_rates_beside_the_evaluation(tmp_path):
    evaluation, rates = make_figures(fp8_gemm=0.02)
    hashes, revisions = {"fp8_gemm": stale.current_kernel_hash()}, {"fp8_gemm": stale.estimate_revision("fp8_gemm")}
    evaluation["meta"] = {"kernel_hash": hashes, stale.ESTIMATES: revisions, "date": "2026-01-03"}
    write_json(tmp_path / "evaluation.json", evaluation)
    assert summary.make_entry("S3", tmp_path)["value"] == 0.01
    write_json(tmp_path / selector.RATES, rates)
    assert summary.make_entry("S3", tmp_path)["value"] == 0.02 and summary.make_entry("S3", tmp_path)["met"]
    rates["meta"]["complete"] = False
    write_json(tmp_path / selector.RATES, rates)
    assert not summary.make_entry("S3", tmp_path)["met"]


def test_the_recording_has_problems_of_every_op_kind_with_rates():
    op = "m_grouped_bf16_gemm_contiguous"
    entries, device, sources = fit_rates.load_recording(fit_rates.parse(["--ops", op]))
    assert device.sku == DEVICE.sku and len(entries) >= 90
    assert set(sources) == set(sources[op]["kernel_hash"]) == {op} and sources[op]["data"]["problems"] == len(entries)
    for entry in entries[:20]:
        assert len(entry.tiles) == len(entry.behind) >= 2


def test_an_entry_has_the_time_of_its_best_tile_whatever_is_faster_beside_the_tiles():
    problem = _C.Problem("fp8_gemm", 300, 4096, 7168)
    tiles = [_C.with_loop_knobs(problem, tile, DEVICE) for tile in _C.get_candidates(problem, DEVICE)[:3]]
    beside = _C.Config(64, 16, 3)
    assert beside not in tiles
    data = SimpleNamespace(
        configs=[beside, *tiles],
        problems=[problem],
        device=DEVICE,
        identity=SimpleNamespace(op="fp8_gemm"),
        full_space=np.array([False]),
        state=np.full((1, 4), fit_rates.UNMEASURED + 1),
        heuristic_us=np.array([10.0]),
        log_ratio=np.log([[0.5, 1.0, 0.8, 1.2]]),
        oracle=[0],
        regret_log=lambda rows, columns: np.log([0.5, 1.0, 0.8, 1.2])[columns] - np.log(0.5),
    )
    [entry] = fit_rates.list_entries(data)
    assert entry.best_us == pytest.approx(8.0) and not entry.is_counted
    assert fit_rates.list_entries(data, is_whole=True) == [], "it has more candidates than three"


@pytest.mark.full
def test_the_page_shows_the_present_rates_on_the_recording():
    """The column of the present rates; those of the fits take minutes."""
    page = (Path(__file__).parents[3] / "docs" / "search.md").read_text(encoding="utf-8")
    words, table = re.search(
        r"<!-- rates: python -m benchmarks.fit_rates (.*?) -->\n(.*?)\n<!-- end -->", page, re.S
    ).groups()
    entries, device, _ = fit_rates.load_recording(fit_rates.parse(words.split()))
    shown = fit_rates.format_scores({"present": fit_rates.Scorer(entries, device).regrets_by_op(PRESENT)})
    first, second = ([line.split("|")[1:4] for line in text.splitlines()[2:-1]] for text in (table, shown))
    assert first == second and len(first) == 11


def test_no_rate_exceeds_what_a_gpu_can_do():
    moved = fit_rates.apply(["hbm_gbps", "l2_gbps"], np.array([3.0, 3.0]), PRESENT)
    assert moved["hbm_gbps"] == fit_rates.MOST["hbm_gbps"] < 4800
    assert moved["l2_gbps"] == PRESENT["l2_gbps"] * np.exp(3.0)
