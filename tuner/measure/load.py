"""One config that the GPU runs without pause: its graphs, replayed behind each other, see power.Load."""

from collections import deque
from typing import Any

import torch

from deep_gemm.quantize import ceil_div

#: Replays are queued, and their end is marked, this much at a time.
PART_US = 5000.0
#: How far the queue is ahead of the device: longer than a call of NVML, or a pause of this process, usually takes.
AHEAD_US = 25_000.0
MIN_PARTS = 2


class GraphLoad:
    """Replays of config `index` of a prepared CudaTimer, which go through the whole ring of operands: one graph that
    follows itself might find its own operands in the L2.
    """

    def __init__(self, timer: Any, index: int):
        self.launches = timer.launches(index)
        turns = ceil_div(len(timer.ring), self.launches)
        self.graphs = [timer.graphs[index], *(timer.capture(index, turn) for turn in range(1, turns))]
        replay_us = max(timer.time([index])[0] * self.launches, 1.0)
        self.replays = max(round(PART_US / replay_us), 1)
        self.parts = max(ceil_div(int(AHEAD_US), max(int(self.replays * replay_us), 1)), MIN_PARTS)
        self.queued: deque[torch.cuda.Event] = deque()
        self.num_replays = 0
        self.first: torch.cuda.Event | None = None
        self.counted_from = 0

    def feed(self) -> None:
        """Queue as many parts as are to be ahead of the device."""
        while self.queued and self.queued[0].query():
            self.queued.popleft()
        while len(self.queued) < self.parts:
            self.queue_part()

    def queue_part(self) -> torch.cuda.Event:
        """Queue one part and return the event at its end."""
        for _ in range(self.replays):
            self.graphs[self.num_replays % len(self.graphs)].replay()
            self.num_replays += 1
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.queued.append(event)
        return event

    def start(self) -> None:
        """Count launches from the end of the next part on."""
        self.first = self.queue_part()
        self.counted_from = self.num_replays

    def stop(self) -> float:
        """Return the mean microseconds per launch since `start`, 0.0 where it did not start; waits for the device."""
        first, self.first = self.first, None
        if first is None:
            if self.queued:
                self.queued[-1].synchronize()
            return 0.0
        last = self.queue_part()
        last.synchronize()
        return first.elapsed_time(last) * 1e3 / ((self.num_replays - self.counted_from) * self.launches)
