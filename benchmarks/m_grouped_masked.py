"""Time m-grouped masked products, FP8 and BF16, on the 64 problems of data/m_grouped_masked.json: 56 uniform loads and
8 skewed ones.

Example: python -m benchmarks.m_grouped_masked --best tuning.db --model out_of_fold.json --time-budget 240

Layouts: `mn_major` and `row_major` scales of A (FP8), `nt` (BF16). Rows of the groups: group_sizes.py. In a skewed load
one group has nearly all rows; the host does not know it, so expected_m is the mean of either load. For decode sizes a
kernel that only reads all of B is timed in the same session (`floor`). Peers: grouped_product.py; roles: choices.py;
method and result: harness.py.
"""

import sys
from collections.abc import Callable
from types import ModuleType

import torch

import deep_gemm
from deep_gemm.jit.hashing import SECOND_TILE

from .dense_fp8 import FLOOR_BLOCKS_PER_SM, MAX_FLOOR_M
from .device_kernels import ReadKernel
from .group_sizes import draw_masked_rows
from .grouped_product import M_GROUPED_PEER, M_GROUPED_ROLES, MGroupedProduct, make_m_grouped_problems
from .harness import Family, main

OPS = {"fp8": "m_grouped_fp8_gemm_masked", "bf16": "m_grouped_bf16_gemm_masked"}


class MaskedProduct(MGroupedProduct):
    """Every group with room for max_m rows in A [num_groups, max_m, k]; the first of them count."""

    floor: ReadKernel | None = None

    def __init__(self, key: dict, device: object):
        sizes, max_m = draw_masked_rows(key), key["max_m"]
        super().__init__((key["num_groups"], max_m), key, [group * max_m for group in range(len(sizes))], sizes)
        self.op = f"m_grouped_{key['dtype']}_gemm_nt_masked"
        self.masked_m = torch.tensor(sizes, dtype=torch.int32, device="cuda")
        self.expected_m, self.device = key["mean_m"], device

    def get_compared(self, layout: str) -> torch.Tensor:
        """Return the valid rows of D; the contents of the other rows are unspecified."""
        return self.d[self.valid]

    def call_op(self, layout: str, package: ModuleType = deep_gemm) -> Callable[[], object]:
        """Return the public op on these operands."""
        op, (a, b) = getattr(package, self.op), self.get_pairs(layout)
        return lambda: op(a, b, self.operand_d, self.masked_m, self.expected_m)

    def call_kernel(self, kernel, layout: str) -> Callable[[], object]:
        """Return one loaded kernel on these operands."""
        scale_a = self.scales[layout]
        return lambda: kernel.launch(
            self.operand_a, scale_a, self.operand_b, self.scale_of_b, self.operand_d, groups=self.masked_m
        )

    def call_peers(self) -> dict[str, Callable[[], object]]:
        """Return the peers of every m-grouped product, and the floor of decode."""
        peers = super().call_peers()
        if self.expected_m > MAX_FLOOR_M:
            return peers
        MaskedProduct.floor = MaskedProduct.floor or ReadKernel(
            "stream_floor_read", num_blocks=FLOOR_BLOCKS_PER_SM * self.device.sm_count
        )
        return {**peers, "floor": lambda: MaskedProduct.floor.launch(self.operand_b)}


def make_problems(key: dict) -> dict[str, object]:
    """Return the problem of a key for each of its layouts."""
    return make_m_grouped_problems(OPS[key["dtype"]], key, key["max_m"], expected_m=key["mean_m"])


FAMILY = Family(
    name="m_grouped_masked",
    ops=tuple(OPS.values()),
    key=("dtype", "load", "num_groups", "max_m", "mean_m", "n", "k", "sum_m"),
    roles=M_GROUPED_ROLES,
    make_problems=make_problems,
    make_product=MaskedProduct,
    peer=M_GROUPED_PEER,
    further=(SECOND_TILE,),
    rests=True,
)


if __name__ == "__main__":
    sys.exit(main(FAMILY, __doc__.splitlines()[0]))
