"""What the ops of a layer share: rows as matrices, padding to whole blocks of scales, and where a product is stored."""

from collections.abc import Callable

import torch

from deep_gemm import cast_kernels, planned
from deep_gemm.errors import ShapeError
from deep_gemm.quantize import (
    SCALE_BLOCK,
    align,
    per_block_cast_to_fp8,
    per_channel_cast_to_fp8,
    per_token_cast_to_fp8,
    swiglu_per_token_cast_to_fp8,
)

#: FP8 values and their FP32 scales.
Pair = tuple[torch.Tensor, torch.Tensor]
#: The dtypes in which kernels store D.
_STORED = (torch.bfloat16, torch.float32)
#: Rows of FP8 operands are multiples of 16 bytes, of whichever dimension the rows are: the backward sums along N.
FEATURE_MULTIPLE = 16


def _plan_padded_cast(rows: torch.Tensor) -> planned.Plan | None:
    return cast_kernels.plan_blocks(rows, SCALE_BLOCK, False, is_per_column=True, is_padded=True)


def _zero_rows(data: torch.Tensor, first: int) -> None:
    data[first:].view(torch.uint8).zero_()


#: As per_channel_cast_to_fp8, with room for rows up to a multiple of 128, which are not written.
_padded_cast = planned.make_call("padded_channel_cast", _plan_padded_cast)


def check_features(in_features: int, out_features: int) -> None:
    """Refuse sizes of a layer that no kernel takes.

    Raises: ShapeError unless both are positive multiples of 16.
    """
    for name, size in (("in_features", in_features), ("out_features", out_features)):
        if size < 1 or size % FEATURE_MULTIPLE:
            raise ShapeError(
                f"{name} = {size}: rows of FP8 operands are multiples of {FEATURE_MULTIPLE} bytes; pad the layer to"
                f" {max(align(size, FEATURE_MULTIPLE), FEATURE_MULTIPLE)} features, or keep it as it is."
            )


def check_last_dim(x: torch.Tensor, in_features: int, is_swiglu: bool) -> None:
    """Raises: ShapeError unless x is [..., in_features], or twice as many features with is_swiglu."""
    features = in_features * 2 if is_swiglu else in_features
    if x.dim() < 1 or x.shape[-1] != features:
        raise ShapeError(f"x.shape = {list(x.shape)}: must be [..., {features}] for this layer; reshape or project it.")


def quantise_rows(x: torch.Tensor, is_swiglu: bool, masked_m: torch.Tensor | None = None) -> Pair:
    """Return x [..., m, k] in FP8 with a scale for each row and 128 columns; is_swiglu: silu(gate) * up of x [..., m,
    2 * k] with rows [gate, up], computed in FP32.
    """
    cast = swiglu_per_token_cast_to_fp8 if is_swiglu else per_token_cast_to_fp8
    return cast(x, use_ue8m0=False, masked_m=masked_m, scales="mn_major")


def make_weight_pair(weight: torch.Tensor, scale: torch.Tensor | None) -> Pair:
    """Return a weight [..., n, k] as the products take it: FP8 as it is, others with a scale for each 128 x 128."""
    return per_block_cast_to_fp8(weight, use_ue8m0=False) if scale is None else (weight, scale)


def make_gradient_pair(rows: torch.Tensor) -> Pair:
    """Return rows [m, n] with a scale for each column and 128 rows, along which a weight gradient sums; m is padded
    with zeros to a multiple of 128.
    """
    missing = -rows.shape[0] % SCALE_BLOCK
    if missing:
        pair = _padded_cast(rows)
        if pair is not NotImplemented:
            _zero_rows(pair[0], rows.shape[0])
            return pair
        rows = torch.nn.functional.pad(rows, (0, 0, 0, missing))
    return per_channel_cast_to_fp8(rows, use_ue8m0=False)


def store_as(dtype: torch.dtype, shape: tuple[int, ...], like: torch.Tensor, multiply: Callable) -> torch.Tensor:
    """Return a new tensor of `dtype` that `multiply(d)` wrote; dtypes that no kernel stores are rounded from FP32."""
    d = torch.empty(shape, dtype=dtype if dtype in _STORED else torch.float32, device=like.device)
    multiply(d)
    return d.to(dtype)


def sum_rows(grad: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the gradient [n] of a bias from that of [..., n], added in FP32."""
    return grad.reshape(-1, grad.shape[-1]).sum(0, dtype=torch.float32).to(dtype)


def give_weight_gradient(
    weight: torch.Tensor, main_grad: torch.Tensor | None, compute: Callable, add: Callable
) -> torch.Tensor | None:
    """Return the gradient of a weight that `compute()` gives, or let `add()` add it to `main_grad`.

    Megatron-LM marks weights with `grad_added_to_main_grad`: the mark is set, and zeros without memory are returned, so
    that the hooks of the weight run.
    """
    if main_grad is None:
        return compute()
    add()
    if not hasattr(weight, "grad_added_to_main_grad"):
        return None
    weight.grad_added_to_main_grad = True
    return weight.new_zeros(()).expand_as(weight)
