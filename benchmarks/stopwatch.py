"""Host time of short calls: blocks of back-to-back calls, best and median."""

import time
from collections.abc import Callable

from tuner.measure.statistics import median

BLOCKS = 20
CALLS_PER_BLOCK = 200
#: Rounds of time_each.
ROUNDS = 9


def time_blocks(call: Callable[[], object], synchronize: Callable[[], None]) -> dict[str, float]:
    """Return best and median microseconds a call over the blocks."""
    return time_in_turn({"call": call}, synchronize)["call"]


def time_in_turn(
    calls: dict[str, Callable[[], object]], synchronize: Callable[[], None], blocks: int = BLOCKS
) -> dict[str, dict[str, float]]:
    """Time several calls, a block of each in turn, so that clocks that drift do so for all; the first round is not
    counted.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(blocks + 1):
        for name, call in calls.items():
            times[name].append(time_block(call))
            synchronize()
    return {
        name: {
            "best_us": round(min(found[1:]), 3),
            "median_us": round(median(found[1:]), 3),
            "calls": blocks * CALLS_PER_BLOCK,
        }
        for name, found in times.items()
    }


def time_block(call: Callable[[], object]) -> float:
    """Return microseconds a call of one block."""
    start = time.perf_counter()
    for _ in range(CALLS_PER_BLOCK):
        call()
    return (time.perf_counter() - start) / CALLS_PER_BLOCK * 1e6


def time_each(
    choices: dict[str, tuple[Callable[[object], object], list]], repeats: int, rounds: int = ROUNDS
) -> dict[str, float]:
    """Return of each (choose, problems) the microseconds that one choice takes: the median over its problems, of each
    the median of the rounds. Every round asks all choices in turn, so a busy moment of the host slows one round of each
    and no median.
    """
    times: dict[str, list[list[float]]] = {name: [] for name in choices}
    for _ in range(rounds):
        for name, (choose, problems) in choices.items():
            times[name].append([time_one(choose, problem, repeats) for problem in problems])
    return {
        name: round(median([median(list(found)) for found in zip(*all_rounds, strict=True)]), 3)
        for name, all_rounds in times.items()
    }


def time_one(choose: Callable[[object], object], problem: object, repeats: int) -> float:
    """Return the microseconds of one choice, after one that is not timed."""
    choose(problem)
    start = time.perf_counter()
    for _ in range(repeats):
        choose(problem)
    return (time.perf_counter() - start) / repeats * 1e6
