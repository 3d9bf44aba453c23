"""Every variant of the grouped ops' problems: which combinations of fields there are, one problem of each."""

import itertools

from deep_gemm import _C
from tests.fakes.variants import CHOICES

CONTIGUOUS = ("m_grouped_fp8_gemm_contiguous", "m_grouped_bf16_gemm_contiguous")
MASKED = ("m_grouped_fp8_gemm_masked", "m_grouped_bf16_gemm_masked")
K_GROUPED = ("k_grouped_fp8_gemm_contiguous", "k_grouped_bf16_gemm_contiguous")
#: Op kinds whose groups have ends, by the op kind that they are otherwise.
WITH_ENDS = {op: op.replace("_contiguous", "_psum") for op in (*CONTIGUOUS, *K_GROUPED)}
GROUPED_OPS = (*CONTIGUOUS, *MASKED, *K_GROUPED)
BATCHED, SUMMED = ("batched_fp8_gemm", "batched_bf16_gemm"), "summed_bf16_gemm"
#: All op kinds of several products.
EVERY_GROUPED_OP = (*GROUPED_OPS, *WITH_ENDS.values(), *BATCHED, SUMMED)
_WITHOUT_ENDS = {with_ends: op for op, with_ends in WITH_ENDS.items()}
GROUP_LAYOUTS = ("joint", "blocks")


def is_fp8(op: str) -> bool:
    """Return whether an op's operands are FP8."""
    return "fp8" in op


def exists(
    op: str, recipe: str, d_dtype: str, c_mode: str, a_major: str, b_major: str, scale_layout: str, group_layout: str
) -> bool:
    """Return whether the fields agree with one another."""
    op, majors = _WITHOUT_ENDS.get(op, op), (a_major, b_major)
    if op in (*BATCHED, SUMMED):
        return group_layout == "joint" and _is_batched(op, recipe, d_dtype, c_mode, majors, scale_layout)
    if op in K_GROUPED:
        wanted = ("1d1d", ("k", "k")) if is_fp8(op) else ("1d2d", ("mn", "mn"))
        has_layouts = is_fp8(op) or (scale_layout, group_layout) == ("mn_major", "joint")
        return (recipe, majors) == wanted and has_layouts and d_dtype == "fp32" and c_mode != "head_split"
    if c_mode != "none" or group_layout != "joint":
        return False
    if is_fp8(op):
        return recipe != "per_row" and majors == ("k", "k")
    return (recipe, scale_layout) == ("1d2d", "mn_major") and majors in (
        (("k", "k"), ("k", "mn")) if op in CONTIGUOUS else (("k", "k"),)
    )


def _is_batched(op: str, recipe: str, d_dtype: str, c_mode: str, majors: tuple[str, str], scale_layout: str) -> bool:
    """Return whether the fields of batched and summed products agree."""
    if op == SUMMED:
        return (recipe, d_dtype, c_mode, majors, scale_layout) == ("1d2d", "fp32", "none", ("k", "k"), "mn_major")
    if c_mode == "head_split" or (c_mode == "accumulate" and d_dtype != "fp32"):
        return False
    if is_fp8(op):
        return recipe != "per_row" and majors == ("k", "k")
    return (recipe, scale_layout) == ("1d2d", "mn_major")


def all_fields(ops: tuple[str, ...] = GROUPED_OPS) -> list[tuple[str, dict]]:
    """Return (op, fields) of every combination, whether it exists or not."""
    choices = {**CHOICES, "group_layout": GROUP_LAYOUTS}
    return [
        (op, dict(zip(choices, values, strict=True))) for op in ops for values in itertools.product(*choices.values())
    ]


def make_grouped_variants(
    m: int = 1, n: int = 1, k: int = 1, num_groups: int = 1, ops: tuple[str, ...] = GROUPED_OPS
) -> list:
    """Return one problem of every variant of some op kinds that exists."""
    return [
        _C.Problem(op, m, n, k, num_groups=num_groups, **fields)
        for op, fields in all_fields(ops)
        if exists(op, **fields)
    ]


def with_ends(problem: "_C.Problem") -> "_C.Problem":
    """Return the same problem of the op kind whose groups have ends."""
    return _C.Problem(**(problem.as_dict() | {"op": WITH_ENDS[problem.op]}))


def make_grouped(op: str, m: int, n: int, k: int, num_groups: int, **fields) -> "_C.Problem":
    """Return a problem of a grouped op, with what its kind needs beside `fields`."""
    needed = {}
    if op in K_GROUPED:
        needed = {"d_dtype": "fp32"} | ({"recipe": "1d1d"} if is_fp8(op) else {"a_major": "mn", "b_major": "mn"})
    return _C.Problem(op, m, n, k, num_groups=num_groups, **(needed | fields))
