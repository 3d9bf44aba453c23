"""Call the public grouped ops on the suite's cases."""

import random
from dataclasses import replace

import torch

import deep_gemm

from .grouped_memory import GUARD_ROWS, GroupedOutput, make_groups
from .grouped_operands import GroupedCase, GroupedShape, contiguous_alignment, prepare_grouped_c
from .grouped_shapes import Contiguous, KGroups, Masked
from .grouped_variants import (
    BF16_CONTIGUOUS,
    BF16_K_GROUPED,
    BF16_MASKED,
    CONTIGUOUS_OPS,
    FP8_CONTIGUOUS,
    FP8_K_GROUPED,
    FP8_MASKED,
    MASKED_OPS,
    GroupedVariant,
)
from .memory import make_operand
from .public_op import RECIPES

#: Stands for an argument that is left out.
OMITTED = object()
#: Three rows of tiles, tails of n and k, padding before a group's rows and a whole tile of padding; a decode step.
_CONTIGUOUS_SHAPES = (
    Contiguous(328, 912, 5, 128, ((0, 0, 100), (1, 0, 256), (3, 5, 37), (0, 128, 0), (4, 0, 1))),
    Contiguous(520, 2064, 4, 128, ((2, 0, 3), (0, 0, 1), (3, 0, 128)), False),
)
_MASKED_SHAPES = (Masked(328, 912, 200, (200, 100, 0, 37, 1)), Masked(520, 2064, 70, (5, 0, 70, 1, 33, 2)))
_K_SHAPES = (KGroups(136, 328, (256, 0, 384, 128)), KGroups(300, 72, (128, 1024)))
_K = GroupedVariant(FP8_K_GROUPED, "1d1d", "fp32")
#: The variants whose promises are checked through the public ops: every op, recipe, dtype of D, C mode and memory of
#: operands and groups once.
GROUPED_OP_VARIANTS = (
    GroupedVariant(FP8_CONTIGUOUS),
    GroupedVariant(FP8_CONTIGUOUS, "1d1d", "fp32"),
    GroupedVariant(BF16_CONTIGUOUS),
    GroupedVariant(BF16_CONTIGUOUS, d_dtype="fp32", b_major="mn"),
    GroupedVariant(FP8_MASKED),
    GroupedVariant(FP8_MASKED, "1d1d", "fp32"),
    GroupedVariant(BF16_MASKED),
    GroupedVariant(BF16_MASKED, d_dtype="fp32"),
    _K,
    _K._replace(c_mode="accumulate"),
    _K._replace(group_layout="blocks"),
    _K._replace(c_mode="accumulate", group_layout="blocks"),
    _K._replace(c_mode="general", group_layout="blocks"),
    *(
        GroupedVariant(BF16_K_GROUPED, d_dtype="fp32", c_mode=mode, a_major="mn", b_major="mn")
        for mode in ("none", "accumulate", "general")
    ),
)


def list_op_shapes(variant: GroupedVariant) -> tuple:
    """Return the shapes on which a variant's promises are checked."""
    return (
        _CONTIGUOUS_SHAPES
        if variant.op in CONTIGUOUS_OPS
        else _MASKED_SHAPES
        if variant.op in MASKED_OPS
        else _K_SHAPES
    )


def make_random_shape(variant: GroupedVariant, seed: int) -> GroupedShape:
    """Return a shape of random sizes, some of them of tails, empty groups and padding."""
    rng = random.Random(seed)
    n, num_groups = rng.choice((8, 40, 136, rng.randint(1, 600))), rng.choice((1, 2, 5, rng.randint(1, 40)))
    if variant.op not in (*CONTIGUOUS_OPS, *MASKED_OPS):
        return KGroups(
            rng.randint(1, 400), n, tuple(128 * rng.choice((0, 1, rng.randint(0, 9))) for _ in range(num_groups))
        )
    k, sizes = rng.randint(1, 2000), [rng.choice((0, 1, 128, rng.randint(0, 300))) for _ in range(num_groups)]
    if variant.op in MASKED_OPS:
        return Masked(n, k, max(*sizes, rng.randint(1, 300)), tuple(sizes))
    segments = tuple((group, rng.choice((0, 0, rng.randint(0, 140))), rows) for group, rows in enumerate(sizes))
    return Contiguous(n, k, num_groups, 128, segments, rng.random() < 0.5)


def get_suffix(variant: GroupedVariant) -> str:
    """Return the memory layout in the name of the op that takes a variant's operands as they are."""
    if variant.op == BF16_K_GROUPED or (variant.op == FP8_K_GROUPED and not variant.is_blocks):
        return "tn"
    return "nn" if variant.b_major == "mn" else "nt"


def name_op(variant: GroupedVariant, suffix: str = "") -> str:
    """Return the name of the public op, of another memory layout where `suffix` names one."""
    kind, _, grouping = variant.op.rpartition("_")
    return f"{kind}_{suffix or get_suffix(variant)}_{grouping}"


def list_arguments(case: GroupedCase, suffix: str = "", scales: tuple | None = None) -> list:
    """Return (a, b) as the public op takes them; `scales`: these instead of the case's own."""
    variant, suffix = case.variant, suffix or get_suffix(case.variant)
    a, b = (case.operand(name, variant.is_blocks) for name in ("a", "b"))
    scale_a, scale_b = (case.scale_a, case.scale_b) if scales is None else scales
    if suffix == "tn":
        a, b, scale_a, scale_b = (None if tensor is None else tensor.T for tensor in (a, b, scale_a, scale_b))
    if suffix == "nn":
        b, scale_b = (None if tensor is None else tensor.transpose(1, 2) for tensor in (b, scale_b))
    return [(a, scale_a), (b, scale_b)] if variant.is_fp8 else [a, b]


def list_group_arguments(case: GroupedCase) -> dict:
    """Return the keywords that describe the groups, by their names that are not aliases."""
    if isinstance(case.shape, Contiguous):
        return {"m_indices": case.groups}
    if isinstance(case.shape, Masked):
        rows = sum(block.rows for block in case.shape.blocks())
        return {"masked_m": case.groups, "expected_m": max(rows // max(case.shape.num_groups, 1), 1)}
    return {"ks": list(case.shape.ks), "ks_tensor": case.groups}


def call_grouped(
    case: GroupedCase,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    suffix: str = "",
    scales: tuple | None = None,
    name: str = "",
    **options,
) -> object:
    """Call the public op of the case's variant, or the one called `name`, on D; `options` replace what the case says of
    its groups.
    """
    given = list_group_arguments(case) | ({"c": c} if c is not None else {})
    if case.variant.op in (FP8_CONTIGUOUS, FP8_MASKED):
        given["recipe"] = RECIPES[case.variant.recipe]
    keywords = {key: value for key, value in (given | options).items() if value is not OMITTED}
    with contiguous_alignment(case.alignment):
        return getattr(deep_gemm, name or name_op(case.variant, suffix))(
            *list_arguments(case, suffix, scales), d, **keywords
        )


def run_grouped_op(
    case: GroupedCase, output: GroupedOutput, suffix: str = "", scales: tuple | None = None, **options
) -> torch.Tensor:
    """Run the op into a freshly poisoned D; return the bits of the rows that must be right."""
    c = prepare_grouped_c(case, output, is_aliased=case.variant.c_mode == "accumulate")
    call_grouped(case, output.d, c, suffix, scales, **options)
    return output.bits.clone()


def copy_grouped_case(case: GroupedCase, extra: int = 0, gap: int = GUARD_ROWS) -> GroupedCase:
    """Return a case whose operands can be changed, their pitches `extra` times 16 bytes wider and their groups `gap`
    rows apart.
    """
    tensors = {
        name: None if (found := getattr(case, name)) is None else found.clone()
        for name in ("scale_a", "scale_b", "c", "groups")
    }
    a, b = (
        _copy_operand(getattr(case, name), getattr(case.variant, f"{name}_major"), extra, gap) for name in ("a", "b")
    )
    return replace(case, a=a, b=b, first={}, laid_out={}, **tensors)


def _copy_operand(values: torch.Tensor, major: str, extra: int, gap: int) -> torch.Tensor:
    return make_operand(values, major, extra) if values.dim() == 2 else make_groups(values, major, extra, gap)
