"""What the ops promise about calls: CUDA graphs (also a first call under capture), streams, num_sms, compile-time
dims, batch invariance, PDL, threads, several devices, and that an op gives the same bits as the chosen config
launched by hand.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

import deep_gemm
from deep_gemm import _C
from deep_gemm.errors import DeepGemmError
from deep_gemm.selection import explain

from .operands import Case, Shape, count_wrong, make_case, make_output
from .public_op import OP_VARIANTS, Checks, batch_invariant, call_op, copy_case, run_op
from .semantics import SHAPES
from .variants import BF16, MAIN, Variant
from .world import World, launch_options, lay_out_scale, prepare_c

#: How long a stream is kept busy while another one is looked at: about 50 ms at 2 GHz, longer where the host is slow.
SLEEP_CYCLES = (100_000_000, 400_000_000, 1_600_000_000)
#: M of the calls whose rows must have the same bits, and the N and K that they share.
BATCH_SIZES = (1, 2, 7, 16, 64, 65, 128, 300, 513)
BATCH_SHAPES = ((1096, 2064), (576, 7168))
THREADS, CALLS_PER_THREAD = 4, 40
CHAIN_LENGTH, CHAIN_SIZE = 6, 512


def run_graph(world: World, variant: Variant, shape: Shape) -> tuple[int, list[str]]:
    """Capture the op after one warm-up call; replays follow the operands' new contents."""
    checks, case = Checks(), copy_case(world.case(variant, shape))
    output = make_output(case)
    bits = run_op(case, output)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run_op(case, output)
    for _ in range(2):
        output.poison()
        graph.replay()
        checks.expect((output.bits == bits).all(), "a replay gives other bits")
    case.a.copy_(torch.zeros_like(case.a, dtype=torch.float32).to(case.a.dtype))
    graph.replay()
    expected = torch.zeros_like(output.values) if case.c is None else (case.beta * case.c.float()).to(case.dtype)
    checks.expect((output.values == expected).all(), "a replay ignores new contents")
    return checks.outcome()


def run_first_capture(world: World, variant: Variant) -> tuple[int, list[str]]:
    """A first call under capture loads its kernel or raises a typed error; the capture goes on, its graph is right."""
    checks = Checks()
    shape = Shape(37, 136, 400)
    case = world.case(variant, shape)
    output, marker = make_output(case), torch.zeros(4, device=world.torch_device)
    c = prepare_c(case, output, is_aliased=True)
    torch.cuda.synchronize()
    graph, error = torch.cuda.CUDAGraph(), ""
    with torch.cuda.graph(graph):
        try:
            call_op(case, output.d, c, compiled_dims="mnk")  # no other call makes this kernel
        except DeepGemmError as refusal:
            error = f"{type(refusal).__name__}: {refusal}"
        marker.add_(1.0)
    prepare_c(case, output, is_aliased=True)
    graph.replay()
    checks.expect((marker == 1.0).all(), f"the capture broke ({error})")
    checks.expect(
        bool(error) or not int(count_wrong(case, output.values)), "captured without an error, but the result is wrong"
    )
    checks.expect(
        (run_op(case, output, compiled_dims="mnk") is not None) and not int(count_wrong(case, output.values)),
        "wrong after the capture",
    )
    return checks.outcome()


def run_streams(world: World, variant: Variant, shape: Shape) -> tuple[int, list[str]]:
    """Work runs on the current stream, or on `stream=` (object or handle), and on no other."""
    case = world.case(variant, shape)
    output = make_output(case)
    bits = run_op(case, output)
    prepare = partial(prepare_c, case, output, is_aliased=True)
    return check_streams(output, bits, prepare, lambda c, **options: call_op(case, output.d, c, **options))


def check_streams(output, bits: torch.Tensor, prepare: Callable, call: Callable) -> tuple[int, list[str]]:
    """Call an op behind a side stream that is busy, in every way to name that stream: it waits, and gives `bits`.

    prepare: () -> C, D poisoned. call: (C, **options) -> the call.
    """
    checks, side = Checks(), torch.cuda.Stream()

    def look(cycles: int, options: dict, context) -> bool | None:
        """Return whether the call waited, None where the stream was no longer busy when that had been looked at."""
        c = prepare()
        before = output.bits.clone()
        torch.cuda.synchronize()
        awake = torch.cuda.Event()
        with torch.cuda.stream(side):
            torch.cuda._sleep(cycles)
            awake.record()
        with context:
            call(c, **options)
        with torch.cuda.stream(torch.cuda.Stream()):
            early = output.bits.clone().cpu()
        return None if awake.query() else bool((early == before.cpu()).all())

    def check(name: str, options: dict, make_context: Callable) -> None:
        looks = (look(cycles, options, make_context()) for cycles in SLEEP_CYCLES)
        waited = next((answer for answer in looks if answer is not None), None)
        blocks = f"{name}: its stream was never busy when the call had returned: the call blocks, or the host is slow"
        checks.expect(waited, blocks if waited is None else f"{name}: did not wait for its stream")
        side.synchronize()
        checks.expect((output.bits == bits).all(), f"{name}: wrong bits")

    check("current stream", {}, lambda: torch.cuda.stream(side))
    check("stream object", {"stream": side}, lambda: torch.cuda.stream(torch.cuda.Stream()))
    check("stream handle", {"stream": side.cuda_stream}, lambda: torch.cuda.stream(torch.cuda.Stream()))
    return checks.outcome()


def run_num_sms(world: World, variant: Variant, shape: Shape) -> tuple[int, list[str]]:
    """Every number of SMs gives the same bits and a grid that keeps to it; 0 means all SMs again."""
    checks, case = Checks(), world.case(variant, shape)
    output, first = make_output(case), None
    try:
        for num_sms in (1, 2, 3, 66, world.device.sm_count - 1, world.device.sm_count, 0):
            deep_gemm.set_num_sms(num_sms)
            checks.expect(
                deep_gemm.get_num_sms() == (num_sms or world.device.sm_count), f"num_sms = {num_sms}: not kept"
            )
            bits = run_op(case, output)
            checks.expect(not int(count_wrong(case, output.values)), f"num_sms = {num_sms}: outside the bound")
            if 0 < num_sms < world.device.sm_count:
                first = bits if first is None else first
                checks.expect((bits == first).all(), f"num_sms = {num_sms}: other bits")
                checks.expect(
                    _count_ctas(world, variant, shape, num_sms) <= num_sms, f"num_sms = {num_sms}: more CTAs than SMs"
                )
    finally:
        deep_gemm.set_num_sms(0)
    return checks.outcome()


def _count_ctas(world: World, variant: Variant, shape: Shape, num_sms: int) -> int:
    """Return the grid of the op's own choice; a config that splits K has one CTA a share, so that it must not be
    chosen.
    """
    problem = variant.problem(*shape, num_sms=num_sms)
    config = explain(problem, world.device).config
    if config.split_k > 1:
        return world.device.sm_count
    max_clusters = world.kernel(variant, config).max_clusters
    geometry = _C.launch_geometry(problem, config, sm_count=world.device.sm_count, max_clusters=max_clusters)
    return geometry["num_ctas"]


def run_compiled_dims(world: World, variant: Variant, shape: Shape) -> tuple[int, list[str]]:
    """Compile-time dims change no bit."""
    checks, case = Checks(), world.case(variant, shape)
    output = make_output(case)
    with batch_invariant():
        bits = run_op(case, output)
        for dims in ("k", "nk", "mnk"):
            checks.expect(
                (run_op(case, output, compiled_dims=dims) == bits).all(), f"compiled_dims = {dims}: other bits"
            )
            checks.expect(not int(output.num_dirty()), f"compiled_dims = {dims}: wrote outside D")
    return checks.outcome()


def run_batch_invariance(world: World, variant: Variant) -> tuple[int, list[str]]:
    """With set_batch_invariant, a row of D has the same bits whatever M is."""
    checks = Checks()
    with batch_invariant():
        for n, k in BATCH_SHAPES:
            whole = world.case(variant, Shape(max(BATCH_SIZES), n, k))
            bits = run_op(whole, make_output(whole))
            for m in BATCH_SIZES:
                part = cut_rows(whole, m)
                got = run_op(part, make_output(part))
                checks.expect(
                    (got == bits[:m]).all(),
                    f"m {m} n {n} k {k}: {int((got != bits[:m]).sum())} elements have other bits",
                )
    return checks.outcome()


def cut_rows(case: Case, m: int) -> Case:
    """Return the product of the first m rows of A."""
    scale_a = None if case.scale_a is None else case.scale_a[:m]
    rows = {name: getattr(case, name)[:m] for name in ("a", "reference", "bound")}
    return replace(case, scale_a=scale_a, c=None if case.c is None else case.c[:m], first={}, **rows)


def run_selectors_agree(world: World, variant: Variant, shape: Shape) -> tuple[int, list[str]]:
    """The op's own choice gives the bits of any config launched by hand."""
    checks, case = Checks(), world.case(variant, shape)
    output = make_output(case)
    with batch_invariant():
        bits = run_op(case, output)
    for config in [config for config in world.portfolio(variant) if config.split_k == 1][:4]:
        c = prepare_c(case, output, is_aliased=True)
        scales = [lay_out_scale(case.scale_a, variant, 0, True), lay_out_scale(case.scale_b, variant, 0, False)]
        world.kernel(variant, config).launch(case.a, scales[0], case.b, scales[1], output.d, c, **launch_options(case))
        checks.expect((output.bits == bits).all(), f"{config}: unlike the op")
    return checks.outcome()


def run_pdl(world: World, variant: Variant) -> tuple[int, list[str]]:
    """A chain of products, each fed by the one before, gives the same bits with PDL as without, eagerly and from a
    graph.
    """
    checks, case = Checks(), world.case(variant, Shape(CHAIN_SIZE, CHAIN_SIZE, CHAIN_SIZE))
    outputs = [make_output(case) for _ in range(CHAIN_LENGTH)]
    expected, before = [], deep_gemm.get_pdl()

    def check(name: str) -> None:
        for index, (output, bits) in enumerate(zip(outputs, expected, strict=True)):
            checks.expect((output.bits == bits).all(), f"{name}: product {index} has other bits")

    try:
        deep_gemm.set_pdl(False)
        expected += [bits.clone() for bits in run_chain(case, outputs)]
        deep_gemm.set_pdl(True)
        run_chain(case, outputs)
        check("eager")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run_chain(case, outputs)
        for _ in range(20):
            graph.replay()
        check("graph")
    finally:
        deep_gemm.set_pdl(before)
    return checks.outcome()


def run_chain(case: Case, outputs: list) -> list[torch.Tensor]:
    """Multiply `CHAIN_LENGTH` times; A of each product is made of the D before. Returns the Ds' bits."""
    a = case.a.clone()
    for output in outputs:
        step = replace(case, a=a)
        call_op(step, output.d, prepare_c(step, output, is_aliased=True))
        a = (output.values.float() / CHAIN_SIZE).clamp(-8.0, 8.0).to(case.a.dtype)
    return [output.bits for output in outputs]


def run_threads(world: World, variant: Variant) -> tuple[int, list[str]]:
    """Several threads, each with its own stream and shape, get right results and the same bits every time."""
    cases = [world.case(variant, Shape(17 + 40 * index, 264, 912)) for index in range(THREADS)]
    return check_threads(cases, CALLS_PER_THREAD, make_output, run_op, lambda case, out: count_wrong(case, out.values))


def check_threads(
    cases: list, num_calls: int, make: Callable, run: Callable, count_faults: Callable
) -> tuple[int, list[str]]:
    """Call an op `num_calls` times in a thread for each case.

    make: case -> output. run: (case, output) -> bits of D. count_faults: (case, output) -> elements outside the bound.
    """
    checks, lock = Checks(), threading.Lock()

    def work(case) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            output = make(case)
            bits = run(case, output)
            unlike = sum(int((run(case, output) != bits).any()) for _ in range(num_calls))
            wrong = int(count_faults(case, output))
        with lock:
            checks.expect(not unlike, f"{case.shape}: {unlike} of {num_calls} calls gave other bits")
            checks.expect(not wrong, f"{case.shape}: {wrong} elements outside their bound")

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(case,)) for case in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    checks.expect(checks.cases == 2 * len(cases), "a thread ended early")
    return checks.outcome()


def run_devices(world: World, variant: Variant) -> tuple[int, list[str]]:
    """Calls follow their tensors' device, whichever is current, in turn and without a change of the current one."""
    checks = Checks()
    cases = [make_case(Shape(65, 328, 912), f"cuda:{ordinal}", variant) for ordinal in range(torch.cuda.device_count())]
    for _ in range(2):
        for ordinal, case in enumerate(cases):
            output = make_output(case)
            run_op(case, output)
            checks.expect(not int(count_wrong(case, output.values)), f"cuda:{ordinal}: outside the bound")
            checks.expect(torch.cuda.current_device() == 0, f"cuda:{ordinal}: the current device changed")
    return checks.outcome()


SHAPED = (run_graph, run_streams, run_num_sms, run_compiled_dims, run_selectors_agree)
UNSHAPED = (run_first_capture, run_batch_invariance, run_threads, run_devices)
#: fp8_gemm_nt_skip_head_mid takes neither a stream nor compiled dims.
HEADLESS = tuple(variant for variant in OP_VARIANTS if variant.c_mode != "head_split")
PDL_VARIANTS = (Variant(), Variant(recipe="1d1d", d_dtype="fp32", c_mode="accumulate"), Variant(BF16))


def runtime_jobs(world: World) -> list:
    """Return one job for each promise, variant and shape; calls on streams and with compile-time dims for the main
    variants only.
    """
    plans = [(run, HEADLESS if run in (run_graph, run_num_sms, run_selectors_agree) else MAIN) for run in SHAPED]
    jobs = [
        (f"{run.__name__} {variant}: {tuple(shape)}", partial(run, world, variant, shape))
        for run, variants in plans for variant in variants for shape in SHAPES
    ]  # fmt: skip
    jobs += [(f"{run.__name__} {variant}: all", partial(run, world, variant)) for run in UNSHAPED for variant in MAIN]
    return jobs + [(f"run_pdl {variant}: all", partial(run_pdl, world, variant)) for variant in PDL_VARIANTS]
