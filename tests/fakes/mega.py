"""Layers of experts across processes, in one process: buffers in the memory of the CPU that read each other's."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch

from deep_gemm.mega.buffer import SymmBuffer


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

    def meet(self) -> None:
        """Wait for the other threads; nothing is copied, since all memory is one process's."""
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
        buffer.addresses = torch.tensor([other.buffer.data_ptr() for other in buffers])
    return buffers


def run_together(buffers: list[LinkedBuffer], run: Callable[[LinkedBuffer], object]) -> list:
    """Return the results of run(buffer), each in a thread of its own."""
    with ThreadPoolExecutor(len(buffers)) as pool:
        return list(pool.map(run, buffers))
