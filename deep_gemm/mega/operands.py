"""What a layer of experts across GPUs takes: weights, and a step's tokens in the shared memory."""

import math
from typing import Any

import torch

from deep_gemm import _C, cast_kernels, planned
from deep_gemm.arguments import check_integer, shorten
from deep_gemm.cast_kernels import RUN
from deep_gemm.errors import ArgumentError, DeviceError, DtypeError, LayoutError, ShapeError
from deep_gemm.layout import get_mn_major_tma_aligned_tensor
from deep_gemm.memory import writing
from deep_gemm.operands import check_plain, check_tensor
from deep_gemm.quantize import SCALE_BLOCK, per_token_cast_to_fp8

#: FP8 numbers and their scales, one for a block of 128 x 128.
Weight = tuple[torch.Tensor, torch.Tensor]


def transform_weights_for_mega_moe_sm90(l1_weights: Weight, l2_weights: Weight) -> tuple[Weight, Weight]:
    """Return the weights as fp8_mega_moe takes them: gates and ups of the first layer interleaved, 8 rows of each.

    Args:
        l1_weights: float8_e4m3fn [experts, 2 * intermediate, hidden], gates first, and float32 scales [experts, 2 *
            intermediate / 128, hidden / 128]. They become scales of rows, [experts, 2 * intermediate, hidden / 128].
            fp8_mega_moe also takes those of blocks, in their order, beside interleaved rows; then each step makes the
            others.
        l2_weights: float8_e4m3fn [experts, hidden, intermediate] and its scales; returned as they are.

    Raises: ArgumentError, ShapeError, DtypeError, LayoutError for others.
    """
    check_weights(l1_weights, l2_weights)
    data, scales = l1_weights
    if scales.shape[1] == data.shape[1]:
        raise ShapeError(
            f"scales of l1_weights.shape = {list(scales.shape)}: are those of rows, as this function returns them; pass"
            " weights that were not prepared."
        )
    experts, rows, hidden = data.shape
    parts = data.view(torch.uint8).view(experts, 2, rows // (2 * RUN), RUN, hidden)
    in_turn = parts.transpose(1, 2).contiguous().view(experts, rows, hidden)
    return with_row_scales((in_turn.view(data.dtype), scales)), l2_weights


def with_row_scales(weight: Weight) -> Weight:
    """Return the first layer's interleaved weight with scales of its rows, [experts, rows, hidden / 128] in the layout
    that products prefer, if it has those of blocks, which are in the order of gates and ups.
    """
    data, scales = weight
    experts, rows, _ = data.shape
    if scales.shape[1] == rows:
        return weight
    spread = get_mn_major_tma_aligned_tensor((experts, rows, scales.shape[2]), torch.float32, scales.device)
    halves = scales.reshape(experts, 2, rows // (2 * SCALE_BLOCK), -1).transpose(1, 2)
    spread.unflatten(1, (-1, SCALE_BLOCK // RUN, 2, RUN)).copy_(halves[:, :, None, :, None])
    return data, spread


def check_weights(l1_weights: Weight, l2_weights: Weight) -> None:
    """Refuse weights that do not fit together.

    Raises: ArgumentError, ShapeError, DtypeError, LayoutError.
    """
    for name, pair in (("l1_weights", l1_weights), ("l2_weights", l2_weights)):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ArgumentError(f"{name} = {shorten(pair)}: must be a pair (data, scales); pass such a tuple.")
        _check_weight(name, *pair)
    experts, hidden, intermediate = l2_weights[0].shape
    if l1_weights[0].shape != (experts, 2 * intermediate, hidden):
        raise ShapeError(
            f"l1_weights.shape = {list(l1_weights[0].shape)}: must be {[experts, 2 * intermediate, hidden]} with"
            f" l2_weights of {[experts, hidden, intermediate]}; pass layers that fit."
        )


def _check_weight(name: str, data: torch.Tensor, scales: torch.Tensor) -> None:
    check_tensor(name, data)
    check_tensor(name, scales)
    if data.dtype != torch.float8_e4m3fn or scales.dtype != torch.float32:
        raise DtypeError(
            f"{name} = ({data.dtype}, {scales.dtype}): must be float8_e4m3fn with float32 scales; quantise it by"
            " per_block_cast_to_fp8(weight, False)."
        )
    if data.dim() != 3 or any(size % SCALE_BLOCK for size in data.shape[1:]):
        raise ShapeError(
            f"{name}.shape = {list(data.shape)}: must be [experts, n, k], n and k multiples of {SCALE_BLOCK}; pad it."
        )
    blocks, columns = (size // SCALE_BLOCK for size in data.shape[1:])
    wanted = [data.shape[0], blocks, columns]
    has_row_scales = name == "l1_weights" and list(scales.shape) == [*data.shape[:2], columns]
    if list(scales.shape) != wanted and not has_row_scales:
        raise ShapeError(
            f"scales of {name}.shape = {list(scales.shape)}: must be {wanted}, one for each block; pass those of"
            " per_block_cast_to_fp8."
        )
    if not data.is_contiguous() or data.data_ptr() % 16:
        raise LayoutError(
            f"{name}.stride() = {data.stride()} at {data.data_ptr():#x}: must be contiguous and start at 16 bytes; call"
            " .clone()."
        )


def mega_moe_pre_dispatch_sm90(
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    buf_x: torch.Tensor,
    buf_x_sf: torch.Tensor,
    buf_topk_idx: torch.Tensor,
    buf_topk_weights: torch.Tensor,
    num_tokens: int,
    group_size: int = SCALE_BLOCK,
    routed_scaling_factor: float = 1.0,
) -> None:
    """Quantise tokens into the shared memory, as per_token_cast_to_fp8 does, beside their choices of experts and the
    weights of these times `routed_scaling_factor`. Tokens behind the last one choose nobody.

    Args:
        x: BF16 [num_tokens, hidden].
        topk_idx: int32 or int64 [num_tokens, choices], -1 for none. topk_weights: float32 of that shape.
        buf_x, buf_x_sf, buf_topk_idx, buf_topk_weights: the tensors of a SymmBuffer.
        group_size: 128.

    Raises: ArgumentError, ShapeError, DtypeError.
    """
    num_tokens = check_integer("num_tokens", num_tokens)
    if type(group_size) is not int or group_size != SCALE_BLOCK:
        raise ArgumentError(f"group_size = {shorten(group_size)}: {SCALE_BLOCK} features share a scale; pass that.")
    if type(routed_scaling_factor) not in (int, float) or not math.isfinite(routed_scaling_factor):
        raise ArgumentError(f"routed_scaling_factor = {shorten(routed_scaling_factor)}: must be finite; pass a number.")
    filled = buf_x, buf_x_sf, buf_topk_idx, buf_topk_weights
    _check_filled(*filled)
    _check_tokens(x, topk_idx, topk_weights, num_tokens, buf_x, buf_topk_idx)
    with writing(*filled):
        _fill(x.detach(), topk_idx, topk_weights.detach(), num_tokens, float(routed_scaling_factor), filled)


def _fill(x, topk_idx, topk_weights, count: int, factor: float, filled: tuple[torch.Tensor, ...]) -> None:
    """Fill the first `count` rows; in compile mode only what casts them is compiled."""
    buf_x, buf_x_sf, buf_topk_idx, buf_topk_weights = filled
    is_cast = not count or _cast_into(x, buf_x, buf_x_sf, count) is not NotImplemented
    if _C.get_compile_mode():
        return
    if not is_cast:
        data, scales = per_token_cast_to_fp8(x[:count], False)
        buf_x[:count].view(torch.uint8).copy_(data.view(torch.uint8))
        buf_x_sf[:count].copy_(scales)
    buf_topk_idx[:count].copy_(topk_idx[:count])
    torch.mul(topk_weights[:count], factor, out=buf_topk_weights[:count])
    buf_topk_idx[count:].fill_(-1)


def _check_filled(buf_x: Any, buf_x_sf: Any, buf_topk_idx: Any, buf_topk_weights: Any) -> None:
    """Refuse tensors that are not those of one buffer."""
    given = {
        "buf_x": (buf_x, torch.float8_e4m3fn), "buf_x_sf": (buf_x_sf, torch.float32),
        "buf_topk_idx": (buf_topk_idx, torch.int64), "buf_topk_weights": (buf_topk_weights, torch.float32),
    }  # fmt: skip
    for name, (tensor, dtype) in given.items():
        check_plain(name, tensor)
        if tensor.dtype != dtype:
            raise DtypeError(f"{name}.dtype = {tensor.dtype}: must be {dtype}; pass the tensor of a SymmBuffer.")
        if tensor.dim() != 2 or not tensor.is_contiguous():
            raise LayoutError(
                f"{name}: shape {list(tensor.shape)}, strides {tensor.stride()}: must be a contiguous matrix; pass the"
                " tensor of a SymmBuffer."
            )
        if tensor.device != buf_x.device:
            raise DeviceError(f"{name} is on {tensor.device}, buf_x on {buf_x.device}; pass tensors of one SymmBuffer.")
    (room, hidden), choices = buf_x.shape, buf_topk_idx.shape[1]
    wanted = {"buf_x_sf": [room, hidden // SCALE_BLOCK], "buf_topk_idx": [room, choices]}
    for name, shape in (wanted | {"buf_topk_weights": [room, choices]}).items():
        if list(given[name][0].shape) != shape:
            raise ShapeError(
                f"{name}.shape = {list(given[name][0].shape)}: must be {shape} with buf_x of {[room, hidden]}; pass"
                " tensors of one SymmBuffer."
            )


def _check_tokens(x, topk_idx, topk_weights, num_tokens: int, buf_x, buf_topk_idx) -> None:
    for name, tensor in (("x", x), ("topk_idx", topk_idx), ("topk_weights", topk_weights)):
        check_plain(name, tensor)
        if tensor.device != buf_x.device:
            raise DeviceError(f"{name} is on {tensor.device}, the buffer on {buf_x.device}; move it there.")
    if x.dtype != torch.bfloat16 or topk_weights.dtype != torch.float32:
        raise DtypeError(
            f"x, topk_weights = {x.dtype}, {topk_weights.dtype}: must be bfloat16 and float32; convert them by .to()."
        )
    if topk_idx.dtype not in (torch.int32, torch.int64):
        raise DtypeError(f"topk_idx.dtype = {topk_idx.dtype}: must be int32 or int64; convert it by .int().")
    wanted = {"x": (x, buf_x), "topk_idx": (topk_idx, buf_topk_idx), "topk_weights": (topk_weights, buf_topk_idx)}
    for name, (tensor, buffer) in wanted.items():
        if tensor.dim() != 2 or tensor.shape[0] < num_tokens or tensor.shape[1] != buffer.shape[1]:
            raise ShapeError(
                f"{name}.shape = {list(tensor.shape)}: must be [{num_tokens}, {buffer.shape[1]}] for num_tokens ="
                f" {num_tokens} and this buffer; pass a row for each token."
            )
    if num_tokens > buf_x.shape[0]:
        raise ShapeError(
            f"num_tokens = {num_tokens}: the buffer has room for {buf_x.shape[0]}; make it with a larger"
            " num_max_tokens_per_rank."
        )


def _plan_cast(x, buf_x, buf_x_sf, num_tokens: int) -> planned.Plan | None:
    """Plan the cast of the first rows of argument 0 into arguments 1 and 2."""
    plan = cast_kernels.plan_rows(x[:num_tokens], SCALE_BLOCK, False)
    return plan and planned.write_to(plan, (planned.argument(1), planned.argument(2)))


_cast_into = planned.make_call("mega_moe_pre_dispatch_sm90", _plan_cast, (1, 2))
