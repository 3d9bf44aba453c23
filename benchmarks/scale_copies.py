"""Time what row-major scales cost large products: read where they are, and copied to the layout of TMA first.

Example: python -m benchmarks.scale_copies --time-budget 120 --rounds 12

Variants: `auto` on `mn_major` scales, on `row_major` ones that are read where they are, and `copied`: row-major ones
that the library copies (set_scale_copy_work). Problems: dense ones of rising size, and those of m_grouped_contiguous.
After the rows, a table by size of the product: how much longer the last two take than the first. Method and result:
harness.py.
"""

import math
import sys
from collections.abc import Callable

from deep_gemm import _C
from tuner.measure.statistics import median

from . import m_grouped_contiguous
from .dense_fp8 import SCALE_LAYOUTS, DenseFp8
from .harness import Family, main
from .product import Product

#: (n, k) and m of dense products: m * n * k from 2^33 to 2^40.
SHAPES = ((2112, 7168), (4096, 7168), (7168, 2048), (7168, 16384), (24576, 1536))
SIZES_M = (512, 1024, 2048, 4096, 8192)
DENSE = "fp8_gemm"
COPIED = "copied"
LAYOUTS = {**SCALE_LAYOUTS, COPIED: "mn_major"}


class ScaleCopies(Family):
    """The family of both op kinds."""

    def read_keys(self) -> list[dict]:
        """Return the key of every problem; those of one weight lie together."""
        grouped = [key for key in m_grouped_contiguous.FAMILY.read_keys() if key["dtype"] == "fp8"]
        dense = [
            {"dtype": "fp8", "num_groups": 0, "mean_m": m, "n": n, "k": k, "m": m} for n, k in SHAPES for m in SIZES_M
        ]
        return dense + grouped


def make_problems(key: dict) -> dict[str, object]:
    """Return the problem of a key for each layout."""
    if key["num_groups"]:
        found = m_grouped_contiguous.make_problems(key)
        return found | {COPIED: found["mn_major"]}
    return {
        name: _C.Problem(DENSE, key["m"], key["n"], key["k"], scale_layout=layout) for name, layout in LAYOUTS.items()
    }


def make_product(key: dict, device: object) -> Product:
    """Return the operands of one problem, whose public op can copy scales."""
    product = (m_grouped_contiguous.ContiguousProduct if key["num_groups"] else DenseFp8)(key, device)
    product.scales[COPIED] = product.scales["row_major"]
    call_op = product.call_op
    product.call_op = lambda layout, *package: (
        with_copies(call_op(layout, *package)) if layout == COPIED else call_op(layout, *package)
    )
    return product


def with_copies(call: Callable[[], object]) -> Callable[[], object]:
    """Return a call for which row-major scales are copied, whatever its size."""

    def copying() -> object:
        before = _C.get_scale_copy_work()
        _C.set_scale_copy_work(0.0)
        try:
            return call()
        finally:
            _C.set_scale_copy_work(before)

    return copying


FAMILY = ScaleCopies(
    name="scale_copies",
    ops=(DENSE, m_grouped_contiguous.OPS["fp8"]),
    key=("dtype", "num_groups", "mean_m", "n", "k", "m"),
    roles=dict.fromkeys(LAYOUTS, ()),
    make_problems=make_problems,
    make_product=make_product,
    peer="torch._scaled_mm, scales of 1, use_fast_accum=False",
)


def compare(row: dict) -> tuple[float, float, float]:
    """Return (log2 of m * n * k, us that row-major scales cost, us that copied ones cost)."""
    us = {name: median(row["times"][f"auto {name}"]) for name in LAYOUTS}
    work = math.log2(row["m"] * row["n"] * row["k"])
    return work, us["row_major"] - us["mn_major"], us[COPIED] - us["mn_major"]


def print_costs(rows: list[dict]) -> None:
    """Print the table of the module's docstring."""
    names = " ".join(f"{name:>6}" for name in ("groups", "m", "n", "k"))
    print(f"{names} {'log2 mnk':>9} {'mn_major us':>12} {'row_major +':>12} {'copied +':>9}")
    for row in sorted((row for row in rows if row["times"]), key=compare):
        work, direct, copied = compare(row)
        us = median(row["times"]["auto mn_major"])
        sizes = " ".join(f"{row[name]:6}" for name in ("num_groups", "m", "n", "k"))
        print(f"{sizes} {work:9.2f} {us:12.1f} {direct:12.2f} {copied:9.2f}")


if __name__ == "__main__":
    _C.set_scale_copy_work(math.inf)
    sys.exit(main(FAMILY, __doc__.splitlines()[0], show=print_costs))
