"""Time dense BF16 on the 71 problems of data/dense_bf16.json, in every memory layout, against cuBLASLt.

Example: python -m benchmarks.dense_bf16 --time-budget 240

cuBLASLt is torch.mm of the same memory with the same dtype of D: `out=` for BF16, `out_dtype=torch.float32` for FP32
(where torch has it). A problem's one layout is called `nt`, `nn`, `tn` or `tt`. Roles: choices.py; method and result:
harness.py.
"""

import sys
from collections.abc import Callable
from types import ModuleType

import torch

import deep_gemm
from deep_gemm import _C
from tuner.measure.operands import DTYPES
from tuner.problems.fields import MAJORS

from .harness import Family, main
from .product import Product

#: Whether the memory of A and of B holds the transposed matrix. In nt neither does: both are K-major.
TRANSPOSED = {layout: (a_major == "mn", b_major == "mn") for layout, (a_major, b_major) in MAJORS.items()}


class DenseBf16(Product):
    """Random normal operands of one problem in its memory layout."""

    def __init__(self, key: dict, device: object):
        m, n, k = key["m"], key["n"], key["k"]
        is_a_transposed, is_b_transposed = TRANSPOSED[key["layout"]]
        self.memory = [
            torch.randn(*((k, rows) if is_transposed else (rows, k)), device="cuda", dtype=torch.bfloat16)
            for rows, is_transposed in ((m, is_a_transposed), (n, is_b_transposed))
        ]
        a, b = (
            tensor.T if flag else tensor
            for tensor, flag in zip(self.memory, (is_a_transposed, is_b_transposed), strict=True)
        )
        super().__init__(a, None, b, None, torch.empty(m, n, dtype=DTYPES[key["out"]], device="cuda"))

    def call_op(self, layout: str, package: ModuleType = deep_gemm) -> Callable[[], object]:
        """Return the public op of the layout's name."""
        op, (a, b) = getattr(package, f"bf16_gemm_{layout}"), self.memory
        return lambda: op(a, b, self.d)

    def call_kernel(self, kernel, layout: str) -> Callable[[], object]:
        """Return one loaded kernel on these operands."""
        return lambda: kernel.launch(self.a, None, self.b, None, self.d)

    def call_peers(self) -> dict[str, Callable[[], object]]:
        """Return cuBLASLt's product of the same memory with the same dtype of D."""
        b = self.b.T
        if self.d.dtype == torch.bfloat16:
            return {"cublaslt": lambda: torch.mm(self.a, b, out=self.d)}
        torch.mm(self.a[:1], b, out_dtype=torch.float32)  # fails here, as this problem's reason, where torch is too old
        return {"cublaslt": lambda: torch.mm(self.a, b, out_dtype=torch.float32)}


def make_problems(key: dict) -> dict[str, object]:
    """Return the problem of a key under the name of its layout."""
    majors = dict(
        zip(("a_major", "b_major"), ("mn" if flag else "k" for flag in TRANSPOSED[key["layout"]]), strict=True)
    )
    return {key["layout"]: _C.Problem("bf16_gemm", key["m"], key["n"], key["k"], d_dtype=key["out"], **majors)}


FAMILY = Family(
    name="dense_bf16", ops=("bf16_gemm",), key=("m", "n", "k", "layout", "out"),
    roles=dict.fromkeys(TRANSPOSED, ("best", "model", "heuristic")),
    make_problems=make_problems, make_product=DenseBf16, peer="torch.mm of the same memory with the same dtype of D",
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(FAMILY, __doc__.splitlines()[0]))
