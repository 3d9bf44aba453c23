"""Old against new on many problems: measure in turns, decide which differences are real, measure those again.

A job runs three kernels in every round, in random order: the old one, the new one, and the old one again from a graph
of its own. The ratio of new to old in the same round cancels drifting clocks; that of old to old says how far equal
kernels are apart here. Every problem has several jobs (turns), some time apart, each with other places in memory, so
that what favours one graph does not favour it throughout.

    threshold   of a problem: the largest of MIN_DIFFERENCE and how far its old-to-old interval reaches from 1
    flagged     the sign test rejects that the median ratio is within the threshold, adjusted for the number of problems
    verdict     flagged problems are measured again, longer. Only the new rounds count: slower (or faster) where they
                say the same, adjusted for the number of flagged problems.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tuner.measure import statistics
from tuner.measure.records import Plan
from tuner.measure.sets import Entry, make_sets_job
from tuner.measure.worker_client import WorkerFailure
from tuner.measured import TIMED

#: Smaller differences than this share are no finding: configs that differ by so little tie in a sweep, too.
MIN_DIFFERENCE = statistics.TIE_RATIO
#: Share of wrong findings that is expected at most.
FALSE_SHARE = 0.05
TURNS = 2
PLAN = Plan(search_rounds=2, confirm_rounds=24, finalists=3, search_seconds=1.0, confirm_seconds=0.5)
#: Flagged problems get this many further turns of this many rounds.
AGAIN_TURNS, AGAIN_ROUNDS = 3, 32
#: A child that sends nothing for this long is hung: operands and references of the largest problems take seconds.
HANG_LIMIT_S = 60.0
OLD, NEW, TWIN = range(3)
#: Verdicts that mean that NEW is broken, and those that say nothing.
BROKEN, SILENT = ("wrong", "failed"), ("skipped",)


@dataclass
class Pair:
    """One problem and its two kernels: what each set says of it (see set_child.describe), and what was measured.

    `verdict`: slower, faster, same, identical (the same code and launch: not measured), wrong (results), failed
    (compiler, crash, hang) or skipped (one of the sets has no such kernel); `error` says why.
    """

    problem: Any
    old: dict
    new: dict
    verdict: str = ""
    error: str | None = None
    times_us: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    fresh_from: int | None = None  # the first sample of the turns that decide about a flagged problem

    def ratios(self, entry: int, first: int | None = 0) -> list[float]:
        """Return the ratios of an entry's times to those of the old kernel in the same rounds."""
        return statistics.paired_ratios(self.times_us[entry][first:], self.times_us[OLD][first:])

    @property
    def noise(self) -> float:
        """Return how far equal kernels are apart."""
        return statistics.measure_noise(self.ratios(TWIN))

    @property
    def threshold(self) -> float:
        """Return the smallest difference that counts."""
        return max(MIN_DIFFERENCE, self.noise)

    def test(self, sign: int, first: int | None = 0) -> float:
        """Return the p-value of new being slower (sign 1) or faster (sign -1) than old by more than the threshold."""
        ratios = self.ratios(NEW, first)
        if sign > 0:
            return statistics.sign_test(ratios, 1.0 + self.threshold)
        return statistics.sign_test([1.0 / ratio for ratio in ratios], 1.0 + self.threshold)


def make_pair(problem, old: dict, new: dict, is_same_host: bool, identical_too: bool = False) -> Pair:
    """Return the pair of one problem, with its verdict where there is nothing to measure.

    Args:
        is_same_host: both sets launch by the same native module, so that equal kernels run equally.
        identical_too: measure these, too.
    """
    pair = Pair(problem, old, new)
    for name, side in (("old", old), ("new", new)):
        if side["status"] != "ok":
            pair.verdict = "skipped" if side["status"] == "illegal" else "failed"
            pair.error = f"{name}: {side['error']}"
            return pair
    if old["kernel"] == new["kernel"] and old["config"] == new["config"] and is_same_host and not identical_too:
        pair.verdict = "identical"
    return pair


def has_own_bits(problem, config: dict) -> bool:
    """Return whether another config may round differently: a split of K, and the tile of attention logits."""
    from deep_gemm.fields import OP_KINDS

    return config.get("split_k", 1) > 1 or OP_KINDS[problem.op].is_logits


class Duel:
    """One comparison. `worker` measures; `any_bits`: results need not be equal to the bit, only right.

    `on_event(done, total)` reports progress.
    """

    def __init__(
        self,
        worker,
        pairs: list[Pair],
        any_bits: bool = False,
        workload: str = "spread",
        seed: int = 0,
        turns: int = TURNS,
        on_event: Callable[[int, int], None] = lambda done, total: None,
    ):
        self.worker, self.pairs, self.any_bits, self.on_event = worker, pairs, any_bits, on_event
        self.workload, self.seed, self.turns = workload, seed, turns

    def run(self) -> None:
        """Measure every open pair and give it a verdict. Raises: DeviceRetired."""
        self.measure(self.open_pairs(), range(self.turns), PLAN)
        flagged = self.find_flagged()
        for pair in flagged:
            pair.fresh_from = len(pair.times_us[OLD])
        again = range(self.turns, self.turns + AGAIN_TURNS)
        self.measure(flagged, again, replace(PLAN, confirm_rounds=AGAIN_ROUNDS))
        self.decide([pair for pair in flagged if not pair.verdict])
        for pair in self.open_pairs():
            pair.verdict = "same"

    def open_pairs(self) -> list[Pair]:
        """Return the pairs without a verdict."""
        return [pair for pair in self.pairs if not pair.verdict]

    def find_flagged(self) -> list[Pair]:
        """Return the pairs whose kernels seem to differ."""
        pairs = self.open_pairs()
        chances = [min(pair.test(1), pair.test(-1)) * 2.0 for pair in pairs]
        return [
            pair
            for pair, chance in zip(pairs, statistics.adjust_for_many(chances), strict=True)
            if chance <= FALSE_SHARE
        ]

    def decide(self, flagged: list[Pair]) -> None:
        """Give flagged pairs their verdict by their new rounds."""
        for sign, verdict in ((1, "slower"), (-1, "faster")):
            chances = statistics.adjust_for_many([pair.test(sign, pair.fresh_from) for pair in flagged])
            for pair, chance in zip(flagged, chances, strict=True):
                if chance <= FALSE_SHARE:
                    pair.verdict = verdict

    def measure(self, pairs: list[Pair], turns: Iterable[int], plan: Plan) -> None:
        """Measure pairs, all of them in each turn."""
        jobs = [(turn, pair) for turn in turns for pair in pairs]
        for number, (turn, pair) in enumerate(jobs):
            if not pair.verdict:
                self.measure_one(pair, turn, plan)
            self.on_event(number + 1, len(jobs))

    def measure_one(self, pair: Pair, turn: int, plan: Plan) -> None:
        """Measure a pair once; a wrong result, a crash or a hang is its verdict."""
        job = make_sets_job(pair.problem, self.make_entries(pair), plan, self.seed, self.workload, turn)
        try:
            report = self.worker.run(job, HANG_LIMIT_S)
        except WorkerFailure as failure:
            is_wrong = failure.kind == "reference"
            pair.verdict = "wrong" if is_wrong else "failed"
            blamed = {NEW: "new: "}.get(failure.config, "old: ") if failure.config is not None else ""
            pair.error = f"{blamed}{failure.kind}: {failure}"
            return
        for row in report["results"]:
            if row["status"] not in TIMED:
                pair.verdict, side = "wrong", "new" if row["config"] == NEW else "old"
                pair.error = f"{side}: {row.get('error') or row['status']}"
            elif row["role"] == "confirm":
                pair.times_us[row["config"]] += row["samples"]

    def make_entries(self, pair: Pair) -> list[Entry]:
        """Return the entries of a job: OLD, NEW and TWIN."""
        is_exact = pair.old["config"] == pair.new["config"] or not any(
            has_own_bits(pair.problem, side["config"]) for side in (pair.old, pair.new)
        )

        def make_entry(number: int, side: dict, has_same_bits: bool) -> Entry:
            return Entry(number, json.dumps(side["config"]), side["kernel"], side["symbol"], has_same_bits)

        return [
            make_entry(0, pair.old, True),
            make_entry(1, pair.new, is_exact and not self.any_bits),
            make_entry(0, pair.old, True),
        ]
