"""Time k-grouped products (weight gradients of experts), FP8 and BF16, on the 12 problems of data/k_grouped.json.

Example: python -m benchmarks.k_grouped --best tuning.db --model out_of_fold.json --time-budget 240

D is FP32 and accumulated onto. Layouts: `nt`, FP8 blocks of memory for each group; `joint`, the FP8 `tn` op, whose
operands are transposed first (a call's time is that of all its kernels, `auto joint transpose_fp8` that of the
copies alone); `tn`, BF16. The peers add nothing to D. Sizes of the groups: group_sizes.py; peers:
grouped_product.py; roles: choices.py; method and result: harness.py.
"""

import sys
from collections.abc import Callable
from itertools import accumulate
from types import ModuleType

import torch

import deep_gemm
from deep_gemm import _C
from deep_gemm.layout import get_mn_major_tma_aligned_tensor
from deep_gemm.numerics import get_starts
from deep_gemm.quantize import SCALE_BLOCK, per_token_cast_to_fp8

from .group_sizes import draw_ks
from .grouped_product import FP8, GroupedProduct, call_grouped_mm
from .harness import Family, main

OPS = {"fp8": "k_grouped_fp8_gemm_contiguous", "bf16": "k_grouped_bf16_gemm_contiguous"}
ACCUMULATE = {"d_dtype": "fp32", "c_mode": "accumulate"}
#: Fields of the problem by layout; what they leave out is the default.
FIELDS = {
    "fp8": {
        name: {**ACCUMULATE, "recipe": "1d1d", "group_layout": layout}
        for name, layout in (("nt", "blocks"), ("joint", "joint"))
    },
    "bf16": {"tn": {**ACCUMULATE, "a_major": "mn", "b_major": "mn"}},
}


class KGroupedProduct(GroupedProduct):
    """D_g [m, n] += A_g [m, k_g] @ B_g^T for every group; subclasses hold the operands in their memory.

    ks: list of k_g. starts: the column of A and B at which each group begins.
    """

    def __init__(self, key: dict):
        groups, m, n = key["num_groups"], key["m"], key["n"]
        self.ks = draw_ks(key)
        self.columns = [slice(start, start + k) for start, k in zip(get_starts(self.ks), self.ks, strict=True)]
        self.ks_tensor = torch.tensor(self.ks, dtype=torch.int32, device="cuda")
        c = torch.randn(groups * m, n, device="cuda")
        super().__init__(c.clone(), c, [group * m for group in range(groups)], [m] * groups)
        self.operand_d = self.d.view(groups, m, n)

    def get_joint(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return A [m, sum_k] and B [sum_k, n] as torch's grouped product takes them."""
        raise NotImplementedError

    def call_peers(self) -> dict[str, Callable[[], object]]:
        """Return one dense product for each group, and torch's grouped product, which writes a BF16 D."""
        peers: dict[str, Callable] = {"cublaslt": self.call_each()}
        offsets = torch.tensor(list(accumulate(self.ks)), dtype=torch.int32, device="cuda")
        self.add_peer(peers, "grouped_mm", call_grouped_mm(*self.get_joint(), offsets))
        return peers


class KGroupedFp8(KGroupedProduct):
    """Random normal operands with real scales: K-major [m, sum_k], the blocks of `nt`, and the [sum_k, m] of `tn`."""

    def __init__(self, key: dict, device: object):
        super().__init__(key)
        pairs = [
            per_token_cast_to_fp8(torch.randn(rows, key["sum_k"], device="cuda"), False)
            for rows in (key["m"], key["n"])
        ]
        self.joint = [values for values, _ in pairs]
        self.blocks = [
            torch.cat([values.view(torch.uint8)[:, part].reshape(-1) for part in self.columns]).view(FP8)
            for values in self.joint
        ]
        self.transposed = [values.view(torch.uint8).T.contiguous().view(FP8) for values in self.joint]
        self.scales = [get_mn_major_tma_aligned_tensor(scale) for _, scale in pairs]

    def get_group(self, group: int) -> tuple:
        """Return one group's blocks of A and B as matrices, with their scales."""
        part = self.columns[group]
        steps = slice(part.start // SCALE_BLOCK, part.stop // SCALE_BLOCK)
        operands = []
        for values, scale in zip(self.blocks, self.scales, strict=True):
            rows = scale.shape[0]
            operands += [values[rows * part.start : rows * part.stop].view(rows, -1), scale[:, steps]]
        return tuple(operands)

    def get_joint(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return K-major A and B."""
        return self.joint[0], self.joint[1].T

    def call_op(self, layout: str, package: ModuleType = deep_gemm) -> Callable[[], object]:
        """Return the public op: `nt` on the blocks, or `tn` on the transposed matrices, whose scales are transposed
        with them.
        """
        is_nt = layout == "nt"
        op = package.k_grouped_fp8_gemm_nt_contiguous if is_nt else package.k_grouped_fp8_gemm_tn_contiguous
        scales = self.scales if is_nt else [scale.T for scale in self.scales]
        a, b = zip(self.blocks if is_nt else self.transposed, scales, strict=True)
        return lambda: op(a, b, self.operand_d, self.ks, self.ks_tensor, self.operand_d)

    def call_kernel(self, kernel, layout: str) -> Callable[[], object]:
        """Return one loaded kernel on the blocks."""
        (a, b), (scale_a, scale_b), d = self.blocks, self.scales, self.operand_d
        return lambda: kernel.launch(a, scale_a, b, scale_b, d, d, groups=self.ks_tensor)


class KGroupedBf16(KGroupedProduct):
    """Random normal operands [sum_k, m] and [sum_k, n]."""

    def __init__(self, key: dict, device: object):
        super().__init__(key)
        self.memory = [
            torch.randn(key["sum_k"], rows, dtype=torch.bfloat16, device="cuda") for rows in (key["m"], key["n"])
        ]

    def get_group(self, group: int) -> tuple:
        """Return nt views of one group's rows of both matrices."""
        a, b = (memory[self.columns[group]].T for memory in self.memory)
        return a, None, b, None

    def get_joint(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return MN-major A and B."""
        return self.memory[0].T, self.memory[1]

    def call_op(self, layout: str, package: ModuleType = deep_gemm) -> Callable[[], object]:
        """Return the public op on these operands."""
        (a, b), d = self.memory, self.operand_d
        return lambda: package.k_grouped_bf16_gemm_tn_contiguous(a, b, d, self.ks, self.ks_tensor, d)

    def call_kernel(self, kernel, layout: str) -> Callable[[], object]:
        """Return one loaded kernel on nt views of these operands."""
        (a, b), d = (memory.T for memory in self.memory), self.operand_d
        return lambda: kernel.launch(a, None, b, None, d, d, groups=self.ks_tensor)


def make_problems(key: dict) -> dict[str, object]:
    """Return the problem of a key for each of its layouts."""
    sizes, groups = (key["m"], key["n"], key["sum_k"]), key["num_groups"]
    return {
        layout: _C.Problem(OPS[key["dtype"]], *sizes, num_groups=groups, **fields)
        for layout, fields in FIELDS[key["dtype"]].items()
    }


def make_product(key: dict, device: object) -> KGroupedProduct:
    """Return the operands of a key."""
    return {"fp8": KGroupedFp8, "bf16": KGroupedBf16}[key["dtype"]](key, device)


FAMILY = Family(
    name="k_grouped",
    ops=tuple(OPS.values()),
    key=("dtype", "num_groups", "m", "n", "mean_k", "sum_k"),
    roles={"nt": ("best", "model", "heuristic"), "joint": (), "tn": ("best", "model", "heuristic")},
    make_problems=make_problems,
    make_product=make_product,
    part="transpose_fp8",
    rests=True,
    peer=(
        "torch.mm, or torch._scaled_mm with scales of 1 and use_fast_accum=False, for each group, adding nothing;"
        " torch's grouped product beside it"
    ),
)


if __name__ == "__main__":
    sys.exit(main(FAMILY, __doc__.splitlines()[0]))
