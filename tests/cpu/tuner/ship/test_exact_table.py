"""Which times speak for an entry of the exact table."""

from types import SimpleNamespace

import numpy as np
import pytest

from deep_gemm import _C
from tuner.learn.dataset import CONFIRMED, SEARCHED, UNMEASURED
from tuner.ship import exact_table

PROBLEM = _C.Problem("bf16_gemm", 4096, 129280, 7168)
PICK, OTHER, THIRD = _C.Config(64, 64, 13), _C.Config(64, 144, 7), _C.Config(128, 160, 4)


def choose(times, states, portfolio, room=64, search=None):
    """Return all configs and the config of the entry, None without one; times: log ratios of PICK, which is the
    heuristic's, OTHER and THIRD.
    """
    data = SimpleNamespace(
        problems=[PROBLEM],
        configs=[PICK, OTHER, THIRD],
        device=_C.Device.known("h200"),
        log_ratio=np.array([times]),
        search=np.array([search or times]),
        state=np.array([states]),
        heuristic=np.array([0]),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_table, "MAX_CONFIGS", room)
        configs, exact = exact_table.choose_exact(data, portfolio)
    return configs, configs[exact[PROBLEM]] if exact else None


@pytest.mark.parametrize(
    ("states", "portfolio", "entry"),
    [
        ((CONFIRMED, SEARCHED, CONFIRMED), [PICK, OTHER], PICK),
        ((CONFIRMED, CONFIRMED, CONFIRMED), [PICK, OTHER], OTHER),
        ((SEARCHED, SEARCHED, CONFIRMED), [PICK, OTHER], None),
        ((SEARCHED, SEARCHED, SEARCHED), [PICK, OTHER], OTHER),
        ((UNMEASURED, UNMEASURED, SEARCHED), [PICK, OTHER], None),
    ],
)
def test_a_lucky_search_round_is_no_entry_beside_confirmed_times(states, portfolio, entry):
    """Three rounds of a cooler GPU once gave a BF16 product of 11 ms a config that takes a fifth more time."""
    assert choose([0.0, -0.02, -0.005], states, portfolio) == (portfolio, entry)


def test_confirmation_rounds_decide_among_finalists():
    """The best of the search rounds, by which a regret is scored, may have been the luckiest."""
    every = (CONFIRMED, CONFIRMED, CONFIRMED)
    found = choose([0.0, -0.02, 0.055], every, [PICK, OTHER, THIRD], search=[0.0, -0.01, -0.04])
    assert found == ([PICK, OTHER, THIRD], OTHER)
    # It does not join for these rounds either.
    assert choose([0.0, -0.02, 0.055], every, [PICK, OTHER], search=[0.0, -0.01, -0.04]) == ([PICK, OTHER], OTHER)


def test_a_pick_without_confirmed_time_keeps_no_entry_out():
    """It was no finalist, and its few rounds are of another GPU's heat."""
    states = (SEARCHED, UNMEASURED, CONFIRMED)
    assert choose([-0.08, 0.69, 0.035], states, [THIRD])[1] == THIRD
    assert choose([-0.08, 0.69, 0.035], (CONFIRMED, *states[1:]), [THIRD], room=1)[1] is None


def test_one_confirmed_config_of_the_portfolio_is_the_entry():
    assert choose([0.0, -0.02, 0.005], (SEARCHED, SEARCHED, CONFIRMED), [PICK, OTHER, THIRD])[1] == THIRD
