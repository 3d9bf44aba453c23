"""A layer of experts across GPUs, from FP8 tokens in their shared memory to BF16 sums:

    y[t] = sum over choices j of weight[t, j] * down[e] @ (silu(gate[e] @ x[t]) * (up[e] @ x[t])), e = expert[t, j]

Every GPU brings the tokens of all that chose its experts, runs the two grouped products on them, and leaves the rows
where their owners add them up. GPUs meet twice: when all have filled their buffers, and when all rows are there.
"""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from deep_gemm import _C, cast_kernels, environment
from deep_gemm.arguments import check_flag, shorten
from deep_gemm.errors import ArgumentError, DeviceError, DtypeError, LayoutError, ShapeError
from deep_gemm.layout import get_mk_alignment_for_contiguous_layout
from deep_gemm.mega import dispatch
from deep_gemm.mega.buffer import FILLED, MADE, SymmBuffer, count_expected_rows, count_rows, count_tokens_at_once
from deep_gemm.mega.operands import Weight, check_weights, with_row_scales
from deep_gemm.memory import overlaps, shares_memory, writing
from deep_gemm.operands import check_plain, check_tensor, check_written
from deep_gemm.ops import FUNCTIONS
from deep_gemm.planned import KernelOf
from deep_gemm.quantize import SCALE_BLOCK, check_limit, swiglu_per_token_cast_to_fp8
from deep_gemm.recorded_calls import ExpertLayer, SwigluCast, record

RECIPE = (SCALE_BLOCK,) * 3
#: BF16 numbers in 16 bytes.
ROW_UNIT = 8


def fp8_mega_moe(
    y: torch.Tensor,
    l1_weights: Weight,
    l2_weights: Weight,
    sym_buffer: SymmBuffer,
    cumulative_local_expert_recv_stats: torch.Tensor | None = None,
    recipe: Sequence[int] = RECIPE,
    activation: str = "swiglu",
    activation_clamp: float | None = None,
    fast_math: bool = True,
) -> None:
    """Write the sums of every token's experts into y. All processes of the group call it together.

    Args:
        y: BF16 [tokens, hidden], of as many tokens as this GPU has, in rows of whole 16 bytes; what the buffer
            holds behind them chooses nobody afterwards.
        l1_weights, l2_weights: of this GPU's experts, as transform_weights_for_mega_moe_sm90 returns them.
        sym_buffer: filled by mega_moe_pre_dispatch_sm90, or by hand.
        cumulative_local_expert_recv_stats: int32 [local experts], to which the tokens of each are added.
        recipe: (128, 128, 128), what shares a scale. activation: "swiglu".
        activation_clamp: gates are limited to at most this, ups to its magnitude, before the activation.
        fast_math: accepted; the activation is exact to FP32's last bits either way.

    Between both products numbers are rounded to BF16, then quantised with a scale for 128 of them. CUDA graphs can hold
    the call. A process that raises here, before the others have met it, leaves them waiting; where it raises after that
    the buffer is of no further use.
    Raises: ArgumentError, ShapeError, DtypeError, LayoutError, DeviceError.
    """
    check_flag("fast_math", fast_math)
    check_limit("activation_clamp", activation_clamp)
    _check(y, l1_weights, l2_weights, sym_buffer, recipe, activation)
    stats = cumulative_local_expert_recv_stats
    if stats is not None:
        _check_stats(stats, y, l1_weights, l2_weights, sym_buffer)
    if environment.get_string("DG_RECORD_SHAPES"):
        record(_describe(sym_buffer, activation_clamp))
    if _C.get_compile_mode() and not y.is_cuda:
        return
    with writing(y, sym_buffer.buffer, *([] if stats is None else [stats])), _breaking(sym_buffer):
        _run(y, l1_weights, l2_weights, sym_buffer, stats, activation_clamp)


@contextlib.contextmanager
def _breaking(buffer: SymmBuffer) -> Iterator[None]:
    """Mark a buffer whose step does not end: the others have met another number of times."""
    buffer.is_broken = True
    yield
    buffer.is_broken = False


def _run(
    y: torch.Tensor, l1: Weight, l2: Weight, sym_buffer: SymmBuffer, stats: torch.Tensor | None, limit: float | None
) -> None:
    """Run the layer on tokens in parts whose rows fit. In compile mode nothing is written, and nobody waits."""
    is_run = not _C.get_compile_mode()
    if is_run:
        sym_buffer.topk_idx[len(y) :].fill_(-1)
    weights = with_row_scales(l1), l2
    step = sym_buffer.tokens_at_once
    for first in range(0, sym_buffer.num_max_tokens_per_rank if is_run else 1, step):
        last = min(first + step, sym_buffer.num_max_tokens_per_rank)
        routing = _run_part(y[first:last], weights, sym_buffer, first, last, limit)
        if stats is not None and is_run:
            stats.add_(routing.counts[sym_buffer.own_experts])


def _run_part(
    y: torch.Tensor, weights: tuple[Weight, Weight], buffer: SymmBuffer, first: int, last: int, limit: float | None
) -> dispatch.Routing:
    """Run tokens first .. last - 1 of every GPU; y is of those among them that this one has."""
    meet = (lambda stage: None) if _C.get_compile_mode() else buffer.meet
    meet(FILLED)  # and none still reads the rows of the part before
    routing = dispatch.place(dispatch.read_choices(buffer, first, last), first, buffer.num_experts)
    multiply_rows(buffer, dispatch.pull(buffer, routing), weights, len(y), limit)
    meet(MADE)
    dispatch.combine(buffer, routing, y)
    return routing


def multiply_rows(
    buffer: SymmBuffer,
    operands: tuple[torch.Tensor, ...],
    weights: tuple[Weight, Weight],
    tokens: int,
    limit: float | None,
) -> None:
    """Write what this GPU's experts make of rows (dispatch.pull) into the buffer; the first weight has scales of rows
    (with_row_scales), and this GPU has so many tokens.
    """
    rows, scales, ends = operands
    multiply = partial(
        FUNCTIONS["m_grouped_fp8_gemm_nt_contiguous"],
        use_psum_layout=True,
        expected_m_for_psum_layout=count_expected_rows(buffer, tokens),
    )
    hidden = torch.empty(len(rows), 2 * buffer.intermediate_hidden, dtype=torch.bfloat16, device=rows.device)
    multiply((rows, scales), weights[0], hidden, ends, recipe=(1, 1, SCALE_BLOCK))
    activated, inner_scales = swiglu_per_token_cast_to_fp8(
        hidden[None], False, masked_m=ends[-1:], scales="mn_major", limit=limit, is_interleaved=True
    )
    multiply((activated[0], inner_scales[0]), weights[1], buffer.view("rows"), ends)


def _describe(buffer: SymmBuffer, limit: float | None) -> ExpertLayer:
    """Return a call with a buffer as it is recorded."""
    sizes = {name: getattr(buffer, name) for name in ExpertLayer._fields if name != "has_limit"}
    return ExpertLayer(**sizes, has_limit=limit is not None)


def list_kernels(layer: ExpertLayer) -> list[KernelOf]:
    """Return the plain kernels that a recorded call needs."""
    cast = SwigluCast(is_masked=True, is_interleaved=True, has_limit=layer.has_limit)
    return dispatch.list_kernels(layer.num_experts) + cast_kernels.list_kernels(cast)


def list_products(layer: ExpertLayer) -> list["_C.Problem"]:
    """Return the problems of both products of a recorded call, with any number of tokens. Their rows are those of the
    buffer. Raises: ProblemError where there are too many.
    """
    rows, hidden, intermediate = count_rows(layer), layer.hidden, layer.intermediate_hidden
    shared: dict[str, Any] = {
        "op": "m_grouped_fp8_gemm_psum", "m": rows, "num_groups": layer.num_local_experts, "alignment": layer.alignment
    }  # fmt: skip
    hints = {count_expected_rows(layer, tokens) for tokens in range(count_tokens_at_once(layer) + 1)}
    plain = [_C.Problem(**shared, n=2 * intermediate, k=hidden, recipe="1d1d")]
    plain.append(_C.Problem(**shared, n=hidden, k=intermediate))
    held = sorted({_C.hold_expected_m(plain[0], hint) for hint in hints})
    return [_C.Problem(**problem.as_dict() | {"expected_m": rows}) for rows in held for problem in plain]


def _check(y: Any, l1: Any, l2: Any, buffer: Any, recipe: Any, activation: Any) -> None:
    if not isinstance(buffer, SymmBuffer):
        raise ArgumentError(f"sym_buffer = {shorten(buffer)}: must be a SymmBuffer; make one.")
    if buffer.group is None:
        raise ArgumentError("sym_buffer: its memory was given back by destroy(); make another one.")
    if buffer.is_broken:
        raise ArgumentError(
            "sym_buffer: a step of it did not end, so that GPUs no longer meet; make others everywhere."
        )
    if get_mk_alignment_for_contiguous_layout() != buffer.alignment:
        raise ArgumentError(
            f"alignment = {get_mk_alignment_for_contiguous_layout()}: the buffer was made with {buffer.alignment}; call"
            f" set_mk_alignment_for_contiguous_layout({buffer.alignment}), or make another buffer."
        )
    if not isinstance(recipe, Sequence) or tuple(recipe) != RECIPE:
        raise ArgumentError(f"recipe = {shorten(recipe)}: weights of SM90 have scales of {RECIPE}; pass that.")
    if type(activation) is not str or activation != "swiglu":
        raise ArgumentError(f"activation = {shorten(activation)}: the layer has swiglu; pass 'swiglu'.")
    check_weights(l1, l2)
    wanted = [buffer.num_local_experts, buffer.hidden, buffer.intermediate_hidden]
    if list(l2[0].shape) != wanted:
        raise ShapeError(
            f"l2_weights.shape = {list(l2[0].shape)}: must be {wanted} for this buffer; pass such weights."
        )
    _check_result(y, buffer)
    for name, pair in (("l1_weights", l1), ("l2_weights", l2)):
        for tensor in pair:
            _check_device(name, tensor, buffer)
            if overlaps(tensor, y):
                raise LayoutError(f"y overlaps {name} in memory: they must be separate; pass another tensor.")


def _check_device(name: str, tensor: torch.Tensor, buffer: SymmBuffer) -> None:
    if tensor.device != buffer.buffer.device:
        raise DeviceError(f"{name} is on {tensor.device}, the buffer on {buffer.buffer.device}; move it there.")
    check_plain(name, tensor)


def _check_result(y: Any, buffer: SymmBuffer) -> None:
    check_tensor("y", y)
    if y.dtype != torch.bfloat16:
        raise DtypeError(f"y.dtype = {y.dtype}: must be bfloat16; pass such a tensor.")
    if y.dim() != 2 or y.shape[1] != buffer.hidden or len(y) > buffer.num_max_tokens_per_rank:
        raise ShapeError(
            f"y.shape = {list(y.shape)}: must be [tokens, {buffer.hidden}], at most {buffer.num_max_tokens_per_rank} of"
            " them in this buffer; make a larger one."
        )
    _check_device("y", y, buffer)
    check_written("y", y)
    if overlaps(buffer.buffer, y):
        raise LayoutError("y lies in the buffer: they must be separate; pass another tensor.")
    if shares_memory(y) or y.stride(1) != 1 or (len(y) > 1 and y.stride(0) % ROW_UNIT) or y.data_ptr() % 16:
        raise LayoutError(
            f"y.stride() = {y.stride()} at {y.data_ptr():#x}: rows must lie whole and start at multiples of 16 bytes;"
            " pass such a tensor."
        )


def _check_stats(stats: Any, y: torch.Tensor, l1: Weight, l2: Weight, buffer: SymmBuffer) -> None:
    name = "cumulative_local_expert_recv_stats"
    check_tensor(name, stats)
    _check_device(name, stats, buffer)
    check_written(name, stats)
    if stats.dtype != torch.int32:
        raise DtypeError(f"{name}.dtype = {stats.dtype}: must be int32; convert it by .int().")
    if stats.shape != (buffer.num_local_experts,):
        raise ShapeError(
            f"{name}.shape = {list(stats.shape)}: must be [{buffer.num_local_experts}]; pass a number for each expert"
            " of this GPU."
        )
    if not stats.is_contiguous():
        raise LayoutError(f"{name}.stride() = {stats.stride()}: must be contiguous; call .contiguous().")
    others = {"y": (y,), "the buffer": (buffer.buffer,), "l1_weights": l1, "l2_weights": l2}
    for other, tensors in others.items():
        if any(overlaps(tensor, stats) for tensor in tensors):
            raise LayoutError(f"{name} overlaps {other} in memory: they must be separate; pass another tensor.")
