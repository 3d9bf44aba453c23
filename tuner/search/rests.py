"""Finalists of long products are timed twice: back to back, and each launch after a rest.

Back to back, a board at its power limit lowers its clock, and a config that takes less power gains on others. In a
model, kernels that take less power run in between. On an H200, of two configs of a large product that tied back to
back, one was 4 to 7 % faster after rests. The choice is by the geometric mean of both.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from tuner.measure.records import REPLAY_US, Plan
from tuner.problems.workload import Workload, count_draws

#: A reference that takes less than this gets no rests: so short a product is bound by latency or memory.
FROM_US = 100.0
#: How long a rest is, in times of the replay after it.
REST = 2.0
#: As many finalists are timed again as take about MAX_SECONDS together, but at least two.
MAX_FINALISTS, MIN_FINALISTS = 8, 2
MAX_SECONDS = 1.0


def make_plan(plan: Plan) -> Plan:
    """Return how finalists are timed after rests, where `plan` is how they were timed without."""
    return replace(plan, confirm_rounds=plan.confirm_rounds // 3, finalists=MAX_FINALISTS, rest=REST)


def choose_finalists(results: Sequence, reference_us: float, num_draws: int, plan: Plan) -> list:
    """Return the configs to time after rests, fastest first, given what a block found; none for a short product.

    `results` are Results or MeasurementRows of the block, `num_draws` the launches that a replay has at least.
    """
    if reference_us < FROM_US:
        return []
    timed, again = sorted(filter(is_confirmed, results), key=lambda row: row.ratio), make_plan(plan)
    seconds = 0.0
    chosen: list = []
    for row in timed[:MAX_FINALISTS]:
        replay_us = max(row.ratio * reference_us * num_draws, REPLAY_US)
        seconds += (again.search_rounds + again.confirm_rounds) * replay_us * 1e-6 * (1.0 + again.rest)
        if seconds > MAX_SECONDS and len(chosen) >= MIN_FINALISTS:
            break
        chosen.append(row.config)
    return chosen if len(chosen) >= MIN_FINALISTS else []


def find_open(problems: Iterable, found: dict, workload: Workload, plan: Plan) -> dict:
    """Return {problem: finalists} of those of `problems` that lack times after rests.

    `found` is {problem key: past.Steady} of those that no rests followed; the products of some are too short for any.
    """
    steady = {problem: found[problem.key] for problem in problems if problem.key in found}
    finalists = {
        problem: choose_finalists(one.rows, one.reference_us, count_draws(problem, workload), plan)
        for problem, one in steady.items()
    }
    return {problem: configs for problem, configs in finalists.items() if configs}


def find_on_boards(found: dict, steady: dict, boards: Iterable[str], warn: Callable[[str], None]) -> dict:
    """Return those of `found`, see find_open, whose block one of `boards` measured; warn of the others.

    Boards differ by more than most configs do, so that only the same one may say what rests change.
    """
    known = set(boards)
    here = {problem: configs for problem, configs in found.items() if steady[problem.key].board in known}
    if len(here) < len(found):
        warn(f"{len(found) - len(here)} problems lack times after rests, which only the boards that measured them take")
    return here


def judge(steady: Sequence, rested: Sequence) -> list:
    """Return the confirmed rows of `rested`, each with the geometric mean of its ratios in both blocks as its ratio."""
    ratios = {row.config: row.ratio for row in filter(is_confirmed, steady)}
    return [
        replace(row, ratio=math.sqrt(row.ratio * ratios[row.config]))
        for row in filter(is_confirmed, rested)
        if row.config in ratios
    ]


def join_noise(steady: float, rested: float | None) -> float:
    """Return the noise of a geometric mean of two ratios, given that of each."""
    return math.hypot(steady, rested or 0.0) / 2.0


def is_confirmed(row: Any) -> bool:
    """Return whether a Result or MeasurementRow has a ratio of confirmation rounds."""
    return row.role == "confirm" and row.status == "ok" and row.ratio is not None
