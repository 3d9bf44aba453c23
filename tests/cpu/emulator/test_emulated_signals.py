"""Masked products that signal their rows: D and the signals are right under any schedule, and no signal is complete
before its rows are stored, which the emulator watches.
"""

import pytest

from deep_gemm import _C
from tests.emulator.host import Outcome
from tests.emulator.products import Product
from tests.emulator.signals import SignalledOutcome, build_signalling, run_signalling
from tests.gpu.grouped_shapes import Masked
from tests.gpu.grouped_variants import BF16_MASKED, FP8_MASKED, GroupedVariant

RIGHT = SignalledOutcome(Outcome(0, 0, ""), 0)
FP8, BF16 = GroupedVariant(FP8_MASKED), GroupedVariant(BF16_MASKED)
#: Groups with no row, one, around 64, and all that they have room for; n that ends with whole 16 bytes of D, and n that
#: does not.
SIZES, MANY = (0, 1, 63, 64, 65, 200), (64, 0, 65, 1, 130)
EVEN, TAIL = Masked(136, 200, 200, SIZES), Masked(133, 200, 200, SIZES)


def fp8(block_m, block_n, **others):
    """Return the fields of a config of FP8."""
    return {"block_m": block_m, "block_n": block_n, "num_stages": 3, "block_k": 128, **others}


def bf16(block_m, block_n, **others):
    """Return the fields of a config of BF16."""
    return fp8(block_m, block_n, **others) | {"block_k": 64}


PRODUCTS = {
    "staged": Product(FP8, fp8(64, 64), EVEN, num_sms=2),
    "with a tail": Product(BF16, bf16(64, 64), TAIL, num_sms=2),
    "swapped, 24 rows": Product(FP8, fp8(24, 64, swap_ab=1), TAIL, num_sms=3),
    "swapped, 72 rows": Product(BF16, bf16(72, 128, swap_ab=1), EVEN, num_sms=2),
    "swapped, two columns of warpgroups": Product(BF16, bf16(136, 256, swap_ab=1), Masked(300, 100, 150, MANY)),
    "128 rows": Product(BF16, bf16(128, 96), TAIL, num_sms=1),
    "256 rows, direct": Product(BF16._replace(d_dtype="fp32"), bf16(256, 128), EVEN, num_sms=1),
    "pair along m": Product(FP8, fp8(64, 64, cluster_m=2), Masked(136, 200, 130, MANY), num_sms=2),
    "pair along n": Product(FP8, fp8(128, 64, cluster_n=2), TAIL),
    "fp32": Product(FP8._replace(d_dtype="fp32", recipe="1d1d", scale_layout="any"), fp8(128, 64), TAIL),
    "side by side": Product(FP8, fp8(64, 224), Masked(133, 430, 200, MANY), num_sms=2),
    "fewer rows than a block": Product(FP8, fp8(64, 64), Masked(70, 130, 24, (24, 0, 7)), num_sms=1),
}
MAIN = ("staged", "swapped, 24 rows", "256 rows, direct")
NAMES = [name if name in MAIN else pytest.param(name, marks=pytest.mark.full) for name in PRODUCTS]


#: Of the header that signals: what is wrong, and the name of a product and a seed that show it.
HEADER = "deep_gemm/sm90/epilogue/signals.cuh"
DEFECTS = {
    "waits for reads alone": ("bulk.wait_group 0", "bulk.wait_group.read 0", "staged", 1),
    "does not wait for a tail": ("this->accumulation.d.whole != this->n", "false", "with a tail", 2),
    "does not wait for others": ("!Config::kStaged || ", "", "256 rows, direct", 2),
    "signals before it stores": ("Base::store(final, tile, group, place);", "signal(tile, group);", "staged", 0),
    "leaves out the rest of the last block": (": align_up(size, kSignalRows)", ": row + kRows", "swapped, 24 rows", 0),
    "signals rows without a tile": ("row >= size || ", "", "pair along m", 0),
    "takes all columns for the first warpgroup's": (
        "Layout::kSwap ? part : group * Layout::kColumnStep)",
        "0)",
        "swapped, 72 rows",
        0,
    ),
    "counts the columns of both warpgroups": (
        "kGroupRows : Layout::kColumns;",
        "kGroupRows : Config::kBlockN;",
        "side by side",
        0,
    ),
    "takes all rows for the first warpgroup's": ("Layout::kSwap ? 0 : part)", "0)", "256 rows, direct", 0),
    "rounds the blocks of a group down": ("ceil_div(this->m, kSignalRows)", "(this->m / kSignalRows)", "staged", 0),
    "counts whole tiles": ("this->n - column < kColumns ? this->n - column : kColumns", "kColumns", "with a tail", 0),
}


@pytest.mark.parametrize("defect", [pytest.param(name, marks=pytest.mark.full) for name in DEFECTS])
def test_planted_defects_are_found(emulate, defect):
    old, new, name, seed = DEFECTS[defect]
    cubin = build_signalling(PRODUCTS[name], {HEADER: (old, new)})
    assert emulate(run_signalling, PRODUCTS[name], cubin, seed=seed) != RIGHT


def test_both_ways_to_store_are_met():
    staged = [_C.is_staged(product.problem, product.tiles[0]) for product in PRODUCTS.values()]
    assert any(staged) and not all(staged)
    assert not _C.is_staged(PRODUCTS["256 rows, direct"].problem, PRODUCTS["256 rows, direct"].tiles[0])


@pytest.mark.parametrize("name", NAMES)
def test_signals_are_complete_once_rows_are_stored(emulate, name):
    product = PRODUCTS[name]
    cubin = build_signalling(product)
    for seed in (0, 1, 2, 3):
        assert emulate(run_signalling, product, cubin, seed=seed) == RIGHT, f"seed {seed}"
