"""What the op promises beyond a right product: NaN and Inf stay where they belong (F-L2), alignment (F-L3), zero sizes (F-L4),
memory layouts, CUDA graphs, streams, num_sms and compiled dims. Everything here goes through the public op.
"""

from functools import partial

import torch

import deep_gemm
from deep_gemm.errors import LayoutError

from .operands import BLOCK, FP8, FP8_NAN, Case, GuardedOutput, Shape, align, count_wrong, make_reference, make_rows, make_scales_mn_major
from .world import SCALE_LAYOUTS, World, make_scale_layout

#: Three block rows, three scale columns and a tail in each; the small one is a decode step.
SHAPES = (Shape(300, 328, 912), Shape(5, 520, 2064))
#: About 50 ms at 2 GHz: long enough that a launch on another stream cannot have finished by chance.
SLEEP_CYCLES = 100_000_000


def run_op(case: Case, output: GuardedOutput, **options) -> torch.Tensor:
    """Run the op into a freshly poisoned D; return D's bits."""
    output.poison()
    deep_gemm.fp8_gemm_nt((case.a, case.scale_a), (case.b, case.scale_b), output.d, **options)
    return output.bits.clone()


def make_output(world: World, shape: Shape) -> GuardedOutput:
    """Return a poisoned D of that shape."""
    return GuardedOutput(shape.m, shape.n, world.torch_device)


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


def copy_case(case: Case) -> Case:
    """Return a case whose operands can be changed."""
    return Case(make_rows(case.a), case.scale_a.clone(), make_rows(case.b), case.scale_b.clone(), case.reference, case.bound)


def run_nan_operands(world: World, shape: Shape) -> tuple[int, list[str]]:
    """NaN in one element of A, of B, in one scale: exactly the row, column or block that mathematics names becomes NaN."""
    checks, clean, output = Checks(), world.case(shape), make_output(world, shape)
    bits = run_op(clean, output)
    row, column, block_k = shape.m // 2, shape.n - 1, shape.k // BLOCK
    rows = slice(column // BLOCK * BLOCK, column // BLOCK * BLOCK + BLOCK)

    def check(name: str, change, affected: tuple) -> None:
        case, mask = copy_case(clean), torch.zeros_like(bits, dtype=torch.bool)
        change(case)
        mask[affected] = True
        got = run_op(case, output)
        checks.expect(output.d[mask].isnan().all(), f"{tuple(shape)} {name}: an affected element is no NaN")
        checks.expect((got == bits)[~mask].all(), f"{tuple(shape)} {name}: an unaffected element changed")
        checks.expect(not int(output.num_dirty()), f"{tuple(shape)} {name}: wrote outside D")

    check("NaN in a row of A", lambda case: case.a.view(torch.uint8)[row, -1:].fill_(FP8_NAN), (row,))
    check("NaN in a row of B", lambda case: case.b.view(torch.uint8)[column, :1].fill_(FP8_NAN), (slice(None), column))
    check("NaN scale of A", lambda case: case.scale_a[row, block_k].fill_(float("nan")), (row,))
    check("NaN scale of B", lambda case: case.scale_b[column // BLOCK, 0].fill_(float("nan")), (slice(None), rows))
    return checks.outcome()


def run_odd_scales(world: World, shape: Shape) -> tuple[int, list[str]]:
    """Scales of Inf, 0, a subnormal and a negative number flow as IEEE says; all other elements keep their bits."""
    checks, clean, output = Checks(), world.case(shape), make_output(world, shape)
    bits, row = run_op(clean, output), shape.m - 1
    others = torch.ones_like(bits, dtype=torch.bool)
    others[row] = False
    for value in (float("inf"), float("-inf"), 0.0, 1e-40, -1.0):
        case = copy_case(clean)
        case.scale_a[row, 0] = value
        got = run_op(case, output)
        checks.expect((got == bits)[others].all(), f"{tuple(shape)} scale {value}: another row changed")
        if abs(value) == float("inf"):
            checks.expect(not output.d[row].isfinite().any(), f"{tuple(shape)} scale {value}: a finite element in its row")
        else:
            case.reference, case.bound = make_reference(case.a, case.scale_a, case.b, case.scale_b)
            checks.expect(not int(count_wrong(case, output.d)), f"{tuple(shape)} scale {value}: outside the bound")
    return checks.outcome()


def run_padding(world: World, shape: Shape) -> tuple[int, list[str]]:
    """NaN in everything that lies between and behind the operands' rows never reaches D."""
    checks, clean, output = Checks(), world.case(shape), make_output(world, shape)
    bits = run_op(clean, output)
    pitch = align(shape.k, 16) + 128

    def embed(rows: torch.Tensor) -> torch.Tensor:
        nan_rows = torch.full((64, rows.shape[1]), FP8_NAN, dtype=torch.uint8, device=rows.device)
        return make_rows(torch.cat([rows.view(torch.uint8), nan_rows]).view(FP8), pitch)[: rows.shape[0]]

    for layout in SCALE_LAYOUTS:
        scales = [make_scale_layout(scale, layout) for scale in (clean.scale_a, clean.scale_b)]
        case = Case(embed(clean.a), scales[0], embed(clean.b), scales[1], clean.reference, clean.bound)
        checks.expect((run_op(case, output) == bits).all(), f"{tuple(shape)} {layout} scales: padding reached D")
        checks.expect(not int(output.num_dirty()), f"{tuple(shape)} {layout} scales: wrote outside D")
    return checks.outcome()


def run_layouts(world: World, shape: Shape) -> tuple[int, list[str]]:
    """Every memory layout of the scales gives the same bits, and they are right."""
    checks, clean, output = Checks(), world.case(shape), make_output(world, shape)
    bits = run_op(clean, output)
    checks.expect(not int(count_wrong(clean, output.d)), f"{tuple(shape)}: outside the bound")
    wide = align(shape.m, 4)
    scales = {f"MN-major, pitch {pitch}": make_scales_mn_major(clean.scale_a, pitch) for pitch in (shape.m, wide, wide + 4, wide + 7)}
    scales |= {layout: make_scale_layout(clean.scale_a, layout) for layout in SCALE_LAYOUTS}
    scales["every second element"] = clean.scale_a.repeat_interleave(2, 1)[:, ::2]
    for name, scale_a in scales.items():
        case = Case(clean.a, scale_a, clean.b, clean.scale_b, clean.reference, clean.bound)
        checks.expect((run_op(case, output) == bits).all(), f"{tuple(shape)} scales of A {name}: other bits")
    case = Case(clean.a, clean.scale_a, clean.b, make_scales_mn_major(clean.scale_b), clean.reference, clean.bound)
    checks.expect((run_op(case, output) == bits).all(), f"{tuple(shape)} scales of B transposed: other bits")
    return checks.outcome()


def run_alignment(world: World, shape: Shape) -> tuple[int, list[str]]:
    """F-L3: a base off 16 bytes, or a pitch that is no multiple of 16, is a LayoutError; 16 works."""
    checks, clean, output = Checks(), world.case(shape), make_output(world, shape)
    bits, pitch = run_op(clean, output), align(shape.k, 16) + 32

    def shifted(rows: torch.Tensor, offset: int) -> torch.Tensor:
        return make_rows(torch.nn.functional.pad(rows.view(torch.uint8), (offset, 0)).view(FP8), pitch)[:, offset:]

    def check(name: str, a: torch.Tensor, b: torch.Tensor, is_legal: bool) -> None:
        case = Case(a, clean.scale_a, b, clean.scale_b, clean.reference, clean.bound)
        try:
            got = run_op(case, output)
            right = is_legal and bool((got == bits).all())
        except LayoutError:
            right = not is_legal and not bool((output.bits != -1).any())
        checks.expect(right, f"{tuple(shape)} {name}")

    for offset in range(1, 17):
        check(f"A {offset} bytes off", shifted(clean.a, offset), clean.b, offset == 16)
        check(f"B {offset} bytes off", clean.a, shifted(clean.b, offset), offset == 16)
        check(f"pitch of A + {offset}", make_rows(clean.a, align(shape.k, 16) + offset), clean.b, offset == 16)
        check(f"pitch of B + {offset}", clean.a, make_rows(clean.b, align(shape.k, 16) + offset), offset == 16)
    return checks.outcome()


def run_zero_sizes(world: World) -> tuple[int, list[str]]:
    """F-L4: m or n = 0 returns and touches nothing; k = 0 makes D zero; all eight combinations."""
    checks = Checks()
    for m in (0, 70):
        for n in (0, 264):
            for k in (0, 272):
                shape = Shape(m, n, k)
                case, output = world.case(shape), make_output(world, shape)
                run_op(case, output)
                checks.expect(not int(count_wrong(case, output.d)), f"{tuple(shape)}: wrong D")
                checks.expect(not int(output.num_dirty()), f"{tuple(shape)}: wrote outside D")
    return checks.outcome()


def run_graph(world: World, shape: Shape) -> tuple[int, list[str]]:
    """Capture the op after one warm-up call; replays follow the operands' new contents."""
    checks, clean, output = Checks(), copy_case(world.case(shape)), make_output(world, shape)
    bits = run_op(clean, output)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        deep_gemm.fp8_gemm_nt((clean.a, clean.scale_a), (clean.b, clean.scale_b), output.d)
    output.poison()
    graph.replay()
    checks.expect((output.bits == bits).all(), f"{tuple(shape)}: a replay gives other bits")
    clean.scale_a.mul_(2.0)
    graph.replay()
    checks.expect((output.d.float() == 2.0 * bits.view(torch.bfloat16).float()).all(), f"{tuple(shape)}: a replay ignores new contents")
    return checks.outcome()


def run_streams(world: World, shape: Shape) -> tuple[int, list[str]]:
    """Work runs on the current stream, or on `stream=` (object or handle), and on no other."""
    checks, clean, output = Checks(), world.case(shape), make_output(world, shape)
    bits, side = run_op(clean, output), torch.cuda.Stream()

    def check(name: str, options: dict, context) -> None:
        output.poison()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(SLEEP_CYCLES)
        with context:
            deep_gemm.fp8_gemm_nt((clean.a, clean.scale_a), (clean.b, clean.scale_b), output.d, **options)
        with torch.cuda.stream(torch.cuda.Stream()):
            early = output.bits.clone().cpu()
        checks.expect((early == -1).all(), f"{name}: did not wait for its stream")
        side.synchronize()
        checks.expect((output.bits == bits).all(), f"{name}: wrong bits")

    check("current stream", {}, torch.cuda.stream(side))
    check("stream object", {"stream": side}, torch.cuda.stream(torch.cuda.Stream()))
    check("stream handle", {"stream": side.cuda_stream}, torch.cuda.stream(torch.cuda.Stream()))
    return checks.outcome()


def run_num_sms(world: World, shape: Shape) -> tuple[int, list[str]]:
    """Every num_sms gives the same bits; 0 means all SMs again."""
    checks, clean, output = Checks(), world.case(shape), make_output(world, shape)
    bits = run_op(clean, output)
    try:
        for num_sms in (1, 2, 3, 66, world.device.sm_count - 1, world.device.sm_count):
            deep_gemm.set_num_sms(num_sms)
            checks.expect(deep_gemm.get_num_sms() == num_sms, f"num_sms = {num_sms}: not kept")
            checks.expect((run_op(clean, output) == bits).all(), f"{tuple(shape)} num_sms = {num_sms}: other bits")
    finally:
        deep_gemm.set_num_sms(0)
    return checks.outcome()


def run_compiled_dims(world: World, shape: Shape) -> tuple[int, list[str]]:
    """Compile-time dims change no bit."""
    checks, clean, output = Checks(), world.case(shape), make_output(world, shape)
    bits = run_op(clean, output)
    for dims in ("k", "nk", "mnk"):
        checks.expect((run_op(clean, output, compiled_dims=dims) == bits).all(), f"{tuple(shape)} compiled_dims = {dims}: other bits")
    return checks.outcome()


def run_selectors_agree(world: World, shape: Shape) -> tuple[int, list[str]]:
    """The op's own choice gives the bits of any config launched by hand."""
    checks, clean, output = Checks(), world.case(shape), make_output(world, shape)
    bits = run_op(clean, output)
    for config in world.portfolio[:4]:
        output.poison()
        world.kernel(config).launch(clean.a, clean.scale_a, clean.b, clean.scale_b, output.d)
        checks.expect((output.bits == bits).all(), f"{tuple(shape)} {config}: unlike the op")
    return checks.outcome()


SHAPED = (
    run_nan_operands, run_odd_scales, run_padding, run_layouts, run_alignment, run_graph, run_streams, run_num_sms, run_compiled_dims,
    run_selectors_agree,
)


def semantics_jobs(world: World) -> list:
    """Return one job for each promise and shape."""
    jobs = [(f"{run.__name__} {tuple(shape)}", partial(run, world, shape)) for run in SHAPED for shape in SHAPES]
    return [*jobs, ("run_zero_sizes", partial(run_zero_sizes, world))]
