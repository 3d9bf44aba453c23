"""Layers of experts across GPUs: operands, what the layer computes, written once more from the definition, and buffers
of several processes in one process, which read each other's.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch

import deep_gemm
from deep_gemm.mega.buffer import SymmBuffer

from .nn_references import round_blocks, round_rows

#: calc_diff against the definition, of all and of each row. Sums of FP8 products err by 2^-11 of their magnitudes at K
#: up to 512 (numerics.py), which moves some of the numbers between both products to the next one of FP8: such errors in
#: the definition give 1.5e-4, and 5e-4 for a row; one wrong choice of three gives 1e-3 and 0.3.
BOUND, ROW_BOUND = 5e-4, 5e-3


class FakeGroup(NamedTuple):
    """What a buffer asks a process group."""

    index: int
    count: int

    def rank(self) -> int:
        """Return which process this is."""
        return self.index

    def size(self) -> int:
        """Return how many there are."""
        return self.count


class LinkedBuffer(SymmBuffer):
    """A buffer that meets the others of its list, each in a thread."""

    others: "list[LinkedBuffer]"
    barrier: threading.Barrier | None = None

    def _take_memory(self, device: torch.device) -> tuple[torch.Tensor, None]:
        return torch.zeros(self.num_bytes, dtype=torch.uint8, device=device), None

    def meet(self, stage: int) -> None:
        """Wait for the other threads at whatever stage; nothing is copied, since all memory is one process's."""
        if self.barrier is not None:
            self.barrier.wait(timeout=60)
            self._copies = [other.buffer for other in self.others]


def link_buffers(num_ranks: int, *sizes: int) -> list[LinkedBuffer]:
    """Return the buffers of so many processes; `sizes` as for SymmBuffer."""
    buffers = [LinkedBuffer(FakeGroup(rank, num_ranks), *sizes) for rank in range(num_ranks)]
    barrier = threading.Barrier(num_ranks)
    for buffer in buffers:
        buffer.others, buffer.barrier = buffers, barrier
        buffer._copies = [other.buffer for other in buffers]
        buffer.addresses = buffer.addresses.new_tensor([other.buffer.data_ptr() for other in buffers])
    return buffers


def run_together(buffers: list[LinkedBuffer], run: Callable[[LinkedBuffer], object]) -> list:
    """Return the results of run(buffer), each in a thread of its own."""
    with ThreadPoolExecutor(len(buffers)) as pool:
        return list(pool.map(run, buffers))


def make_weights(experts: int, hidden: int, intermediate: int, device: str = "cpu") -> tuple[torch.Tensor, ...]:
    """Return the weights of both layers of so many experts, gates before ups, in FP32."""
    shapes = (experts, 2 * intermediate, hidden), (experts, hidden, intermediate)
    return tuple(torch.randn(shape, device=device) * shape[2] ** -0.5 for shape in shapes)


def prepare(layers: tuple[torch.Tensor, ...], experts: slice = slice(None)) -> tuple:
    """Return both layers of some experts as fp8_mega_moe takes them."""
    pairs = [deep_gemm.per_block_cast_to_fp8(layer[experts], False) for layer in layers]
    return deep_gemm.transform_weights_for_mega_moe_sm90(*pairs)


def choose(tokens: int, experts: int, top_k: int, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Return different experts of each token, int32, a fifth of them -1, and their weights."""
    chosen = torch.rand(tokens, experts, device=device).topk(top_k).indices.int()
    weights, kept = torch.rand(2, tokens, top_k, device=device)
    return chosen.where(kept > 0.2, -1), weights


def multiply_experts(
    x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, layers: tuple[torch.Tensor, ...],
    limit: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return the sums in FP32 for BF16 x; numbers are quantised where the layer quantises them."""
    wide, (first, second) = round_rows(x), map(round_blocks, layers)
    sums = torch.zeros(x.shape, device=x.device)
    for expert in range(len(first)):
        tokens, choices = torch.where(chosen == expert)
        gate, up = (wide[tokens] @ first[expert].t()).bfloat16().float().chunk(2, 1)
        if limit is not None:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        made = (round_rows(torch.nn.functional.silu(gate) * up) @ second[expert].t()).bfloat16().float()
        sums.index_add_(0, tokens, weights[tokens, choices, None] * made)
    return sums


def find_difference(found: torch.Tensor, wanted: torch.Tensor) -> str:
    """Return how far a result is from the definition's, "" where it is within the bounds."""
    if not bool(found.isfinite().all()):
        return "not finite"
    x, y = found.double(), wanted.double()
    weights = (x.square() + y.square()).sum(1)
    rows = ((x - y).square().sum(1) / weights.clamp_min(1e-30)).tolist()
    whole = float((x - y).square().sum() / weights.sum().clamp_min(1e-30))
    worst = max(rows, default=0.0)
    return "" if whole < BOUND and worst < ROW_BOUND else f"calc_diff {whole}, of a row {worst}"


def fill(buffer: SymmBuffer, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> None:
    """Fill a buffer in a caller's spelling."""
    deep_gemm.mega_moe_pre_dispatch_sm90(
        x, chosen, weights, buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights, num_tokens=len(x),
        group_size=128, routed_scaling_factor=1.0,
    )  # fmt: skip
