"""Kernels of a layer of experts across GPUs, on the emulator: the buffers of all GPUs are memory of the CPU.

Functions here run in the child process of the stub driver.
"""

from unittest import mock

import torch

from deep_gemm import planned
from deep_gemm.mega import dispatch
from tests.fakes.mega import LinkedBuffer, link_buffers

from .host import use_host_memory, view


def _get_kernel(name: str, threads: int):
    """Return the kernel, which takes CPU tensors."""
    kernel = planned.get_kernel(name, threads)
    return lambda grid, *arguments: kernel(grid, *map(view, arguments))


def compare_steps(num_ranks: int, tokens: int, experts: int, top_k: int, hidden: int, first: int = 0) -> list[str]:
    """Run each kernel for each of so many GPUs with `tokens` tokens from number `first` on; return which results differ
    from the formula's.
    """
    use_host_memory()
    buffers = link_buffers(num_ranks, experts, first + tokens, top_k, hidden, 128)
    for buffer in buffers:
        _fill(buffer, experts, first)
    with (
        mock.patch.object(dispatch, "get_kernel", _get_kernel),
        mock.patch.object(dispatch, "_count_sms", return_value=1),
    ):
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
    wanted = dispatch.place(choices, first, buffer.num_experts)
    wanted_rows = dispatch.pull(buffer, wanted)
    wanted_sums = dispatch.combine_by_formula(buffer, wanted, last - first)
    with mock.patch.object(dispatch, "_runs_kernels", return_value=True):
        found = dispatch.place(choices, first, buffer.num_experts)
        rows = dispatch.pull(buffer, found)
        sums = torch.full((last - first, buffer.hidden), torch.nan, dtype=torch.bfloat16)
        dispatch.combine(buffer, found, sums)
    is_known = (choices >= 0) & (choices < buffer.num_experts)
    used = _list_rows(buffer, wanted)
    pairs = {
        "counts": (found.counts, wanted.counts),
        "positions": (found.positions[is_known], wanted.positions[is_known]),
        "ends": (rows[2], wanted_rows[2]),
        "rows": (rows[0].view(torch.uint8)[used], wanted_rows[0].view(torch.uint8)[used]),
        "scales": (rows[1][used], wanted_rows[1][used]),
        "sums": (sums.view(torch.int16), wanted_sums.view(torch.int16)),
    }
    assert rows[1].stride() == wanted_rows[1].stride()
    return [name for name, both in pairs.items() if not torch.equal(*both)]


def _list_rows(buffer: LinkedBuffer, routing: dispatch.Routing) -> torch.Tensor:
    """Return the rows of this GPU that tokens have."""
    own = slice(buffer.rank * buffer.num_local_experts, (buffer.rank + 1) * buffer.num_local_experts)
    starts = dispatch.find_starts(buffer, routing.counts)[own].tolist()
    counts = routing.counts[own].tolist()
    return torch.cat([torch.arange(start, start + count) for start, count in zip(starts, counts, strict=True)])
