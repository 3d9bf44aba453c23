"""Faults of fuzzed calls: each must end in a typed error, with D untouched."""

import torch

from .calls import MISSING, Call
from .memory import PITCH_BYTES, align, as_integers, make_rows, make_shifted, repeat_row
from .operands import GuardedOutput


def break_type(call: Call) -> None:
    """Pass something that is no tensor."""
    call.replace(lambda _: call.rng.choice((None, 3, 2.5, "tensor", [1, 2], object())))


def break_output_type(call: Call) -> None:
    """Pass a D that is no tensor."""
    call.d, call.expected = call.rng.choice((None, 7, "d", (1,))), "error"


def break_dtype(call: Call) -> None:
    """Pass an operand of another dtype."""
    dtype = call.rng.choice((torch.float16, torch.float64, torch.int8, torch.int32, torch.float8_e5m2))
    call.replace(lambda tensor: tensor.to(torch.float32).to(dtype))


def _make_output(call: Call, dtype: torch.dtype, device: object) -> torch.Tensor:
    return torch.empty(call.shape.m, align(call.shape.n, 8), dtype=dtype, device=device)[:, : call.shape.n]


def break_output_dtype(call: Call) -> None:
    """Pass a D of a dtype that no kernel writes."""
    dtype = call.rng.choice((torch.float16, torch.float64, torch.int16))
    call.d, call.expected = _make_output(call, dtype, call.world.torch_device), "error"


def break_rank(call: Call) -> None:
    """Drop or add a dimension."""
    call.replace(call.rng.choice((lambda tensor: tensor[0], lambda tensor: tensor[None])))


def break_rows(call: Call) -> None:
    """Pass one row too many in one operand (in A's case its scales or D no longer fit)."""
    call.replace(repeat_row)


def break_output_shape(call: Call) -> None:
    """Pass a D with another number of rows or columns."""
    m, n = call.shape.m + call.rng.choice((0, 1)), call.shape.n
    n = n if m != call.shape.m else n + call.rng.choice((1, 8))
    call.d, call.expected = GuardedOutput(m, n, call.world.torch_device, call.case.dtype).d, "error"


def break_k(call: Call) -> None:
    """Give A and B different K."""
    call.b, call.expected = make_rows(torch.cat([as_integers(call.b)] * 2, 1).view(call.b.dtype)), "error"


def break_device(call: Call) -> None:
    """Put one operand on the meta device or, on a GPU, on the CPU."""
    devices = ("cpu", "meta") if call.world.torch_device != "cpu" else ("meta",)
    device = call.rng.choice(devices)
    call.replace(lambda tensor: tensor.to(device))


def break_output_device(call: Call) -> None:
    """Put D alone on another device."""
    device = "cpu" if call.world.torch_device != "cpu" else "meta"
    call.d, call.expected = _make_output(call, call.case.dtype, device), "error"


def break_inner_stride(call: Call) -> None:
    """Pass an operand neither of whose dimensions is contiguous."""
    if min(call.shape) < 2:
        return
    name = call.rng.choice(("a", "b"))
    tensor = as_integers(getattr(call, name))
    spread = tensor.repeat_interleave(2, 1)[:, ::2]
    setattr(call, name, spread.view(getattr(call, name).dtype))
    call.expected = "error"


def break_pitch(call: Call) -> None:
    """Pass rows whose pitch is not a multiple of 16 bytes."""
    name, rows = call.rng.choice((("a", call.a), ("b", call.b)))
    unit = PITCH_BYTES // rows.element_size()
    setattr(call, name, make_rows(rows, align(rows.shape[1], unit) + call.rng.randint(1, unit - 1)))
    # With one element per row the memory is also MN-major with a single column, which needs no pitch.
    call.expected = "right" if rows.shape[0] == 1 else "either" if rows.shape[1] == 1 else "error"


def break_base(call: Call) -> None:
    """Start A or B 1 to 15 bytes off a 16-byte boundary."""
    name, rows = call.rng.choice((("a", call.a), ("b", call.b)))
    unit = PITCH_BYTES // rows.element_size()
    setattr(call, name, make_shifted(rows, call.rng.randint(1, unit - 1), align(rows.shape[1], unit) + unit))
    call.expected = "error"


def break_output_base(call: Call) -> None:
    """Start D off a 16-byte boundary, inside its red zones."""
    d = call.output.d
    pitch, unit = d.stride(0), PITCH_BYTES // d.element_size()
    memory = call.output.buffer.view(d.dtype)
    call.d, call.expected = (
        memory.as_strided(d.shape, (pitch, 1), d.storage_offset() + call.rng.randint(1, unit - 1)),
        "error",
    )


def break_output_stride(call: Call) -> None:
    """Pass a D whose rows all lie in one place."""
    if call.shape.m > 1:
        call.d, call.expected = call.output.d[:1].expand(call.shape.m, call.shape.n), "error"


def break_overlap(call: Call) -> None:
    """Let D lie in A's memory."""
    m, n, k = call.shape
    size, itemsize = call.a.element_size(), call.case.dtype.itemsize
    pitch = align(max(n * itemsize, k * size), PITCH_BYTES)  # bytes
    memory = make_rows(call.a, pitch // size)
    call.a, call.c, call.expected = memory, None, "error"
    raw = as_integers(memory.as_strided((m * pitch // size,), (1,), 0)).view(torch.uint8)
    call.d = raw.view(call.case.dtype).as_strided((m, n), (pitch // itemsize, 1))


def break_grad(call: Call) -> None:
    """Let D require a gradient."""
    call.d = call.d.detach().requires_grad_()
    call.expected = "error"


def break_recipe(call: Call) -> None:
    """Ask for a granularity that the scales do not have, or for one without scales."""
    wrong = {"1d2d": (1, 1, 128), "1d1d": (1, 128, 128)}.get(call.case.variant.recipe, (1, 128, 64))
    call.options["recipe"] = call.rng.choice((wrong, (128, 128, 128), (1, 128, 64), (1, 128), "1d2d", 5))
    call.expected = (
        "either" if call.options["recipe"] == wrong and call.shape.n == 1 and call.case.variant.is_fp8 else "error"
    )


def break_options(call: Call) -> None:
    """Pass an option of the wrong type or an unknown one."""
    call.options.update(
        call.rng.choice(
            (
                {"alpha": "x"},
                {"stream": "main"},
                {"compiled_dims": "xyz"},
                {"compiled_dims": 3},
                {"unknown": 1},
                {"beta": "y"},
            )
        )
    )
    call.expected = "error"


def break_pair(call: Call) -> None:
    """Pass FP8 data without its scales, or BF16 data with some."""
    if call.case.variant.is_fp8:
        call.scale_a = MISSING
    else:
        call.a = (call.a, torch.ones(1))
    call.expected = "error"


def break_c(call: Call) -> None:
    """Pass a C of another dtype, shape or kind than D."""
    other = torch.bfloat16 if call.case.dtype == torch.float32 else torch.float32
    m, n, _ = call.shape
    wrong = [
        _make_output(call, other, call.world.torch_device),
        GuardedOutput(m + 1, n, call.world.torch_device, call.case.dtype).d,
        3.0,
        "c",
    ]
    call.c, call.expected = call.rng.choice(wrong), "error"


def break_c_overlap(call: Call) -> None:
    """Let C overlap D without being D: it starts one row later in the same memory."""
    d = call.output.d
    memory = call.output.buffer.view(d.dtype)
    if call.shape.m > 1:
        call.c, call.expected = memory.as_strided(d.shape, d.stride(), d.storage_offset() + d.stride(0)), "error"


FAULTS = (
    break_type,
    break_output_type,
    break_dtype,
    break_output_dtype,
    break_rank,
    break_rows,
    break_output_shape,
    break_k,
    break_device,
    break_output_device,
    break_inner_stride,
    break_pitch,
    break_base,
    break_output_base,
    break_output_stride,
    break_overlap,
    break_grad,
    break_recipe,
    break_options,
    break_pair,
    break_c,
    break_c_overlap,
)
