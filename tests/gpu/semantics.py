"""What the ops promise of values: NaN and Inf stay where they belong, zero sizes, padding, C with alpha and beta.

Everything here goes through the public ops.
"""

from dataclasses import replace
from functools import partial

import torch

from .memory import SCALE_LAYOUTS, as_integers, make_nan, make_operand, make_rows, make_scale_layout
from .operands import BLOCK, GuardedOutput, Shape, count_wrong, make_case, make_output, set_reference
from .public_op import OP_VARIANTS, Checks, batch_invariant, call_op, copy_case, run_op
from .variants import BF16, Variant
from .world import World

#: Three rows of tiles, three columns of scales and a tail in each; the small one is a decode step.
SHAPES = (Shape(300, 328, 912), Shape(5, 520, 2064))
#: (alpha, beta) of the calls with C, beside the defaults.
FACTORS = ((1.0, 1.0), (0.5, -2.0), (0.0, 1.0), (1.0, 0.0), (1e-3, 3.0))
#: The variants whose C and factors are checked: each op kind with each dtype of D.
C_VARIANTS = (
    Variant(c_mode="general"),
    Variant(recipe="1d1d", d_dtype="fp32", c_mode="general"),
    Variant(recipe="per_row", d_dtype="fp32", c_mode="general"),
    Variant(BF16, c_mode="general"),
    Variant(BF16, d_dtype="fp32", c_mode="general", a_major="mn"),
)


def run_nan_operands(world: World, variant: Variant, shape: Shape) -> tuple[int, list[str]]:
    """NaN in one element of A, of B, of C, in one scale: exactly the row, column or block that mathematics names
    becomes NaN.
    """
    checks, clean = Checks(), world.case(variant, shape)
    output = make_output(clean)
    bits = run_op(clean, output)
    row, column, nan = shape.m // 2, shape.n - 1, float("nan")

    def check(name: str, change, affected: tuple) -> None:
        case, mask = copy_case(clean), torch.zeros_like(bits, dtype=torch.bool)
        change(case)
        mask[affected] = True
        got = run_op(case, output)
        checks.expect(output.values[mask].isnan().all(), f"{name}: an affected element is no NaN")
        checks.expect((got == bits)[~mask].all(), f"{name}: an unaffected element changed")
        checks.expect(not int(output.num_dirty()), f"{name}: wrote outside D")

    check("NaN in a row of A", lambda case: as_integers(case.a)[row, -1:].fill_(_nan_bits(case.a)), (row,))
    check(
        "NaN in a row of B",
        lambda case: as_integers(case.b)[column, :1].fill_(_nan_bits(case.b)),
        (slice(None), column),
    )
    if clean.scale_a is not None:
        block = slice(column // BLOCK * BLOCK, column // BLOCK * BLOCK + BLOCK) if variant.recipe == "1d2d" else column
        place = column // BLOCK if variant.recipe == "1d2d" else column
        check("NaN scale of A", lambda case: case.scale_a[row].view(-1)[-1:].fill_(nan), (row,))
        check("NaN scale of B", lambda case: case.scale_b[place].view(-1)[:1].fill_(nan), (slice(None), block))
    if clean.c is not None:
        check("NaN in C", lambda case: case.c[row, column].fill_(nan), (row, column))
    return checks.outcome()


def _nan_bits(tensor: torch.Tensor) -> int:
    """Return all bits one, as the integer of the tensor's element size."""
    return 255 if tensor.element_size() == 1 else -1


def run_odd_scales(world: World, variant: Variant, shape: Shape) -> tuple[int, list[str]]:
    """Scales of Inf, 0, a subnormal and a negative number flow as IEEE says; all other elements keep their bits."""
    checks, clean = Checks(), world.case(variant, shape)
    if clean.scale_a is None:
        return checks.outcome()
    output = make_output(clean)
    bits, row = run_op(clean, output), shape.m - 1
    others = torch.ones_like(bits, dtype=torch.bool)
    others[row] = False
    for value in (float("inf"), float("-inf"), 0.0, 1e-40, -1.0):
        case = copy_case(clean)
        case.scale_a[row].view(-1)[:1].fill_(value)
        got = run_op(case, output)
        checks.expect((got == bits)[others].all(), f"scale {value}: another row changed")
        if abs(value) == float("inf"):
            checks.expect(not output.values[row].isfinite().any(), f"scale {value}: a finite element in its row")
        else:
            checks.expect(not int(count_wrong(set_reference(case), output.values)), f"scale {value}: outside the bound")
    return checks.outcome()


def run_padding(world: World, variant: Variant, shape: Shape) -> tuple[int, list[str]]:
    """NaN between and behind the rows of the operands never reaches D, in any layout of the scales."""
    checks, clean = Checks(), world.case(variant, shape)
    output = make_output(clean)
    with batch_invariant():
        bits = run_op(clean, output)
        for layout in SCALE_LAYOUTS if clean.scale_a is not None else ("none",):
            case = replace(clean, a=_embed(clean.a, variant.a_major), b=_embed(clean.b, variant.b_major))
            if clean.scale_a is not None:
                case = replace(
                    case,
                    scale_a=make_scale_layout(clean.scale_a, layout),
                    scale_b=make_scale_layout(clean.scale_b, layout),
                )
            checks.expect((run_op(case, output) == bits).all(), f"{layout} scales: padding reached D")
            checks.expect(not int(output.num_dirty()), f"{layout} scales: wrote outside D")
    return checks.outcome()


def _embed(values: torch.Tensor, major: str) -> torch.Tensor:
    """Copy an operand into memory with 64 rows of NaN behind it and 128 bytes of NaN between its rows."""
    rows, k = values.shape
    nan_rows = make_nan(64 * k, values.dtype, values.device).view(64, k)
    stacked = torch.cat([as_integers(values), as_integers(nan_rows)]).view(values.dtype)
    return make_operand(stacked, major, 8)[:rows]


def run_zero_sizes(world: World, variant: Variant) -> tuple[int, list[str]]:
    """m or n = 0 returns and touches nothing; k = 0 makes D zero or beta * C; all combinations, with C beside D and
    C = D.
    """
    checks = Checks()
    for m in (0, 70):
        for n in (0, 264):
            for k in (0, 272):
                case = make_case(Shape(m, n, k), world.torch_device, variant)
                for is_aliased in (False, True) if case.c is not None else (False,):
                    output = _make_empty_output(case) if n == 0 else make_output(case)
                    run_op(case, output, is_aliased=is_aliased)
                    what = f"{(m, n, k)}{' C is D' if is_aliased else ''}"
                    checks.expect(not int(count_wrong(case, output.values)), f"{what}: wrong D")
                    checks.expect(not int(output.num_dirty()), f"{what}: wrote outside D")
    return checks.outcome()


def _make_empty_output(case) -> GuardedOutput:
    """Return a D without columns."""
    return GuardedOutput(case.shape.m, 0, case.a.device, case.dtype)


def run_factors(world: World, variant: Variant, shape: Shape) -> tuple[int, list[str]]:
    """D = alpha * A @ B^T + beta * C for C beside D, C = D and a C of wider rows; equal bits, and right ones.

    Adding the plain product onto D is another problem, with a choice of its own.
    """
    checks, clean = Checks(), world.case(variant, shape)
    output = make_output(clean)
    for alpha, beta in FACTORS:
        case = set_reference(replace(copy_case(clean), alpha=alpha, beta=beta))
        bits = run_op(case, output, is_aliased=False)
        what = f"alpha {alpha} beta {beta}"
        checks.expect(not int(count_wrong(case, output.values)), f"{what}: outside the bound")
        in_place = run_op(case, output, is_aliased=True)
        if alpha == beta == 1.0 and case.dtype == torch.float32:  # its choice may divide K otherwise
            checks.expect(not int(count_wrong(case, output.values)), f"{what}: C = D: outside the bound")
            with batch_invariant():
                apart = run_op(case, output, is_aliased=False)
                checks.expect((run_op(case, output) == apart).all(), f"{what}: C = D gives other bits, K undivided")
        else:
            checks.expect((in_place == bits).all(), f"{what}: C = D gives other bits")
        output.poison()
        call_op(case, output.d, make_rows(case.c, case.c.shape[1] // 8 * 8 + 40))
        checks.expect((output.bits == bits).all(), f"{what}: a C of wider rows gives other bits")
        checks.expect(not int(output.num_dirty()), f"{what}: wrote outside D")
    return checks.outcome()


def run_accumulation(world: World, variant: Variant, shape: Shape) -> tuple[int, list[str]]:
    """Adding onto D again and again: after three calls D is C plus three products, within three bounds."""
    checks, case = Checks(), world.case(variant, shape)
    output = make_output(case)
    bits = run_op(case, output)
    first = output.values.double()
    case_again = replace(case, c=output.values.clone())
    run_op(set_reference(case_again), output)
    checks.expect(not int(count_wrong(case_again, output.values)), "a second product: outside the bound")
    checks.expect((run_op(case, output) == bits).all(), "the first again: other bits")
    checks.expect(torch.equal(output.values.double(), first), "the first again: other values")
    return checks.outcome()


SHAPED = (run_nan_operands, run_odd_scales, run_padding)
ACCUMULATING = (
    Variant(recipe="1d1d", d_dtype="fp32", c_mode="accumulate"), Variant(d_dtype="fp32", c_mode="accumulate"),
    Variant(BF16, d_dtype="fp32", c_mode="accumulate"),
)  # fmt: skip


def semantics_jobs(world: World) -> list:
    """Return one job for each promise, variant and shape."""
    from .semantics_layouts import layout_jobs
    from .semantics_runtime import runtime_jobs

    plans = [(SHAPED, OP_VARIANTS), ((run_factors,), C_VARIANTS), ((run_accumulation,), ACCUMULATING)]
    jobs = [
        (f"{run.__name__} {variant}: {tuple(shape)}", partial(run, world, variant, shape))
        for runs, variants in plans for run in runs for variant in variants for shape in SHAPES
    ]  # fmt: skip
    jobs += [
        (f"run_zero_sizes {variant}: all", partial(run_zero_sizes, world, variant))
        for variant in OP_VARIANTS
        if variant.c_mode != "head_split"
    ]
    return jobs + layout_jobs(world) + runtime_jobs(world)
