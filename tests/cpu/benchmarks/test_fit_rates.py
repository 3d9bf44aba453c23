"""Fitting the heuristic's rates: it finds rates that a recording was made with, and scores on families it left out."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import fit_rates
from deep_gemm import _C
from tests.fakes.databases import DEVICE

PRESENT = _C.heuristic_constants()
#: Rates of a made-up GPU on which stores and steps cost other than on an H200.
TRUE = PRESENT | {"epilogue_row_ns": 6 * PRESENT["epilogue_row_ns"], "load_latency_ns": PRESENT["load_latency_ns"] / 3}
SIZES = [(m, n, k) for m in (48, 300, 1500) for n, k in ((2112, 7168), (4096, 1536), (24576, 1536), (7168, 16384))]


def make_entries(op: str = "fp8_gemm") -> list[fit_rates.Entry]:
    """Return problems whose times are those that the estimate gives with TRUE."""
    entries = []
    for number, size in enumerate(SIZES):
        problem = _C.Problem(op, *size)
        tiles = _C.get_candidates(problem, DEVICE)
        times = np.log(_C.estimate_times_us(problem, tiles, DEVICE, TRUE))
        behind = np.minimum(times - times.min(), fit_rates.SLOWEST)
        entries.append(fit_rates.Entry(op, number % 4, problem, tiles, behind, float(np.exp(times.min()))))
    return entries


def mean_regret(entries: list[fit_rates.Entry], rates: dict[str, float]) -> float:
    """Return the mean regret of the picks of some rates."""
    (values,) = fit_rates.Scorer(entries, DEVICE).regrets(rates).values()
    return float(np.mean(values))


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


def test_a_family_is_in_one_fold():
    entries = make_entries() + make_entries("bf16_gemm")
    folds = fit_rates.split_families(entries, 3)
    assert set(folds) == {0, 1, 2}
    of_family: dict = {}
    for entry, fold in zip(entries, folds, strict=True):
        assert of_family.setdefault((entry.op, entry.family), fold) == fold


def test_the_command_scores_left_out_families_and_writes_rates(tmp_path, monkeypatch, capsys):
    entries = make_entries()
    monkeypatch.setattr(fit_rates, "load_entries", lambda args: (entries, DEVICE))
    words = ["--folds", "2", "--generations", "3", "--write", str(tmp_path / "rates.json")]
    assert fit_rates.main(words) == 0
    shown = capsys.readouterr().out
    assert "| fp8_gemm | 12 |" in shown and "fitted to a sample of these" in shown
    assert (tmp_path / "rates.json").read_text().count(":") == len(PRESENT)


def test_the_recording_has_problems_of_every_op_kind_with_rates():
    entries, device = fit_rates.load_entries(fit_rates.parse(["--ops", "k_grouped_bf16_gemm_contiguous"]))
    assert device.sku == DEVICE.sku and len(entries) >= 90
    for entry in entries[:20]:
        assert len(entry.tiles) == len(entry.behind) >= 2 and entry.behind.max() <= fit_rates.SLOWEST


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
        families=[0],
        state=np.full((1, 4), fit_rates.UNMEASURED + 1),
        heuristic_us=np.array([10.0]),
        log_ratio=np.log([[0.5, 1.0, 0.8, 1.2]]),
        oracle=[0],
        regret_log=lambda rows, columns: np.log([0.5, 1.0, 0.8, 1.2])[columns] - np.log(0.5),
    )
    [entry] = fit_rates.list_entries(data)
    assert entry.best_us == pytest.approx(8.0)
    assert fit_rates.list_entries(data, is_whole=True) == [], "it has more candidates than three"


@pytest.mark.full
def test_the_page_shows_the_present_rates_on_the_recording():
    """The column of the present rates; those of the fits take minutes."""
    page = (Path(__file__).parents[3] / "docs" / "search.md").read_text(encoding="utf-8")
    words, table = re.search(
        r"<!-- rates: python -m benchmarks.fit_rates (.*?) -->\n(.*?)\n<!-- end -->", page, re.S
    ).groups()
    entries, device = fit_rates.load_entries(fit_rates.parse(words.split()))
    shown = fit_rates.format_scores({"present": fit_rates.Scorer(entries, device).regrets(PRESENT)})
    first, second = ([line.split("|")[1:4] for line in text.splitlines()[2:-1]] for text in (table, shown))
    assert first == second and len(first) == 11


def test_no_rate_exceeds_what_a_gpu_can_do():
    moved = fit_rates.apply(["hbm_gbps", "l2_gbps"], np.array([3.0, 3.0]), PRESENT)
    assert moved["hbm_gbps"] == fit_rates.MOST["hbm_gbps"] < 4800
    assert moved["l2_gbps"] == PRESENT["l2_gbps"] * np.exp(3.0)
