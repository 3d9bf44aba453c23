"""Time m-grouped products in the contiguous layout, FP8 and BF16, on the 16 problems of data/m_grouped_contiguous.json.

Example: python -m benchmarks.m_grouped_contiguous --best tuning.db --model out_of_fold.json --time-budget 240

Layouts: `mn_major` and `row_major` scales of A (FP8), `nt` (BF16). Sizes of the groups: group_sizes.py. Rows of padding
must come out as +0. Peers: grouped_product.py; roles: choices.py; method and result: harness.py.
"""

import sys
from collections.abc import Callable
from types import ModuleType

import torch

import deep_gemm
from deep_gemm.numerics import get_starts, make_m_indices

from .group_sizes import ALIGNMENT, draw_contiguous_rows
from .grouped_product import M_GROUPED_PEER, M_GROUPED_ROLES, MGroupedProduct, make_m_grouped_problems
from .harness import Family, main

OPS = {"fp8": "m_grouped_fp8_gemm_contiguous", "bf16": "m_grouped_bf16_gemm_contiguous"}


class ContiguousProduct(MGroupedProduct):
    """The groups' rows one after the other in A [m, k], each group from a multiple of ALIGNMENT on."""

    def __init__(self, key: dict, device: object):
        sizes = draw_contiguous_rows(key)
        super().__init__((key["m"],), key, get_starts(sizes, ALIGNMENT), sizes)
        self.op = f"m_grouped_{key['dtype']}_gemm_nt_contiguous"
        self.m_indices = make_m_indices(self.starts, sizes, key["m"]).to(self.d.device)

    def call_op(self, layout: str, package: ModuleType = deep_gemm) -> Callable[[], object]:
        """Return the public op on these operands."""
        op, (a, b) = getattr(package, self.op), self.get_pairs(layout)
        return lambda: op(a, b, self.operand_d, self.m_indices)

    def call_kernel(self, kernel, layout: str) -> Callable[[], object]:
        """Return one loaded kernel on these operands."""
        scale_a = self.scales[layout]
        return lambda: kernel.launch(
            self.operand_a, scale_a, self.operand_b, self.scale_of_b, self.operand_d, groups=self.m_indices
        )

    def is_right(self, layout: str) -> bool:
        """Return whether rows spread over every group lie within their bounds and all padding is +0, bit by bit."""
        padding = self.d[self.m_indices < 0]
        return super().is_right(layout) and not bool(padding.view(torch.int16).any())


def make_problems(key: dict) -> dict[str, object]:
    """Return the problem of a key for each of its layouts."""
    return make_m_grouped_problems(OPS[key["dtype"]], key, key["m"], alignment=ALIGNMENT)


FAMILY = Family(
    name="m_grouped_contiguous",
    ops=tuple(OPS.values()),
    key=("dtype", "num_groups", "mean_m", "n", "k", "m"),
    roles=M_GROUPED_ROLES,
    make_problems=make_problems,
    make_product=ContiguousProduct,
    peer=M_GROUPED_PEER,
    rests=True,
)


if __name__ == "__main__":
    sys.exit(main(FAMILY, __doc__.splitlines()[0]))
