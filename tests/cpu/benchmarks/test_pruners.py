"""The comparison of the race's rule with optuna's WilcoxonPruner: what it draws, and what the rules do with it."""

import numpy as np
import pytest

from benchmarks import pruners

RATIOS = np.array([1.0, 1.02, 1.2, 1.7, 3.0, 1.01])


def draw(rounds: int) -> np.ndarray:
    """Return times[round, config] with a little noise."""
    return RATIOS * np.exp(np.random.default_rng(0).normal(scale=0.002, size=(rounds, len(RATIOS))))


@pytest.mark.parametrize("name", pruners.RULES)
def test_the_best_config_wins_and_slow_ones_are_dropped(name):
    times = draw(8)
    winner, spent = pruners.race(times, pruners.RULES[name], finalists=2)
    assert winner == 0 and spent < times.sum()


def test_three_rounds_tell_neither_enough_and_the_race_drops_after_the_third():
    times = draw(3)
    for rule in (pruners.is_pruned, pruners.is_hopeless):
        assert pruners.race(times, rule, 1)[1] == pytest.approx(times.sum())
    times = draw(5)
    dropped = times[3:, 3:5].sum()  # those of 1.7 and 3.0
    assert pruners.race(times, pruners.is_hopeless, 1)[1] == pytest.approx(times.sum() - dropped)


def test_both_rules_see_the_same_rounds():
    found = pruners.compare([(RATIOS, np.full(len(RATIOS), 1e-4))], rounds=4, seeds=2, finalists=1)
    assert found["race"][0] == found["wilcoxon"][0] == 0.0 and found["race"][1] < 0.98
    assert found["wilcoxon"][1] == pytest.approx(1.0)
