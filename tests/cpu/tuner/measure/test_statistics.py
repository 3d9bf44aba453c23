"""Statistics of paired timings: coverage of the intervals, dropping, tie sets and the order of winners."""

import math
import random

import numpy as np
import pytest
import scipy.stats

from deep_gemm import _C
from tuner.measure import statistics
from tuner.measure.records import Result
from tuner.measure.statistics import Timed
from tuner.search.winners import choose_winner


def make_timed(ratio: float, config=None, **flags: bool) -> Timed:
    """Return a timed config."""
    return Timed(config or _C.Config(64, 64, 4), ratio, **flags)


def test_summary_agrees_with_numpy():
    samples = [random.Random(seed).lognormvariate(2.0, 0.2) for seed in range(31)]
    summary = statistics.summarize(samples)
    assert summary.median_us == pytest.approx(np.median(samples))
    assert summary.q10_us == pytest.approx(np.quantile(samples, 0.1)) and summary.q90_us == pytest.approx(
        np.quantile(samples, 0.9)
    )
    assert (
        summary.mad_us == pytest.approx(np.median(np.abs(samples - np.median(samples)))) and summary.num_samples == 31
    )
    assert statistics.summarize([3.0]) == (3.0, 0.0, 3.0, 3.0, 1)


@pytest.mark.parametrize(("count", "rank"), [(5, 0), (6, 1), (10, 2), (30, 10), (40, 14)])
def test_rank_is_that_of_the_sign_test(count, rank):
    assert statistics.binomial_rank(count, 0.025) == rank


def test_median_intervals_hold_the_median_as_often_as_promised():
    generator = np.random.default_rng(1)
    draws = generator.lognormal(0.0, 0.5, size=(4000, 30))
    hits = [low <= 1.0 <= high for low, high in (statistics.median_interval(list(row)) for row in draws)]
    assert 0.95 <= np.mean(hits) <= 0.97
    assert statistics.median_interval([2.0, 1.0, 3.0]) == (1.0, 3.0)


def test_lower_bound_needs_seven_values():
    assert statistics.lower_bound([1.0] * 6) is None
    assert statistics.lower_bound([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]) == 1.0


def test_dropping():
    assert not statistics.is_hopeless([9.0]) and not statistics.is_hopeless([9.0, 9.0])  # too few samples
    assert statistics.is_hopeless([1.4, 1.51, 1.52]) and not statistics.is_hopeless([1.4, 1.5, 1.52])
    assert not statistics.is_hopeless([1.0, 1.1, 4.4, 4.4])  # two launches were held up
    assert not statistics.is_hopeless([1.2] * 6)
    assert statistics.is_hopeless([1.2] * 7)
    assert not statistics.is_hopeless([1.09] * 20)


def test_far_is_what_was_slow_in_each_of_three_launches():
    assert statistics.is_far([2.6, 2.6, 9.0], [1.0, 1.0, 1.0])
    assert not statistics.is_far([2.5, 9.0, 9.0], [1.0, 1.0, 1.0])  # one launch alone is near enough
    assert not statistics.is_far([2.6, 2.6, 9.0], [1.0, 1.0, 1.1])  # the board slowed the best one, too
    assert not statistics.is_far([9.0, 9.0], [1.0, 1.0])  # too few samples
    assert not statistics.is_far([9.0, 9.0, 9.0], [1.0, 1.0])


def test_noise_of_equal_configs_shrinks_with_rounds():
    generator = random.Random(2)
    few, many = ([math.exp(generator.gauss(0.0, 0.01)) for _ in range(count)] for count in (10, 400))
    assert 0.0 < statistics.measure_noise(many) < statistics.measure_noise(few) < 0.05
    assert statistics.measure_noise([1.0]) == 0.0
    for ratio in (0.9, 1.1):
        assert statistics.measure_noise([ratio] * 10) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("best_us", "noise", "limit_us"),
    [(1000.0, 0.0, 5.0), (1000.0, 0.004, 8.0), (3.0, 0.001, 0.2), (100.0, 0.002, 0.5)],
)
def test_tie_threshold_is_the_largest_of_three(best_us, noise, limit_us):
    assert statistics.tie_threshold_us(best_us, noise) == pytest.approx(limit_us)


def test_tie_set_holds_what_cannot_be_told_from_the_fastest():
    timed = [make_timed(1.0), make_timed(0.9), make_timed(0.903), make_timed(0.906)]
    assert [entry.ratio for entry in statistics.find_tie_set(timed, 1000.0, 0.0)] == [0.9, 0.903]
    assert [entry.ratio for entry in statistics.find_tie_set(timed, 1.0, 0.0)] == [0.9, 0.903, 0.906, 1.0]


def test_noise_makes_ties():
    timed = [make_timed(1.0), make_timed(1.0055), make_timed(1.0075)]
    for noise, count in ((0.0, 1), (0.0025, 1), (0.003, 2), (0.004, 3)):
        assert len(statistics.find_tie_set(timed, 1000.0, noise)) == count


def test_the_winner_of_a_block_is_among_what_its_noise_cannot_tell_apart():
    fast, heuristic = _C.Config(64, 64, 4), _C.Config(128, 128, 4)
    rows = [
        Result(config=config, role="confirm", status="ok", ratio=ratio)
        for config, ratio in ((fast, 1.0), (heuristic, 1.006))
    ]
    for noise, winner, ties in ((0.0, fast, [fast]), (0.004, heuristic, [fast, heuristic])):
        assert choose_winner(rows, heuristic, 1000.0, noise, set()) == (winner, ties)


def test_winner_follows_the_fixed_order():
    plain, deep = _C.Config(64, 64, 4), _C.Config(64, 64, 8)
    wide = _C.Config(64, 64, 4, cluster_m=2)
    assert statistics.choose_winner([make_timed(0.9, plain), make_timed(1.0, deep, is_heuristic=True)]).config == deep
    assert statistics.choose_winner([make_timed(0.9, plain), make_timed(1.0, deep, in_portfolio=True)]).config == deep
    assert statistics.choose_winner([make_timed(0.9, deep), make_timed(1.0, plain)]).config == plain
    assert statistics.choose_winner([make_timed(0.9, wide), make_timed(1.0, plain)]).config == plain
    others = [_C.Config(64, block_n, 4) for block_n in (16, 32, 64)]
    first = min(others, key=lambda config: config.key("fp8_gemm"))
    assert statistics.choose_winner([make_timed(1.0, config) for config in others]).config == first


@pytest.mark.parametrize(
    "fewer, more",
    [({"num_stages": 4}, {"num_stages": 8}), ({"cluster_m": 1}, {"cluster_m": 2}), ({}, {"cluster_n": 2})],
)
def test_fewer_stages_and_smaller_clusters_win_whatever_the_keys_say(fewer, more):
    pairs = [
        tuple(_C.Config(64, block_n, **{"num_stages": 4} | knobs) for knobs in (fewer, more))
        for block_n in range(16, 264, 8)
    ]
    contrary = [pair for pair in pairs if pair[0].key("fp8_gemm") > pair[1].key("fp8_gemm")]
    assert contrary
    for simple, other in contrary:
        for order in ((simple, other), (other, simple)):
            assert statistics.choose_winner([make_timed(1.0, config) for config in order]).config == simple


def test_samples_of_different_rounds_are_never_paired():
    with pytest.raises(ValueError, match="longer"):
        statistics.paired_ratios([1.0], [1.0, 2.0])


def test_the_sign_test_is_that_of_scipy():
    for above, count in ((0, 10), (5, 10), (9, 10), (30, 48), (48, 48)):
        values = [1.1] * above + [0.9] * (count - above)
        expected = scipy.stats.binomtest(above, count, alternative="greater").pvalue
        assert statistics.sign_test(values, 1.0) == pytest.approx(expected)
    assert statistics.sign_test([], 1.0) == 1.0


def test_p_values_are_adjusted_as_by_scipy():
    generator = random.Random(3)
    chances = [generator.random() ** 3 for _ in range(40)] + [0.2, 0.2, 1e-9]
    assert statistics.adjust_for_many(chances) == pytest.approx(scipy.stats.false_discovery_control(chances))
    assert statistics.adjust_for_many([]) == []
