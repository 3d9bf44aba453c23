"""The jobs of the calls in op_calls.py: each function is right under every name, and gives the same bits 1,000 times.

1,000 repeats beside them: every kernel that the library chooses for groups with ends and for attention logits, launched
by hand.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

import deep_gemm
from deep_gemm import _C
from deep_gemm.jit.ahead import list_choices
from deep_gemm.selection import explain
from deep_gemm.testing import calc_diff

from . import logits_jobs, op_calls
from .configs import name_job
from .grouped_operands import list_launch_operands, make_grouped_output, prepare_grouped_c
from .grouped_psum import PSUM_VARIANTS, list_psum_shapes, make_psum_case, with_ends
from .grouped_variants import K_GROUPED_OPS
from .logits_operands import make_paged, make_prefill
from .memory import as_integers
from .op_calls import OpCall, Operands, Outputs
from .repeats import BusyStream
from .world import World, get_portfolio

#: Launches alone, beside a busy stream, and from a graph that is replayed.
ALONE, BUSY, GRAPH_LAUNCHES, REPLAYS = 450, 450, 20, 5
#: (m, n) for which the library is asked which logits kernels it chooses.
LOGITS_SIZES = ((48, 1024), (192, 32768), (2048, 8192), (8192, 65536))
#: The variants of groups with ends whose every choice is repeated.
PSUM_REPEATED = tuple(PSUM_VARIANTS[index] for index in (0, 2, 5, 8))
COMPILE_THREADS = 16
#: Calls whose kernels one job compiles.
CALLS_COMPILED = 16


def move(operands: object, device: str, copy: Callable | None = None) -> object:
    """Return operands on a device; `copy` moves a tensor, default: `tensor.to(device)`. None stays: an absent one."""
    if operands is None:
        return None
    if isinstance(operands, torch.Tensor):
        return copy(operands) if copy else operands.to(device)
    if isinstance(operands, dict):
        return {name: move(value, device, copy) for name, value in operands.items()}
    return tuple(move(value, device, copy) for value in operands)


def find_fault(found: Outputs, expected: Outputs, bound: float) -> str | None:
    """Return what is wrong with the outputs of a call; a bound of 0: they must have the same bits and strides."""
    for index, (got, wanted) in enumerate(zip(found, expected, strict=True)):
        if bound == 0 and got.stride() != wanted.stride():
            return f"output {index}: strides {got.stride()}, expected {wanted.stride()}"
        got = got.cpu()  # which keeps no padding between rows
        if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
            return f"output {index}: {got.dtype} {list(got.shape)}, expected {wanted.dtype} {list(wanted.shape)}"
        fault = _compare_bits(got, wanted) if bound == 0 else _compare_values(got.double(), wanted.double(), bound)
        if fault:
            return f"output {index}: {fault}"
    return None


def _compare_bits(got: torch.Tensor, wanted: torch.Tensor) -> str | None:
    count = int((as_integers(got) != as_integers(wanted)).sum())
    return f"{count} elements differ" if count else None


def _compare_values(got: torch.Tensor, wanted: torch.Tensor, bound: float) -> str | None:
    """NaN and infinities stand at the same places, and the numbers are close."""
    is_number = wanted.isfinite()
    if not torch.equal(got.isfinite(), is_number) or not torch.equal(
        got[~is_number].nan_to_num(), wanted[~is_number].nan_to_num()
    ):
        return "NaN or infinity at another place"
    if not bool(wanted[is_number].any()):
        return "numbers where zeros are right" if bool(got[is_number].any()) else None
    difference = calc_diff(got[is_number], wanted[is_number])
    return None if difference < bound else f"calc_diff {difference} above {bound}"


def run_call(world: World, call: OpCall) -> tuple[int, list[str]]:
    """Call the function under each of its names; compare with what it gives on the CPU."""
    operands, names = call.make(), op_calls.list_names(call)
    expected = call.run(op_calls.find_function(call.name), operands)
    moved, failures = move(operands, world.torch_device), []
    for name in names:
        fault = find_fault(call.run(op_calls.find_function(name), moved), expected, call.bound)
        failures += [f"{name} {call.what}: {fault}"] if fault else []
    return len(names), failures


def compile_calls(world: World, calls: list[OpCall]) -> tuple[int, list[str]]:
    """Make every call once, several at a time, so that their kernels are compiled on all cores; whatever goes wrong
    shows in the job of the call.
    """

    def make_one(call: OpCall) -> int:
        try:
            call.run(op_calls.find_function(call.name), move(call.make(), world.torch_device))
        except Exception:
            return 0
        return 1

    with ThreadPoolExecutor(COMPILE_THREADS) as pool:
        return sum(pool.map(make_one, calls)), []


class CallRepeater:
    """A call on one input: repeats it, and counts the calls whose outputs differ from the first's."""

    def __init__(self, call: Callable[[], Outputs]):
        self.call = call
        self._poison(call())  # an output in memory that was free before holds no right bits from now on
        found = call()
        self.first = [as_integers(part).clone() for part in found]
        self._poison(found)
        self.unlike = torch.zeros((), dtype=torch.int64, device=found[0].device)

    @staticmethod
    def _poison(found: Outputs) -> None:
        for part in found:
            as_integers(part).fill_(-1 if part.element_size() > 1 else 255)

    def count(self) -> None:
        """Call once and count a difference."""
        found = self.call()
        changed = [(as_integers(part) != first).any() for part, first in zip(found, self.first, strict=True)]
        self.unlike += torch.stack(changed).any()
        self._poison(found)


def repeat_call(world: World, call: Callable[[], Outputs]) -> tuple[int, list[str]]:
    """Call 1,000 times: alone, beside a busy stream, and from a graph."""
    repeater, busy = CallRepeater(call), BusyStream(world.torch_device)
    for index in range(ALONE + BUSY):
        if index >= ALONE and index % 2:
            busy.push()
        repeater.count()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_LAUNCHES):
            repeater.count()
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    total, unlike = ALONE + BUSY + GRAPH_LAUNCHES * REPLAYS, int(repeater.unlike)
    return total, [f"{unlike} of {total} calls gave other bits"] if unlike else []


def run_repeats(world: World, call: OpCall) -> tuple[int, list[str]]:
    """Repeat a call of a public function."""
    operands, function = move(call.make(), world.torch_device), op_calls.find_function(call.name)
    return repeat_call(world, lambda: call.run(function, operands))


def run_psum_repeats(world: World, variant, config) -> tuple[int, list[str]]:
    """Repeat a kernel of groups with ends; rows of padding are zeroed by it."""
    case = make_psum_case(world, variant, list_psum_shapes(variant)[0])
    output, kernel = make_grouped_output(case), world.kernel(with_ends(variant), config)
    operands = list_launch_operands(variant, case, 1)

    def call() -> Outputs:
        c = prepare_grouped_c(case, output, is_aliased=variant.c_mode == "accumulate")
        kernel.launch(*operands, output.d, c, groups=case.groups, ensure_zero_padding=case.padding is not None)
        return (output.d,)

    return repeat_call(world, call)


def list_psum_choices(variant, device) -> list:
    """Return what the library can choose for a variant with ends, as far as it fits the alignment of the shape on which
    it is repeated; where there is no artefact, what it can for the op kind with indices.
    """
    problem, (shape, *_) = with_ends(variant).problem(), list_psum_shapes(variant)
    configs = list_choices(problem.op, [], device)[0] or get_portfolio(variant.op, device)[0]
    is_fit = [variant.op in K_GROUPED_OPS or shape.alignment % config.block_m == 0 for config in configs]
    return [
        config for config, fits in zip(configs, is_fit, strict=True) if fits and _C.is_legal(problem, config, device)
    ]


def list_logits_choices(problem, device) -> list:
    """Return the configs that the library chooses for a variant of logits in several sizes."""
    found = {}
    for m, n in LOGITS_SIZES:
        sized = _C.Problem(**problem.as_dict() | {"m": m * problem.next_n, "n": n})
        found[explain(sized, device).config] = None
    return list(found)


def make_logits_operands(problem, device: str) -> Operands:
    """Return operands of a variant of logits, long enough for many tiles of every CTA."""
    if problem.op == "fp8_mqa_logits":
        return make_prefill(300, 3000, problem.heads, problem.k, device=device, ranges="causal")
    lengths = [900 - 17 * sequence for sequence in range(40)]
    operands = make_paged(lengths, problem.next_n, problem.heads, problem.k, problem.block_kv, device=device)
    schedule = deep_gemm.get_paged_mqa_logits_metadata(operands["context_lens"], problem.block_kv, 132)
    return operands | {"schedule": schedule}


def make_logits_call(problem, config, device: str) -> Callable[[], Outputs]:
    """Return a launch of one logits kernel; what it does not write stays as it was."""
    operands, kernel = make_logits_operands(problem, device), logits_jobs.load(problem, config)
    q, weights, dtype = operands["q"], operands["weights"], logits_jobs.DTYPES[problem.d_dtype]
    if problem.op == "fp8_mqa_logits":
        keys, scales = operands["kv"]
        first, second = operands["cu_seq_len_k_start"], operands["cu_seq_len_k_end"]
        columns = 3008
    else:
        keys, scales, first, second = operands["kv_cache"], None, operands["context_lens"], operands["block_table"]
        columns = 960
    d = torch.full((weights.shape[0], columns), float("nan"), dtype=dtype, device=device)
    visible = d[:, :3000] if scales is not None else d

    def call() -> Outputs:
        kernel.launch_logits(q, keys, scales, weights, first, second, visible, schedule=operands.get("schedule"))
        return (d,)

    return call


def run_logits_repeats(world: World, problem, config) -> tuple[int, list[str]]:
    """Repeat a kernel of attention logits."""
    return repeat_call(world, make_logits_call(problem, config, world.torch_device))


def list_logits_variants() -> list:
    """Return the variants of logits of both op kinds."""
    return [problem for op in ("fp8_mqa_logits", "fp8_paged_mqa_logits") for problem in logits_jobs.list_problems(op)]


def op_jobs(world: World) -> list:
    """Return one job for each call of a public function, after those that compile for a few of them each: together they
    would be silent for longer than a job may be.
    """
    calls = op_calls.list_calls()
    parts = [calls[first :: -(-len(calls) // CALLS_COMPILED)] for first in range(-(-len(calls) // CALLS_COMPILED))]
    jobs = [(f"compile: {number}", partial(compile_calls, world, part)) for number, part in enumerate(parts)]
    return jobs + [(f"call {call.title}: all", partial(run_call, world, call)) for call in calls]


def op_repeat_jobs(world: World) -> list:
    """Return one job for each call of our own kernels, and for each kernel that the library chooses for groups with
    ends and for logits.
    """
    calls = [call for call in op_calls.list_calls() if op_calls.is_ours(call)]
    jobs: list[tuple] = [(f"repeat {call.title}: all", partial(run_repeats, world, call)) for call in calls]
    jobs += [
        (name_job(with_ends(variant), config), partial(run_psum_repeats, world, variant, config))
        for variant in PSUM_REPEATED for config in list_psum_choices(variant, world.device)
    ]  # fmt: skip
    return jobs + [
        (f"repeat {problem.op} {problem}: {config}", partial(run_logits_repeats, world, problem, config))
        for problem in list_logits_variants()
        for config in list_logits_choices(problem, world.device)
    ]
