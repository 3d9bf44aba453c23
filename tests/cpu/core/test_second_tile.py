"""Which tile stands beside a config in one kernel for masked groups, and which tiles no kernel can hold together."""

import math

import pytest

from deep_gemm import _C
from tests.fakes.grouped_variants import CONTIGUOUS, K_GROUPED, MASKED, make_grouped

H200 = _C.Device.known("h200")
NAMES = _C.config_feature_names()
SHARES = [0.7 + 0.6 * (index + 0.5) / 16 for index in range(16)]
MARGIN = 1.02
WEIGHTS = ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048))
PROBLEMS = [
    (op, groups, rows, *weight)
    for op in MASKED for groups in (1, 2, 4, 8) for rows in (20, 64, 128, 256, 512, 1024) for weight in WEIGHTS
]  # fmt: skip


def find(op, groups, rows, n, k, room=4096, **fields):
    """Return the problem, the heuristic's config and what stands beside it."""
    problem = make_grouped(op, room, n, k, groups, expected_m=rows, **fields)
    first = _C.get_analytic_config(problem, H200)
    return problem, first, _C.find_second_tile(problem, first, H200)


def fill_rounds(problem, config, share=SHARES[0]) -> float:
    """Return the rounds of one group by a draw, the last one as far as it is filled."""
    tile = _C.without_loop_knobs(config)
    rows = min(problem.expected_m * share, problem.m)
    tiles = math.ceil(rows / tile.block_m) * math.ceil(problem.n / tile.block_n)
    return tiles / (132 * _C.blocks_per_sm(problem, tile))


def count_rounds(problem, config, share=SHARES[0]) -> int:
    """Return the rounds of one group by a draw."""
    return math.ceil(fill_rounds(problem, config, share))


def slow_memory(problem, config, share: float) -> float:
    """Return by how much memory takes longer, by a draw, than with full rounds."""
    unfilled = 1 - fill_rounds(problem, config, share) / count_rounds(problem, config, share)
    return 1 + 0.35 * unfilled if _C.blocks_per_sm(problem, _C.without_loop_knobs(config)) == 1 else 1


def rate(problem, config) -> list[tuple[float, float]]:
    """Return the times of one group by draw: that of the rounds of tiles, and all of it."""
    tile = _C.without_loop_knobs(config)
    values = dict(zip(NAMES, _C.get_config_features(problem, H200, [tile])[0].tolist(), strict=True))
    time = _C.estimate_time_us(problem, tile, H200)
    fixed, memory, *others = (values[f"{name}_share"] * time for name in ("launch", "memory", "l2", "power"))
    round_us = values["sm_share"] * time / values["rounds"]
    slower = [slow_memory(problem, config, share) for share in SHARES]
    times = []
    for share, factor in zip(SHARES, slower, strict=True):
        rounds_us, memory_us = round_us * count_rounds(problem, config, share), memory * factor * 16 / sum(slower)
        times.append((rounds_us, fixed + math.fsum(us**4 for us in (memory_us, *others, rounds_us)) ** 0.25))
    return times


def test_few_groups_have_a_second_tile_and_others_none():
    found = {key: find(*key) for key in PROBLEMS}
    pairs = {key: tiles for key, tiles in found.items() if tiles[2]}
    assert 0.1 < len(pairs) / len(found) < 0.4
    assert {op for op, *_ in pairs} == set(MASKED) and {groups for _, groups, *_ in pairs} >= {1, 2, 4}
    for problem, first, second in pairs.values():
        assert _C.is_legal(problem, second, H200) and _C.second_tile_reason(problem, first, second) == ""
        assert second == _C.with_loop_knobs(problem, _C.without_loop_knobs(second), H200)
        assert second != first
    sides = {(second.block_m, second.block_n, second.swap_ab) for *_, second in pairs.values()}
    assert 4 <= len(sides) <= 8, "kernels of two tiles stay few"


@pytest.mark.parametrize("op", MASKED)
def test_it_saves_what_it_must_by_the_draws_of_one_group(op):
    count = 0
    for key in [key for key in PROBLEMS if key[:2] == (op, 1)]:
        problem, first, second = find(*key)
        if second is None:
            continue
        count += 1
        alone, beside = rate(problem, first), rate(problem, second)
        mean_alone = sum(total for _, total in alone) / 16
        taken = [b if b[0] * MARGIN < a[0] else a for a, b in zip(alone, beside, strict=True)]
        mean = sum(total for _, total in taken) / 16
        assert mean < 0.98 * mean_alone - 0.5, f"{key}: {mean_alone} us alone, {mean} with {second}"
        assert taken != alone and taken != beside
        rounds = [times[0][0] / count_rounds(problem, tile) for times, tile in ((alone, first), (beside, second))]
        weight = _C.second_tile_weight(problem, first, second, H200)
        assert weight == pytest.approx(MARGIN * rounds[1] / rounds[0], rel=1e-6)
    assert count >= 5


SIDES = {
    (64, 64, 0),
    (64, 128, 0),
    (64, 192, 0),
    (128, 128, 0),
    (128, 192, 0),
    (128, 256, 0),
    (80, 128, 1),
    (112, 128, 1),
}


def find_best(problem, first):
    """Return what stands beside the config of one group, by the times of each draw."""
    alone, best = rate(problem, first), None
    least = 0.98 * sum(total for _, total in alone) / 16 - 0.5
    for tile in _C.get_candidates(problem, H200):
        second = _C.with_loop_knobs(problem, tile, H200)
        if (tile.block_m, tile.block_n, tile.swap_ab) in SIDES and not _C.second_tile_reason(problem, first, second):
            pairs = zip(alone, rate(problem, second), strict=True)
            mean = sum((b if b[0] * MARGIN < a[0] else a)[1] for a, b in pairs) / 16
            if mean < least:
                least, best = mean, second
    return best


@pytest.mark.parametrize("op", MASKED)
def test_it_is_the_best_by_the_memory_and_the_rounds_of_each_draw(op):
    """Sizes among which some would have another one by the mean of what memory takes over the draws."""
    sizes = [(201, 2496, 3328), (139, 7040, 4096), (127, 6656, 2304), (573, 3520, 3840), (253, 6400, 1920)]
    sizes += [(310, 6720, 2816), (322, 5632, 3200), (498, 3520, 3840), (119, 6016, 2688), (396, 7360, 2176)]
    found = {size: find(op, 1, *size) for size in sizes}
    wanted = {size: find_best(problem, first) for size, (problem, first, _) in found.items()}
    assert {size: second for size, (_, _, second) in found.items()} == wanted
    assert sum(second is not None for second in wanted.values()) >= 2


def test_more_than_eight_groups_have_none():
    """Where eight have one and, by the estimate, nine would gain as well."""
    for op, rows, *weight in ((MASKED[1], 560, 1920, 5632), (MASKED[0], 565, 1664, 7040)):
        assert [find(op, groups, rows, *weight)[2] is None for groups in (8, 9, 16)] == [False, True, True]


def test_other_op_kinds_have_none():
    for op in (CONTIGUOUS[0], K_GROUPED[1], "batched_bf16_gemm"):
        problem = make_grouped(op, 1024, 4096, 4096, 1)
        assert _C.find_second_tile(problem, _C.get_analytic_config(problem, H200), H200) is None
    dense = _C.Problem("fp8_gemm", 1024, 4096, 4096)
    assert _C.find_second_tile(dense, _C.get_analytic_config(dense, H200), H200) is None


def test_a_cluster_has_none():
    problem = make_grouped(MASKED[0], 4096, 4096, 4096, 1, expected_m=512)
    assert _C.find_second_tile(problem, _C.Config(128, 160, 4), H200) is not None
    assert _C.find_second_tile(problem, _C.Config(128, 160, 4, cluster_n=2), H200) is None


WIDE, LOW = _C.Config(128, 160, 4), _C.Config(64, 64, 4)
REFUSED = {
    "op = fp8_gemm: only kernels of masked groups": (_C.Problem("fp8_gemm", 1, 1, 1), WIDE, _C.Config(128, 128, 4)),
    "CTAs of a cluster = 2: must be 1 beside another tile": (
        make_grouped(MASKED[0], 1, 1, 1, 1), WIDE, _C.Config(128, 128, 4, cluster_m=2),
    ),
    "threads = 256: must be the 384 of the first tile": (make_grouped(MASKED[0], 1, 1, 1, 1), WIDE, LOW),
    "CTAs of an SM = 1: must be the 2 of the first tile": (
        make_grouped(MASKED[0], 1, 1, 1, 1), _C.Config(64, 64, 6), _C.Config(64, 64, 12),
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_tiles_that_no_kernel_holds_together(text):
    assert _C.second_tile_reason(*REFUSED[text]).startswith(text)
