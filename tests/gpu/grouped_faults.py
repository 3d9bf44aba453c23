"""Faults of fuzzed calls of grouped ops: each must end in a typed error, with D untouched."""

import torch

from .grouped_calls import GroupedCall
from .grouped_memory import GroupedOutput
from .grouped_op import OMITTED
from .grouped_shapes import KGroups
from .memory import PITCH_BYTES

NO_TENSORS = (3, 2.5, "tensor", object())


def break_type(call: GroupedCall) -> None:
    """Pass something that is no tensor for A, B or D."""
    setattr(call, call.rng.choice(("a", "b", "d")), call.rng.choice((None, [1, 2], *NO_TENSORS)))
    call.expected = "error"


def break_dtype(call: GroupedCall) -> None:
    """Pass an operand or scales of another dtype."""
    dtype = call.rng.choice((torch.float16, torch.float64, torch.int8, torch.float8_e5m2))
    call.change_part(lambda tensor: tensor.to(torch.float32).to(dtype))


def break_rank(call: GroupedCall) -> None:
    """Add a dimension to an operand or scales."""
    call.change_part(lambda tensor: tensor[None])


def break_device(call: GroupedCall) -> None:
    """Put an operand or scales on the meta device or, on a GPU, on the CPU."""
    device = call.rng.choice(("cpu", "meta") if call.world.torch_device != "cpu" else ("meta",))
    call.change_part(lambda tensor: tensor.to(device))


def break_pair(call: GroupedCall) -> None:
    """Pass FP8 data without its scales, or BF16 data with some."""
    name = call.rng.choice(("a", "b"))
    value = getattr(call, name)
    setattr(call, name, value[0] if isinstance(value, tuple) else (value, torch.ones(1, device=value.device)))
    call.expected = "error"


def break_groups_type(call: GroupedCall) -> None:
    """Describe the groups by something that is no tensor."""
    call.options[call.groups_name], call.expected = call.rng.choice(NO_TENSORS), "error"


def break_groups_dtype(call: GroupedCall) -> None:
    """Describe the groups by a tensor of another dtype."""
    dtype = call.rng.choice((torch.int64, torch.int16, torch.float32, torch.bool))
    call.options[call.groups_name], call.expected = call.case.groups.to(dtype), "error"


def break_groups_shape(call: GroupedCall) -> None:
    """Describe more groups or rows than there are, or in one dimension more."""
    groups = call.case.groups
    more = torch.cat([groups, groups.new_zeros(1)])
    call.options[call.groups_name], call.expected = call.rng.choice((more, groups[None])), "error"


def break_groups_device(call: GroupedCall) -> None:
    """Describe the groups by a tensor without memory."""
    call.options[call.groups_name], call.expected = call.case.groups.to("meta"), "error"


def break_groups_names(call: GroupedCall) -> None:
    """Name the groups twice, or not at all."""
    if call.rng.random() < 0.5:
        call.options["grouped_layout"] = call.case.groups
        if call.groups_name == "masked_m":  # which has no such alias
            call.options["m_indices"] = call.case.groups
    else:
        call.options.update(dict.fromkeys((call.groups_name, "ks"), OMITTED))
    call.expected = "error"


def break_sizes(call: GroupedCall) -> None:
    """Name sizes of K that do not add up to that of the operands, or are no sizes."""
    if isinstance(call.case.shape, KGroups):
        first, *others = call.case.shape.ks
        wrong = ([first + 128, *others], [first, *others, 128], [-128, *others], ["x", *others], [2.5, *others], 7)
        call.options["ks"], call.expected = call.rng.choice(wrong), "error"


def break_output_dtype(call: GroupedCall) -> None:
    """Pass a D of a dtype that no kernel writes."""
    dtype = call.rng.choice((torch.float16, torch.float64, torch.int16))
    call.d, call.expected = torch.zeros(call.case.d_shape, dtype=dtype, device=call.world.torch_device), "error"


def break_output_shape(call: GroupedCall) -> None:
    """Pass a D that is larger in one dimension, or lacks or adds one."""
    sizes, place = list(call.case.d_shape), call.rng.randrange(len(call.case.d_shape) + 1)
    if place < len(sizes):
        sizes[place] += call.rng.choice((1, 8))
    found = GroupedOutput(tuple(sizes), call.world.torch_device, call.case.dtype).d
    call.d, call.expected = found if place < len(sizes) else found[None], "error"


def break_output_device(call: GroupedCall) -> None:
    """Pass a D without memory."""
    call.d, call.expected = call.output.d.to("meta"), "error"


def break_output_base(call: GroupedCall) -> None:
    """Start D off a 16-byte boundary, inside its red zones."""
    d, unit = call.output.d, PITCH_BYTES // call.output.d.element_size()
    memory = call.output.buffer.view(d.dtype)
    place = d.storage_offset() + call.rng.randint(1, unit - 1)
    if d.numel():
        call.d, call.expected = memory.as_strided(d.shape, d.stride(), place), "error"


def break_output_stride(call: GroupedCall) -> None:
    """Pass a D whose rows all lie in one place."""
    if call.output.d.shape[-2] > 1 and call.output.d.numel():
        call.d, call.expected = call.output.d[..., :1, :].expand(call.case.d_shape), "error"


def break_grad(call: GroupedCall) -> None:
    """Let D require a gradient."""
    call.d, call.expected = call.d.detach().requires_grad_(), "error"


def break_options(call: GroupedCall) -> None:
    """Pass an option of the wrong type or an unknown one."""
    wrong = [{"stream": "main"}, {"compiled_dims": "xyz"}, {"compiled_dims": 3}, {"unknown": 1}]
    wrong += [{"recipe": (1, 128, 64)}, {"recipe": "1d2d"}, {"recipe": 5}] if "recipe" in call.options else []
    wrong += [{"expected_m": "x"}, {"expected_m": -1}] if "expected_m" in call.options else []
    call.options.update(call.rng.choice(wrong))
    call.expected = "error"


def break_c(call: GroupedCall) -> None:
    """Pass a C of another dtype, shape or kind than D."""
    if isinstance(call.case.shape, KGroups):
        device, (groups, m, n) = call.world.torch_device, call.case.d_shape
        wrong = [
            torch.zeros(groups, m, n, dtype=torch.bfloat16, device=device),
            torch.zeros(groups, m + 1, n, device=device),
            torch.zeros(groups + 1, m, n, device=device),
            3.0,
            "c",
        ]
        call.options["c"], call.expected = call.rng.choice(wrong), "error"


FAULTS = (
    break_type,
    break_dtype,
    break_rank,
    break_device,
    break_pair,
    break_groups_type,
    break_groups_dtype,
    break_groups_shape,
    break_groups_device,
    break_groups_names,
    break_sizes,
    break_output_dtype,
    break_output_shape,
    break_output_device,
    break_output_base,
    break_output_stride,
    break_grad,
    break_options,
    break_c,
)
