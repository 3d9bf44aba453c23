"""Blocks that went through different numbers of draws of the group sizes: which of them a table reads."""

import math
from dataclasses import replace

import numpy as np
import pytest

from deep_gemm import _C
from tests.fakes import synthetic
from tuner import errors
from tuner.learn.dataset import UNMEASURED, build_dataset
from tuner.learn.learner import list_ranked
from tuner.problems.regimes import name_rested
from tuner.problems.workload import count_stored_draws

DEVICE = _C.Device.known(synthetic.SKU)
PROBLEM, OTHER = (_C.Problem("fp8_gemm", m, 2112, 7168) for m in (64, 4096))
PICK = _C.get_analytic_config(PROBLEM, DEVICE)
A, B = [config for config in _C.get_candidates(PROBLEM, DEVICE) if config != PICK][:2]
MACHINE = synthetic.Machine()


def make_block(draws: int, ratios: dict, *, rested: bool = False, status: str = "ok") -> list:
    """Return the rows of a block of one problem: {config: time over the pick's}; `status` is that of B."""
    block = MACHINE.make_block(PROBLEM, PICK)
    block = replace(block, block_id=2 * draws + rested, workload=f'{{"draws":{draws}}}' if draws > 1 else "{}")
    block = replace(block, regime=name_rested(block.regime)) if rested else block
    rows = [MACHINE.make_row(block, config, "search", ratio, 1.0, 0.0) for config, ratio in ratios.items()]
    return [replace(row, status=status) if row.config == B else row for row in rows]


def build(*blocks: list):
    """Return the table of some blocks and of another problem, which was measured over its whole space."""
    pick = _C.get_analytic_config(OTHER, DEVICE)
    configs = dict.fromkeys([pick, *_C.get_candidates(OTHER, DEVICE)])
    other = MACHINE.make_block(OTHER, pick)
    whole = [MACHINE.make_row(other, config, "search", 1.0 + 0.1 * (config != pick), 1.0, 0.0) for config in configs]
    return build_dataset([row for block in blocks for row in block] + whole, synthetic.IDENTITY, DEVICE)


def ratio_of(data, config) -> float | None:
    """Return a config's time over the pick's, None where no row counts."""
    if config not in data.configs:
        return None
    cell = data.problems.index(PROBLEM), data.configs.index(config)
    return None if data.state[cell] == UNMEASURED else math.exp(data.log_ratio[cell])


def test_of_each_config_the_blocks_of_most_draws_count():
    data = build(
        make_block(1, {PICK: 1.0, A: 0.5, B: 1.1}),
        make_block(2, {PICK: 1.0, A: 0.3}),
        make_block(4, {PICK: 1.0, A: 1.2}),
    )
    assert ratio_of(data, A) == pytest.approx(1.2)
    assert ratio_of(data, B) == pytest.approx(1.1)  # of one draw, which is all that there is


def test_rests_of_fewer_draws_do_not_count():
    steady = make_block(4, {PICK: 1.0, A: 1.2, B: 1.1})
    for draws, wanted in ((1, 1.2), (4, math.sqrt(1.2 * 0.5))):
        data = build(steady, make_block(draws, {PICK: 1.0, A: 0.5}, rested=True))
        assert ratio_of(data, A) == pytest.approx(wanted)


@pytest.mark.parametrize(("draws", "is_banned"), [(4, True), (1, False)])
def test_a_config_that_is_wrong_with_more_draws_is_banned(draws, is_banned):
    wrong = make_block(draws, {PICK: 1.0, B: 1.0}, status="incorrect")
    data = build(make_block(5 - draws, {PICK: 1.0, B: 0.9}), wrong)
    assert (B in data.quarantined) == is_banned
    assert (ratio_of(data, B) is None) == is_banned


@pytest.mark.parametrize("text", ["{bad}", "[]", '{"draws":null}', '{"draws":0}', '{"draws":true}', '{"draws":NaN}'])
def test_a_damaged_workload_is_said(text):
    with pytest.raises(errors.IntegrityError, match=r"block\.workload = .*db check"):
        count_stored_draws(text)


@pytest.mark.parametrize("kind, feature, least", _C.LATE_KINDS)
def test_trees_are_scored_on_what_their_hull_holds(kind, feature, least):
    problem = {
        "adds": _C.Problem("bf16_gemm", 4096, 4096, 4096, d_dtype="fp32", c_mode="accumulate"),
        "pairs": _C.Problem("m_grouped_fp8_gemm_contiguous", 32768, 4096, 4096, num_groups=8, alignment=128),
        "beside": _C.Problem("m_grouped_fp8_gemm_masked", 4096, 4672, 3072, num_groups=8, expected_m=142),
    }[kind]
    highest, lowest = np.full(len(_C.config_feature_names()), 1e9), np.zeros(len(_C.config_feature_names()))
    for top in (float(least), least - 0.5):
        place = _C.config_feature_names().index(feature)
        lowest[place] = highest[place] = top
        wanted = _C.get_shortlist(problem, DEVICE, _C.NUM_RANKED, **{kind: top >= least})
        assert list_ranked(problem, DEVICE, (lowest, highest)) == wanted
