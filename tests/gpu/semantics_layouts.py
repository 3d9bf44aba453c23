"""What the ops promise of memory: layouts of scales and operands, strided rows, transposes, alignment."""

from dataclasses import replace
from functools import partial

import torch

import deep_gemm
from deep_gemm.errors import LayoutError

from .configs import FEW_SMS
from .memory import (
    PITCH_BYTES,
    SCALE_LAYOUTS,
    align,
    make_operand,
    make_rows,
    make_scale_layout,
    make_scales_mn_major,
    make_shifted,
)
from .operands import Case, GuardedOutput, Shape, count_wrong, make_output
from .public_op import OP_VARIANTS, Checks, batch_invariant, call_op, copy_case, run_op
from .semantics import SHAPES
from .variants import BF16, Variant
from .world import World

#: Memory layouts of A and B, and which dimension of each is contiguous.
MAJORS = {"nt": ("k", "k"), "nn": ("k", "mn"), "tn": ("mn", "mn"), "tt": ("mn", "k")}
#: The variants whose operands are passed in all four layouts.
MAJOR_VARIANTS = (
    Variant(),
    Variant(recipe="1d1d", d_dtype="fp32", c_mode="accumulate"),
    Variant(recipe="per_row", d_dtype="fp32"),
    Variant(c_mode="general"),
    Variant(BF16),
    Variant(BF16, d_dtype="fp32"),
    Variant(BF16, d_dtype="fp32", c_mode="accumulate"),
    Variant(BF16, c_mode="general"),
)


def list_scale_layouts(scale: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the same scales in every memory layout that a caller may pass."""
    found = {layout: make_scale_layout(scale, layout) for layout in SCALE_LAYOUTS}
    if scale.dim() == 2:
        rows = scale.shape[0]
        pitches = (rows, align(rows, 4), align(rows, 4) + 4, align(rows, 4) + 7)
        found |= {f"MN-major, pitch {pitch}": make_scales_mn_major(scale, pitch) for pitch in pitches}
    found["every second element"] = scale.repeat_interleave(2, -1)[..., ::2]
    return found


def run_scale_layouts(world: World, variant: Variant, shape: Shape) -> tuple[int, list[str]]:
    """Every memory layout of the scales gives the same bits, and they are right."""
    checks, clean = Checks(), world.case(variant, shape)
    if clean.scale_a is None:
        return checks.outcome()
    output = make_output(clean)
    with batch_invariant():
        bits = run_op(clean, output)
        checks.expect(not int(count_wrong(clean, output.values)), "outside the bound")
        for name in ("scale_a", "scale_b"):
            for layout, scale in list_scale_layouts(getattr(clean, name)).items():
                checks.expect(
                    (run_op(replace(clean, **{name: scale}), output) == bits).all(), f"{name} {layout}: other bits"
                )
    return checks.outcome()


def run_majors(world: World, variant: Variant, shape: Shape) -> tuple[int, list[str]]:
    """nt, nn, tn and tt, each through its own function and through nt with a transposed view: right, and equal bits
    between the two.

    FP8 operands that are not K-major pass our own transposing kernel, so their bits are those of nt.
    """
    checks, plain = Checks(), world.case(variant, shape)
    output = make_output(plain)
    with batch_invariant():
        bits = run_op(plain, output)
        for suffix, (a_major, b_major) in MAJORS.items():
            for extra in (0, 3):
                case = replace(plain, a=make_operand(plain.a, a_major, extra), b=make_operand(plain.b, b_major, extra))
                named = run_op(case, output, suffix=suffix)
                what = f"{suffix}, {extra * PITCH_BYTES} further bytes a row"
                checks.expect(not int(count_wrong(plain, output.values)), f"{what}: outside the bound")
                checks.expect(not int(output.num_dirty()), f"{what}: wrote outside D")
                checks.expect(
                    (run_op(case, output) == named).all(), f"{what}: nt of the transposed views gives other bits"
                )
                checks.expect(not variant.is_fp8 or (named == bits).all(), f"{what}: unlike nt")
    return checks.outcome()


def run_copies_on_few_sms(world: World, variant: Variant, shape: Shape) -> tuple[int, list[str]]:
    """FP8 operands that are not K-major, on fewer SMs than their copies have tiles: the bits of nt on all SMs, nothing
    outside D written.
    """
    checks, plain = Checks(), world.case(variant, shape)
    output = make_output(plain)
    with batch_invariant():
        bits = run_op(plain, output)
        try:
            for num_sms in (1, FEW_SMS):
                deep_gemm.set_num_sms(num_sms)
                for suffix in ("nn", "tn", "tt"):
                    a, b = (
                        make_operand(values, major)
                        for values, major in zip((plain.a, plain.b), MAJORS[suffix], strict=True)
                    )
                    named = run_op(replace(plain, a=a, b=b), output, suffix=suffix)
                    checks.expect(
                        (named == bits).all() and not int(output.num_dirty()), f"{suffix} on {num_sms} SMs: unlike nt"
                    )
        finally:
            deep_gemm.set_num_sms(0)
    return checks.outcome()


def run_strides(world: World, variant: Variant, shape: Shape) -> tuple[int, list[str]]:
    """Slices of wider tensors for A, B, C and D, and rows that are one element: right, the same bits, nothing outside D
    written.
    """
    checks, clean = Checks(), world.case(variant, shape)
    tight = make_output(clean)
    bits = run_op(clean, tight)
    for extra in (1, 9):
        case = copy_case(clean, extra)
        m, columns = tight.d.shape
        wide = GuardedOutput(m, columns + 8 * extra, case.a.device, case.dtype)
        view = wide.d[:, :columns]
        if case.c is not None:
            view.copy_(case.c)
        call_op(case, view, None if case.c is None else view)
        got = view if clean.head_splits is None else view[:, tight.columns]
        checks.expect((got.contiguous().view(bits.dtype) == bits).all(), f"{extra}: other bits")
        outside = wide.d[:, columns:].contiguous().view(bits.dtype)
        checks.expect((outside == -1).all() and not int(wide.num_dirty()), f"{extra}: wrote outside D")
    return checks.outcome()


def run_alignment(world: World, variant: Variant, shape: Shape) -> tuple[int, list[str]]:
    """A base off 16 bytes, or a pitch that is no multiple of 16, is a LayoutError; 16 works."""
    checks, clean = Checks(), world.case(variant, shape)
    output, size = make_output(clean), clean.a.element_size()
    bits, unit = run_op(clean, output), PITCH_BYTES // size

    def check(name: str, is_legal: bool, **operands) -> None:
        case = replace(clean, **operands)
        try:
            right = bool((run_op(case, output) == bits).all()) and is_legal
        except LayoutError:
            right = not is_legal and _is_untouched(case, output)
        checks.expect(right, name)

    for offset in range(1, unit + 1):
        for name in ("a", "b"):
            rows = getattr(clean, name)
            pitch = align(rows.shape[1], unit)
            check(
                f"{name} {offset * size} bytes off",
                offset == unit,
                **{name: make_shifted(rows, offset, pitch + 2 * unit)},
            )
            check(f"pitch of {name} + {offset * size} bytes", offset == unit, **{name: make_rows(rows, pitch + offset)})
    return checks.outcome()


def _is_untouched(case: Case, output: GuardedOutput) -> bool:
    """Return whether D holds what prepare_c put there."""
    if case.c is None:
        return not bool((output.bits != -1).any())
    return torch.equal(output.values, case.c)


def layout_jobs(world: World) -> list:
    """Return one job for each promise, variant and shape."""
    k_major = [variant for variant in OP_VARIANTS if (variant.a_major, variant.b_major) == ("k", "k")]
    fp8 = [variant for variant in MAJOR_VARIANTS if variant.is_fp8]
    plans = [
        (run_scale_layouts, OP_VARIANTS),
        (run_strides, OP_VARIANTS),
        (run_alignment, k_major),
        (run_majors, MAJOR_VARIANTS),
        (run_copies_on_few_sms, fp8),
    ]
    return [
        (f"{run.__name__} {variant}: {tuple(shape)}", partial(run, world, variant, shape))
        for run, variants in plans for variant in variants for shape in SHAPES
    ]  # fmt: skip
