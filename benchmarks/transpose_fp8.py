"""Time FP8 products of every memory layout on the 4 problems of data/transpose_fp8.json: what the transposed copies
cost.

Example: python -m benchmarks.transpose_fp8

Layouts: `nt`, whose operands the GEMM reads as they are, `nn` (B is copied first), `tn` (both are) and `tt` (A is); a
    call's time is that of all its kernels, and `auto <layout> transpose_fp8` that of its copies alone. `copy` is
    torch's copy of as many bytes as A and B have, beside which those of `tn` stand.
    cuBLASLt computes the unscaled `nt` product. Method and result: harness.py.
"""

import sys
from collections.abc import Callable
from types import ModuleType

import torch

import deep_gemm
from deep_gemm import _C
from deep_gemm.layout import get_mn_major_tma_aligned_tensor
from deep_gemm.quantize import align, per_block_cast_to_fp8, per_token_cast_to_fp8

from .dense_bf16 import TRANSPOSED
from .harness import Family, main
from .product import Product


class TransposeFp8(Product):
    """Random normal operands of one problem with real scales, each operand in both memory orders."""

    def __init__(self, key: dict, device: object):
        m, n, k = key["m"], key["n"], key["k"]
        a, scale_a = per_token_cast_to_fp8(torch.randn(m, k, device="cuda"), False)
        b, scale_b = per_block_cast_to_fp8(torch.randn(n, k, device="cuda"), False)
        super().__init__(a, scale_a, b, scale_b, torch.empty(m, n, dtype=torch.bfloat16, device="cuda"))
        scale_a = get_mn_major_tma_aligned_tensor(scale_a)
        #: Operand and scales by whether they are passed as the transposed matrix.
        self.pairs_a = {False: (a, scale_a), True: (transpose(a), scale_a.T)}
        self.pairs_b = {False: (b, scale_b), True: (transpose(b), scale_b.T)}
        self.one = torch.ones((), device="cuda")
        self.bytes = torch.cat([operand.view(torch.uint8).flatten() for operand in (a, b)])
        self.copied_bytes = torch.empty_like(self.bytes)

    def call_op(self, layout: str, package: ModuleType = deep_gemm) -> Callable[[], object]:
        """Return the public op of that memory layout."""
        op, (is_a_transposed, is_b_transposed) = getattr(package, f"fp8_gemm_{layout}"), TRANSPOSED[layout]
        a, b = self.pairs_a[is_a_transposed], self.pairs_b[is_b_transposed]
        return lambda: op(a, b, self.d)

    def call_peers(self) -> dict[str, Callable[[], object]]:
        """Return the vendor's product of the same bytes, K-major both, which applies no block scales, and a copy."""
        b = self.b.t()
        return {
            "copy": lambda: self.copied_bytes.copy_(self.bytes),
            "cublaslt": lambda: torch._scaled_mm(
                self.a, b, scale_a=self.one, scale_b=self.one, out_dtype=torch.bfloat16, use_fast_accum=False
            ),
        }


def transpose(values: torch.Tensor) -> torch.Tensor:
    """Copy FP8 [rows, k] into [k, rows] with rows at a pitch of 16 bytes."""
    rows, k = values.shape
    memory = torch.empty(k, align(rows, 16), dtype=torch.uint8, device=values.device)[:, :rows]
    return memory.copy_(values.view(torch.uint8).T).view(values.dtype)


FAMILY = Family(
    name="transpose_fp8", ops=("fp8_gemm",), key=("m", "n", "k"), roles=dict.fromkeys(TRANSPOSED, ()),
    make_problems=lambda key: dict.fromkeys(TRANSPOSED, _C.Problem("fp8_gemm", key["m"], key["n"], key["k"])),
    make_product=TransposeFp8, peer="torch._scaled_mm of nt, scales of 1, use_fast_accum=False", part="transpose_fp8",
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(FAMILY, __doc__.splitlines()[0]))
