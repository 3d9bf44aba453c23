"""Where the tokens of experts lie among the rows of grouped products, and how they get there and back.

All of it runs on the device: no size comes back to the host, so that CUDA graphs can hold it. Shapes follow from those
of the routing alone: a matrix has as many rows as any routing could need. On a GPU one kernel finds the rows, and for
BF16 and FP32 one each way moves them (row_kernels.py), with the results of the formulas here, which serve other dtypes
and CPU tensors.
"""

from typing import NamedTuple

import torch

from deep_gemm import planned
from deep_gemm.group_rows import count_most_rows, find_starts, rank_choices
from deep_gemm.nn import row_kernels
from deep_gemm.nn.registration import differentiate, register
from deep_gemm.quantize import SCALE_BLOCK

_place = planned.make_call("nn_place", row_kernels.plan_place)
_spread = planned.make_call("nn_spread", row_kernels.plan_spread, (3,))
_combine = planned.make_call("nn_combine", row_kernels.plan_combine)
#: Tokens whose choices are in FP32 at the same time: 235 MB for 8 choices of 7168 features.
TOKENS_AT_ONCE = 1024


class Placement(NamedTuple):
    """Rows of all choices of experts.

    rows: int64 [tokens, top_k], the row of a token's choice. num_rows: of the matrix. groups: int32 [experts]: where
    the rows of each expert end, or how many it has (masked).
    """

    rows: torch.Tensor
    num_rows: int
    groups: torch.Tensor


def place_contiguous(experts: torch.Tensor, num_experts: int) -> Placement:
    """Place every expert's tokens one after the other, from a multiple of 128 on. A choice of no expert has the row
    `num_rows`, which there is not.
    """
    rows, ends = nn_place(experts, num_experts, False)
    return Placement(rows, count_most_rows(experts.numel(), num_experts, SCALE_BLOCK), ends)


def place_masked(experts: torch.Tensor, num_experts: int) -> Placement:
    """Give every expert room for all tokens. Choices of a token that name one expert again share the first one's row,
    or they would take more room than that. A choice of no expert has the row `num_rows`, which there is not.
    """
    rows, counts = nn_place(experts, num_experts, True)
    return Placement(rows, num_experts * experts.shape[0], counts)  # len() would fix the tokens of an exported graph


def _run_place(experts: torch.Tensor, num_experts: int, is_masked: bool) -> tuple[torch.Tensor, torch.Tensor]:
    experts = _make_dense(experts)
    found = _place(experts.view(torch.int32), num_experts, is_masked)
    if found is not NotImplemented:
        return found[0].view(torch.int64), found[1]
    is_known = (experts >= 0) & (experts < num_experts)
    if is_masked:
        rows, counts = _share_rows(experts, num_experts)
        return rows.where(is_known, num_experts * len(experts)), counts.int()
    ranks, counts = rank_choices(experts, num_experts)
    starts, most = find_starts(counts, SCALE_BLOCK), count_most_rows(experts.numel(), num_experts, SCALE_BLOCK)
    rows = starts[experts.where(is_known, 0)] + ranks
    return rows.where(is_known, most), (starts + counts).int()


def _share_rows(experts: torch.Tensor, num_experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, top_k = experts.shape
    if top_k == 0:
        return experts, experts.new_zeros(num_experts)
    first = (experts[:, :, None] == experts[:, None]).int().argmax(-1)  # of equal choices
    is_first = first == torch.arange(top_k, device=experts.device)
    ranks, counts = rank_choices(experts.where(is_first, num_experts), num_experts)
    return (experts * tokens + ranks).gather(1, first), counts


def _fake_place(experts: torch.Tensor, num_experts: int, is_masked: bool) -> tuple[torch.Tensor, torch.Tensor]:
    rows = experts.new_empty(experts.shape, dtype=torch.int64)  # dense, whatever the strides of the choices
    return rows, experts.new_empty(num_experts, dtype=torch.int32)


def _make_dense(choices: torch.Tensor) -> torch.Tensor:
    """Return choices as int64, one row after the other; those of a transposed routing have its strides."""
    dense = choices.long().contiguous()
    # To torch, a column of a single choice, or no choices, are contiguous with any strides.
    return dense if dense.stride(-1) == 1 else dense.clone(memory_format=torch.contiguous_format)


def _to_words(rows: torch.Tensor) -> torch.Tensor:
    """Return the rows of choices as row_kernels takes them."""
    return _make_dense(rows).view(torch.int32)


def _find_known(rows: torch.Tensor, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (which choices have a row, the rows of those, of others a row that there is), as the kernels leave out
    choices of no row.
    """
    is_known = (rows >= 0) & (rows < num_rows)
    return is_known, rows.where(is_known, 0)


def _run_spread(
    x: torch.Tensor, rows: torch.Tensor, weights: torch.Tensor | None, num_rows: int, has_zeros: bool = True
) -> torch.Tensor:
    make = x.new_zeros if has_zeros else x.new_empty
    out = make(num_rows, x.shape[1])
    if _spread(x, _to_words(rows), weights, out) is not NotImplemented:
        return out
    out = make(num_rows + 1, x.shape[1])  # the last one for choices of no row
    rows = rows.where((rows >= 0) & (rows < num_rows), num_rows)
    if weights is None:
        out[rows] = x[:, None]
        return out[:num_rows]
    for part in _list_parts(rows):
        out[rows[part]] = (x[part, None].float() * weights[part, :, None]).to(x.dtype)
    return out[:num_rows]


def _list_parts(rows: torch.Tensor) -> list[slice]:
    """Return the tokens in parts whose choices fit in a temporary tensor of FP32."""
    return [slice(first, first + TOKENS_AT_ONCE) for first in range(0, len(rows), TOKENS_AT_ONCE)]


def _fake_spread(x, rows, weights, num_rows, has_zeros=True) -> torch.Tensor:
    return x.new_empty((num_rows, x.shape[1]))


def _run_combine(y: torch.Tensor, rows: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    done = _combine(y, _to_words(rows), weights)
    if done is not NotImplemented:
        return done
    out = y.new_empty(len(rows), y.shape[1])
    is_known, rows = _find_known(rows, len(y))
    for part in _list_parts(rows):
        chosen = y[rows[part]].float().masked_fill_(~is_known[part, :, None], 0)
        out[part] = (chosen if weights is None else chosen * weights[part, :, None]).sum(1)
    return out


def _run_combine_wgrad(grad: torch.Tensor, y: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    out = torch.empty(rows.shape, dtype=torch.float32, device=y.device)
    is_known, rows = _find_known(rows, len(y))
    for part in _list_parts(rows):
        out[part] = (y[rows[part]].float() * grad[part, None].float()).sum(-1)
    return out.masked_fill_(~is_known, 0)


def _fake_combine_wgrad(grad, y, rows) -> torch.Tensor:
    return grad.new_empty(rows.shape, dtype=torch.float32)


def _fake_combine(y, rows, weights) -> torch.Tensor:
    return y.new_empty((rows.shape[0], y.shape[1]))


def _set_up_spread(ctx, inputs: tuple, output: torch.Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _differentiate_spread(ctx, grad: torch.Tensor) -> tuple:
    return nn_combine(grad, ctx.saved_tensors[0], None), None, None, None, None


def _set_up_combine(ctx, inputs: tuple, output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate_combine(ctx, grad: torch.Tensor) -> tuple:
    y, rows, weights = ctx.saved_tensors
    dy = nn_spread(grad, rows, weights, y.shape[0]) if ctx.needs_input_grad[0] else None
    dw = None
    if ctx.needs_input_grad[2]:
        dw = nn_combine_wgrad(grad, y, rows).to(weights.dtype)
    return dy, None, dw


#: Find the rows of every choice of an expert and of the experts, as Placement holds them.
nn_place = register(
    "nn_place", "(Tensor experts, SymInt num_experts, bool is_masked) -> (Tensor, Tensor)", _run_place, _fake_place
)
#: Copy the row of every token, times the weight of each choice, to the rows of its choices; other rows are 0, without
#: has_zeros undefined.
nn_spread = register(
    "nn_spread",
    "(Tensor x, Tensor rows, Tensor? weights, SymInt num_rows, bool has_zeros=True) -> Tensor",
    _run_spread,
    _fake_spread,
)
#: Add up, in FP32, the rows of every token's choices times their weights.
nn_combine = register("nn_combine", "(Tensor y, Tensor rows, Tensor? weights) -> Tensor", _run_combine, _fake_combine)
#: The gradient of those weights.
nn_combine_wgrad = register(
    "nn_combine_wgrad", "(Tensor grad, Tensor y, Tensor rows) -> Tensor", _run_combine_wgrad, _fake_combine_wgrad
)
differentiate("nn_spread", _set_up_spread, _differentiate_spread)
differentiate("nn_combine", _set_up_combine, _differentiate_combine)
