"""Time FP8 weight gradients on the 7 problems of data/wgrad_fp8.json: 1-D scales on both sides, FP32 D added onto C.

Example: python -m benchmarks.wgrad_fp8

Layouts: `mn_major` scales, which TMA loads, and `row_major` ones; `bf16` is the same product with a BF16 D and no C.
    cuBLASLt computes the unscaled FP8 product with an FP32 D (`cublaslt`) and a BF16 one (`cublaslt bf16`). Roles:
    choices.py; method and result: harness.py.
"""

import sys
from collections.abc import Callable
from types import ModuleType

import torch

import deep_gemm
from deep_gemm import _C
from deep_gemm.layout import get_mn_major_tma_aligned_tensor
from deep_gemm.quantize import per_token_cast_to_fp8

from .harness import Family, main
from .product import Product

RECIPE = (1, 1, 128)
#: Fields of the problem by layout; what they leave out is the default.
ACCUMULATE = {"recipe": "1d1d", "d_dtype": "fp32", "c_mode": "accumulate"}
FIELDS = {"mn_major": ACCUMULATE, "row_major": {**ACCUMULATE, "scale_layout": "any"}, "bf16": {"recipe": "1d1d"}}


class WgradFp8(Product):
    """Random normal operands of one problem with real scales in both layouts, and both Ds."""

    def __init__(self, key: dict, device: object):
        m, n, k = key["m"], key["n"], key["k"]
        a, scale_a = per_token_cast_to_fp8(torch.randn(m, k, device="cuda"), False)
        b, scale_b = per_token_cast_to_fp8(torch.randn(n, k, device="cuda"), False)
        c = torch.randn(m, n, device="cuda")
        super().__init__(a, scale_a, b, scale_b, c.clone(), c)
        self.half, self.one = torch.empty(m, n, dtype=torch.bfloat16, device="cuda"), torch.ones((), device="cuda")
        mn_major = (get_mn_major_tma_aligned_tensor(scale_a), get_mn_major_tma_aligned_tensor(scale_b))
        self.scales = {"mn_major": mn_major, "row_major": (scale_a, scale_b), "bf16": mn_major}

    def get_output(self, layout: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the FP32 D with its C, or the BF16 D."""
        return (self.half, None) if layout == "bf16" else (self.d, self.c)

    def call_op(self, layout: str, package: ModuleType = deep_gemm) -> Callable[[], object]:
        """Return the public op on these operands."""
        scale_a, scale_b = self.scales[layout]
        a, b = (self.a, scale_a), (self.b, scale_b)
        if layout == "bf16":
            return lambda: package.fp8_gemm_nt(a, b, self.half, recipe=RECIPE)
        return lambda: package.fp8_gemm_nt(a, b, self.d, c=self.d, recipe=RECIPE)

    def call_kernel(self, kernel, layout: str) -> Callable[[], object]:
        """Return one loaded kernel on these operands."""
        scale_a, scale_b = self.scales[layout]
        if layout == "bf16":
            return lambda: kernel.launch(self.a, scale_a, self.b, scale_b, self.half)
        return lambda: kernel.launch(self.a, scale_a, self.b, scale_b, self.d, self.d)

    def call_peers(self) -> dict[str, Callable[[], object]]:
        """Return the vendor's product of the same bytes, which applies no block scales and adds nothing."""
        b = self.b.t()

        def multiply(dtype: torch.dtype) -> Callable[[], object]:
            return lambda: torch._scaled_mm(
                self.a, b, scale_a=self.one, scale_b=self.one, out_dtype=dtype, use_fast_accum=False
            )

        return {"cublaslt": multiply(torch.float32), "cublaslt bf16": multiply(torch.bfloat16)}


FAMILY = Family(
    name="wgrad_fp8",
    ops=("fp8_gemm",),
    key=("m", "n", "k"),
    roles={"mn_major": ("best", "model", "heuristic"), "row_major": ("model",), "bf16": ("best", "model")},
    make_problems=lambda key: {
        layout: _C.Problem("fp8_gemm", key["m"], key["n"], key["k"], **fields) for layout, fields in FIELDS.items()
    },
    make_product=WgradFp8,
    peer="torch._scaled_mm, scales of 1, use_fast_accum=False, out_dtype=torch.float32",
    rests=True,
)


if __name__ == "__main__":
    sys.exit(main(FAMILY, __doc__.splitlines()[0]))
