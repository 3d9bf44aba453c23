"""A kernel of two tiles takes the one whose rounds take less with the rows that its groups have, in every warp."""

import pytest

from deep_gemm import _C
from tests.emulator.host import Outcome
from tests.emulator.products import Product, run_product
from tests.gpu.grouped_psum import PsumRows
from tests.gpu.grouped_shapes import Masked
from tests.gpu.grouped_tiles import takes_second
from tests.gpu.grouped_variants import BF16_MASKED, FP8_CONTIGUOUS, FP8_MASKED, GroupedVariant

RIGHT = Outcome(0, 0, "")
WIDE, NARROW = (
    {"block_m": 64, "block_n": columns, "num_stages": stages, "block_k": 128}
    for columns, stages in ((128, 8), (64, 13))
)
FP8 = Product(GroupedVariant(FP8_MASKED), WIDE | {"scale_warp": 1}, Masked(130, 300, 150, (0, 0)), 3, second=NARROW)
#: By sizes of the groups: the width of the tile that takes less on three SMs. A round of the narrow one takes some 0.7
#: of the other's time; three tiles of it lie where two of the other do.
TAKEN = {(0, 40): 64, (60, 64): 64, (70, 64): 128, (500, 0): 128, (-1, 64): 64}
COLUMNS = "n_start = (n_tile * Config::kClusterN + rank_n) * Config::kBlockN;"
WALK = "deep_gemm/sm90/scheduler/group_walk.cuh"


@pytest.fixture(scope="module")
def kernels():
    """The kernel, and those that compute nothing right with one of their tiles, by its width."""
    kernels = {None: FP8.build()}
    for width in (64, 128):
        defect = COLUMNS.replace("n_tile", f"(Config::kBlockN == {width} ? 0 : n_tile)", 1)
        kernels[width] = FP8.build({WALK: (COLUMNS, defect)})
    return kernels


@pytest.mark.parametrize("sizes", TAKEN)
def test_the_tile_that_takes_less_computes_the_product(emulate, kernels, sizes):
    product = FP8._replace(shape=FP8.shape._replace(sizes=sizes))
    assert [emulate(run_product, product, kernels[None], seed=seed) for seed in (0, 2)] == [RIGHT] * 2
    found = {width: emulate(run_product, product, kernels[width]) == RIGHT for width in (64, 128)}
    assert found == {64: TAKEN[sizes] == 128, 128: TAKEN[sizes] == 64}
    device = _C.Device.known("h200")
    assert takes_second(FP8.variant, product.shape, *FP8.tiles, device, num_sms=3) == (TAKEN[sizes] == 64)


def test_a_kernel_of_two_tiles_that_was_loaded_as_one_takes_the_first(emulate, kernels):
    """Its ninth argument was a null pointer, from which the driver copies."""
    product = FP8._replace(shape=FP8.shape._replace(sizes=(0, 40)), second=None)
    found = {width: emulate(run_product, product, kernels[width]) == RIGHT for width in (None, 64, 128)}
    assert found == {None: True, 64: True, 128: False}


def test_tiles_of_either_side_stand_beside_each_other(emulate):
    swapped = {"block_m": 80, "block_n": 128, "num_stages": 3, "block_k": 64, "swap_ab": 1}
    plain = {"block_m": 128, "block_n": 64, "num_stages": 4, "block_k": 64}
    product = Product(GroupedVariant(BF16_MASKED), swapped, Masked(130, 200, 150, ()), 2, second=plain)
    cubin = product.build()
    for sizes in ((70, 0, 5), (150, 128, 1)):
        case = product._replace(shape=product.shape._replace(sizes=sizes))
        assert emulate(run_product, case, cubin, seed=3) == RIGHT


FEW, FULL = (3, 0, 9, 1), (128, 100, 120, 128)


@pytest.fixture(scope="module")
def kernels_with_ends():
    """A kernel of groups with ends, and those that compute nothing right with one of their tiles, by its rows."""
    few = {"block_m": 16, "block_n": 128, "num_stages": 4, "block_k": 128, "swap_ab": 1}
    full = {"block_m": 128, "block_n": 64, "num_stages": 4, "block_k": 128}
    product = Product(GroupedVariant(FP8_CONTIGUOUS), full, PsumRows(200, 300, FEW, extra=70), 2, second=few, index=1)
    kernels = {None: product.build()}
    for rows in (16, 128):
        defect = COLUMNS.replace("n_tile", f"(Config::kBlockM == {rows} ? 0 : n_tile)", 1)
        kernels[rows] = product.build({WALK: (COLUMNS, defect)})
    return product, kernels


@pytest.mark.parametrize("sizes, zeroes, taken", [(FEW, False, 16), (FULL, False, 128), (FEW, True, 128)], ids=str)
def test_the_tile_of_groups_with_ends(emulate, kernels_with_ends, sizes, zeroes, taken):
    """Few rows take small tiles, unless padding becomes zero."""
    product, kernels = kernels_with_ends
    case = product._replace(shape=PsumRows(200, 300, sizes, extra=70), index=0 if zeroes else 1)
    assert [emulate(run_product, case, kernels[None], seed=seed) for seed in (0, 2)] == [RIGHT] * 2
    found = {rows: emulate(run_product, case, kernels[rows]) == RIGHT for rows in (16, 128)}
    assert found == {16: taken == 128, 128: taken == 16}
