"""Each kernel of a layer of experts across GPUs beside its formula, to the bit."""

from unittest import mock

import torch

from deep_gemm.mega import dispatch

from .mega_operands import LinkedBuffer, link_buffers
from .nn_references import poisoned


def compare_steps(num_ranks: int, tokens: int, experts: int, top_k: int, hidden: int, first: int = 0) -> list[str]:
    """Run each kernel for each of so many processes with `tokens` tokens from number `first` on; return which results
    differ from the formula's.
    """
    buffers = link_buffers(num_ranks, experts, first + tokens, top_k, hidden, 128)
    for buffer in buffers:
        _fill(buffer, experts, first)
    return [wrong for buffer in buffers for wrong in _compare(buffer, first, first + tokens)]


def _fill(buffer: LinkedBuffer, experts: int, first: int) -> None:
    """Fill a buffer with any bytes, and choices of which some are of no expert, even of a number that none has."""
    buffer.x.view(torch.uint8).random_(0, 127)
    buffer.x_sf.normal_()
    buffer.topk_weights.normal_()
    buffer.view("rows").normal_()
    buffer.topk_idx.random_(-1, experts + 1)
    buffer.topk_idx[first::3, 0] = experts - 1  # one that many choose


def _compare(buffer: LinkedBuffer, first: int, last: int) -> list[str]:
    choices = dispatch.read_choices(buffer, first, last)
    with mock.patch.object(dispatch, "_runs_kernels", return_value=False):
        wanted = dispatch.place(choices, first, buffer.num_experts)
        wanted_rows = dispatch.pull(buffer, wanted)
    wanted_sums = dispatch.combine_by_formula(buffer, wanted, last - first)
    with mock.patch.object(dispatch, "_runs_kernels", return_value=True), poisoned():
        found = dispatch.place(choices, first, buffer.num_experts)
        rows = dispatch.pull(buffer, found)
        sums = buffer.x.new_full((last - first, buffer.hidden), torch.nan, dtype=torch.bfloat16)
        dispatch.combine(buffer, found, sums)
    is_known = (choices >= 0) & (choices < buffer.num_experts)
    used = _list_rows(buffer, wanted)
    pairs = {
        "counts": (found.counts, wanted.counts),
        "positions": (found.positions[is_known], wanted.positions[is_known]),
        "ends": (rows[2], wanted_rows[2]),
        "rows": (rows[0].view(torch.uint8)[used], wanted_rows[0].view(torch.uint8)[used]),
        "scales": (rows[1][used], wanted_rows[1][used]),
        "other rows": (_find_written(rows[0]), used),
        "sums": (sums.view(torch.int16), wanted_sums.view(torch.int16)),
    }
    assert rows[1].stride() == wanted_rows[1].stride()
    return [name for name, both in pairs.items() if not torch.equal(*both)]


def _find_written(rows: torch.Tensor) -> torch.Tensor:
    """Return the rows that are not what torch fills memory with."""
    return torch.where(~rows.float().isnan().all(1))[0]


def _list_rows(buffer: LinkedBuffer, routing: dispatch.Routing) -> torch.Tensor:
    """Return the rows of this GPU that tokens have."""
    starts = dispatch.find_starts(buffer, routing.counts)[buffer.own_experts].tolist()
    counts = routing.counts[buffer.own_experts].tolist()
    ranges = [torch.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
    return torch.cat(ranges).to(routing.counts.device)
