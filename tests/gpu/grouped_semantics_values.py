"""What the grouped ops promise of values: NaN stays where it belongs, a group does not depend on the others, hints
change nothing, D beyond 4 GiB, corrupt sizes.
"""

from functools import partial

import torch

import deep_gemm

from .grouped_configs import get_grouped_case
from .grouped_op import GROUPED_OP_VARIANTS, call_grouped, copy_grouped_case, list_op_shapes, run_grouped_op
from .grouped_operands import GroupedCase, GroupedShape, make_grouped_output, make_values, widen_groups
from .grouped_shapes import Contiguous, KGroups, Masked
from .grouped_variants import CONTIGUOUS_OPS, K_GROUPED_OPS, MAIN_GROUPED, MASKED_OPS, GroupedVariant
from .memory import as_integers
from .operands import BLOCK, GuardedOutput, bound_product
from .public_op import RECIPES, Checks, batch_invariant
from .world import World

#: Hints of run_hints: far below and far above the truth.
EXPECTED_ROWS = (1, 2, 37, 4096, 1_000_000)


def run_nan(world: World, variant: GroupedVariant, shape: GroupedShape) -> tuple[int, list[str]]:
    """NaN in one row of A, one row of a group's B, a scale of each or C: exactly the elements that mathematics names
    become NaN.
    """
    checks, clean = Checks(), get_grouped_case(world, variant, shape)
    output = make_grouped_output(clean)
    bits = run_grouped_op(clean, output)
    for name, place, affected in list_nan_places(clean):
        case = copy_grouped_case(clean)
        as_integers(getattr(case, name))[place] = -1 if getattr(case, name).element_size() > 1 else 255
        mask = torch.zeros_like(bits, dtype=torch.bool)
        mask[affected] = True
        got = run_grouped_op(case, output)
        checks.expect(output.values[mask].isnan().all(), f"NaN in {name}: an affected element is no NaN")
        checks.expect((got == bits)[~mask].all(), f"NaN in {name}: an unaffected element changed")
        checks.expect(not int(output.num_dirty()), f"NaN in {name}: wrote outside D")
    return checks.outcome()


def list_nan_places(case: GroupedCase) -> list[tuple[str, tuple, tuple]]:
    """Return (operand, place in it, elements of the checked rows of D that become NaN with it)."""
    places = _list_nan_places_of_k(case) if isinstance(case.shape, KGroups) else _list_nan_places_of_rows(case)
    return [place for place in places if getattr(case, place[0]) is not None]


def _list_nan_places_of_k(case: GroupedCase) -> list[tuple[str, tuple, tuple]]:
    """The last column of K, and its scale, are the last group's; so is C [1, 2, 3] another's alone."""
    last, every = len(case.shape.ks) - 1, slice(None)
    return [
        ("a", (3, -1), (last, 3)),
        ("b", (5, -1), (last, every, 5)),
        ("scale_a", (3, -1), (last, 3)),
        ("scale_b", (5, -1), (last, every, 5)),
        ("c", (1, 2, 3), (1, 2, 3)),
    ]


def _list_nan_places_of_rows(case: GroupedCase) -> list[tuple[str, tuple, tuple]]:
    """The first row of the second group that has rows, and the last column of its B."""
    block = [block for block in case.shape.blocks() if block.rows][1]
    before = sum(other.rows for other in case.shape.blocks() if other.group < block.group)
    is_masked = isinstance(case.shape, Masked)
    first = before if is_masked else block.first
    row, rows, last = (
        (block.group, 0) if is_masked else (block.first,),
        slice(first, first + block.rows),
        case.shape.n - 1,
    )
    is_block = case.variant.recipe == "1d2d"
    columns, place = (slice(last // BLOCK * BLOCK, None), last // BLOCK) if is_block else (last, last)
    return [
        ("a", (*row, 0), (first,)), ("b", (block.group, last, 0), (rows, last)), ("scale_a", (*row, 0), (first,)),
        ("scale_b", (block.group, place, 0), (rows, columns)),
    ]  # fmt: skip


def run_dense_bits(world: World, variant: GroupedVariant, shape: GroupedShape) -> tuple[int, list[str]]:
    """Each group has the bits of the dense op on that group alone: no row depends on other rows or groups (batch
    invariance).
    """
    checks, case = Checks(), get_grouped_case(world, variant, shape)
    output = make_grouped_output(case)
    with batch_invariant():
        run_grouped_op(case, output)
        for group, bits, operands in split_groups(case, output):
            dense = GuardedOutput(*bits.shape, bits.device, case.dtype)
            call_dense(case.variant, dense, *operands)
            checks.expect(
                (dense.bits == bits).all(),
                f"group {group}: {int((dense.bits != bits).sum())} elements unlike the dense product",
            )
    return checks.outcome()


def split_groups(case: GroupedCase, output) -> list[tuple[int, torch.Tensor, tuple]]:
    """Return (group, its bits of D, its (a, scale_a, b, scale_b, c)) of every group that has rows or K."""
    found, start = [], 0
    if isinstance(case.shape, KGroups):
        for group, k in enumerate(case.shape.ks):
            part, steps = slice(start, start + k), slice(start // BLOCK, (start + k) // BLOCK)
            scales = [None if scale is None else scale[:, steps] for scale in (case.scale_a, case.scale_b)]
            c = None if case.c is None else case.c[group]
            found += (
                [(group, output.all_bits[group], (case.a[:, part], scales[0], case.b[:, part], scales[1], c))]
                if k
                else []
            )
            start += k
        return found
    for group, first, rows in case.shape.blocks():
        place = (group, slice(0, rows)) if isinstance(case.shape, Masked) else (slice(first, first + rows),)
        scales = (None, None) if case.scale_a is None else (case.scale_a[place], case.scale_b[group])
        found += (
            [(group, output.all_bits[place], (case.a[place], scales[0], case.b[group], scales[1], None))]
            if rows
            else []
        )
    return found


def call_dense(variant: GroupedVariant, output: GuardedOutput, a, scale_a, b, scale_b, c) -> None:
    """Run the dense op on one group."""
    options = {} if c is None else {"c": c}
    if variant.c_mode == "accumulate":
        output.poison(c)
        options = {"c": output.d}
    if variant.is_fp8:
        deep_gemm.fp8_gemm_nt((a, scale_a), (b, scale_b), output.d, recipe=RECIPES[variant.recipe], **options)
    else:
        deep_gemm.bf16_gemm_nt(a, b, output.d, **options)


def run_hints(world: World, variant: GroupedVariant, shape: GroupedShape) -> tuple[int, list[str]]:
    """However wrong expected_m is, the bits are the same."""
    checks, case = Checks(), get_grouped_case(world, variant, shape)
    output = make_grouped_output(case)
    bits = run_grouped_op(case, output)
    for expected in EXPECTED_ROWS:
        checks.expect(
            (run_grouped_op(case, output, expected_m=expected) == bits).all(), f"expected_m {expected}: other bits"
        )
        checks.expect(not int(output.num_dirty()), f"expected_m {expected}: wrote outside D")
    return checks.outcome()


#: Corrupt contents of ks_tensor in run_corrupt_sizes: sums that overflow 32 bits, negative sizes, sizes beyond K.
MANY_K_GROUPS = KGroups(136, 72, (128,) * 160)
CORRUPT_SIZES = {"near 2^31": (2**31 - 128,), "negative": (-128, 256, -(2**31)), "too large": (1 << 20,)}


def run_corrupt_sizes(world: World, variant: GroupedVariant) -> tuple[int, list[str]]:
    """Whatever the device says of the K of the groups, the kernel ends, writes nothing outside D, and the next call is
    right.
    """
    checks, clean = Checks(), get_grouped_case(world, variant, MANY_K_GROUPS)
    output = make_grouped_output(clean)
    bits = run_grouped_op(clean, output)
    for name, sizes in CORRUPT_SIZES.items():
        case = copy_grouped_case(clean)
        repeats = -(-len(case.groups) // len(sizes))
        case.groups.copy_(torch.tensor((sizes * repeats)[: len(case.groups)], dtype=torch.int32))
        run_grouped_op(case, output)
        checks.expect(not int(output.num_dirty()), f"{name}: wrote outside D")
    checks.expect((run_grouped_op(clean, output) == bits).all(), "right sizes afterwards: other bits")
    return checks.outcome()


#: D of more than 2^31 elements and 4 GiB. K is short, so that A and B are small.
LARGE_K = 128
LARGE_MASKED = Masked(8200, LARGE_K, 65536, (3, 0, 65536, 65533))
LARGE_CONTIGUOUS = Contiguous(8200, LARGE_K, 3, 128, ((0, 0, 131072), (2, 128, 131072), (1, 0, 100)), False)
LARGE_K_GROUPS = KGroups(4096, 16384, tuple(0 if group in (3, 34) else LARGE_K for group in range(36)))


def run_large_d(world: World, variant: GroupedVariant) -> tuple[int, list[str]]:
    """D beyond 4 GiB and 2^31 elements: sampled rows are right, in every group and at both ends."""
    shape = (
        LARGE_CONTIGUOUS
        if variant.op in CONTIGUOUS_OPS
        else LARGE_MASKED
        if variant.op in MASKED_OPS
        else LARGE_K_GROUPS
    )
    return check_large(shape, variant, world.torch_device)


def check_large(shape: GroupedShape, variant: GroupedVariant, device: str) -> tuple[int, list[str]]:
    """Run one product without its whole reference; compare sampled rows."""
    checks, case = Checks(), make_large_case(shape, variant, device)
    d = torch.full(case.d_shape, float("nan"), dtype=case.dtype, device=device)
    call_grouped(case, d)
    for row, operands in sample_rows(case):
        wide = [widen_groups(values, scale) for values, scale in (operands[:2], operands[2:])]
        if operands[0].shape[1] == 0:
            checks.expect((d[row] == 0).all(), f"row {row}: not zero")
            continue
        reference, magnitude = wide[0] @ wide[1].T, wide[0].abs() @ wide[1].abs().T
        bound = bound_product(reference, magnitude, case.dtype, operands[0])
        checks.expect(((d[row].double() - reference[0]).abs() <= bound[0]).all(), f"row {row}: outside the bound")
    if case.padding is not None:
        checks.expect((as_integers(d)[case.padding] == 0).all(), "padding: not +0")
    elif isinstance(shape, Masked):
        checks.expect(d[1].isnan().all(), "an empty group was written")
    return checks.outcome()


def make_large_case(shape: GroupedShape, variant: GroupedVariant, device: str) -> GroupedCase:
    """Return operands alone; rows of A that belong to no group hold numbers, too."""
    generator, none = torch.Generator(device=device).manual_seed(5), torch.empty(0, device=device)
    if isinstance(shape, KGroups):
        (a, scale_a), (b, scale_b) = (
            make_values((rows, shape.k), variant, generator, is_b=True, integers=False) for rows in (shape.m, shape.n)
        )
        if variant.a_major == "mn":
            a, b = (values.T.contiguous().T for values in (a, b))
        groups, d_shape = torch.tensor(shape.ks, dtype=torch.int32, device=device), (shape.num_groups, shape.m, shape.n)
        return GroupedCase(variant, shape, a, scale_a, b, scale_b, groups, none, none, d_shape)
    size = (shape.num_groups, shape.max_m) if isinstance(shape, Masked) else (shape.m,)
    a, scale_a = make_values((*size, shape.k), variant, generator, is_b=False, integers=False)
    b, scale_b = make_values((shape.num_groups, shape.n, shape.k), variant, generator, is_b=True, integers=False)
    if isinstance(shape, Masked):
        groups, padding = torch.tensor(shape.sizes, dtype=torch.int32, device=device), None
    else:
        groups = torch.full((shape.m,), -1, dtype=torch.int32, device=device)
        for group, first, rows in shape.blocks():
            groups[first : first + rows] = group
        padding = (groups < 0).nonzero().flatten()
    return GroupedCase(variant, shape, a, scale_a, b, scale_b, groups, none, none, (*size, shape.n), padding=padding)


def sample_rows(case: GroupedCase) -> list[tuple[tuple, tuple]]:
    """Return (index of a row of D, (a of that row [1, k], scale_a, b, scale_b)): both ends and the middle of every
    group.
    """
    found, start = [], 0
    if isinstance(case.shape, KGroups):
        for group, k in enumerate(case.shape.ks):
            part, steps = slice(start, start + k), slice(start // BLOCK, (start + k) // BLOCK)
            scales = (None, None) if case.scale_a is None else (case.scale_a[:, steps], case.scale_b[:, steps])
            for row in (0, case.shape.m // 2, case.shape.m - 1):
                scale_a = None if scales[0] is None else scales[0][row : row + 1]
                found.append(((group, row), (case.a[row : row + 1, part], scale_a, case.b[:, part], scales[1])))
            start += k
        return found
    for group, first, rows in case.shape.blocks():
        for offset in sorted({0, rows // 2, max(rows - 4, 0), rows - 1}) if rows else ():
            place = (group, offset) if isinstance(case.shape, Masked) else (first + offset,)
            scales = (None, None) if case.scale_a is None else (case.scale_a[place][None], case.scale_b[group])
            found.append((place, (case.a[place][None], scales[0], case.b[group], scales[1])))
    return found


def grouped_value_jobs(world: World) -> list:
    """Return one job for each promise, variant and shape."""
    runs = [(run, variant) for run in (run_nan, run_dense_bits) for variant in GROUPED_OP_VARIANTS]
    runs += [(run_hints, variant) for variant in GROUPED_OP_VARIANTS if variant.op in MASKED_OPS]
    jobs = [
        (f"{run.__name__} {variant}: {number}", partial(run, world, variant, shape))
        for run, variant in runs for number, shape in enumerate(list_op_shapes(variant))
    ]  # fmt: skip
    jobs += [
        (f"run_corrupt_sizes {variant}: all", partial(run_corrupt_sizes, world, variant))
        for variant in GROUPED_OP_VARIANTS
        if variant.op in K_GROUPED_OPS
    ]
    plain = [variant._replace(c_mode="none") for variant in MAIN_GROUPED]
    return jobs + [(f"run_large_d {variant}: all", partial(run_large_d, world, variant)) for variant in plain]
