"""The emulator finds what it is for: each defect in the real headers ends in an error or a wrong D."""

import pytest

from tests.emulator.ops import run_defective_sum
from tests.emulator.products import Product, run_product
from tests.fakes import stub_driver
from tests.gpu.grouped_psum import PsumRows
from tests.gpu.grouped_shapes import Contiguous, KGroups
from tests.gpu.grouped_variants import BF16_CONTIGUOUS, FP8_K_GROUPED, GroupedVariant
from tests.gpu.variants import BF16, Variant

BF16_TILES = Product(
    Variant(BF16), {"block_m": 128, "block_n": 96, "num_stages": 3, "block_k": 64}, (200, 100, 500), num_sms=1
)
WHOLE_ROWS = BF16_TILES._replace(config=BF16_TILES.config | {"block_n": 112})
IN_TURN = Product(
    Variant(), {"block_m": 128, "block_n": 192, "num_stages": 3, "block_k": 128}, (200, 300, 1000), num_sms=1
)
PIPELINED = Product(
    Variant(recipe="1d1d"), {"block_m": 64, "block_n": 64, "num_stages": 3, "block_k": 128}, (100, 130, 1400), num_sms=1
)
RING = PIPELINED._replace(variant=Variant(recipe="1d1d", scale_layout="any"), shape=(100, 130, 3000))
UNROLLED = PIPELINED._replace(
    config={"block_m": 128, "block_n": 80, "num_stages": 6, "block_k": 128, "loop": 1}, shape=(300, 100, 1000)
)
PAIR = PIPELINED._replace(config=PIPELINED.config | {"cluster_m": 2}, num_sms=2)
SPLIT = Product(
    Variant(), {"block_m": 64, "block_n": 64, "num_stages": 3, "block_k": 128, "split_k": 2}, (64, 70, 1000)
)
#: In pairs of tiles: of two groups, and of a group and padding.
TWO_GROUPS = Product(
    GroupedVariant(BF16_CONTIGUOUS),
    {"block_m": 128, "block_n": 64, "num_stages": 3, "block_k": 64, "cluster_m": 2},
    Contiguous(130, 300, 3, 128, ((0, 0, 60), (1, 0, 100), (0, 128, 50), (2, 0, 1))),
    num_sms=2,
)
#: Groups with ends, on both sides of the 32 that a warp looks at.
ENDS = Product(
    GroupedVariant(BF16_CONTIGUOUS),
    {"block_m": 8, "block_n": 64, "num_stages": 3, "block_k": 64, "swap_ab": 1},
    PsumRows(64, 130, (*(3 * (group % 4 == 1) for group in range(30)), 20, 0, 0, 9), 16, extra=24), num_sms=2,
)  # fmt: skip
#: C of a tile is loaded while the one before is added up.
AHEAD = Product(
    GroupedVariant(FP8_K_GROUPED, "1d1d", "fp32", c_mode="accumulate", group_layout="blocks"),
    {"block_m": 128, "block_n": 64, "num_stages": 3, "block_k": 128}, KGroups(300, 130, (128,) * 5), num_sms=1,
)  # fmt: skip
#: Two math warpgroups side by side.
BESIDE = Product(Variant(), {"block_m": 64, "block_n": 224, "num_stages": 3, "block_k": 128}, (70, 500, 700), num_sms=1)
LATE_LOAD = "does not wait for a load"  # is looked for in a mode of its own, in which D means nothing
EPILOGUE, FP8_LOOP = "epilogue/epilogue", "mainloop/fp8_mainloop"
ACCUMULATION, M_PSUM = "epilogue/accumulation", "scheduler/m_psum_scheduler"
RELEASE = "stages.release(ring.stage, scale.bits());"
FENCE = "        ptx::fence_async_proxy();\n        // Every thread"

#: By name: the product, the header, the text, what stands there instead, and what all errors say (None: they differ, or
#: D is wrong).
DEFECTS = {
    "stage released early": (
        BF16_TILES, "mainloop/bf16_mainloop", "ptx::wgmma_wait<1>();  // the", "ptx::wgmma_wait<2>();  // the",
        "written while an asynchronous read",
    ),
    "wrong parity": (
        BF16_TILES, "mainloop/loader", "(stages.empty_barrier(ring.stage), ring.phase ^ 1)",
        "(stages.empty_barrier(ring.stage), ring.phase)", None,
    ),
    "no fence": (BF16_TILES, EPILOGUE, FENCE, FENCE.partition("\n")[2], "no fence.proxy.async lies between"),
    "wrong swizzle": (BF16_TILES, "epilogue/store_tile", "row / (8 / kChunks) % kChunks", "row % kChunks", None),
    "second C over the first": (AHEAD, ACCUMULATION, "load_group<0>(last, 1);", "load_group<0>(last, 0);", None),
    "load that no release waits for": (
        PIPELINED, FP8_LOOP, RELEASE, "stages.release(ring.stage, 0);", LATE_LOAD,
    ),
}  # fmt: skip
MORE_DEFECTS = {
    "C not waited for": (
        AHEAD, EPILOGUE, "ptx::barrier_wait(accumulation.loaded(group, place.stage), place.phase);", ";", None,
    ),
    "D tiles in one place": (
        AHEAD, "epilogue/staged_store", "shared + place * Layout::kTileBytesD +", "shared +", None,
    ),
    "C over what is stored": (
        AHEAD, ACCUMULATION, "if (ptx::elect_one()) ptx::tma_store_wait_read<kGroups - 1>();", "", None,
    ),
    "tiles asked for behind the last one": (
        AHEAD, ACCUMULATION, "if (!kAhead || last.is_valid()) last = walk.next();", "last = walk.next();", None,
    ),
    "wrong pitch of whole rows": (
        WHOLE_ROWS, "epilogue/store_tile", "+ row * kRowBytes + chunk * 16", "+ row * (kRowBytes - 16) + chunk * 16",
        None,
    ),
    "wrong descriptor": (BF16_TILES, "mainloop/pipeline", "(1024 / 16)) << 32)", "(512 / 16)) << 32)", None),
    "D tile overwritten": (
        BF16_TILES, EPILOGUE, "            if (issuer) ptx::tma_store_wait_read<0>();  // the stores",
        "            // the", "written while an asynchronous read",
    ),
    "no barrier before the D tile": (
        BF16_TILES, EPILOGUE, "ptx::named_barrier(1 + group, 128);         // ... before", "// ... before", None,
    ),
    "no barrier behind the D tile": (
        BF16_TILES, EPILOGUE, "        if (!kLoadsC || has_tail) ptx::named_barrier(1 + group, 128);", "", None,
    ),
    "accumulators read early": (
        IN_TURN, FP8_LOOP, "                ptx::wgmma_wait<0>();\n", "                ptx::wgmma_wait<1>();\n",
        "written while an asynchronous read",
    ),
    "stage not waited for": (
        IN_TURN, FP8_LOOP, "if (!full) ptx::barrier_wait(stages.full_barrier(ring.stage), ring.phase);", ";",
        None,
    ),
    "too few arrivals": (
        IN_TURN, "gemm_layout", "kEmptyArrivals = 4 * kMathGroups", "kEmptyArrivals = 5 * kMathGroups", "deadlock",
    ),
    "wrong bytes": (
        PIPELINED, "mainloop/loader", "sizes.rows_b() * 128 + Layout::kVectorBytes);", "sizes.rows_b() * 128);", None,
    ),
    "ring overwritten": (
        RING, "mainloop/scale_copier", "ptx::barrier_wait(scales.empty_barrier(ring.stage), ring.phase ^ 1);", ";",
        "written while an asynchronous write",
    ),
    "load that no release of the ring waits for": (
        RING, "mainloop/pipeline", "barrier = empty_barrier(stage) + (bits & zero);", "barrier = empty_barrier(stage);",
        LATE_LOAD,
    ),
    "box within 16 bytes": (
        BF16_TILES, "mainloop/loader", "            Access::load(map, barrier, to, k, start, matrix);",
        "            Access::load(map, barrier, to, k + 4, start, matrix);", "begins within 16 bytes of a row",
    ),
    "peer's stage not waited for": (
        PAIR, "gemm_layout", "(kMulticast ? kClusterSize : 1);", "1;", None,
    ),
    "CTA that ends early": (
        PAIR, "mainloop/loader", "if constexpr (Layout::kMulticast) wait_for_peer(ring);", "", None,
    ),
    "B of the other group": (
        TWO_GROUPS, "scheduler/tile_groups", "other != kNone ? Tile::kLoadsApart : 0;", "other != kNone ? 0 : 0;", None,
    ),
    "padding beside a group without steps": (
        TWO_GROUPS, "scheduler/tile_groups", "return own != kNone || other != kNone;", "return own != kNone;", None,
    ),
    "ends of the groups before forgotten": (
        ENDS, M_PSUM, "highest = __shfl_sync(0xffffffff, last, 31);", "highest = 0;", None,
    ),
    "ends remembered from the walk before": (
        ENDS, M_PSUM, "is_padding = true, highest = 0,", "is_padding = true,", None,
    ),
    "no padding behind the last group": (
        ENDS, M_PSUM, "align_to_group(last) : ends.limit", "align_to_group(last) : align_to_group(last)", None,
    ),
    "padding multiplied": (ENDS, M_PSUM, "num_steps = is_padding ? 0 : all_steps;", "num_steps = all_steps;", None),
    "columns of the other warpgroup": (
        BESIDE, FP8_LOOP, "columns_tile(0) + Layout::column_of(first) * 128", "columns_tile(0)", None,
    ),
    "scales of the other warpgroup": (
        BESIDE, "mainloop/column_scales", "(n_start % 128 + first) / 128", "n_start % 128 / 128", None,
    ),
    "second scale too late": (
        BESIDE, "mainloop/column_scales", "n_start + group * Layout::kColumnStep : n_start", "n_start : n_start", None,
    ),
    "D of the other warpgroup": (
        BESIDE, "epilogue/staged_store", "Layout::kBeside ? group : row / 64", "row / 64", None,
    ),
    "peer not waited for": (
        SPLIT, EPILOGUE, "        ptx::cluster_wait();  // every CTA of the cluster has", "        // every", None,
    ),
}  # fmt: skip
SEEDS = range(6)


def check(emulate, product: Product, header: str, text: str, replacement: str, message: str | None) -> None:
    """Expect an error or a wrong D of some schedule; all errors have the message, where there is one."""
    cubin = product.build({f"deep_gemm/sm90/{header}.cuh": (text, replacement)})
    modes = ("dependencies",) if message == LATE_LOAD else ()
    outcomes = [emulate(run_product, product, cubin, seed=seed, modes=modes) for seed in SEEDS]
    errors = [outcome.error for outcome in outcomes if outcome.error]
    assert errors or (not message and any(outcome.num_wrong for outcome in outcomes))
    assert all((message or "") in error for error in errors)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found(emulate, name):
    """Some of each kind."""
    check(emulate, *DEFECTS[name])


@pytest.mark.full
@pytest.mark.parametrize("name", MORE_DEFECTS)
def test_every_planted_defect_is_found(emulate, name):
    """The others; some may show in different ways, which vary with the schedule."""
    check(emulate, *MORE_DEFECTS[name])


@pytest.mark.parametrize("product", [PIPELINED, RING, UNROLLED])
def test_loads_that_a_release_waits_for_are_right(emulate, product):
    """Without a defect every refill has waited for a barrier that waits for the load."""
    cubin = product.build()
    found = [emulate(run_product, product, cubin, seed=seed, modes=("dependencies",)).error for seed in SEEDS]
    assert found == [""] * len(found)


#: Of clusters that add up: the header, the text, what stands there instead, and what the error says.
SUM_DEFECTS = {
    "peers' barriers not waited for": (
        "cluster_sum", "wait_for_barriers() const { ptx::cluster_wait(); }", "wait_for_barriers() const {}", "barrier",
    ),
    "numbers not waited for": ("cluster_sum", "ptx::barrier_wait(barrier, 0);", ";", "asynchronous write"),
    "too few bytes": ("cluster_sum", "num_owned() * kRanks * 16", "num_owned() * (kRanks - 1) * 16", ""),
    "warps not waited for": ("sum_products", "        __syncthreads();\n", "", "a wrong D"),
    "a part twice": ("sum_products", "chunk = part * chunks / kParts", "chunk = part / 2 * chunks / kParts", "wrong D"),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name", SUM_DEFECTS)
def test_a_defect_of_a_sum_by_clusters_is_found(tmp_path, name):
    *defect, told = SUM_DEFECTS[name]
    with stub_driver.start(tmp_path) as fresh:  # loaded kernels stay loaded
        found = [fresh.call(run_defective_sum, *defect, emulates=1, seed=seed)[0] for seed in range(6)]
    assert any(found) and all(told in error for error in found if error), found
