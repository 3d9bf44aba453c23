"""The way of tokens to the experts that they chose, on whatever GPU these are, and back.

On a GPU each step is one kernel (place_rows.cuh, mega_pull.cuh, mega_combine.cuh), which reads the memory of the other
GPUs; the formulas here define them and run on the CPU. No size comes back to the host: shapes are those of the buffer.
"""

from typing import NamedTuple

import torch

from deep_gemm import _C, group_rows
from deep_gemm.layout import get_mn_major_tma_aligned_tensor
from deep_gemm.mega.buffer import SymmBuffer
from deep_gemm.planned import KernelOf, get_kernel
from deep_gemm.quantize import ceil_div

_THREADS = 256
_WARPS, _CTAS_PER_SM = _THREADS // 32, 8  # of mega_pull.cuh: a warp has a token; two grids' worth of CTAs at most


class Routing(NamedTuple):
    """The choices of some tokens of every GPU, as all GPUs know them.

    first: of the tokens of a GPU. experts: int64 [ranks, tokens, choices], over all GPUs, others for none. positions:
    int32 of that shape, which of an expert's tokens it is; of a choice that names none, anything. counts: int32
    [experts], the tokens of each.
    """

    first: int
    experts: torch.Tensor
    positions: torch.Tensor
    counts: torch.Tensor


def list_kernels(num_experts: int) -> list[KernelOf]:
    """Return the kernels of every step."""
    moving: list[KernelOf] = [("mega_pull", _THREADS, {}), ("mega_combine", _THREADS, {})]
    if num_experts > group_rows.MOST_GROUPS:
        return moving
    return [group_rows.find_placing_kernel(num_experts, group_rows.Form.RANKS), *moving]


def _runs_kernels(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda


def _count_sms(tensor: torch.Tensor) -> int:
    return _C.get_device(tensor.get_device()).sm_count


def read_choices(buffer: SymmBuffer, first: int, last: int) -> torch.Tensor:
    """Return the choices of tokens first .. last - 1 of every GPU."""
    return torch.stack([buffer.view("topk_idx", rank)[first:last] for rank in range(buffer.num_ranks)])


def place(experts: torch.Tensor, first: int, num_experts: int) -> Routing:
    """Return the routing of choices [ranks, tokens, choices]; an expert's tokens lie in the order of the choices."""
    if _runs_kernels(experts) and num_experts <= group_rows.MOST_GROUPS:
        name, threads, constants = group_rows.find_placing_kernel(num_experts, group_rows.Form.RANKS)
        positions = torch.empty(experts.shape, dtype=torch.int32, device=experts.device)
        counts = torch.empty(num_experts, dtype=torch.int32, device=experts.device)
        numbers = experts.numel(), experts.shape[-1], num_experts, 0, 0
        get_kernel(name, threads, **constants)(1, experts, positions, counts, *numbers)
    else:
        positions, counts = (found.int() for found in group_rows.rank_choices(experts, num_experts))
    return Routing(first, experts, positions, counts)


def find_starts(buffer: SymmBuffer, counts: torch.Tensor) -> torch.Tensor:
    """Return the first row of each expert on its own GPU, int64 [experts]."""
    return group_rows.find_starts(counts.view(buffer.num_ranks, -1), buffer.alignment).flatten()


def pull(buffer: SymmBuffer, routing: Routing) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what a product of this GPU's experts takes: (tokens float8_e4m3fn [rows, hidden], their scales float32,
    MN-major [rows, hidden / 128], the end of each expert's rows int32 [local experts]). Rows of no token are undefined.
    """
    rows = torch.empty(buffer.num_rows, buffer.hidden, dtype=torch.float8_e4m3fn, device=buffer.buffer.device)
    scales = get_mn_major_tma_aligned_tensor((len(rows), buffer.x_sf.shape[1]), torch.float32, rows.device)
    counts = routing.counts[buffer.own_experts]
    if not _runs_kernels(rows):
        return pull_by_formula(buffer, routing, rows, scales)
    ends = torch.empty_like(counts)
    ranks, tokens, top_k = routing.experts.shape
    ctas = min(ceil_div(ranks * tokens, _WARPS), _count_sms(rows) * _CTAS_PER_SM)
    get_kernel("mega_pull", _THREADS)(
        ctas, buffer.addresses, routing.experts, routing.positions, counts, rows, scales, ends, buffer.offset("x"),
        buffer.offset("x_sf"), scales.stride(1), ranks, tokens, top_k, buffer.hidden, routing.first,
        buffer.own_experts.start, buffer.num_local_experts, buffer.alignment,
    )  # fmt: skip
    return rows, scales, ends


def pull_by_formula(
    buffer: SymmBuffer, routing: Routing, rows: torch.Tensor, scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Fill rows and scales; return them with the ends."""
    own, starts = buffer.own_experts, find_starts(buffer, routing.counts)
    is_own = (routing.experts >= own.start) & (routing.experts < own.stop)
    ranks, tokens, _ = torch.where(is_own)
    targets = starts[routing.experts[is_own]] + routing.positions[is_own]
    for rank in range(buffer.num_ranks):
        chosen = ranks == rank
        sources, places = tokens[chosen] + routing.first, targets[chosen]
        rows.view(torch.uint8)[places] = buffer.view("x", rank).view(torch.uint8)[sources]
        scales[places] = buffer.view("x_sf", rank)[sources]
    return rows, scales, (starts[own] + routing.counts[own]).int()


def combine(buffer: SymmBuffer, routing: Routing, y: torch.Tensor) -> None:
    """Write the sums of what the experts made of this GPU's tokens into y, BF16 [tokens, hidden]: the first tokens of
    the routing.
    """
    tokens, first = len(y), routing.first
    if not tokens:
        return
    if not _runs_kernels(y):
        y.copy_(combine_by_formula(buffer, routing, tokens))
        return
    experts, positions = routing.experts[buffer.rank], routing.positions[buffer.rank]
    get_kernel("mega_combine", _THREADS)(
        tokens, buffer.addresses, experts, buffer.topk_weights[first:], positions, routing.counts, y,
        y.stride(0) * y.element_size(), buffer.offset("rows"), buffer.num_topk, buffer.hidden,
        buffer.num_experts, buffer.num_local_experts, buffer.alignment,
    )  # fmt: skip


def combine_by_formula(buffer: SymmBuffer, routing: Routing, tokens: int) -> torch.Tensor:
    """Return the sums of `tokens` tokens: in FP32, one choice after the other, rounded to BF16 in the end."""
    experts, positions = (part[buffer.rank, :tokens] for part in (routing.experts, routing.positions))
    weights = buffer.topk_weights[routing.first : routing.first + tokens]
    is_chosen = (experts >= 0) & (experts < buffer.num_experts)
    known = experts.where(is_chosen, 0)
    places = (find_starts(buffer, routing.counts)[known] + positions).where(is_chosen, 0)
    every = torch.stack([buffer.view("rows", rank) for rank in range(buffer.num_ranks)])
    sums = torch.zeros(tokens, buffer.hidden, device=experts.device)
    for choice in range(experts.shape[1]):
        rows = every[known[:, choice] // buffer.num_local_experts, places[:, choice]].float()
        sums += torch.where(is_chosen[:, choice, None], weights[:, choice, None] * rows, 0.0)
    return sums.bfloat16()
