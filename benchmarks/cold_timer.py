"""Time kernels with a clean, cold L2: CUPTI durations through torch.profiler, a 512 MB read before each call.

One profiler session times all variants of a problem, interleaved: every variant runs once per round, in an order that
is drawn for the round. Drift of clocks and power thus affects all variants alike, rounds can be compared in pairs, and
no variant always follows the same other one: a kernel of milliseconds lowers the clocks for the next (seen on an H100:
the same kernel took 2.44 ms after one variant and 2.13 after another), and one that has just run finds its instructions
cached (1 to 2 % of 8 us). For a comparison with times recorded elsewhere, the variants run one after the other instead:
all rounds of one variant, each after the GPU has rested. (Under a steady load of kernels of a millisecond or more, an
H200 reaches its power limit; it was up to 15 % slower after some 50 ms.) The trace is split at the flush kernels: the
kernels between two of them belong to one call.
"""

import random
import time
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from deep_gemm import _C

from .device_kernels import ReadKernel

FLUSH_BYTES = 512 << 20
FLUSH_NAME = "l2_flush_read"
#: A rest is this many times as long as the calls before it, and at least REST_S.
REST_FACTOR, REST_S = 4.0, 0.02


class ColdTimer:
    """Times callables on the current stream; holds the flush buffer. From then on no kernel of this process starts
    while the one before it ends: it would start during the flush.
    """

    def __init__(self, sm_count: int):
        _C.set_pdl(False)
        self.buffer = torch.randint(0, 2**31 - 1, (FLUSH_BYTES // 4,), dtype=torch.int32, device="cuda")
        self.draw = random.Random(0)
        self.flush = ReadKernel(FLUSH_NAME, num_blocks=4 * sm_count)

    def measure(
        self, variants: dict[str, Callable[[], object]], rounds: int, part: str = "", *, rests: bool = False
    ) -> dict[str, list[float]]:
        """Return {name: microseconds of each round}; a call that launches several kernels counts their sum.

        part: of a kernel's name; what such kernels alone take of a call is `<name> <part>`, absent where a call
            launches none.
        rests: variant after variant, each after a rest, instead of interleaved.

        Raises:
            RuntimeError: the trace does not hold one segment for each call.
        """
        for name in variants:
            variants[name]()
            variants[name]()
        torch.cuda.synchronize()
        runs = order_calls(list(variants), rounds, rests, self.draw)
        with profile(activities=[ProfilerActivity.CUDA]) as session:
            for names in runs:
                self._run([variants[name] for name in names], rests)
        return add_up([name for names in runs for name in names], read_kernels(session), part)

    def _run(self, calls: list[Callable[[], object]], rests: bool) -> None:
        start = time.monotonic()
        for call in calls:
            self.flush.launch(self.buffer)
            call()
        torch.cuda.synchronize()
        if rests:
            time.sleep(max(REST_FACTOR * (time.monotonic() - start), REST_S))


def order_calls(names: list[str], rounds: int, rests: bool, draw: random.Random) -> list[list[str]]:
    """Return the calls in their order, one list for each stretch without a rest."""
    if rests:
        return [[name] * rounds for name in names]
    return [[name for _ in range(rounds) for name in draw.sample(names, len(names))]]


def add_up(order: list[str], trace: list[tuple[str, float]], part: str) -> dict[str, list[float]]:
    """Return the times of the calls that were made in `order`, as measure does."""
    segments = cut_segments(trace)
    if len(segments) != len(order):
        raise RuntimeError(f"{len(segments)} calls in the trace, expected {len(order)}")
    times: dict[str, list[float]] = {name: [] for name in order}
    for name, durations in zip(order, segments, strict=True):
        if not durations:
            raise RuntimeError(f"{name}: no kernel in its part of the trace")
        times[name].append(round(sum(durations), 3))
    alone = zip(order, cut_segments(trace, part), strict=True) if part else ()
    for name, durations in alone:
        if durations:
            times.setdefault(f"{name} {part}", []).append(round(sum(durations), 3))
    return times


def read_kernels(session) -> list[tuple[str, float]]:
    """Return (name, microseconds) of everything that ran on the GPU, in order of its start."""
    events = [
        event
        for event in session.profiler.kineto_results.events()
        if event.device_type() == torch.autograd.DeviceType.CUDA
    ]
    events.sort(key=lambda event: event.start_ns())
    return [(event.name(), event.duration_ns() / 1e3) for event in events]


def cut_segments(kernels: list[tuple[str, float]], part: str = "") -> list[list[float]]:
    """Split a trace at the flush kernels; return the durations of the kernels after each whose names contain `part`."""
    segments: list[list[float]] = []
    for name, duration in kernels:
        if FLUSH_NAME in name:
            segments.append([])
        elif segments and part in name:
            segments[-1].append(duration)
    return segments
