"""Measure a sweep's sentinels: first, spread between its problems, and last. They are recorded and never ranked.

See tuner/problems/sentinels.py for what they are. A sweep that is resumed measures them again, because it is another
session; one with nothing left to measure does not.
"""

from collections.abc import Callable
from dataclasses import replace

from tuner.measure.records import Plan
from tuner.problems.regimes import name_sentinel
from tuner.problems.sentinels import Sentinel
from tuner.search.block import Block
from tuner.search.problem_run import ProblemFailed, ProblemRun, Request
from tuner.search.propose import Budget

#: How often a sweep measures each sentinel, if it has as many problems as that.
VISITS = 5
PLAN = Plan(search_rounds=1, confirm_rounds=12, finalists=4, search_seconds=1.0, confirm_seconds=0.1)


class SentinelVisits:
    """The sentinels of one sweep over `total` problems. `make_run(problem, configs, plan)` returns a ProblemRun."""

    def __init__(self, sentinels: list[Sentinel], total: int, recorder, make_run: Callable[..., ProblemRun]):
        self.sentinels, self.make_run = list(sentinels), make_run
        self.due = {visit * total // (VISITS - 1) for visit in range(VISITS - 1)} if total else set()
        self.num_blocks = 0
        self.recorder = recorder.copy_for(
            {
                op: replace(identity, regime=name_sentinel(identity.regime))
                for op, identity in recorder.identities.items()
            }
        )

    def visit(self, number: int) -> None:
        """Measure every sentinel, where that is due before the problem of this number."""
        if number in self.due:
            self.due.discard(number)
            self.measure_all()

    def finish(self) -> None:
        """Measure every sentinel a last time, if it was measured before."""
        if self.num_blocks:
            self.measure_all()

    def measure_all(self) -> None:
        """Measure every sentinel; one that fails is left out from then on."""
        for sentinel in list(self.sentinels):
            try:
                self.measure(sentinel)
            except ProblemFailed:
                self.sentinels.remove(sentinel)

    def measure(self, sentinel: Sentinel) -> None:
        """Measure a sentinel and record its block, which stays open, so that no problem counts as measured by it."""
        problem, configs = sentinel.problem, list(sentinel.configs)
        run = self.make_run(problem, configs, PLAN)

        def store_block(block: Block) -> None:
            self.recorder.add_block(problem, block, {}, finish=False)
            self.num_blocks += not block.has_failed

        run.run(Request("exhaustive", Budget(frozenset(configs), len(configs)), configs), store_block)
