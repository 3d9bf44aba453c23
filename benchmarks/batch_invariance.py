"""Time what batch invariance costs: dense BF16 and FP8 at decode sizes, with and without configs that split K.

Example: python -m benchmarks.batch_invariance --time-budget 90 --rounds 12

Variants: `auto`, the library's choice, and `invariant`, its choice among the configs with which a row of D does not
depend on m; cuBLASLt is the peer of each type. After the rows, a table: the geometric mean over the shapes of each m of
invariant's time over auto's ("cost"), of the same where auto's config is taken as it is when it does not split K
("floor": what a choice that knows both could reach), and of cuBLASLt's over each. Method and result: harness.py; roles:
choices.py.
"""

import re
import statistics
import sys
from collections.abc import Callable
from types import ModuleType

import deep_gemm
from deep_gemm import _C
from tuner.measure.statistics import median

from .dense_bf16 import DenseBf16
from .dense_fp8 import DenseFp8
from .harness import Family, main
from .product import Product

LAYOUT = "nt"
SIZES_M = (1, 8, 32, 64, 128)
#: (n, k) of the recorded dense problems, from few output tiles and a long K to many and a short one.
SHAPES = ((576, 7168), (2112, 7168), (4096, 7168), (7168, 2048), (7168, 16384), (24576, 1536))
OPS = ("bf16_gemm", "fp8_gemm")
#: How a config that splits K is written.
SPLIT = re.compile(r" k\d+")


class Invariance(Family):
    """The family of both op kinds; its problems are the sizes above."""

    def read_keys(self) -> list[dict]:
        """Return the key of every problem; those of one weight lie together."""
        return [{"op": op, "m": m, "n": n, "k": k} for op in OPS for n, k in SHAPES for m in SIZES_M]


class Bf16(DenseBf16):
    """BF16 operands, both K-major."""

    def __init__(self, key: dict, device: object):
        super().__init__({**key, "layout": LAYOUT, "out": "bf16"}, device)


class Fp8(DenseFp8):
    """FP8 operands, A's scales as TMA loads them."""

    def call_op(self, layout: str, package: ModuleType = deep_gemm) -> Callable[[], object]:
        """Return the public op on these operands."""
        return super().call_op("mn_major", package)

    def call_kernel(self, kernel, layout: str) -> Callable[[], object]:
        """Return one loaded kernel on these operands."""
        return super().call_kernel(kernel, "mn_major")


def make_product(key: dict, device: object) -> Product:
    """Return the operands of one problem."""
    return (Fp8 if key["op"] == "fp8_gemm" else Bf16)(key, device)


FAMILY = Invariance(
    name="batch_invariance",
    ops=OPS,
    key=("op", "m", "n", "k"),
    roles={LAYOUT: ("invariant",)},
    make_problems=lambda key: {LAYOUT: _C.Problem(key["op"], key["m"], key["n"], key["k"])},
    make_product=make_product,
    peer="torch.mm for BF16, torch._scaled_mm with scales of 1 and use_fast_accum=False for FP8",
)


def compare(row: dict) -> tuple[float, float, float, float]:
    """Return (cost, floor, cuBLASLt over auto, cuBLASLt over invariant) of one problem."""
    times = {name: median(values) for name, values in row["times"].items()}
    auto, invariant = (row["choices"][role]["config"] for role in ("auto", "invariant"))
    auto_us = times[f"auto {LAYOUT}"]
    invariant_us = auto_us if auto == invariant else times[f"{invariant} {LAYOUT}"]
    best_us = invariant_us if SPLIT.search(auto) else min(auto_us, invariant_us)
    return invariant_us / auto_us, best_us / auto_us, times["cublaslt"] / auto_us, times["cublaslt"] / invariant_us


def print_costs(rows: list[dict]) -> None:
    """Print the table of the module's docstring."""
    print(f"{'op':10} {'m':>4} {'cost':>7} {'worst':>7} {'floor':>7} {'auto x cuBLASLt':>16} {'invariant x':>12}")
    for op in OPS:
        for m in (*SIZES_M, None):
            figures = [compare(row) for row in rows if row["op"] == op and m in (None, row["m"]) and row["times"]]
            if not figures:
                continue
            cost, floor, auto, invariant = (statistics.geometric_mean(column) for column in zip(*figures, strict=True))
            worst = max(figure[0] for figure in figures)
            print(f"{op:10} {m or 'all':>4} {cost:7.3f} {worst:7.3f} {floor:7.3f} {auto:16.3f} {invariant:12.3f}")


if __name__ == "__main__":
    sys.exit(main(FAMILY, __doc__.splitlines()[0], show=print_costs))
