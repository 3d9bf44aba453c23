"""Every variant of the ops' problems: which combinations of fields there are, one problem of each."""

import contextlib
import itertools

from deep_gemm import _C
from deep_gemm.errors import ProblemError

CHOICES = {
    "recipe": ("1d2d", "1d1d", "per_row"),
    "d_dtype": ("bf16", "fp32"),
    "c_mode": ("none", "accumulate", "general", "head_split"),
    "a_major": ("k", "mn"),
    "b_major": ("k", "mn"),
    "scale_layout": ("mn_major", "any"),
}
OPS = ("fp8_gemm", "bf16_gemm")


def make_problem(m, n, k, num_sms, compiled_dims):
    """Return a problem of fp8_gemm from its sizes and what else it has."""
    return _C.Problem(OPS[0], m, n, k, num_sms=num_sms, compiled_dims=compiled_dims)


def make_config(block_m, block_n, num_stages, block_k, cluster_m, cluster_n, split_k=1, swap_ab=0):
    """Return a config from its fields in one order, without knobs of the main loop."""
    return _C.Config(
        block_m,
        block_n,
        num_stages,
        block_k=block_k,
        cluster_m=cluster_m,
        cluster_n=cluster_n,
        split_k=split_k,
        swap_ab=swap_ab,
    )


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


LOGITS = ("fp8_mqa_logits", "fp8_paged_mqa_logits")
#: Fields of logits: heads, head_dim, and tokens of a sequence and keys of a page.
HEADS, HEAD_DIMS, PAGES = (8, 24, 64, 128), (32, 64, 128), tuple(itertools.product((1, 2, 3, 4, 6, 8), (32, 64)))


def make_logits_variants(m: int = 24, n: int = 1) -> list:
    """Return problems of attention logits: each number of heads, size, dtype, and page; m is a multiple of 24."""
    pages = [{"next_n": next_n, "block_kv": block_kv} for next_n, block_kv in PAGES]
    return [
        _C.Problem(op, m, n, head_dim, heads=heads, d_dtype=d_dtype, **fields)
        for op in LOGITS
        for heads, head_dim, d_dtype in itertools.product(HEADS, HEAD_DIMS, CHOICES["d_dtype"])
        for fields in ([{}] if op == LOGITS[0] else pages)
    ]


def make_variants(m: int = 1, n: int = 1, k: int = 1) -> list:
    """Return one problem of every variant that exists."""
    return [_C.Problem(op, m, n, k, **fields) for op, fields in all_fields() if exists(op, **fields)]


def make_row_variants(m: int, n: int, k: int, named: tuple[str, ...] = OPS) -> list:
    """Return problems of the dense op kinds that are not `named`, such as a new family's: every combination of the
    words of its row that is a problem.
    """
    found = []
    for kind in _C.OP_KINDS:
        if kind.grouping != "dense" or kind.is_logits or kind.name in named:
            continue
        words = kind.recipes, kind.d_dtypes, kind.c_modes, kind.a_majors, kind.b_majors, kind.scale_layouts
        for values in itertools.product(*words):
            with contextlib.suppress(ProblemError):
                found.append(_C.Problem(kind.name, m, n, k, **dict(zip(CHOICES, values, strict=True))))
    return found
