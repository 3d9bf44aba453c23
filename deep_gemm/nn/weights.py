"""The weight of an FP8 layer, in one of two forms, and how it is moved, saved and loaded.

master: `weight` is a parameter of BF16 or FP32 that trains; every forward quantises it.
stored: `weight` is float8_e4m3fn and `weight_scale_inv` FP32, one scale for each 128 x 128, under the names of the
    checkpoints of DeepSeek-V3 and Qwen3-FP8; neither trains, and gradients flow through to the input.

A state dict of either form loads into either form.
"""

from typing import Self

import torch

from deep_gemm.arguments import check_flag
from deep_gemm.errors import DtypeError, ShapeError
from deep_gemm.numerics import widen
from deep_gemm.quantize import SCALE_BLOCK, ceil_div, per_block_cast_to_fp8

FP8 = torch.float8_e4m3fn


def get_scale_shape(shape: torch.Size | tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the scales of a weight [..., n, k]."""
    return (*shape[:-2], ceil_div(shape[-2], SCALE_BLOCK), ceil_div(shape[-1], SCALE_BLOCK))


def check_stored(weight: torch.Tensor, scale: torch.Tensor, rank: int) -> None:
    """Refuse what is no FP8 weight [..., n, k] of `rank` dims with a scale for each 128 x 128.

    Raises: DtypeError, ShapeError.
    """
    if weight.dtype != FP8:
        raise DtypeError(
            f"weight.dtype = {weight.dtype}: must be {FP8}; use from_linear for a weight of higher precision."
        )
    if not scale.is_floating_point() or scale.element_size() == 1:
        raise DtypeError(
            f"weight_scale_inv.dtype = {scale.dtype}: must be torch.float32 or torch.bfloat16; convert it."
        )
    if weight.dim() != rank:
        raise ShapeError(f"weight.shape = {list(weight.shape)}: must have {rank} dimensions; reshape it.")
    if tuple(scale.shape) != get_scale_shape(weight.shape):
        raise ShapeError(
            f"weight_scale_inv.shape = {list(scale.shape)}: must be {list(get_scale_shape(weight.shape))}, a scale for"
            f" each {SCALE_BLOCK} x {SCALE_BLOCK} of weight {list(weight.shape)}; requantise in such blocks."
        )


class Fp8Weight(torch.nn.Module):
    """A module with such a weight; its layers say how they multiply.

    Attributes: `weight` [..., n, k]; `weight_scale_inv`: FP32 [..., ceil(n / 128), ceil(k / 128)], None in the master
        form. `accumulates_main_grad`: the gradient of a master weight is added to `weight.main_grad`, FP32, which the
        caller provides, and `weight.grad` stays None.
    """

    weight: torch.nn.Parameter
    weight_scale_inv: torch.nn.Parameter | None
    accumulates_main_grad: bool = False

    @classmethod
    def _make_empty(cls, is_training: bool) -> Self:
        """Return a module without a weight yet."""
        layer = cls.__new__(cls)
        torch.nn.Module.__init__(layer)
        return layer.train(is_training)

    @property
    def is_trainable(self) -> bool:
        """Whether the weight has the master form."""
        return self.weight_scale_inv is None

    def take_weight(self, weight: torch.Tensor, is_trainable: bool) -> None:
        """Make `weight`, of BF16 or FP32, the weight of this module, quantised where it is not to be trained."""
        check_flag("trainable", is_trainable)
        if is_trainable:
            self.weight = weight if isinstance(weight, torch.nn.Parameter) else torch.nn.Parameter(weight)
            self.register_parameter("weight_scale_inv", None)
        else:
            self.store(*quantise(weight.detach()))

    def store(self, weight: torch.Tensor, scale: torch.Tensor) -> None:
        """Make FP8 values and their scales the weight of this module."""
        self.weight = torch.nn.Parameter(align_memory(weight), requires_grad=False)
        self.weight_scale_inv = torch.nn.Parameter(scale.float().contiguous(), requires_grad=False)

    def freeze(self) -> Self:
        """Give up the master form: quantise the weight once and for all. Returns the module."""
        if self.is_trainable:
            self.take_weight(self.weight, is_trainable=False)
        return self

    def describe_weight(self) -> str:
        """Return form and dtype of the weight, as print() shows them."""
        return f"{'master' if self.is_trainable else 'stored'} {str(self.weight.dtype).removeprefix('torch.')}"

    def get_main_grad(self) -> torch.Tensor | None:
        """Return what the weight's gradient is to be added to, or None.

        Raises: ShapeError, DtypeError where `weight.main_grad` is no FP32 tensor of the weight's shape.
        """
        if not self.accumulates_main_grad or not self.is_trainable or not torch.is_grad_enabled():
            return None
        found = getattr(self.weight, "main_grad", None)
        if found is None or found.shape != self.weight.shape:
            shape = None if found is None else list(found.shape)
            raise ShapeError(
                f"weight.main_grad: is {shape}, must be {list(self.weight.shape)}; set it to zeros of FP32 before the"
                " first forward."
            )
        if found.dtype != torch.float32:
            raise DtypeError(f"weight.main_grad.dtype = {found.dtype}: must be torch.float32; make it so.")
        return found

    def _apply(self, fn, recurse: bool = True):
        """Move the module; `.to(dtype)` leaves the stored form as it is, whose values mean nothing without scales."""
        if self.is_trainable:
            return super()._apply(fn, recurse)
        before = {name: getattr(self, name).detach() for name in ("weight", "weight_scale_inv")}
        super()._apply(fn, recurse)
        for name, values in before.items():
            device, dtype = getattr(self, name).device, getattr(self, name).dtype
            if dtype != values.dtype:
                setattr(self, name, torch.nn.Parameter(values.to(device), requires_grad=False))
        return self

    def _load_from_state_dict(self, state_dict, prefix, *rest) -> None:
        """Load a state dict of either form."""
        converted = dict(state_dict)
        _convert(converted, prefix, self.is_trainable, self.weight.dtype)
        super()._load_from_state_dict(converted, prefix, *rest)


def align_memory(weight: torch.Tensor) -> torch.Tensor:
    """Return an FP8 weight whose rows kernels can read: safetensors maps tensors at multiples of 8 bytes only."""
    return weight if weight.is_meta or weight.data_ptr() % 16 == 0 else weight.clone()


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return FP8 values and FP32 scales of a weight [..., n, k]; on the meta device as well."""
    if weight.device.type == "meta":
        return weight.to(FP8), weight.new_empty(get_scale_shape(weight.shape), dtype=torch.float32)
    return per_block_cast_to_fp8(weight, use_ue8m0=False)


def _convert(state_dict: dict, prefix: str, is_trainable: bool, dtype: torch.dtype) -> None:
    """Bring the weight of a state dict into the form that is wanted."""
    name, scale_name = f"{prefix}weight", f"{prefix}weight_scale_inv"
    weight, scale = state_dict.get(name), state_dict.get(scale_name)
    if weight is None:
        return
    if is_trainable and scale is None and weight.dtype == FP8:
        raise DtypeError(
            f"{name}.dtype = {FP8}: means nothing without {scale_name}; load the scales with it, or a weight of higher"
            " precision."
        )
    if is_trainable and scale is not None:
        check_stored(weight, scale, weight.dim())
        state_dict[name] = widen(weight, state_dict.pop(scale_name).float()).to(dtype)
    elif not is_trainable and scale is None and weight.dtype != FP8:
        state_dict[name], state_dict[scale_name] = quantise(weight)
    elif not is_trainable and scale is not None:
        check_stored(weight, scale, weight.dim())
        state_dict[name], state_dict[scale_name] = align_memory(weight), scale.float()
