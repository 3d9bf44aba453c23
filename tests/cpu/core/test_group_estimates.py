"""What the heuristic knows of groups alone: rows that only the device knows, and C that a tile waits for."""

import itertools
import math

import numpy as np
import pytest

from deep_gemm import _C
from tests.fakes.grouped_variants import CONTIGUOUS, K_GROUPED, MASKED, make_grouped

H200 = _C.Device.known("h200")
NAMES = _C.config_feature_names()
#: The rows of a masked group over those expected, as the heuristic draws them.
SHARES = [0.7 + 0.6 * (index + 0.5) / 16 for index in range(16)]
SIZES = (1024, 4096, 7168)


def named(problem, config) -> dict[str, float]:
    """Return the features of a config by name."""
    return dict(zip(NAMES, _C.get_config_features(problem, H200, [config])[0].tolist(), strict=True))


def masked(op: str, groups: int, expected: int):
    """Return a masked problem and a tile of 128 x 128: 32 tiles along n."""
    problem = make_grouped(op, *SIZES, groups, expected_m=expected)
    return problem, _C.Config(128, 128, 4, block_k=64 if "bf16" in op else 128)


@pytest.mark.parametrize("op", MASKED)
@pytest.mark.parametrize("expected", [40, 200, 512, 1000])
def test_the_rounds_of_one_group_are_the_mean_over_its_draws(op, expected):
    problem, config = masked(op, 1, expected)
    tiles = [math.ceil(min(expected * share, 1024) / 128) * 32 for share in SHARES]
    values = named(problem, config)
    assert values["rounds"] == pytest.approx(sum(math.ceil(count / 132) for count in tiles) / 16)


def share_tiles(problem, block_m: int) -> np.ndarray:
    """Return the shares of groups with 0, 1, ... tiles along m, where rows are 0.7 to 1.3 times the expected ones."""
    rows = np.floor(problem.expected_m * (0.7 + 0.6 * (np.arange(600) + 0.5) / 600) + 0.5)
    return np.bincount(np.ceil(np.minimum(rows, problem.m) / block_m).astype(int)) / len(rows)


def mean_rounds(problem, config) -> float:
    """Return the mean rounds over all that groups which are drawn apart may hold."""
    one, shares = share_tiles(problem, config.block_m), np.ones(1)
    for _ in range(problem.num_groups):
        shares = np.convolve(shares, one)
    columns, slots = math.ceil(problem.n / config.block_n), 132 * _C.blocks_per_sm(problem, config)
    return float(shares @ np.ceil(np.arange(len(shares)) * columns / slots))


@pytest.mark.parametrize("op", MASKED)
def test_groups_are_drawn_apart(op):
    """Sums of the shape of one group's tiles were off by up to a third, and by 3 to 4 % in the root mean square."""
    errors = []
    expected = (5, 40, 72, 104, 300, 640, 4000)  # the last one fills its room in nearly half of the draws
    for groups, rows, n in itertools.product((2, 4, 6, 9, 24, 48), expected, (1152, 2944, 6208)):
        problem = make_grouped(op, 4096, n, 2048, groups, expected_m=rows)
        single = [tile for tile in _C.get_candidates(problem, H200) if tile.cluster_m * tile.cluster_n == 1]
        tiles = single[:: len(single) // 4]
        errors += [math.log(named(problem, tile)["rounds"] / mean_rounds(problem, tile)) for tile in tiles]
    assert len(errors) > 400 and abs(np.mean(errors)) < 0.002
    assert np.sqrt(np.mean(np.square(errors))) < 0.01 and np.abs(errors).max() < 0.07


def memory_us(problem, config) -> float:
    """Return what the heuristic thinks that memory takes."""
    return named(problem, config)["memory_share"] * _C.estimate_time_us(problem, config, H200)


@pytest.mark.parametrize("op", MASKED)
@pytest.mark.parametrize("expected", [40, 200, 512])
def test_memory_is_slower_where_rounds_are_not_filled(op, expected):
    """By 0.35 of what lacks, on average over the draws; not where an SM holds more than one CTA."""
    problem, config = masked(op, 1, expected)
    small = _C.Config(64, 64, 4, block_k=config.block_k)
    assert _C.blocks_per_sm(problem, config) == 1 < _C.blocks_per_sm(problem, small)
    rounds = [math.ceil(min(expected * share, 1024) / 128) * 32 / 132 for share in SHARES]
    unfilled = sum(1 - filled / math.ceil(filled) for filled in rounds) / 16
    assert unfilled > 0.2
    assert memory_us(problem, config) == pytest.approx(memory_us(problem, small) * (1 + 0.35 * unfilled))


@pytest.mark.parametrize("op", MASKED)
@pytest.mark.parametrize("stages, factor", [(2, 1.35), (3, 1.08), (4, 1.0)])
def test_masked_tiles_with_short_rings_step_more_slowly(op, stages, factor):
    """Than their slowest part; those of other op kinds do not."""
    problem, config = masked(op, 4, 512)
    config = _C.Config(**config.as_dict() | {"num_stages": stages})
    contiguous = make_grouped(CONTIGUOUS[MASKED.index(op)], *SIZES, 4)
    for rows, expected in ((problem, factor), (contiguous, 1.0)):
        values = named(rows, config)
        slowest = max(values[f"{part}_share"] for part in ("math", "load", "latency"))
        assert 1 / slowest == pytest.approx(expected)


def waits(op: str, k: int, num_stages: int, **fields) -> tuple[int, float]:
    """Return the tiles of D of a config of 128 x 64, and the share that its epilogue has of a tile."""
    problem = make_grouped(op, 4096, 4096, k, 4, **({"c_mode": "accumulate"} | fields))
    config = _C.Config(128, 64, num_stages, block_k=64 if "bf16" in op else 128)
    values = named(problem, config)
    return int(values["d_tiles"]), values["epilogue_share"]


@pytest.mark.parametrize("op", K_GROUPED)
def test_short_groups_wait_for_c_unless_it_comes_one_tile_ahead(op):
    ahead, deep = 4, 7
    short, long = 4 * 128, 4 * 16384
    assert waits(op, short, ahead)[0] == 2 and waits(op, short, deep)[0] == 1
    assert waits(op, short, deep)[1] > waits(op, short, ahead)[1] + 0.05, "C of this tile is waited for"
    assert waits(op, long, deep)[1] == waits(op, long, deep, c_mode="none")[1], "K hides it"


@pytest.mark.parametrize("op", K_GROUPED)
def test_without_c_nothing_is_waited_for(op):
    assert waits(op, 4 * 128, 7)[1] > waits(op, 4 * 128, 7, c_mode="none")[1]


def test_dense_products_know_no_second_tile():
    """Their trees were fitted before there was one."""
    problem = _C.Problem("fp8_gemm", 4096, 4096, 128, recipe="1d1d", d_dtype="fp32", c_mode="accumulate")
    deep, ahead = (_C.Config(128, 64, stages) for stages in (7, 4))
    assert _C.has_two_d_tiles(problem, ahead) and not _C.has_two_d_tiles(problem, deep)
    assert named(problem, ahead)["d_tiles"] == named(problem, deep)["d_tiles"] == 1


@pytest.mark.parametrize("k", [4 * 256, 4 * 1024, 4 * 4096])
def test_trees_judge_both_ways_of_adding_onto_c(k):
    """Of BF16 groups of K: the heuristic adds by TMA from 20 steps on alone."""
    problem = make_grouped(K_GROUPED[1], 1216, 1152, k, 4, c_mode="accumulate")
    shortlist = _C.get_shortlist(problem, H200, _C.NUM_RANKED)
    assert len(shortlist) == len(set(map(str, shortlist))) == _C.NUM_RANKED
    for config in shortlist[:-1]:
        other = _C.Config(**config.as_dict() | {"reduce_add": 1 - config.reduce_add})
        assert (other in shortlist) == _C.is_legal(problem, other, H200)
    assert shortlist[0] == _C.get_analytic_config(problem, H200)
    without = _C.get_shortlist(problem, H200, _C.NUM_RANKED, adds=False)
    assert not any(config.reduce_add for config in without), "trees that saw no such row are not asked"
