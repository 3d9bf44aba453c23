"""The real kernels of dense products, launched by the real host code, compute what the reference says on the emulator:
under any schedule, without a race that the emulator can see.
"""

import pytest

from deep_gemm import _C
from tests.emulator.host import Outcome
from tests.emulator.products import Product, run_product
from tests.gpu.grouped_psum import PsumK, PsumRows
from tests.gpu.grouped_shapes import Contiguous, KGroups, Masked
from tests.gpu.grouped_variants import (
    BF16_CONTIGUOUS,
    BF16_K_GROUPED,
    BF16_MASKED,
    FP8_CONTIGUOUS,
    FP8_K_GROUPED,
    FP8_MASKED,
    GroupedVariant,
)
from tests.gpu.large_weights import fits_three
from tests.gpu.variants import BF16, Variant

#: As soon as possible, as late as possible, and two random schedules.
SEEDS = (0, 1, 2, 3)
RIGHT = Outcome(0, 0, "")


def fp8(block_m, block_n, num_stages=3, **others):
    """Return the fields of a config of FP8."""
    return {"block_m": block_m, "block_n": block_n, "num_stages": num_stages, "block_k": 128, **others}


def bf16(block_m, block_n, num_stages=3, **others):
    """Return the fields of a config of BF16."""
    return fp8(block_m, block_n, num_stages, **others) | {"block_k": 64}


#: One of each kind.
PRODUCTS = {
    "1d2d": Product(Variant(), fp8(64, 64), (100, 130, 700)),
    "1d1d accumulate": Product(
        Variant(recipe="1d1d", d_dtype="fp32", c_mode="accumulate"), fp8(64, 48), (70, 100, 1500), num_sms=2
    ),
    "scale ring": Product(Variant(recipe="1d1d", scale_layout="any"), fp8(128, 96), (200, 130, 1300), num_sms=1),
    "bf16": Product(Variant(BF16), bf16(128, 96), (200, 180, 300), num_sms=1),
    "bf16 mn, pair": Product(Variant(BF16, a_major="mn", b_major="mn"), bf16(64, 64, cluster_n=2), (100, 200, 200)),
    "split": Product(Variant(d_dtype="fp32", c_mode="general"), fp8(8, 64, swap_ab=1, split_k=2), (7, 130, 1000)),
    "D in whole rows": Product(Variant(BF16), bf16(128, 112), (200, 251, 300), num_sms=1),
    # Two math warpgroups side by side, whose columns meet one or two of the tile's three blocks of scales.
    "side by side": Product(Variant(), fp8(64, 240, loop=1, scale_warp=1), (100, 700, 900), num_sms=1),
}
ROWS = Contiguous(200, 300, 3, 128, ((0, 0, 100), (2, 0, 60), (1, 0, 128)))
#: More groups than a warp has lanes; empty ones, and some that fill an alignment and more.
FEW_ROWS = PsumRows(72, 130, (*(group * 5 % 9 if group % 3 else 0 for group in range(35)), 17, 0), 16, extra=24)
_K = GroupedVariant(FP8_K_GROUPED, "1d1d", "fp32")
_BF16_K = GroupedVariant(BF16_K_GROUPED, d_dtype="fp32", a_major="mn", b_major="mn")
#: One of each kind of groups.
GROUPED = {
    "contiguous": Product(GroupedVariant(FP8_CONTIGUOUS), fp8(64, 96), ROWS, num_sms=2),
    "masked": Product(GroupedVariant(BF16_MASKED), bf16(64, 64), Masked(130, 200, 70, (70, 0, 5, 66)), num_sms=2),
    "k-grouped": Product(_K._replace(c_mode="accumulate"), fp8(64, 64), KGroups(70, 100, (256, 0, 384)), num_sms=1),
    "k-grouped blocks": Product(
        _K._replace(group_layout="blocks", scale_layout="any"), fp8(64, 64), KGroups(70, 100, (256, 0, 384, 1408)), 1
    ),
    "contiguous, pair of two groups": Product(
        GroupedVariant(FP8_CONTIGUOUS), fp8(128, 64, cluster_m=2, scale_warp=1), ROWS, num_sms=2
    ),
    "rows with ends": Product(
        GroupedVariant(FP8_CONTIGUOUS), fp8(64, 64), PsumRows(130, 300, (100, 0, 37, 1), extra=70), num_sms=2
    ),
    "rows with ends, parts of an alignment": Product(
        GroupedVariant(BF16_CONTIGUOUS), bf16(8, 64, swap_ab=1), FEW_ROWS, num_sms=2
    ),
    # 45 tiles of one CTA, by two D tiles.
    "k-grouped, C a tile ahead": Product(
        _K._replace(c_mode="accumulate", group_layout="blocks"), fp8(128, 64), KGroups(300, 130, (128,) * 5), num_sms=1
    ),
    "k with ends": Product(_BF16_K, bf16(64, 64), PsumK(72, 104, (130, 300, 0, 64)), num_sms=1),
}
MORE_GROUPED = {
    "contiguous bf16, pair": Product(GroupedVariant(BF16_CONTIGUOUS, b_major="mn"), bf16(64, 64, cluster_n=2), ROWS),
    "contiguous, pairs of one and two groups": Product(
        GroupedVariant(BF16_CONTIGUOUS),
        bf16(128, 64, cluster_m=2),
        Contiguous(130, 300, 4, 128, ((0, 0, 300), (2, 0, 60), (1, 0, 128), (3, 0, 200))),
        num_sms=4,
    ),
    "contiguous, pair, padding": Product(
        GroupedVariant(FP8_CONTIGUOUS), fp8(128, 64, cluster_m=2, loop=1),
        Contiguous(130, 500, 4, 256, ((0, 0, 100), (2, 0, 60), (1, 0, 256))), 2,
    ),
    "rows with ends, parts, padding left": Product(
        GroupedVariant(BF16_CONTIGUOUS), bf16(8, 64, swap_ab=1), FEW_ROWS, num_sms=2, index=1
    ),
    "rows with ends, parts, pair along n": Product(
        GroupedVariant(BF16_CONTIGUOUS), bf16(64, 64, cluster_n=2), PsumRows(136, 200, (3, 0, 70, 64), extra=70), 4
    ),
    "rows with ends, pair": Product(
        GroupedVariant(FP8_CONTIGUOUS), fp8(128, 64, cluster_m=2), PsumRows(130, 300, (100, 0, 137, 1), extra=70), 2
    ),
    "contiguous scale ring": Product(
        GroupedVariant(FP8_CONTIGUOUS, "1d1d", "fp32", scale_layout="any"), fp8(128, 64), ROWS, 1
    ),
    "masked 1d1d, swap": Product(
        GroupedVariant(FP8_MASKED), fp8(16, 64, swap_ab=1), Masked(130, 300, 20, (20, 0, 5)), 1
    ),
    "contiguous, D in whole rows": Product(GroupedVariant(FP8_CONTIGUOUS), fp8(128, 136), ROWS, num_sms=1),
    "masked, D in whole rows": Product(GroupedVariant(BF16_MASKED), bf16(64, 72), Masked(130, 200, 70, (70, 0, 66)), 2),
    "contiguous, side by side": Product(GroupedVariant(FP8_CONTIGUOUS), fp8(64, 224), ROWS, num_sms=2),
    "masked, side by side": Product(
        GroupedVariant(FP8_MASKED), fp8(64, 240, scale_warp=1), Masked(130, 500, 70, (70, 0, 66)), 2
    ),
    "k-grouped bf16": Product(_BF16_K, bf16(128, 64), KGroups(136, 72, (128, 0, 384)), 1),
    "k with ends, blocks": Product(
        _K._replace(group_layout="blocks"), fp8(64, 64), PsumK(70, 100, (130, 300, 0, 64)), 1
    ),
}  # fmt: skip
#: The rest.
MORE_PRODUCTS = {
    "absent tile of a pair": Product(Variant(), fp8(64, 64, cluster_m=2), (40, 130, 700)),
    "last tile of one row": Product(Variant(), fp8(64, 64), (65, 130, 700)),
    "per row": Product(Variant(recipe="per_row"), fp8(64, 128), (70, 200, 700)),
    "heads": Product(Variant(c_mode="head_split"), fp8(64, 64), (70, 192, 300)),
    "waves": Product(Variant(), fp8(256, 128, 2), (300, 200, 700), num_sms=1),
    "in turn": Product(Variant(), fp8(128, 192), (200, 300, 1000), num_sms=1),
    "late scales": Product(Variant(recipe="1d1d"), fp8(128, 192), (200, 300, 1000), num_sms=1),
    "pair along m": Product(Variant(), fp8(64, 128, cluster_m=2), (200, 300, 500), num_sms=4),
    "swap": Product(Variant(), fp8(16, 128, swap_ab=1), (30, 300, 500), num_sms=1),
    "swap, scale ring": Product(Variant(scale_layout="any"), fp8(16, 64, swap_ab=1), (30, 130, 2500), num_sms=1),
    "split in 8": Product(Variant(BF16), bf16(64, 64, split_k=8), (64, 70, 1030)),
    "few rows": Product(Variant(BF16), bf16(64, 72), (3, 150, 200)),
    "D in narrow slabs": Product(Variant(BF16), bf16(64, 80), (70, 251, 200), num_sms=2),
    "D in narrow slabs, fp32": Product(Variant(BF16, d_dtype="fp32"), bf16(64, 72), (70, 150, 200), num_sms=2),
    "D in whole rows of a low tile": Product(Variant(BF16), bf16(64, 144), (70, 251, 200), num_sms=2),
    "D in whole rows, fp8": Product(Variant(), fp8(128, 136), (200, 300, 900), num_sms=1),
    "D in whole rows, accumulated": Product(
        Variant(recipe="1d1d", d_dtype="fp32", c_mode="accumulate"), fp8(128, 136), (150, 261, 500), num_sms=1
    ),
    "C a tile ahead, tail": Product(
        Variant(recipe="1d1d", d_dtype="fp32", c_mode="accumulate"), fp8(128, 64), (300, 250, 500), num_sms=1
    ),
    "C a tile ahead, waves": Product(
        Variant(recipe="1d1d", d_dtype="fp32", c_mode="accumulate"), fp8(256, 64, 2), (600, 130, 500), num_sms=1
    ),
    "bf16 swap, many tokens": Product(
        Variant(BF16, d_dtype="fp32", c_mode="general"), bf16(136, 128, swap_ab=1), (260, 200, 200), 1
    ),
    "bf16 mn, swap": Product(
        Variant(BF16, b_major="mn", d_dtype="fp32", c_mode="accumulate"), bf16(64, 128, swap_ab=1), (70, 200, 200), 1
    ),
    "real numbers": Product(Variant(), fp8(64, 64), (100, 130, 700), integers=False),
    "side by side, two sums": Product(Variant(), fp8(64, 224), (100, 700, 900), num_sms=1),
    "side by side, whole blocks": Product(Variant(), fp8(64, 256, scale_warp=1), (70, 701, 700), num_sms=2),
    "side by side, scale ring": Product(Variant(scale_layout="any"), fp8(64, 224), (100, 700, 1300), num_sms=1),
    "side by side, 1d1d": Product(Variant(recipe="1d1d"), fp8(64, 240, loop=1), (70, 500, 700), num_sms=1),
    "side by side, scale ring, 1d1d": Product(
        Variant(recipe="1d1d", d_dtype="fp32", scale_layout="any"), fp8(64, 224), (70, 500, 1300), num_sms=1
    ),
    "side by side, C": Product(
        Variant(recipe="1d1d", d_dtype="fp32", c_mode="accumulate"), fp8(64, 224), (150, 501, 500), num_sms=1
    ),
    "side by side, add": Product(
        Variant(recipe="1d1d", d_dtype="fp32", c_mode="accumulate"), fp8(64, 224, reduce_add=1), (150, 501, 500), 1
    ),
    "side by side, direct": Product(Variant(d_dtype="fp32", c_mode="general"), fp8(64, 224), (70, 501, 700), 1),
    "side by side, per row": Product(Variant(recipe="per_row"), fp8(64, 240), (70, 501, 700), num_sms=1),
    "side by side, split": Product(Variant(), fp8(64, 224, split_k=2), (70, 501, 1000)),
    "side by side, pair": Product(Variant(), fp8(64, 256, 3, cluster_m=2), (200, 501, 700), num_sms=4),
}

_ACCUMULATE = Variant(recipe="1d1d", d_dtype="fp32", c_mode="accumulate")
#: The knobs of the FP8 main loops, together as far as they go. Rings have three stages: 8 and 11 steps end at others.
LOOPS = {
    "loop, scale warp": Product(Variant(), fp8(128, 96, loop=1, scale_warp=1), (200, 130, 1400), num_sms=1),
    "loop, 1d1d, add": Product(_ACCUMULATE, fp8(64, 48, loop=1, reduce_add=1), (70, 101, 900), num_sms=2),
    "loop, tile barrier, groups": Product(
        GroupedVariant(FP8_MASKED),
        fp8(256, 128, 2, loop=1, scale_warp=1, tile_barrier=1),
        Masked(130, 300, 70, (70, 0, 5)),
        1,
    ),
}
MORE_LOOPS = {
    "loop, pair": Product(Variant(), fp8(128, 192, 3, loop=1, scale_warp=1, cluster_n=2), (200, 700, 900), 2),
    "loop, scale ring": Product(Variant(scale_layout="any"), fp8(128, 64, 3, loop=1), (200, 130, 2700), num_sms=1),
    "loop, scale ring, 1d1d": Product(
        _ACCUMULATE._replace(scale_layout="any"), fp8(64, 64, 3, loop=1, reduce_add=1), (100, 130, 1500), num_sms=1
    ),
    "blocks of long k": Product(Variant(), fp8(64, 64, 4, scale_warp=1), (70, 130, 17000), num_sms=1),
    "blocks of few rows": Product(Variant(), fp8(16, 64, swap_ab=1, scale_warp=1), (20, 130, 900), num_sms=1),
    "loop, 1d1d": Product(_ACCUMULATE, fp8(128, 144, loop=1), (150, 260, 900), num_sms=1),
    "D in whole rows, add": Product(_ACCUMULATE, fp8(64, 136, loop=1, reduce_add=1), (70, 261, 500), num_sms=2),
    "loop, contiguous": Product(GroupedVariant(FP8_CONTIGUOUS), fp8(128, 192, loop=1, scale_warp=1), ROWS, num_sms=1),
    "loop, rows with ends": Product(
        GroupedVariant(FP8_CONTIGUOUS), fp8(64, 64, loop=1, scale_warp=1),
        PsumRows(130, 300, (100, 0, 37, 1), extra=70), 2,
    ),
    "loop, k-grouped, add": Product(
        _K._replace(c_mode="accumulate", group_layout="blocks"), fp8(128, 64, loop=1, reduce_add=1),
        KGroups(70, 100, (256, 0, 384, 1408)), 1,
    ),
    "loop, k with ends": Product(
        _K._replace(c_mode="accumulate", group_layout="blocks"), fp8(64, 64, loop=1),
        PsumK(70, 100, (130, 300, 0, 64)), 1,
    ),
}  # fmt: skip

ALL = PRODUCTS | GROUPED | LOOPS | MORE_PRODUCTS | MORE_GROUPED | MORE_LOOPS


@pytest.mark.parametrize("seeds", [SEEDS[::2], pytest.param(SEEDS[1::2], marks=pytest.mark.full)])
@pytest.mark.parametrize("name", [*PRODUCTS, *GROUPED, *LOOPS])
def test_kernels_compute_the_product(emulate, name, seeds):
    """One of each kind."""
    product = ALL[name]
    cubin = product.build()
    assert [emulate(run_product, product, cubin, seed=seed) for seed in seeds] == [RIGHT] * len(seeds)


def test_c_comes_a_tile_ahead_where_a_product_says_so():
    products = [product for name, product in ALL.items() if "C a tile ahead" in name]
    assert len(products) == 3
    assert all(_C.has_two_d_tiles(product.problem, _C.Config(**product.config)) for product in products)


WALK = "deep_gemm/sm90/scheduler/group_walk.cuh"
LOADER = "deep_gemm/sm90/mainloop/loader.cuh"
_LOAD = "barrier, to, k, tile.n_start, matrix, passing.policy"
#: A defect of loads with the evict-first policy alone.
SPOILED = {LOADER: (_LOAD, _LOAD.replace("n_start", "n_start + 8"))}
#: Few rows of each group: one tile for each of them, and two for some or for all. Two CTAs of these rings fit an SM.
ONE_TILE = {
    "masked": Product(GroupedVariant(FP8_MASKED), fp8(16, 64, 8, swap_ab=1), Masked(130, 300, 20, (14, 0, 5, 16)), 1),
    "masked bf16": Product(
        GroupedVariant(BF16_MASKED), bf16(16, 64, 8, swap_ab=1), Masked(130, 300, 20, (14, 0, 5, 16)), 1
    ),
    "rows with ends": Product(
        GroupedVariant(FP8_CONTIGUOUS), fp8(8, 64, 9, swap_ab=1), PsumRows(130, 300, (3, 0, 7, 8), 16, extra=24), 2
    ),
}
TWO_TILES = {
    "masked": ONE_TILE["masked"]._replace(shape=Masked(130, 300, 20, (17, 0, 20))),
    "masked bf16": ONE_TILE["masked bf16"]._replace(shape=Masked(130, 300, 20, (5, 0, 17, 9))),
    "rows with ends": ONE_TILE["rows with ends"]._replace(shape=PsumRows(130, 300, (9, 0, 16, 10), 16, extra=24)),
}


def evict_from(num_bytes):
    """Return the headers' change by which weights of so many bytes in all are loaded with the evict-first policy."""
    return {WALK: ("kLargeBytes = 250000000", f"kLargeBytes = {num_bytes}")}


@pytest.mark.parametrize("name", ONE_TILE)
def test_weights_that_leave_l2_first_give_the_product(emulate, name):
    cubin = ONE_TILE[name].build(evict_from(1))
    assert [emulate(run_product, ONE_TILE[name], cubin, seed=seed) for seed in SEEDS[:2]] == [RIGHT] * 2


@pytest.mark.parametrize("name", ONE_TILE)
def test_only_weights_that_one_tile_reads_leave_l2_first(emulate, name):
    """Their load is another instruction: with a defect in it, products without such weights are right. One group with
    two tiles is enough for all.
    """
    small, one, two = (
        emulate(run_product, product, product.build(bound | SPOILED), seed=0)
        for product, bound in ((ONE_TILE[name], {}), (ONE_TILE[name], evict_from(1)), (TWO_TILES[name], evict_from(1)))
    )
    assert small == two == RIGHT and one.num_wrong > 0


@pytest.mark.parametrize("name", ONE_TILE)
def test_no_weights_leave_l2_first_where_three_ctas_share_an_sm(emulate, name):
    """Nothing was gained there; with a defect in that load, the deepest ring of which three fit is right."""
    product = ONE_TILE[name]
    rings = [product.config | {"num_stages": stages} for stages in range(2, 10)]
    deepest = max(ring for ring in range(8) if fits_three(product.problem, _C.Config(**rings[ring])))
    for ring, is_right in ((rings[deepest], True), (rings[deepest + 1], False)):
        made = product._replace(config=ring)
        assert (emulate(run_product, made, made.build(evict_from(1) | SPOILED), seed=0) == RIGHT) == is_right


def test_only_weights_of_groups_with_rows_count(emulate):
    """Two of the first 32 groups have rows. If all 40 are like these, two and a half have: a bound of as many weights
    is reached, one byte more is not.
    """
    weight, sizes = 130 * 300, tuple({1: 5, 3: 7}.get(group, 0) for group in range(40))
    product = ONE_TILE["masked"]._replace(shape=Masked(130, 300, 20, sizes))
    for bound, is_right in ((5 * weight // 2, False), (5 * weight // 2 + 1, True)):
        cubin = product.build(evict_from(bound) | SPOILED)
        assert (emulate(run_product, product, cubin, seed=0) == RIGHT) == is_right


def test_groups_behind_the_first_32_are_judged_anew(emulate):
    """32 groups of one tile, whose weights leave L2 first, then eight, two of which have two tiles: with a defect in
    that load, no more is wrong than the first 32 hold.
    """
    sizes = (*[3] * 32, 17, 0, 5, 20, 0, 1, 0, 2)
    product = ONE_TILE["masked"]._replace(shape=Masked(130, 300, 20, sizes))
    outcome = emulate(run_product, product, product.build(evict_from(1) | SPOILED), seed=0)
    assert 0 < outcome.num_wrong <= 32 * 3 * 130 and not outcome.error


def test_a_load_before_its_policy_is_noticed(emulate):
    late, product = {LOADER: ("        passing.begin();\n", "")}, ONE_TILE["masked"]
    outcome = emulate(run_product, product, product.build(evict_from(1) | late), seed=0)
    assert "policy that was not created" in outcome.error


@pytest.mark.full
@pytest.mark.parametrize("name", ALL)
def test_all_kernels_compute_the_product_under_many_schedules(emulate, name):
    """Every kind, by 16 schedules."""
    cubin = ALL[name].build()
    assert [emulate(run_product, ALL[name], cubin, seed=seed) for seed in range(16)] == [RIGHT] * 16
