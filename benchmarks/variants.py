"""The variants of dense products whose host times and compile times are taken: the commonest call of each op kind, and
weight gradients.
"""

from typing import NamedTuple

from deep_gemm import _C

from .stamp import DATA, read_json

FP8, BF16 = "fp8_gemm", "bf16_gemm"
#: Name of the file in DATA whose sizes stand for those of an op kind.
DENSE_PROBLEMS = {FP8: "dense_fp8.json", BF16: "dense_bf16.json"}


class Variant(NamedTuple):
    """A name, as results have it, an op kind, and the fields of its problems besides the sizes."""

    name: str
    op: str
    fields: dict

    def __str__(self) -> str:
        """Return the name."""
        return self.name

    def problem(self, m: int = 128, n: int = 128, k: int = 128) -> "_C.Problem":
        """Return the problem of that size."""
        return _C.Problem(self.op, m, n, k, **self.fields)


PLAIN = {
    FP8: Variant("fp8_gemm 1d2d bf16 none mn_major", FP8, {}),
    BF16: Variant("bf16_gemm bf16 none k,k", BF16, {}),
}
WEIGHT_GRADIENT = Variant(
    "fp8_gemm 1d1d fp32 accumulate mn_major", FP8, {"recipe": "1d1d", "d_dtype": "fp32", "c_mode": "accumulate"}
)
MAIN = (PLAIN[FP8], WEIGHT_GRADIENT, PLAIN[BF16])


def list_dense_problems(op: str) -> list:
    """Return the problems of an op kind's main variants at the sizes of its benchmark."""
    rows = read_json(DATA / DENSE_PROBLEMS[op])["rows"]
    sizes = dict.fromkeys((row["m"], row["n"], row["k"]) for row in rows)
    return [variant.problem(*size) for variant in MAIN if variant.op == op for size in sizes]
