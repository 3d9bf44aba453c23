"""What the grouped ops promise about memory and argument names: products, aliases, layouts, strides, zero sizes,
alignments, wrong indices.

Everything here goes through the public ops.
"""

from dataclasses import replace
from functools import partial

import torch

import deep_gemm
from deep_gemm.errors import ArgumentError

from .grouped_configs import get_grouped_case
from .grouped_memory import GroupedOutput, make_scale_layout_of_groups
from .grouped_op import (
    GROUPED_OP_VARIANTS,
    OMITTED,
    call_grouped,
    copy_grouped_case,
    list_op_shapes,
    make_random_shape,
    run_grouped_op,
)
from .grouped_operands import (
    GroupedCase,
    GroupedShape,
    contiguous_alignment,
    count_grouped_wrong,
    make_grouped_case,
    make_grouped_output,
)
from .grouped_shapes import Contiguous, KGroups, Masked
from .grouped_variants import CONTIGUOUS_OPS, FP8_CONTIGUOUS, FP8_MASKED, K_GROUPED_OPS, MASKED_OPS, GroupedVariant
from .memory import SCALE_LAYOUTS
from .public_op import Checks
from .world import World

#: Alignments that a caller may set; the last equals no plain tile's rows.
ALIGNMENTS = (8, 16, 32, 64, 128, 256, 24, 40)
NUM_RANDOM_SHAPES = 8
REFUSED_ALIGNMENTS = (0, -8, 4, 12, 65544, 1 << 40)


def run_products(world: World, variant: GroupedVariant, shape: GroupedShape) -> tuple[int, list[str]]:
    """Random operands within the bound and integers exactly, D's groups apart or side by side; equal bits, nothing
    written outside D.
    """
    checks = Checks()
    for integers in (False, True):
        case = get_grouped_case(world, variant, shape, integers)
        outputs = [make_grouped_output(case), make_grouped_output(case, gap=0)]
        bits = [run_grouped_op(case, output) for output in outputs]
        for output, name in zip(outputs, ("apart", "side by side"), strict=True):
            checks.expect(
                not int(count_grouped_wrong(case, output)), f"integers={integers}, groups {name}: wrong elements"
            )
            checks.expect(not int(output.num_dirty()), f"integers={integers}, groups {name}: wrote outside D")
        checks.expect((bits[0] == bits[1]).all(), f"integers={integers}: bits depend on D's strides")
    return checks.outcome()


def run_random(world: World, variant: GroupedVariant) -> tuple[int, list[str]]:
    """Random sizes and numbers of groups."""
    checks = Checks()
    for seed in range(NUM_RANDOM_SHAPES):
        shape = make_random_shape(variant, seed)
        case = make_grouped_case(shape, world.torch_device, variant)
        output = make_grouped_output(case)
        run_grouped_op(case, output)
        checks.expect(not int(count_grouped_wrong(case, output)), f"{str(shape)[:300]}: wrong elements")
        checks.expect(not int(output.num_dirty()), f"{str(shape)[:300]}: wrote outside D")
    return checks.outcome()


def list_spellings(case: GroupedCase) -> dict[str, dict]:
    """Return the replacements of the plain keywords, by name."""
    groups = case.groups
    if isinstance(case.shape, Contiguous):
        spellings = {"grouped_layout": {"grouped_layout": groups, "m_indices": OMITTED}}
    elif isinstance(case.shape, Masked):
        spellings = {"expected_m_per_group": {"expected_m_per_group": 7, "expected_m": OMITTED}}
    else:
        ks, no_ks, no_tensor = list(case.shape.ks), {"ks": OMITTED}, {"ks_tensor": OMITTED}
        spellings = {
            "ks_cpu": {"ks_cpu": ks, **no_ks},
            "grouped_layout": {"grouped_layout": groups, **no_tensor},
            "no ks_tensor": no_tensor,
            "ks_tensor None": {"ks_tensor": None},
            "both aliases": {"ks_cpu": ks, "grouped_layout": groups, **no_ks, **no_tensor},
        }
    spellings["compiled_dims"] = {"compiled_dims": "nk"}
    if case.variant.op in (FP8_CONTIGUOUS, FP8_MASKED):
        spellings["disable_ue8m0_cast"] = {"disable_ue8m0_cast": True}
    return spellings


def run_keywords(world: World, variant: GroupedVariant, shape: GroupedShape) -> tuple[int, list[str]]:
    """Every alias of a keyword, and the older names of the masked ops, give the same bits."""
    checks, case = Checks(), get_grouped_case(world, variant, shape)
    output = make_grouped_output(case)
    bits = run_grouped_op(case, output)
    for name, options in list_spellings(case).items():
        checks.expect((run_grouped_op(case, output, **options) == bits).all(), f"{name}: other bits")
    if variant.op in MASKED_OPS:
        alias = "fp8_m_grouped_gemm_nt_masked" if variant.op == FP8_MASKED else "bf16_m_grouped_gemm_nt_masked"
        checks.expect((run_grouped_op(case, output, name=alias) == bits).all(), f"{alias}: other bits")
    return checks.outcome()


def run_memory_layouts(world: World, variant: GroupedVariant, shape: GroupedShape) -> tuple[int, list[str]]:
    """The other names of an op on the same operands in every memory: right; FP8 ones pass the transposing kernel, so
    their bits are those of nt.
    """
    checks, case = Checks(), get_grouped_case(world, variant, shape)
    output = make_grouped_output(case)
    bits = run_grouped_op(case, output)
    for name, other, suffix in list_memory_layouts(case):
        got = run_grouped_op(other, output, suffix)
        checks.expect(not int(count_grouped_wrong(case, output)), f"{name}: wrong elements")
        checks.expect(not int(output.num_dirty()), f"{name}: wrote outside D")
        checks.expect(not variant.is_fp8 or (got == bits).all(), f"{name}: other bits")
    return checks.outcome()


def list_memory_layouts(case: GroupedCase) -> list[tuple[str, GroupedCase, str]]:
    """Return (name, the case in another memory, suffix of the op that takes it)."""
    variant = case.variant
    if variant.op in MASKED_OPS:
        return [("nt of b_major mn", copy_majors(case, "k", "mn"), "nt")] if variant.is_fp8 else []
    if variant.op in CONTIGUOUS_OPS:
        return [
            (f"{suffix} of b_major {major}", copy_majors(case, "k", major), suffix)
            for suffix in ("nt", "nn")
            for major in ("k", "mn")
        ]
    joint = replace(case, variant=variant._replace(group_layout="joint"), laid_out={})
    found = [
        (f"tn of {major}-major", copy_majors(joint, major, major), "tn")
        for major in (("k", "mn") if variant.is_fp8 else ("mn",))
    ]
    blocks = [("nt of blocks", replace(case, variant=variant._replace(group_layout="blocks"), laid_out={}), "nt")]
    return found + (blocks if variant.is_fp8 else [])


def copy_majors(case: GroupedCase, a_major: str, b_major: str) -> GroupedCase:
    """Return the case with copies of A and B of those majors."""
    other = replace(case, variant=case.variant._replace(a_major=a_major, b_major=b_major))
    return replace(copy_grouped_case(other, 1), variant=case.variant)


def run_scale_layouts(world: World, variant: GroupedVariant, shape: GroupedShape) -> tuple[int, list[str]]:
    """Every memory layout of the scales gives the same bits."""
    checks, case = Checks(), get_grouped_case(world, variant, shape)
    if case.scale_a is None:
        return checks.outcome()
    output = make_grouped_output(case)
    bits = run_grouped_op(case, output)
    for layout in SCALE_LAYOUTS:
        laid_out = [make_scale_layout_of_groups(scale, layout) for scale in (case.scale_a, case.scale_b)]
        for name, scales in (
            ("A", (laid_out[0], case.scale_b)),
            ("B", (case.scale_a, laid_out[1])),
            ("both", tuple(laid_out)),
        ):
            checks.expect(
                (run_grouped_op(case, output, scales=scales) == bits).all(), f"{layout} scales of {name}: other bits"
            )
    return checks.outcome()


def run_strides(world: World, variant: GroupedVariant, shape: GroupedShape) -> tuple[int, list[str]]:
    """Wider rows and groups further apart or side by side: the same bits, nothing outside D written."""
    checks, case = Checks(), get_grouped_case(world, variant, shape)
    output = make_grouped_output(case)
    bits = run_grouped_op(case, output)
    for extra, gap in ((0, 0), (1, 3), (9, 0)):
        tall = GroupedOutput(
            (*case.d_shape[:-1], case.d_shape[-1] + 8 * extra), case.a.device, case.dtype, case.rows, gap
        )
        view = tall.d[..., : case.d_shape[-1]]
        c = None if case.c is None else case.c.clone()
        if variant.c_mode == "accumulate":
            view.copy_(case.c)
            c = view
        call_grouped(copy_grouped_case(case, extra, gap), view, c)
        got = (view if case.rows is None else view[case.rows]).contiguous().view(bits.dtype)
        checks.expect((got == bits).all(), f"{extra} wider, {gap} rows apart: other bits")
        outside = tall.all_bits[..., case.d_shape[-1] :]
        checks.expect(
            (outside == -1).all() and not int(tall.num_dirty()), f"{extra} wider, {gap} rows apart: wrote outside D"
        )
    return checks.outcome()


def run_zero_sizes(world: World, variant: GroupedVariant) -> tuple[int, list[str]]:
    """No groups, m or n = 0 returns and touches nothing; k = 0 makes D zero (rows of padding, too) or C; all
    combinations.
    """
    checks = Checks()
    for num_groups in (0, 2):
        for m in (0, 70):
            for n in (0, 72):
                for k in (0, 256):
                    case = make_grouped_case(make_zero_shape(variant, num_groups, m, n, k), world.torch_device, variant)
                    output = make_grouped_output(case)
                    run_grouped_op(case, output)
                    what = f"{num_groups} groups, {(m, n, k)}"
                    is_left = num_groups == 0 and not is_k_grouped(variant)
                    checks.expect(
                        is_untouched(output) if is_left else not int(count_grouped_wrong(case, output)),
                        f"{what}: wrong D",
                    )
                    checks.expect(not int(output.num_dirty()), f"{what}: wrote outside D")
    return checks.outcome()


def is_k_grouped(variant: GroupedVariant) -> bool:
    """Return whether the groups divide K."""
    return variant.op in K_GROUPED_OPS


def is_untouched(output: GroupedOutput) -> bool:
    """Return whether D holds what poison put there."""
    return bool((output.all_bits == -1).all())


def make_zero_shape(variant: GroupedVariant, num_groups: int, m: int, n: int, k: int) -> GroupedShape:
    """Return a shape of those sizes; without groups all rows of A are padding."""
    if is_k_grouped(variant):
        return KGroups(m, n, (k, 0)[:num_groups])
    if variant.op in MASKED_OPS:
        return Masked(n, k, m, (m, m // 2)[:num_groups])
    segments = ((0, 0, m // 2), (1, 0, m))[:num_groups] if m and num_groups else ((0, m, 0),)
    return Contiguous(n, k, num_groups, 128, segments)


def make_aligned_shape(alignment: int, is_cut: bool) -> Contiguous:
    """Return groups of one alignment, one row more or less, several and a single row."""
    rows = (alignment - 1, alignment, alignment + 1, 3 * alignment, 1)
    return Contiguous(
        264,
        400,
        len(rows),
        alignment,
        tuple((group, int(group == 3), count) for group, count in enumerate(rows)),
        is_cut,
    )


def run_alignments(world: World, variant: GroupedVariant) -> tuple[int, list[str]]:
    """Groups that start at multiples of any alignment that may be set, with sizes around it; others are refused and
    change nothing.
    """
    checks = Checks()
    for alignment in ALIGNMENTS:
        for is_cut in (False, True):
            case = make_grouped_case(make_aligned_shape(alignment, is_cut), world.torch_device, variant)
            output = make_grouped_output(case)
            run_grouped_op(case, output)
            checks.expect(
                not int(count_grouped_wrong(case, output)) and not int(output.num_dirty()),
                f"alignment {alignment}: wrong D",
            )
    for alignment in REFUSED_ALIGNMENTS:
        before = deep_gemm.get_mk_alignment_for_contiguous_layout()
        try:
            with contiguous_alignment(alignment):
                refused = False
        except ArgumentError:
            refused = deep_gemm.get_mk_alignment_for_contiguous_layout() == before
        checks.expect(refused, f"alignment {alignment}: accepted, or changed")
    names = ("get_m_alignment_for_contiguous_layout", "get_k_alignment_for_contiguous_layout")
    with contiguous_alignment(64):
        checks.expect(all(getattr(deep_gemm, name)() == 64 for name in names), "an alias says another alignment")
    return checks.outcome()


#: The groups of the rows in run_wrong_indices, and the wrong indices put among them: another group, or one that does
#: not exist. None of the wrong ones is at the first of 8 rows.
INDICES_SHAPE = Contiguous(328, 912, 5, 128, ((0, 0, 256), (2, 0, 128), (4, 0, 100)), False)
WRONG_INDICES = {5: 1, 77: 5, 131: 1_000_000, 259: 2**31 - 1, 300: 0}


def run_wrong_indices(world: World, variant: GroupedVariant) -> tuple[int, list[str]]:
    """A row of another group than its tile's, or of a group that does not exist, is stored as NaN; every other row
    keeps its bits.
    """
    checks, clean = Checks(), get_grouped_case(world, variant, INDICES_SHAPE)
    output = make_grouped_output(clean)
    bits = run_grouped_op(clean, output)
    whole = dict.fromkeys(range(128, 256), 5)
    for name, wrong in (("single rows", WRONG_INDICES), ("a whole block", whole), ("both", {**WRONG_INDICES, **whole})):
        case = copy_grouped_case(clean)
        rows = torch.tensor(list(wrong), device=bits.device)
        case.groups[rows] = torch.tensor(list(wrong.values()), dtype=torch.int32, device=bits.device)
        got, others = run_grouped_op(case, output), torch.ones(len(bits), dtype=torch.bool, device=bits.device)
        others[rows] = False
        checks.expect(output.values[rows].isnan().all(), f"{name}: a wrong index gave a number")
        checks.expect((got == bits)[others].all(), f"{name}: another row changed")
        checks.expect(not int(output.num_dirty()), f"{name}: wrote outside D")
    return checks.outcome()


SHAPED = (run_products, run_keywords, run_memory_layouts, run_scale_layouts, run_strides)


def grouped_semantics_jobs(world: World) -> list:
    """Return one job for each promise, variant and shape."""
    from .grouped_psum import psum_jobs
    from .grouped_semantics_runtime import grouped_runtime_jobs
    from .grouped_semantics_values import grouped_value_jobs
    from .large_weights import large_jobs
    from .psum_tiles import psum_tile_jobs
    from .signals import signal_jobs

    jobs = [
        (f"{run.__name__} {variant}: {number}", partial(run, world, variant, shape))
        for run in SHAPED for variant in GROUPED_OP_VARIANTS for number, shape in enumerate(list_op_shapes(variant))
    ]  # fmt: skip
    contiguous = [variant for variant in GROUPED_OP_VARIANTS if variant.op in CONTIGUOUS_OPS]
    plans = [(run, GROUPED_OP_VARIANTS) for run in (run_random, run_zero_sizes)] + [
        (run, contiguous) for run in (run_alignments, run_wrong_indices)
    ]
    jobs += [
        (f"{run.__name__} {variant}: all", partial(run, world, variant))
        for run, variants in plans
        for variant in variants
    ]
    jobs += grouped_value_jobs(world) + grouped_runtime_jobs(world)
    return jobs + psum_jobs(world) + psum_tile_jobs(world) + signal_jobs(world) + large_jobs(world)
