"""What the page of `report` shows, from rows that are made by hand: which blocks and times, and in which order."""

import types

import pytest

from deep_gemm import _C
from tests.fakes.databases import CONFIGS
from tests.fakes.measured_rows import PROBLEMS, make_block, make_row, make_rows
from tuner.report import collect

H200 = _C.Device.known("h200")
TIMES = {0: 20.0, 1: 10.0, 2: 30.0}
FIRST = PROBLEMS[0]


def take(rows: list) -> dict:
    """Return {config: ratio} of the only block."""
    (block,) = collect.take_blocks(rows)
    return {CONFIGS.index(config): ratio for config, ratio in block.ratios.items()}


def test_the_newest_finished_block_is_shown():
    old = make_rows(make_block(FIRST, 1), {0: 5.0})
    new = make_rows(make_block(FIRST, 2), TIMES)
    open_ = make_rows(make_block(FIRST, 3, status="running"), {0: 1.0, 5: 1.0})
    other = make_rows(make_block(FIRST, 4, workload='{"sizes":"skewed","seed":1}'), {0: 1.0, 6: 1.0})
    for rows in ([*old, *new, *open_, *other], [*other, *open_, *new, *old]):
        assert take(rows) == {0: 1.0, 1: 0.5, 2: 1.5}


def test_a_confirmation_counts_more_than_a_search_and_failures_not_at_all():
    block = make_block(FIRST)
    rows = [
        make_row(block, 0, 20.0, ratio=1.0), make_row(block, 1, 10.0, ratio=0.5),
        make_row(block, 1, 8.0, role="search", ratio=0.4), make_row(block, 2, 8.0, role="search", ratio=0.4),
        make_row(block, 3, 1.0, status="incorrect", ratio=0.05),
        make_row(block, 4, 60.0, role="search", status="censored", ratio=3.0),
    ]  # fmt: skip
    assert take(rows) == take(rows[::-1]) == {0: 1.0, 1: 0.5, 2: 0.4, 4: 3.0}


def test_a_block_without_its_reference_is_left_out():
    assert collect.take_blocks(make_rows(make_block(FIRST, reference_config_id=9), TIMES)) == []


def make_blocks(count: int, problems=PROBLEMS) -> list:
    """Return blocks of several m, in which the second config is best by half."""
    return collect.take_blocks([row for problem in problems[:count] for row in make_rows(make_block(problem), TIMES)])


def test_regret_is_to_the_best():
    block = make_blocks(1)[0]
    assert [block.regret(CONFIGS[index]) for index in range(4)] == pytest.approx([100.0, 0.0, 200.0, None])


def test_curves_are_sorted_regrets_of_what_is_chosen(monkeypatch):
    blocks = make_blocks(6)
    chosen = [1, 2, 0, 1, 5, 1]
    picks = {block.problem: CONFIGS[index] for block, index in zip(blocks, chosen, strict=True)}
    monkeypatch.setattr(collect, "_C", types.SimpleNamespace(get_analytic_config=lambda problem, _: picks[problem]))
    monkeypatch.setattr(collect.deep_gemm, "get_best_config", lambda problem, device: CONFIGS[1])
    heuristic, library = collect.collect_curves(blocks, H200)
    assert heuristic["regrets"] == [0.0, 0.0, 0.0, 100.0, 200.0] and not heuristic["is_main"]
    assert heuristic["mean"] == pytest.approx(60.0) and heuristic["p95"] == pytest.approx(180.0)
    assert library["regrets"] == [0.0] * 6 and library["is_main"]


@pytest.mark.parametrize("count, shown", [(4, 0), (5, 1), (8, 1)])
def test_a_curve_needs_several_sizes(count, shown):
    blocks = make_blocks(count)
    assert len(collect.collect_sweeps(blocks)) == shown and bool(collect.collect_heat_map(blocks)) == bool(shown)


def test_sweeps_are_in_microseconds_by_m():
    (found,) = collect.collect_sweeps(make_blocks(8)[::-1])
    assert [row["m"] for row in found["rows"]] == sorted(problem.m for problem in PROBLEMS)
    assert all((row["best_us"], row["heuristic_us"]) == (10.0, 20.0) for row in found["rows"])


def test_the_heat_map_shows_the_best_configs_first():
    found = collect.collect_heat_map(make_blocks(8))
    assert [row["name"] for row in found["rows"]] == [str(CONFIGS[index]) for index in (1, 0, 2)]
    assert set(found["rows"][1]["slowdowns"].values()) == {100.0}


def test_the_roofline_counts_work_and_bytes():
    found = collect.collect_roofline("fp8_gemm", make_blocks(1), H200)
    m, n, k = FIRST.m, FIRST.n, FIRST.k
    work, moved = 2.0 * m * n * k, k * (m + n) + 2 * m * n
    assert found["points"] == [[round(work / moved, 3), round(work / 10.0 * 1e-6, 3)]]
    assert found["peak_tflops"] == pytest.approx(8192 * 132 * H200.clock_mhz * 1e-6)
    assert collect.collect_roofline("fp8_mqa_logits", make_blocks(1), H200) is None
    h20 = _C.Device.known("h20")  # a quarter of the tensor cores, 296 TFLOPS of FP8 by its data sheet
    assert collect.collect_roofline("fp8_gemm", make_blocks(1), h20)["peak_tflops"] == pytest.approx(296, rel=0.1)


def test_sentinels_are_no_rows_of_the_page(monkeypatch):
    rows = [*make_rows(make_block(FIRST, 1), TIMES), *make_rows(make_block(FIRST, 2, regime="a-sentinel"), {0: 1.0})]
    found = {
        "kernel_hash": {"newest": "ab", "matches": True}, "failures": {"statuses": {}}, "coverage": {},
        "noise": {"block": None},
    }  # fmt: skip
    monkeypatch.setattr(collect, "inspect", lambda store, sku, op: found)
    store = types.SimpleNamespace(load_measurements=lambda **wanted: rows)
    page = collect.collect_op(store, H200, "fp8_gemm")
    assert (page["rows"], page["problems"], page["newest"]) == (3, 1, "2026-01-01")
