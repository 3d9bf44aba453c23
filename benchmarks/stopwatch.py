"""Host time of short calls: blocks of back-to-back calls, best and median."""

import time
from collections.abc import Callable

from tuner.statistics import median

BLOCKS = 20
CALLS_PER_BLOCK = 200


def time_blocks(call: Callable[[], object], synchronize: Callable[[], None], blocks: int = BLOCKS) -> dict[str, float]:
    """Return best and median microseconds a call over the blocks."""
    for _ in range(CALLS_PER_BLOCK):
        call()
    synchronize()
    times = []
    for _ in range(blocks):
        start = time.perf_counter()
        for _ in range(CALLS_PER_BLOCK):
            call()
        times.append((time.perf_counter() - start) / CALLS_PER_BLOCK * 1e6)
        synchronize()
    return {"best_us": round(min(times), 3), "median_us": round(median(times), 3), "calls": blocks * CALLS_PER_BLOCK}


def time_each(choose: Callable[[object], object], problems: list, repeats: int) -> float:
    """Return the median over the problems of the microseconds that one choice takes."""
    times = []
    for problem in problems:
        choose(problem)
        start = time.perf_counter()
        for _ in range(repeats):
            choose(problem)
        times.append((time.perf_counter() - start) / repeats * 1e6)
    return round(median(times), 3)
