"""Faults of fuzzed calls of any public function: each must end in a typed error with the outputs untouched, unless it
may have a meaning.
"""

import torch

from .memory import as_integers, repeat_row
from .public_calls import OPTIONAL, ROWS, PublicCall, list_first


def free(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor whose memory is freed."""
    found = tensor.clone()
    found.untyped_storage().resize_(0)
    return found


NO_TENSORS = (3, 2.5, "tensor", [1, 2], object())
#: Functions that take a shape in place of a tensor, which a list of integers is.
SHAPE_TAKERS = ("get_mn_major_tma_aligned_tensor", "get_mn_major_tma_aligned_packed_ue8m0_tensor")
#: Dtypes that hold the values of another one, and that no op takes in its place.
WIDER = {
    torch.float8_e4m3fn: torch.float16,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.int32: torch.int64,
    torch.uint8: torch.int16,
}
#: Values that no parameter takes, and such that some may.
WRONG_OPTIONS = (object(), "x", [], (0.5, "x"), 1 << 70, free(torch.ones(3)))


def break_type(call: PublicCall) -> None:
    """Pass something that is no tensor."""
    place = call.rng.choice(call.list_places())
    nothing = () if place[0] in OPTIONAL else (None,)
    value = call.rng.choice((*NO_TENSORS, *nothing))
    call.put(place, value)
    call.expected = "any" if isinstance(value, list) and call.call.name in SHAPE_TAKERS else "error"


def break_pair(call: PublicCall) -> None:
    """Pass data without its scales, three parts, or a pair where a tensor belongs."""
    name = call.rng.choice(list(dict.fromkeys(place[0] for place in call.list_places())))
    value = call.arguments[name]
    pair = (value[0], (*value, value[0]), [value]) if isinstance(value, tuple) else ((value, value),)
    call.arguments[name], call.expected = call.rng.choice(pair), "error"


def break_dtype(call: PublicCall) -> None:
    """Pass an operand of a wider dtype with the same values; only ops say which ones they take."""
    call.change(lambda tensor: tensor.to(WIDER.get(tensor.dtype, torch.float64)), "error" if call.is_op else "either")


def break_complex(call: PublicCall) -> None:
    """Pass complex numbers."""
    call.change(lambda tensor: torch.ones(tensor.shape, dtype=torch.complex64, device=tensor.device), "error")


def break_rank(call: PublicCall) -> None:
    """Drop or add a dimension."""
    change = call.rng.choice((lambda tensor: tensor[0], lambda tensor: tensor[None]))
    call.change(change, "error" if call.is_op else "any")


def break_rows(call: PublicCall) -> None:
    """Pass a row too many: the pages of a cache may have it, and a schedule is then one of other lengths."""
    places = call.list_places()
    if places:
        place = call.rng.choice(places)
        call.change(repeat_row, "either" if call.is_op and place[0] != "schedule_meta" else "any", [place])


def break_device(call: PublicCall) -> None:
    """Put one of several operands on the meta device or, on a GPU, on the CPU."""
    places, device = call.list_places(), call.rng.choice(("cpu", "meta") if call.is_cuda else ("meta",))
    is_alone = len(places) == 1 and not call.outputs
    expected = "error" if call.name in ROWS and not is_alone else "any"
    call.change(lambda tensor: tensor.to(device), expected)


def break_memory(call: PublicCall) -> None:
    """Free the memory of an operand."""
    call.change(free, "error")


def break_density(call: PublicCall) -> None:
    """Pass a sparse tensor."""
    call.change(lambda tensor: torch.zeros(tensor.shape, device=tensor.device).to_sparse(), "error")


def break_options(call: PublicCall) -> None:
    """Pass something odd for a parameter that is no operand."""
    operands = {place[0] for place in call.list_places()} | set(call.outputs)
    names = [name for name in call.arguments if name not in operands]
    if names:
        call.arguments[call.rng.choice(names)], call.expected = call.rng.choice(WRONG_OPTIONS), "any"


def break_names(call: PublicCall) -> None:
    """Name a parameter that there is not, or leave out one that there must be."""
    if call.is_op and call.rng.random() < 0.5:
        call.arguments["unknown"], call.expected = 1, "error"
    elif call.is_op:
        call.is_named = True
        del call.arguments[call.rng.choice([name for name in list_first(call.call.name) if name in call.arguments])]
        call.expected = "error"


def _put_output(call: PublicCall, value: object) -> None:
    """Pass something else as an output."""
    if call.outputs:
        call.arguments[call.rng.choice(list(call.outputs))], call.expected = value, "error"


def break_output_type(call: PublicCall) -> None:
    """Pass an output that is no tensor."""
    _put_output(call, call.rng.choice((None, *NO_TENSORS)))


def _break_output(call: PublicCall, change) -> None:
    """Change an output."""
    if call.outputs:
        name = call.rng.choice(list(call.outputs))
        call.arguments[name], call.expected = change(call.outputs[name].d), "error"


def break_output_dtype(call: PublicCall) -> None:
    """Pass an output of a dtype that nothing writes."""
    dtype = call.rng.choice((torch.float16, torch.float64, torch.int16))
    _break_output(call, lambda d: torch.zeros(d.shape, dtype=dtype, device=d.device))


def break_output_shape(call: PublicCall) -> None:
    """Pass an output that is larger in one dimension, or has one more."""
    first = 1 if "y" in call.outputs else 0  # its rows are tokens, of which a layer takes more, too

    def grow(d: torch.Tensor) -> torch.Tensor:
        sizes, place = list(d.shape), call.rng.randrange(first, d.dim() + 1)
        if place == d.dim():
            return torch.zeros((1, *sizes), dtype=d.dtype, device=d.device)
        sizes[place] += call.rng.choice((1, 8))
        return torch.zeros(sizes, dtype=d.dtype, device=d.device)

    _break_output(call, grow)


def break_output_device(call: PublicCall) -> None:
    """Pass an output without memory."""
    _break_output(call, lambda d: d.to("meta"))


def break_output_memory(call: PublicCall) -> None:
    """Pass an output whose memory is freed."""
    _break_output(call, free)


def break_output_stride(call: PublicCall) -> None:
    """Pass an output whose first elements all lie in one place."""
    _break_output(call, lambda d: d[:1].expand(d.shape))


def break_output_grad(call: PublicCall) -> None:
    """Pass an output that requires a gradient."""
    _break_output(call, lambda d: d.detach().requires_grad_())


def break_overlap(call: PublicCall) -> None:
    """Let an operand lie in the memory of the output."""
    places = [place for place in call.list_places() if call.get(place).dim() > 1 and place[0] in ("a", "b")]
    if "d" in call.outputs and places:
        place = call.rng.choice(places)
        operand, d = call.get(place), call.outputs["d"].d
        memory = torch.zeros(
            max(operand.numel() * operand.element_size(), d.numel() * d.element_size()),
            dtype=torch.uint8,
            device=d.device,
        )
        moved = memory[: operand.numel() * operand.element_size()].view(operand.dtype).view(operand.shape)
        as_integers(moved).copy_(as_integers(operand))
        call.put(place, moved)
        call.arguments["d"] = memory[: d.numel() * d.element_size()].view(d.dtype).view(d.shape)
        call.expected = "error"


FAULTS = (
    break_type,
    break_pair,
    break_dtype,
    break_complex,
    break_rank,
    break_rows,
    break_device,
    break_memory,
    break_density,
    break_options,
    break_names,
    break_output_type,
    break_output_dtype,
    break_output_shape,
    break_output_device,
    break_output_memory,
    break_output_stride,
    break_output_grad,
    break_overlap,
)
