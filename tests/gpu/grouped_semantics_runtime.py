"""What the grouped ops promise about calls: CUDA graphs whose groups change between replays, streams, num_sms, PDL,
torch.compile, threads.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

import deep_gemm

from .grouped_configs import get_grouped_case
from .grouped_memory import GroupedOutput
from .grouped_op import (
    GROUPED_OP_VARIANTS,
    call_grouped,
    copy_grouped_case,
    list_arguments,
    list_op_shapes,
    name_op,
    run_grouped_op,
)
from .grouped_operands import (
    GroupedCase,
    GroupedShape,
    count_grouped_wrong,
    make_blocks,
    make_grouped_output,
    multiply_rows,
    prepare_grouped_c,
    set_k_reference,
    widen_groups,
)
from .grouped_shapes import Block, Contiguous, KGroups, Masked
from .grouped_variants import CONTIGUOUS_OPS, K_GROUPED_OPS, MAIN_GROUPED, MASKED_OPS, GroupedVariant
from .memory import as_integers
from .operands import FP8, bound_product
from .public_op import Checks
from .semantics_runtime import check_streams, check_threads
from .world import World

#: Contents of masked_m, replay by replay: all rows, none, single rows, out of range.
MASKED_SIZES = ((150, 150, 150, 150), (0, 0, 0, 0), (1, 150, 0, 77), (1 << 30, -3, 64, 1), (150, 149, 128, 129))
MASKED_SHAPE = Masked(264, 912, 150, MASKED_SIZES[0])
#: The group of each 128 rows from replay to replay; -1: padding.
BLOCK_GROUPS = ((0, 1, 2, 3), (3, 3, 0, 1), (-1, 2, -1, 2), (-1, -1, -1, -1))
CONTIGUOUS_SHAPE = Contiguous(264, 912, 4, 128, tuple((group, 0, 128) for group in BLOCK_GROUPS[0]))
#: K of the groups, replay by replay: always the same sum and number of groups.
KS = ((256, 0, 384, 128), (128, 384, 0, 256), (0, 768, 0, 0), (0, 0, 0, 768))
K_SHAPE = KGroups(136, 264, KS[0])
SMS = (1, 2, 3, 66)
THREADS, CALLS_PER_THREAD = 3, 30
CHAIN_LENGTH, CHAIN_SIZE = 6, 512


def capture(body: Callable[[], object]) -> Callable[[], None]:
    """Return the replay of a CUDA graph of `body`, after one warm-up call."""
    body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph.replay


def get_graph_shape(variant: GroupedVariant) -> GroupedShape:
    """Return the shape whose groups change between replays."""
    return CONTIGUOUS_SHAPE if variant.op in CONTIGUOUS_OPS else MASKED_SHAPE if variant.op in MASKED_OPS else K_SHAPE


def run_graph(world: World, variant: GroupedVariant) -> tuple[int, list[str]]:
    """Capture the op after one warm-up call; every replay uses the groups that device memory holds at that time."""
    checks, shape = Checks(), get_graph_shape(variant)
    case = copy_grouped_case(get_grouped_case(world, variant, shape))
    output = make_grouped_output(case)
    ks = {"ks": list(shape.ks)} if variant.op in K_GROUPED_OPS else {}
    replay = capture(lambda: run_grouped_op(case, output, **ks))
    bits = run_grouped_op(case, output, **ks)
    for _ in range(2):
        output.poison()
        replay()
        checks.expect((output.bits == bits).all(), "a replay gives other bits")
    for name, groups, regrouped in list_regroupings(case):
        case.groups.copy_(groups)
        replay()
        output.rows = regrouped.rows
        checks.expect(not int(count_grouped_wrong(regrouped, output)), f"{name}: wrong elements")
        checks.expect(not int(output.num_dirty()), f"{name}: wrote outside D")
    return checks.outcome()


def list_regroupings(case: GroupedCase) -> Iterator[tuple[str, torch.Tensor, GroupedCase]]:
    """Yield (name, what the groups become, the case that the same memory is then); blocks of K are laid out again as
    each is reached.
    """
    is_contiguous, is_masked = case.variant.op in CONTIGUOUS_OPS, case.variant.op in MASKED_OPS
    plan, regroup = (BLOCK_GROUPS, reassign) if is_contiguous else (MASKED_SIZES, resize) if is_masked else (KS, divide)
    for values in plan:
        groups = torch.tensor(values, dtype=torch.int32, device=case.a.device)
        yield f"groups {values}", groups.repeat_interleave(128) if is_contiguous else groups, regroup(case, values)


def resize(case: GroupedCase, sizes: tuple[int, ...]) -> GroupedCase:
    """Return a masked case, whose groups are full, with other sizes."""
    shape = case.shape._replace(sizes=sizes)
    rows = [row for block in shape.blocks() for row in range(block.first, block.first + block.rows)]
    places = torch.tensor(rows, dtype=torch.int64, device=case.a.device)
    index = (places // shape.max_m, places % shape.max_m)
    return replace(case, shape=shape, rows=index, reference=case.reference[places], bound=case.bound[places], first={})


def reassign(case: GroupedCase, groups: tuple[int, ...]) -> GroupedCase:
    """Return a contiguous case without padding, with each 128 rows reassigned to one of `groups`, or to none."""
    blocks = [Block(max(group, 0), 128 * index, 128) for index, group in enumerate(groups)]
    product, magnitude = multiply_rows(blocks, widen_groups(case.a, case.scale_a), widen_groups(case.b, case.scale_b))
    bound = bound_product(product, magnitude, case.dtype, case.a)
    is_row = (torch.tensor(groups, device=case.a.device) >= 0).repeat_interleave(128)
    padding = (~is_row).nonzero().flatten()
    return replace(case, reference=product * is_row[:, None], bound=bound * is_row[:, None], padding=padding, first={})


def divide(case: GroupedCase, ks: tuple[int, ...]) -> GroupedCase:
    """Return a case of the same K divided in another way; blocks of it are written over the old ones."""
    if case.variant.is_blocks:
        for name in ("a", "b"):
            as_integers(case.operand(name, True)).copy_(as_integers(make_blocks(getattr(case, name), ks)))
    return set_k_reference(replace(case, shape=case.shape._replace(ks=ks), first={}, laid_out={}))


def run_streams(world: World, variant: GroupedVariant, shape: GroupedShape) -> tuple[int, list[str]]:
    """Work runs on the current stream, or on `stream=` (object or handle), and on no other."""
    case = get_grouped_case(world, variant, shape)
    output = make_grouped_output(case)
    bits = run_grouped_op(case, output)
    prepare = partial(prepare_grouped_c, case, output, is_aliased=variant.c_mode == "accumulate")
    return check_streams(output, bits, prepare, lambda c, **options: call_grouped(case, output.d, c, **options))


def run_num_sms(world: World, variant: GroupedVariant, shape: GroupedShape) -> tuple[int, list[str]]:
    """Every number of SMs gives the same bits, right ones; 0 means all SMs again."""
    checks, case = Checks(), get_grouped_case(world, variant, shape)
    output = make_grouped_output(case)
    bits = run_grouped_op(case, output)
    try:
        for num_sms in (*SMS, world.device.sm_count - 1, world.device.sm_count, 0):
            deep_gemm.set_num_sms(num_sms)
            checks.expect((run_grouped_op(case, output) == bits).all(), f"num_sms = {num_sms}: other bits")
            checks.expect(
                not int(count_grouped_wrong(case, output)) and not int(output.num_dirty()),
                f"num_sms = {num_sms}: wrong D",
            )
    finally:
        deep_gemm.set_num_sms(0)
    return checks.outcome()


def make_chain_shape(variant: GroupedVariant) -> GroupedShape:
    """Return a shape whose D can be the next product's A; groups of K add onto one D again and again."""
    if variant.op in CONTIGUOUS_OPS:
        return Contiguous(CHAIN_SIZE, CHAIN_SIZE, 3, 128, ((0, 0, 200), (2, 0, 128), (1, 0, 60)), False)
    return (
        Masked(CHAIN_SIZE, CHAIN_SIZE, 200, (200, 3, 0, 77))
        if variant.op in MASKED_OPS
        else KGroups(264, CHAIN_SIZE, (256, 0, 512))
    )


def run_chain(case: GroupedCase, outputs: list[GroupedOutput]) -> list[torch.Tensor]:
    """Multiply `CHAIN_LENGTH` times, each product fed by the D before: BF16 directly, FP8 through a cast.

    Returns the Ds' bits.
    """
    if case.variant.op in K_GROUPED_OPS:
        outputs[0].poison(case.c)
        for _ in outputs:
            call_grouped(case, outputs[0].d, outputs[0].d)
        return [outputs[0].bits]
    step = case
    for output in outputs:
        output.poison()
        call_grouped(step, output.d)
        fed = (output.d.float() / CHAIN_SIZE).clamp(-8.0, 8.0).nan_to_num().to(FP8) if case.variant.is_fp8 else output.d
        step = replace(step, a=fed, laid_out={})
    return [output.bits for output in outputs]


def run_pdl(world: World, variant: GroupedVariant) -> tuple[int, list[str]]:
    """A chain of products gives the same bits with PDL as without, eagerly and from a graph."""
    checks, case = Checks(), get_grouped_case(world, variant, make_chain_shape(variant))
    outputs = [make_grouped_output(case) for _ in range(CHAIN_LENGTH)]
    before = deep_gemm.get_pdl()
    try:
        deep_gemm.set_pdl(False)
        expected = [bits.clone() for bits in run_chain(case, outputs)]
        deep_gemm.set_pdl(True)
        got = run_chain(case, outputs)
        checks.expect(all(bool((x == y).all()) for x, y in zip(got, expected, strict=True)), "eager: other bits")
        replay = capture(lambda: run_chain(case, outputs))
        for _ in range(20):
            replay()
        got = [output.bits for output in outputs[: len(expected)]]
        checks.expect(all(bool((x == y).all()) for x, y in zip(got, expected, strict=True)), "graph: other bits")
    finally:
        deep_gemm.set_pdl(before)
    return checks.outcome()


def run_compiled(world: World, variant: GroupedVariant, shape: GroupedShape) -> tuple[int, list[str]]:
    """torch.compile takes the op as one node, without a graph break, and gives the bits of the eager call."""
    checks, case = Checks(), get_grouped_case(world, variant, shape)
    output = make_grouped_output(case, gap=0)
    bits, op = run_grouped_op(case, output), getattr(deep_gemm, name_op(variant))

    def program(a, b, d, groups):
        op(a, b, d, groups, *([16] if variant.op in MASKED_OPS else []))
        return d + 1.0

    output.poison()
    returned = torch.compile(program, fullgraph=True, backend="aot_eager")(*list_arguments(case), output.d, case.groups)
    checks.expect((output.bits == bits).all(), "other bits")
    checks.expect(
        torch.equal((returned if case.rows is None else returned[case.rows]), output.values + 1.0),
        "what follows saw another D",
    )
    return checks.outcome()


def run_threads(world: World, variant: GroupedVariant) -> tuple[int, list[str]]:
    """Several threads, each with its own stream and shape, get right results and the same bits every time."""
    shapes = [*list_op_shapes(variant), make_chain_shape(variant)][:THREADS]
    cases = [get_grouped_case(world, variant, shape) for shape in shapes]
    return check_threads(cases, CALLS_PER_THREAD, make_grouped_output, run_grouped_op, count_grouped_wrong)


#: One m-grouped op of each grouping and dtype, whose recipe is the default.
COMPILED_VARIANTS = tuple(variant for variant in MAIN_GROUPED if variant.op not in K_GROUPED_OPS)


def grouped_runtime_jobs(world: World) -> list:
    """Return one job for each promise and variant."""
    jobs = [(f"run_graph {variant}: all", partial(run_graph, world, variant)) for variant in GROUPED_OP_VARIANTS]
    jobs += [
        (f"{run.__name__} {variant}: {number}", partial(run, world, variant, shape))
        for run, variants in (
            (run_num_sms, GROUPED_OP_VARIANTS),
            (run_streams, MAIN_GROUPED),
            (run_compiled, COMPILED_VARIANTS),
        )
        for variant in variants
        for number, shape in enumerate(list_op_shapes(variant)[:1])
    ]
    return jobs + [
        (f"{run.__name__} {variant}: all", partial(run, world, variant))
        for run in (run_pdl, run_threads)
        for variant in MAIN_GROUPED
    ]
