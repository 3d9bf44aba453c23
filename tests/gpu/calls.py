"""Fuzzed calls of the public op (F-L1): a right result or a typed error, nothing written outside D, no CUDA error left behind.

Each call starts from valid arguments of a random shape and takes one valid variation or one fault, so that a wrong answer
names its cause.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch

import deep_gemm
from deep_gemm.errors import DeepGemmError

from .operands import Case, GuardedOutput, Shape, align, count_wrong, make_reference, make_rows
from .world import SCALE_LAYOUTS, World, make_scale_layout

NUM_CALLS = 2000
CALLS_PER_JOB = 100
NUM_SHAPES = 48
#: Share of calls that carry a fault; the rest must all be right.
FAULT_SHARE = 0.6
#: Stands for scales that are left out.
_MISSING = object()


@dataclass
class Call:
    """Arguments of one call under construction, and what must come of it: `right`, `error`, or `either`."""

    world: World
    rng: random.Random
    shape: Shape
    a: object
    scale_a: object
    b: object
    scale_b: object
    output: GuardedOutput
    d: object
    case: Case
    options: dict = field(default_factory=dict)
    expected: str = "right"
    alpha: float = 1.0


def make_call(world: World, rng: random.Random, shape: Shape) -> Call:
    """Return a plain valid call."""
    case = world.case(shape)
    output = GuardedOutput(shape.m, shape.n, world.torch_device)
    return Call(world, rng, shape, case.a, case.scale_a, case.b, case.scale_b, output, output.d, case)


# Valid variations: the result must be right.


def use_scale_layout(call: Call) -> None:
    """Give A's and B's scales another memory layout."""
    call.scale_a = make_scale_layout(call.scale_a, call.rng.choice(SCALE_LAYOUTS))
    call.scale_b = make_scale_layout(call.scale_b, call.rng.choice(SCALE_LAYOUTS))


def use_strided_rows(call: Call) -> None:
    """Make A and B slices of wider tensors whose further columns are NaN."""
    pitch = align(call.shape.k, 16) + 16 * call.rng.randint(1, 9)
    call.a, call.b = make_rows(call.a, pitch), make_rows(call.b, pitch + 16)


def use_offset(call: Call) -> None:
    """Start A 16 bytes into its memory: the smallest aligned offset."""
    pitch = align(call.shape.k, 16) + 16
    wide = make_rows(torch.nn.functional.pad(call.a.view(torch.uint8), (16, 0)).view(call.a.dtype), pitch)
    call.a = wide[:, 16:]


def use_alpha(call: Call) -> None:
    """Scale the product."""
    call.alpha = call.rng.choice((0.5, -2.0, 0.0, 1e-3))
    call.options["alpha"] = call.alpha


def use_stream(call: Call) -> None:
    """Name the stream explicitly, as an object or as a handle."""
    stream = torch.cuda.current_stream()
    call.options["stream"] = call.rng.choice((stream, stream.cuda_stream))


def use_keywords(call: Call) -> None:
    """Spell out the defaults."""
    call.options.update(c=None, recipe=(1, 128, 128), compiled_dims=None, disable_ue8m0_cast=call.rng.random() < 0.5)


def use_broadcast_scales(call: Call) -> None:
    """Give B's scales a row stride of 0: the first block row's scales stand for all."""
    call.scale_b = call.scale_b[:1].expand_as(call.scale_b)
    operands = (call.a, call.scale_a, call.b, call.scale_b)
    call.case = Case(*operands, *make_reference(*operands))


# Faults: a typed error, and D untouched.


def _replace_operand(call: Call, change: Callable) -> None:
    name = call.rng.choice(("a", "b", "scale_a", "scale_b"))
    setattr(call, name, change(getattr(call, name)))
    call.expected = "error"


def break_type(call: Call) -> None:
    """Pass something that is no tensor."""
    _replace_operand(call, lambda _: call.rng.choice((None, 3, 2.5, "tensor", [1, 2], object())))


def break_output_type(call: Call) -> None:
    """Pass a D that is no tensor."""
    call.d, call.expected = call.rng.choice((None, 7, "d", (1,))), "error"


def break_dtype(call: Call) -> None:
    """Pass an operand of another dtype."""
    dtype = call.rng.choice((torch.float16, torch.float64, torch.int8, torch.int32, torch.float8_e5m2))
    _replace_operand(call, lambda tensor: tensor.to(torch.float32).to(dtype))


def break_output_dtype(call: Call) -> None:
    """Pass a D of a dtype that no kernel writes."""
    dtype = call.rng.choice((torch.float16, torch.float64, torch.int16))
    call.d, call.expected = torch.empty(call.shape.m, align(call.shape.n, 8), dtype=dtype, device=call.world.torch_device)[:, : call.shape.n], "error"


def break_rank(call: Call) -> None:
    """Drop or add a dimension."""
    _replace_operand(call, call.rng.choice((lambda tensor: tensor[0], lambda tensor: tensor[None])))


def break_rows(call: Call) -> None:
    """Pass one row too many in one operand (in A's case its scales no longer fit)."""
    _replace_operand(call, lambda tensor: torch.cat([tensor.view(_bytes(tensor)), tensor.view(_bytes(tensor))[:1]]).view(tensor.dtype))


def break_output_shape(call: Call) -> None:
    """Pass a D with another number of rows or columns."""
    m, n = call.shape.m + call.rng.choice((0, 1)), call.shape.n
    n = n if m != call.shape.m else n + call.rng.choice((1, 8))
    call.d, call.expected = GuardedOutput(m, n, call.world.torch_device).d, "error"


def break_k(call: Call) -> None:
    """Give A and B different K."""
    call.b, call.expected = make_rows(torch.cat([call.b.view(torch.uint8)] * 2, 1).view(call.b.dtype)), "error"


def break_device(call: Call) -> None:
    """Mix the CPU or the meta device in."""
    device = call.rng.choice(("cpu", "meta"))
    _replace_operand(call, lambda tensor: tensor.to(device))


def break_output_device(call: Call) -> None:
    """Put D alone on the CPU."""
    call.d, call.expected = torch.empty(call.shape.m, align(call.shape.n, 8), dtype=torch.bfloat16)[:, : call.shape.n], "error"


def break_inner_stride(call: Call) -> None:
    """Pass an operand whose K is not contiguous (its memory is transposed)."""
    name = call.rng.choice(("a", "b"))
    tensor = getattr(call, name).view(torch.uint8)
    transposed = torch.full((align(tensor.shape[1], 16), align(tensor.shape[0], 16)), 0, dtype=torch.uint8, device=tensor.device)
    transposed[: tensor.shape[1], : tensor.shape[0]] = tensor.T
    setattr(call, name, transposed[: tensor.shape[1], : tensor.shape[0]].T.view(torch.float8_e4m3fn))
    call.expected = "either"  # a later layout of the op may take it; then the result must be right


def break_pitch(call: Call) -> None:
    """Pass rows whose pitch is not a multiple of 16 bytes."""
    name = call.rng.choice(("a", "b"))
    pitch = align(call.shape.k, 16) + call.rng.randint(1, 15)
    setattr(call, name, make_rows(getattr(call, name), pitch))
    call.expected = "error" if getattr(call, name).shape[0] > 1 else "right"


def break_base(call: Call) -> None:
    """Start A or B 1 to 15 bytes off a 16-byte boundary."""
    name, offset = call.rng.choice(("a", "b")), call.rng.randint(1, 15)
    tensor = getattr(call, name)
    pitch = align(call.shape.k, 16) + 16
    wide = make_rows(torch.nn.functional.pad(tensor.view(torch.uint8), (offset, 0)).view(tensor.dtype), pitch)
    setattr(call, name, wide[:, offset:])
    call.expected = "error"


def break_output_base(call: Call) -> None:
    """Start D off a 16-byte boundary, inside its red zones."""
    buffer, pitch = call.output.buffer.view(torch.bfloat16), call.output.d.stride(0)
    call.d, call.expected = buffer.as_strided(tuple(call.shape[:2]), (pitch, 1), pitch * 16 + call.rng.randint(1, 7)), "error"


def break_output_stride(call: Call) -> None:
    """Pass a D whose rows all lie in one place."""
    call.d = call.output.d[:1].expand(call.shape.m, call.shape.n)
    call.expected = "error" if call.shape.m > 1 else "right"


def break_overlap(call: Call) -> None:
    """Let D lie in A's memory."""
    m, n, k = call.shape
    pitch = align(max(2 * n, k), 16)
    memory = make_rows(call.a, pitch)
    call.a, call.expected = memory, "error"
    raw = memory.as_strided((m * pitch,), (1,)).view(torch.uint8)[: m * pitch]
    call.d = raw.view(torch.bfloat16).as_strided((m, n), (pitch // 2, 1))


def break_grad(call: Call) -> None:
    """Pass scales that want a gradient."""
    call.scale_a, call.expected = call.scale_a.clone().requires_grad_(), "error"


def break_recipe(call: Call) -> None:
    """Ask for a granularity that the scales do not have."""
    call.options["recipe"] = call.rng.choice(((1, 1, 128), (128, 128, 128), (1, 128, 64), (1, 128), "1d2d", 5))
    call.expected = "either" if call.options["recipe"] == (1, 1, 128) and call.shape.n == 1 else "error"


def break_options(call: Call) -> None:
    """Pass an option of the wrong type or an unknown one."""
    call.options.update(call.rng.choice(({"alpha": "x"}, {"stream": "main"}, {"compiled_dims": "xyz"}, {"compiled_dims": 3}, {"unknown": 1}, {"beta": None})))
    call.expected = "error"


def break_pair(call: Call) -> None:
    """Pass FP8 data without its scales."""
    call.scale_a, call.expected = _MISSING, "error"


VARIATIONS = (use_scale_layout, use_strided_rows, use_offset, use_alpha, use_stream, use_keywords, use_broadcast_scales)
FAULTS = (
    break_type, break_output_type, break_dtype, break_output_dtype, break_rank, break_rows, break_output_shape, break_k, break_device,
    break_output_device, break_inner_stride, break_pitch, break_base, break_output_base, break_output_stride, break_overlap, break_grad,
    break_recipe, break_options, break_pair,
)


def _bytes(tensor: torch.Tensor) -> torch.dtype:
    """Return an integer dtype of the tensor's element size: torch cannot concatenate FP8."""
    return torch.uint8 if tensor.element_size() == 1 else torch.int32


def call_op(call: Call) -> str:
    """Run the op; return "" or the typed error's text. Any other exception propagates."""
    a = call.a if call.scale_a is _MISSING else (call.a, call.scale_a)
    try:
        result = deep_gemm.fp8_gemm_nt(a, (call.b, call.scale_b), call.d, **call.options)
    except DeepGemmError as error:
        return f"{type(error).__name__}: {error}"
    return "" if result is None else f"returned {result!r}"


def copy_memory(d: object) -> torch.Tensor | None:
    """Copy the bytes of all the memory that D lies in, with what lies around it; None for a D that is no tensor."""
    if not isinstance(d, torch.Tensor):
        return None
    size = d.untyped_storage().nbytes() // d.element_size()
    return d.as_strided((size,), (1,), 0).view(torch.uint8).clone()


def judge(call: Call, error: str, before: torch.Tensor | None) -> str:
    """Return what is wrong with a finished call, "" when nothing is; `before` is copy_memory(call.d) from before the call."""
    torch.cuda.synchronize()
    if int(call.output.num_dirty()):
        return "wrote outside D"
    if error:
        if call.expected == "right":
            return f"valid call refused: {error}"
        # Both the D that was passed, wherever it lies, and the D that a variation put another in the place of.
        written = bool((call.output.bits != -1).any()) or (before is not None and not torch.equal(copy_memory(call.d), before))
        return "wrote to D before the error" if written else ""
    if call.expected == "error":
        return "invalid call was accepted"
    return _judge_result(call)


def _judge_result(call: Call) -> str:
    """Compare the D that was passed with the reference."""
    case = replace(call.case, reference=call.case.reference * call.alpha, bound=call.case.bound * abs(call.alpha))
    wrong = int(count_wrong(case, call.d))
    return f"{wrong} elements outside their bound" if wrong else ""


def make_shapes(seed: int) -> list[Shape]:
    """Return the shapes of the fuzzer: few enough that each is met many times, tails in every dimension."""
    rng = random.Random(seed)
    return [Shape(rng.choice((1, 2, 63, 65, rng.randint(1, 300))), rng.randint(1, 400), rng.randint(1, 900)) for _ in range(NUM_SHAPES)]


def run_calls(world: World, seed: int, count: int) -> tuple[int, list[str]]:
    """Run `count` fuzzed calls of one seed."""
    rng, shapes, failures = random.Random(seed), make_shapes(7), []
    for _ in range(count):
        call = make_call(world, rng, rng.choice(shapes))
        change = rng.choice(FAULTS if rng.random() < FAULT_SHARE else VARIATIONS)
        change(call)
        before = copy_memory(call.d)
        verdict = judge(call, call_op(call), before)
        if verdict:
            failures.append(f"{change.__name__} {tuple(call.shape)} {call.options or ''}: {verdict}")
    return count, failures


def call_jobs(world: World) -> list:
    """Return the jobs of the fuzzer."""
    return [(f"seed {seed}", partial(run_calls, world, seed, CALLS_PER_JOB)) for seed in range(NUM_CALLS // CALLS_PER_JOB)]
