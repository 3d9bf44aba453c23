"""Call the public ops on the suite's cases, and collect what a job expects of them."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import torch

import deep_gemm

from .memory import make_operand
from .operands import Case, GuardedOutput
from .variants import BF16, Variant
from .world import prepare_c

#: Granularity by recipe; None: recognised by the scales' shape.
RECIPES = {"1d2d": (1, 128, 128), "1d1d": (1, 1, 128), "per_row": None}
#: The variants whose promises are checked through the public op: every recipe, dtype of D, C mode and operand layout
#: once.
OP_VARIANTS = (
    Variant(),
    Variant(recipe="1d1d", d_dtype="fp32", c_mode="accumulate"),
    Variant(recipe="per_row"),
    Variant(d_dtype="fp32", c_mode="general"),
    Variant(c_mode="head_split"),
    Variant(BF16),
    Variant(BF16, d_dtype="fp32", c_mode="accumulate", a_major="mn", b_major="mn"),
    Variant(BF16, c_mode="general", b_major="mn"),
)


def call_op(case: Case, d: torch.Tensor, c: torch.Tensor | None = None, suffix: str = "nt", **options) -> object:
    """Call the public op of the case's variant on D; returns what it returns.

    suffix: nt, nn, tn or tt: operands and scales are passed as that memory layout names them.
    """
    variant = case.variant
    a, b = _orient(case.a, suffix[0] == "t"), _orient(case.b, suffix[1] == "n")
    if not variant.is_fp8:
        return getattr(deep_gemm, f"bf16_gemm_{suffix}")(a, b, d, **_list_options(case, c), **options)
    a, b = (a, _orient(case.scale_a, suffix[0] == "t")), (b, _orient(case.scale_b, suffix[1] == "n"))
    if variant.c_mode == "head_split":
        return deep_gemm.fp8_gemm_nt_skip_head_mid(a, b, d, case.head_splits, recipe=RECIPES[variant.recipe])
    return getattr(deep_gemm, f"fp8_gemm_{suffix}")(
        a, b, d, recipe=RECIPES[variant.recipe], **_list_options(case, c), **options
    )


def _orient(tensor: torch.Tensor, is_transposed: bool) -> torch.Tensor:
    return tensor.T if is_transposed and tensor.dim() == 2 else tensor


def _list_options(case: Case, c: torch.Tensor | None) -> dict:
    """Return c, alpha and beta where they differ from the defaults."""
    options = {"alpha": case.alpha, "beta": case.beta} if (case.alpha, case.beta) != (1.0, 1.0) else {}
    return options | ({} if c is None else {"c": c})


def run_op(
    case: Case, output: GuardedOutput, *, is_aliased: bool = True, suffix: str = "nt", **options
) -> torch.Tensor:
    """Run the op into a freshly poisoned D; return D's bits. `is_aliased`: where there is a C, it is D."""
    c = prepare_c(case, output, is_aliased)
    call_op(case, output.d, c, suffix, **options)
    return output.bits.clone()


def copy_case(case: Case, extra: int = 0) -> Case:
    """Return a case whose operands can be changed, their pitches `extra` times 16 bytes wider."""
    scales = {
        name: None if (scale := getattr(case, name)) is None else scale.clone() for name in ("scale_a", "scale_b")
    }
    a, b = make_operand(case.a, case.variant.a_major, extra), make_operand(case.b, case.variant.b_major, extra)
    return replace(case, a=a, b=b, c=None if case.c is None else case.c.clone(), first={}, **scales)


class Checks:
    """Collects the outcome of one job."""

    def __init__(self):
        self.cases = 0
        self.failures: list[str] = []

    def expect(self, is_right: bool | torch.Tensor, what: str) -> None:
        """Count one case and note it when it is wrong."""
        self.cases += 1
        if not bool(is_right):
            self.failures.append(what)

    def outcome(self) -> tuple[int, list[str]]:
        """Return (cases, failures)."""
        return self.cases, self.failures


@contextlib.contextmanager
def batch_invariant() -> Iterator[None]:
    """Keep selection to configs that do not split K: then all problems with one formula give equal bits."""
    deep_gemm.set_batch_invariant(True)
    try:
        yield
    finally:
        deep_gemm.set_batch_invariant(None)
