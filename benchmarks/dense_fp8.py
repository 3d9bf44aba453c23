"""Time dense FP8 on the 80 problems of data/dense_fp8.json: the library's choice, the best config, the model, the
heuristic.

Example: python -m benchmarks.dense_fp8 --best tuning.db --model out_of_fold.json --time-budget 240

Layouts: `mn_major` scales of A, which TMA loads, and `row_major` ones, which the kernel copies itself. cuBLASLt
    (unscaled FP8, no fast accumulation) and, for m <= 64, the streaming floor are variants of the same session. Roles:
    choices.py; method and result: harness.py.
"""

import sys
from collections.abc import Callable
from types import ModuleType

import torch

import deep_gemm
from deep_gemm import _C
from deep_gemm.layout import get_mn_major_tma_aligned_tensor
from deep_gemm.quantize import per_block_cast_to_fp8, per_token_cast_to_fp8

from .device_kernels import ReadKernel
from .harness import Family, main
from .product import Product

#: The floor is the yardstick of decode only (P2).
MAX_FLOOR_M = 64
#: The floor's grid: the one that the baseline of data/stream_floor.json used on 132 SMs.
FLOOR_BLOCKS_PER_SM = 4
SCALE_LAYOUTS = {"mn_major": "mn_major", "row_major": "any"}


class DenseFp8(Product):
    """Random normal operands of one problem with real scales, A's in both layouts."""

    floor: ReadKernel | None = None
    weight: tuple = ()

    def __init__(self, key: dict, device):
        m, n, k = key["m"], key["n"], key["k"]
        if DenseFp8.weight[:2] != (n, k):  # one weight serves all m
            DenseFp8.weight = (n, k, *per_block_cast_to_fp8(torch.randn(n, k, device="cuda"), False))
        a, row_major = per_token_cast_to_fp8(torch.randn(m, k, device="cuda"), False)
        super().__init__(a, row_major, *DenseFp8.weight[2:], torch.empty(m, n, dtype=torch.bfloat16, device="cuda"))
        self.scales = {"mn_major": get_mn_major_tma_aligned_tensor(row_major), "row_major": row_major}
        self.device, self.one = device, torch.ones((), device="cuda")

    def call_op(self, layout: str, package: ModuleType = deep_gemm) -> Callable[[], object]:
        """Return the public op on these operands."""
        a, b = (self.a, self.scales[layout]), (self.b, self.scale_b)
        return lambda: package.fp8_gemm_nt(a, b, self.d)

    def call_kernel(self, kernel, layout: str) -> Callable[[], object]:
        """Return one loaded kernel on these operands."""
        scale_a = self.scales[layout]
        return lambda: kernel.launch(self.a, scale_a, self.b, self.scale_b, self.d)

    def call_peers(self) -> dict[str, Callable[[], object]]:
        """Return the vendor's product of the same bytes, which applies no block scales, and the floor of decode."""
        b = self.b.t()
        cublaslt = {
            "cublaslt": lambda: torch._scaled_mm(
                self.a, b, scale_a=self.one, scale_b=self.one, out_dtype=torch.bfloat16, use_fast_accum=False
            )
        }
        if self.d.shape[0] > MAX_FLOOR_M:
            return cublaslt
        DenseFp8.floor = DenseFp8.floor or ReadKernel(
            "stream_floor_read", num_blocks=FLOOR_BLOCKS_PER_SM * self.device.sm_count
        )
        return {**cublaslt, "floor": lambda: DenseFp8.floor.launch(self.b)}


FAMILY = Family(
    name="dense_fp8",
    ops=("fp8_gemm",),
    key=("m", "n", "k"),
    roles={"mn_major": ("best", "model", "heuristic", "invariant"), "row_major": ("model",)},
    make_problems=lambda key: {
        name: _C.Problem("fp8_gemm", key["m"], key["n"], key["k"], scale_layout=layout)
        for name, layout in SCALE_LAYOUTS.items()
    },
    make_product=DenseFp8,
    peer="torch._scaled_mm, scales of 1, use_fast_accum=False",
)


if __name__ == "__main__":
    sys.exit(main(FAMILY, __doc__.splitlines()[0]))
