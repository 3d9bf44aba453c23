"""The noise between blocks: estimated from repeated blocks, and what a difference says in view of it."""

import copy
import math
import random

import numpy as np
import pytest

from tests.fakes import block_noise
from tuner.compare import blocks, noise, recorded, suspects
from tuner.measure import statistics

OP = "fp8_gemm"


@pytest.fixture(scope="module")
def rows():
    return block_noise.load_sweep(OP)


def draw_t3(generator: np.random.Generator, *shape: int) -> np.ndarray:
    """Return draws of Student's t with 3 degrees of freedom."""
    return generator.standard_t(3, shape)


def test_the_tail_of_t3_is_that_of_drawn_values():
    drawn = draw_t3(np.random.default_rng(0), 200_000)
    for value in (-1.0, 0.0, 0.7, 2.3534, 4.54):
        assert noise.t3_tail(value) == pytest.approx(float((drawn > value).mean()), abs=0.004)
    assert noise.t3_tail(noise.T3_AT_SHARE) == pytest.approx((1.0 - noise.SHARE) / 2.0, abs=1e-4)


@pytest.mark.parametrize("get_chance", [noise.median_chance, noise.mean_chance])
@pytest.mark.parametrize("count", [6, 7, 40])
def test_equal_kernels_are_rarely_unlikely(get_chance, count):
    drawn = draw_t3(np.random.default_rng(count), 1000, count)
    for share in (0.05, 0.2):
        found = np.mean([get_chance(list(values)) <= share for values in drawn])
        assert found <= share + 3.0 * math.sqrt(share / 1000.0)
    assert get_chance([]) == 1.0 and get_chance([3.0] * count) < 1e-3 < 0.99 < get_chance([-3.0] * count)


def test_medians_of_others_leave_each_value_out():
    generator = random.Random(1)
    for count in range(2, 9):
        values = [generator.gauss(0.0, 1.0) for _ in range(count)]
        wanted = [statistics.median(values[:index] + values[index + 1 :]) for index in range(count)]
        assert statistics.medians_of_others(values) == pytest.approx(wanted)


def test_sentinels_tell_a_quiet_sweep_from_a_noisy_one(rows):
    sessions = block_noise.Sessions(rows, 0)
    prior = noise.Noise()
    assert noise.estimate_noise([rows, rows]) == prior  # no block twice
    measured = noise.estimate_noise([sessions.measure_sentinels(OP) for _ in range(2)])
    assert measured.pairs == 2 * 2 * (block_noise.VISITS - 1)
    assert 0.5 * prior.block < measured.block < 1.5 * prior.block
    quiet = [block_noise.calm(sessions.measure_sentinels(OP)) for _ in range(2)]
    assert noise.estimate_noise(quiet).block < 0.8 * prior.block


def test_many_pairs_narrow_what_few_sentinels_say():
    generator, prior = np.random.default_rng(0), noise.Noise(own=0.01)

    def draw(scale: float, problems: int = 60) -> list[list[float]]:
        return [list(scale * generator.standard_t(3, 8)) for _ in range(problems)]

    assert noise.narrow_own(prior, draw(0.007)).own == pytest.approx(0.007, rel=0.1)
    assert noise.narrow_own(prior, draw(0.02)) == prior == noise.narrow_own(prior, draw(0.007, 12))
    assert noise.narrow_own(prior, draw(0.001)).own == 0.005
    assert noise.narrow_own(prior, [[0.0] * 8] * 60) == prior  # blocks that are the same on both sides


def find(rows: list, seed: int, slow_down=lambda row: 1.0, whole: float = 1.0) -> recorded.Part:
    """Compare a pair of sweeps of one seed."""
    sides = block_noise.make_sides(block_noise.Sessions(rows, seed), OP, slow_down, whole)
    return recorded.compare_sides(sides)[0]


def test_a_comparison_takes_the_noise_of_its_own_pairs_where_that_is_smaller(rows):
    part = find(rows, 1)
    estimated = noise.estimate_noise([blocks.take_repeated(side.rows) for side in (part.a, part.b)])
    assert part.noise.own < 0.9 * estimated.own and part.noise.block == estimated.block


def test_a_config_is_judged_by_the_mean_of_its_problems_and_a_single_pair_by_the_median():
    """Half of the values are 0, so that the lower median says nothing."""
    values = [recorded.Value(difference, 0.007) for difference in (0.0, 0.03) * 12]
    of_config, of_pair = (recorded.Finding(kind, values) for kind in ("config", "pair"))
    assert of_config.chance(1) < 1e-3 and of_pair.chance(1) > 0.1
    shown, other = of_config.to_json(), of_pair.to_json()
    assert 1.01 < shown["ratio_low"] < shown["ratio"] < shown["ratio_high"] < 1.02 and shown["problems"] == 24
    assert shown["ratio"] == pytest.approx(math.exp(0.015)) and other["ratio_low"] == 1.0


def is_clean(part: recorded.Part) -> bool:
    """Return whether nothing is called slower, faster or suspect."""
    return all(finding.verdict == "same" for finding in part.findings)


def count_problems(rows: list) -> dict:
    """Return {config: problems} of the configs that were measured on enough of them."""
    found: dict = {}
    for row in rows:
        found[row.config] = found.get(row.config, 0) + 1
    return {config: count for config, count in found.items() if count >= 12}


def finds_config(rows: list, seed: int) -> bool:
    """Plant 2 % in one config; return whether it alone is called slower."""
    configs = list(count_problems(rows))
    slowed = configs[seed % len(configs)]
    part = find(rows, seed, lambda row: 1.02 if row.config == slowed else 1.0)
    return [one.config for one in part.findings if one.verdict == "slower"] == [slowed]


def finds_whole(rows: list, seed: int) -> bool:
    """Plant 2 % in every kernel; return whether the sweep is a suspect, and no config is blamed."""
    part = find(rows, seed, whole=1.02)
    verdicts = {one.verdict for one in part.of_kind("config")}
    return part.of_kind("whole")[0].verdict == "suspect" and verdicts == {"same"}


def test_a_slowed_config_and_a_slowed_sweep_are_found_and_equal_ones_are_clean(rows):
    assert finds_config(rows, 0) and finds_whole(rows, 0) and is_clean(find(rows, 0))


@pytest.mark.full
def test_two_percent_are_found_in_nearly_every_seed(rows):
    seeds = range(1000, 1200)
    found = {check.__name__: sum(check(rows, seed) for seed in seeds) for check in (finds_config, finds_whole)}
    print(found)
    assert min(found.values()) >= 190


@pytest.mark.full
def test_equal_sweeps_are_clean_in_nearly_every_seed(rows):
    clean = sum(is_clean(find(rows, seed)) for seed in range(2000, 2200))
    naive = block_noise.measure_naive(rows, range(2000, 2020))
    print(clean, naive)
    assert clean >= 190 and naive > 0.05  # what the interval of each block alone says


@pytest.mark.full
def test_what_a_single_slowed_pair_needs(rows):
    """One pair in one block is beyond a recording; it is among those that a second measurement looks at."""
    near = block_noise.take_near(rows)
    listed = {}
    for factor in (1.02, 1.05, 1.1):
        hits = 0
        for seed in range(100):
            slowed = near[(37 * seed) % len(near)]
            part = find(rows, seed, lambda row, slowed=slowed, factor=factor: factor if row is slowed else 1.0)
            hits += (slowed.block.problem, slowed.config) in suspects.list_suspects([part])
        listed[factor] = hits
    print(listed)
    assert listed[1.02] < listed[1.05] <= listed[1.1] and listed[1.1] >= 95


def test_a_second_measurement_settles_suspects(rows):
    part = find(rows, 3, whole=1.05)
    other, whole = copy.deepcopy(part), part.of_kind("whole")[0]
    pairs = suspects.list_suspects([part])
    assert whole.verdict == "suspect" and set(suspects.represent(part, whole)) <= set(pairs)
    suspects.settle([part], {})
    assert whole.verdict == "suspect"  # nothing was measured
    suspects.settle([part], dict.fromkeys(pairs, "same"))
    assert whole.verdict == "same" and recorded.choose_exit_code(recorded.describe([part])) == 0
    suspects.settle([other], dict.fromkeys(pairs, "slower"))
    assert other.of_kind("whole")[0].verdict == "slower"
    assert recorded.choose_exit_code(recorded.describe([other])) == 1


def test_op_kinds_with_the_same_kernels_say_what_the_session_did(rows):
    """All of B is 3 % slower, also where the kernels are the same: it is the session, not the changed kernels."""
    sessions = block_noise.Sessions(rows, 5)
    changed = block_noise.make_sides(sessions, OP, lambda row: 1.0, 1.04)[OP]
    same = (changed[0], recorded.Side(sessions.measure(lambda row: 1.04)))
    alone, beside = (
        recorded.compare_sides(sides)[0].of_kind("whole")[0] for sides in ({OP: changed}, {OP: changed, "other": same})
    )
    assert alone.verdict == "suspect" and beside.verdict == "same"
