"""Every variant of the ops' problems: which combinations of fields there are, one problem of each."""

import itertools

from deep_gemm import _C

CHOICES = {
    "recipe": ("1d2d", "1d1d", "per_row"),
    "d_dtype": ("bf16", "fp32"),
    "c_mode": ("none", "accumulate", "general", "head_split"),
    "a_major": ("k", "mn"),
    "b_major": ("k", "mn"),
    "scale_layout": ("mn_major", "any"),
}
OPS = ("fp8_gemm", "bf16_gemm")


def exists(op: str, recipe: str, d_dtype: str, c_mode: str, a_major: str, b_major: str, scale_layout: str) -> bool:
    """Return whether the fields agree with one another."""
    if op == "fp8_gemm" and (a_major, b_major) != ("k", "k"):
        return False
    if op == "bf16_gemm" and (recipe, scale_layout) != ("1d2d", "mn_major"):
        return False
    if recipe == "per_row" and scale_layout == "any":
        return False
    if c_mode == "accumulate":
        return d_dtype == "fp32"
    return c_mode != "head_split" or (op, recipe, d_dtype) == ("fp8_gemm", "1d2d", "bf16")


def all_fields() -> list[tuple[str, dict]]:
    """Return (op, fields) of every combination, whether it exists or not."""
    return [
        (op, dict(zip(CHOICES, values, strict=True))) for op in OPS for values in itertools.product(*CHOICES.values())
    ]


def make_variants(m: int = 1, n: int = 1, k: int = 1) -> list:
    """Return one problem of every variant that exists."""
    return [_C.Problem(op, m, n, k, **fields) for op, fields in all_fields() if exists(op, **fields)]
