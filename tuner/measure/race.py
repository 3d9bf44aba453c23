"""Race the configs of one problem: check, time in interleaved rounds, drop the slow, confirm the few that matter.

The race does not depend on CUDA: a Timer launches and times, the race decides what to launch next. Config 0 is the
reference, which is the heuristic's pick. It runs in every round, and every other time is judged by its ratio to the
reference in the same round. Search rounds choose and confirmation rounds score; no round does both, so that the
winner's score is unbiased.

The order of a round is drawn: what ran before a config, and so its power and what the L2 holds, is another one each
time. Confirmation has several parts, each with its launches captured anew, where possible over other places in memory.
Of equal configs whose blocks were measured at once, ratios differed by a standard deviation of 1.2 % on an H100, by 1.4
% where other problems came in between: the rounds of one part say less than their number.
"""

import itertools
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tuner.measure import statistics
from tuner.measure.records import Plan, Report, Result

#: Below this, single launches say too little to drop a config: they contain a few microseconds of the host's time.
QUICK_MIN_US = 50.0
#: How often the order of a round is drawn until no config follows itself; with few configs it may have to.
DRAWS = 64
#: Replays queued before the host waits: enough to keep the device busy, few enough to notice a hang soon.
BATCH_ITEMS = 96
#: Confirmation may exceed the plan's confirm_seconds by this factor. Beyond it rounds are cut, to MIN_CONFIRM_ROUNDS.
CONFIRM_OVERRUN = 8.0
MIN_CONFIRM_ROUNDS = 10


@dataclass
class Check:
    """Outcome of one checked launch: status `ok`, `incorrect`, `skipped` or `compile_error`, and its time."""

    status: str = "ok"
    quick_us: float | None = None
    max_abs_error: float | None = None
    error: str | None = None


class Timer(Protocol):
    """What a race needs of a device. Configs are named by their index in the job."""

    def check(self, index: int) -> Check:
        """Launch once into a poisoned D and compare the result; index 0 is compared with dequantised operands."""

    def prepare(self, index: int, part: int = 0) -> None:
        """Make `index` ready for `time`, which means to capture its graph; each part begins at another place."""

    def time(self, sequence: Sequence[int]) -> list[float]:
        """Run the configs of `sequence` back to back; return microseconds per launch for each entry."""

    def launches(self, index: int) -> int:
        """Return the number of launches of one entry of `time`."""


class ReferenceFailed(Exception):
    """The reference config did not pass its check, so nothing can be compared with it."""

    def __init__(self, check: Check):
        super().__init__(check.error or check.status)
        self.check = check


@dataclass
class Entrant:
    """One config in the race."""

    index: int
    check: Check = field(default_factory=Check)
    quick: list[float] = field(default_factory=list)  # times of checked launches
    is_dropped: bool = False
    search: list[float] = field(default_factory=list)
    confirm: list[float] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        """Return whether the config is right and still in the race."""
        return self.check.status == "ok" and not self.is_dropped

    @property
    def samples(self) -> list[float]:
        """Return the times of the checked launches and of the search rounds."""
        return [*self.quick, *self.search]


class Race:
    """One race over `count` configs; it calls `progress(stage, index)` before everything that could hang or crash."""

    def __init__(
        self,
        timer: Timer,
        count: int,
        plan: Plan,
        must_confirm: Sequence[int],
        progress: Callable[[str, int | None], None],
        order: Callable[[list, int], list] | None = None,
        has_twin: bool = True,
    ):
        self.timer, self.plan, self.progress = timer, plan, progress
        self.order = order or Shuffler(0)  # (entries, number of the round) -> the entries as that round runs them
        self.entrants = [Entrant(index) for index in range(count)]
        self.must_confirm = {0, *must_confirm}
        self.has_twin = has_twin  # the reference runs a second time in each round
        self.twin: list[float] = []  # the times of that run: how much equal configs differ
        self.finalists: set[int] = set()
        self.ends: list[int] = []  # after how many confirmation rounds each part ended
        self.seconds: dict[str, float] = {}

    def run(self) -> Report:
        """Run the race and return its report. Raises: ReferenceFailed, and what the timer raises."""
        self.run_stages(self.check_all, self.prepare_all, self.run_search, self.run_confirmation, self.recheck)
        return self.make_report()

    def run_stages(self, *stages: Callable[[], None]) -> None:
        """Run stage after stage, and note the seconds of each."""
        for stage in stages:
            start = time.monotonic()
            stage()
            self.seconds[stage.__name__] = round(time.monotonic() - start, 4)

    def check_all(self) -> None:
        """Check every config once, and again those whose launch was very slow; drop those that stay so, without a
        round.
        """
        for entrant in self.entrants:
            self.check(entrant)
            if entrant.index == 0 and entrant.check.status != "ok":
                raise ReferenceFailed(entrant.check)
        fastest = min((entrant.quick[0] for entrant in self.alive() if entrant.quick), default=0.0)
        limit = statistics.FAR_RATIO * max(fastest, QUICK_MIN_US)
        slow = [entrant for entrant in self.alive() if entrant.quick and entrant.index not in self.must_confirm]
        slow = [entrant for entrant in slow if entrant.quick[0] > limit]
        for _ in range(statistics.LEAST_SAMPLES - 1):
            for entrant in slow:
                self.check(entrant)
            # The fastest launch counts: one can be held up, but not hurried.
            slow = [entrant for entrant in slow if entrant.is_alive and min(entrant.quick) > limit]
        for entrant in slow:
            entrant.is_dropped = True

    def check(self, entrant: Entrant) -> None:
        """Launch a config once, compare its result and remember its time."""
        self.progress("check", entrant.index)
        entrant.check = self.timer.check(entrant.index)
        if entrant.check.status == "ok" and entrant.check.quick_us:
            entrant.quick.append(entrant.check.quick_us)

    def prepare_all(self) -> None:
        """Make every survivor ready for timing."""
        for entrant in self.alive():
            self.progress("prepare", entrant.index)
            self.timer.prepare(entrant.index)

    def alive(self) -> list[Entrant]:
        """Return the configs still in the race."""
        return [entrant for entrant in self.entrants if entrant.is_alive]

    def run_search(self) -> None:
        """Run search rounds and drop slow configs after each; stop when the plan's search_seconds are over."""
        end = time.monotonic() + self.plan.search_seconds
        for number in range(self.plan.search_rounds):
            order = self.order(self.alive(), number)
            times = self.run_sequence("search", [entrant.index for entrant in order])
            for entrant, time_us in zip(order, times, strict=True):
                entrant.search.append(time_us)
            self.drop_slow()
            if time.monotonic() > end:
                break

    def drop_slow(self) -> None:
        """Drop configs that are hopeless beside the fastest one; finalists and what must be confirmed stay."""
        ranked = sorted(self.alive(), key=lambda entrant: statistics.median(entrant.search))
        for entrant in ranked[self.plan.finalists :]:
            entrant.is_dropped = entrant.index not in self.must_confirm and is_slow(entrant, ranked[0])

    def run_confirmation(self) -> None:
        """Time finalists in rounds that no choice depends on; the reference runs twice in each."""
        if not self.plan.confirm_rounds:
            return
        chosen = self.choose_finalists()
        slots = [(entrant.index, entrant.confirm) for entrant in chosen]
        slots += [(0, self.twin)] if self.has_twin else []
        rounds = self.choose_rounds(chosen)
        parts = max(min(self.plan.confirm_parts, rounds), 1)
        self.ends = [rounds * (part + 1) // parts for part in range(parts)]
        for part, (start, end) in enumerate(zip([0, *self.ends], self.ends, strict=False)):
            if part:
                self.prepare_again(chosen, part)
            self.run_rounds(slots, range(start, end))

    def prepare_again(self, chosen: list[Entrant], part: int) -> None:
        """Make finalists ready for another part of the confirmation."""
        for entrant in chosen:
            self.progress("prepare", entrant.index)
            self.timer.prepare(entrant.index, part)

    def run_rounds(self, slots: list[tuple[int, list[float]]], numbers: range) -> None:
        """Time confirmation rounds: each slot is an entry and where its times go."""
        per_batch = 1 if self.plan.isolate else max(BATCH_ITEMS // len(slots), 1)
        for start in range(numbers.start, numbers.stop, per_batch):
            some = range(start, min(start + per_batch, numbers.stop))
            batch = [slot for number in some for slot in self.order(slots, number)]
            times = self.run_sequence("confirm", [index for index, _ in batch])
            for (_, samples), time_us in zip(batch, times, strict=True):
                samples.append(time_us)

    def choose_finalists(self) -> list[Entrant]:
        """Return the fastest of the search and what must be confirmed, then more survivors as far as time allows."""
        ranked = sorted(self.alive(), key=lambda entrant: statistics.median(entrant.search))
        wanted = {entrant.index for entrant in ranked[: self.plan.finalists]} | self.must_confirm
        self.finalists = {entrant.index for entrant in ranked if entrant.index in wanted}
        chosen = [entrant for entrant in ranked if entrant.index in wanted]
        for entrant in ranked:
            if entrant.index in wanted:
                continue
            if self.estimate_seconds([*chosen, entrant]) > self.plan.confirm_seconds:
                break
            chosen.append(entrant)
        return chosen

    def estimate_seconds(self, chosen: list[Entrant]) -> float:
        """Return how long the plan's confirmation rounds and rests take for `chosen` and the reference's second run."""
        one_round_us = sum(
            statistics.median(entrant.search) * self.timer.launches(entrant.index)
            for entrant in [*chosen, self.entrants[0]]
        )
        return self.plan.confirm_rounds * one_round_us * 1e-6 * (1.0 + self.plan.rest)

    def choose_rounds(self, chosen: list[Entrant]) -> int:
        """Return the number of confirmation rounds: the plan's, or fewer where kernels are very long."""
        wanted, seconds = self.plan.confirm_rounds, max(self.estimate_seconds(chosen), 1e-9)
        affordable = int(wanted * CONFIRM_OVERRUN * self.plan.confirm_seconds / seconds)
        return min(wanted, max(affordable, MIN_CONFIRM_ROUNDS))

    def run_sequence(self, stage: str, sequence: list[int]) -> list[float]:
        """Time a sequence; in isolation one entry at a time, so that a fault can be blamed on its config."""
        if self.plan.isolate:
            return [time_us for index in sequence for time_us in self.run_one(stage, index)]
        self.progress(stage, None)
        return self.timer.time(sequence)

    def run_one(self, stage: str, index: int) -> list[float]:
        """Time one entry by itself."""
        self.progress(stage, index)
        return self.timer.time([index])

    def recheck(self) -> None:
        """Check the survivors again after timing: a config that was right once and then wrong is wrong."""
        for entrant in self.alive():
            self.progress("recheck", entrant.index)
            again = self.timer.check(entrant.index)
            if again.status != "ok":
                entrant.check = again
        if not self.entrants[0].is_alive:
            raise ReferenceFailed(self.entrants[0].check)

    def make_report(self) -> Report:
        """Return a result per config and role, and what belongs to the whole race."""
        reference = self.entrants[0].confirm or self.entrants[0].search
        noise = 0.0
        if self.twin:
            noise = statistics.measure_noise(statistics.paired_ratios(self.twin, self.entrants[0].confirm))
        spread = self.measure_spread()
        if spread is not None:  # what the rounds of one part cannot tell apart, their number does not change
            noise = max(noise, spread / math.sqrt(len(self.ends)))
        return Report(
            results=[
                *(self.search_result(entrant) for entrant in self.entrants),
                *(self.confirm_result(entrant) for entrant in self.entrants if entrant.confirm),
            ],
            search_rounds=len(self.entrants[0].search),
            confirm_rounds=len(self.entrants[0].confirm),
            noise=noise,
            spread=spread,
            reference_us=statistics.median(reference),
            seconds=self.seconds,
        )

    def measure_spread(self) -> float | None:
        """Return the standard deviation of a config's log ratio between the parts of the confirmation, pooled over the
        configs; None with one part.
        """
        base = self.entrants[0].confirm
        logs = [
            [math.log(ratio) for ratio in part_ratios(entrant.confirm, base, self.ends)]
            for entrant in self.entrants[1:]
            if entrant.confirm and entrant.is_alive
        ]
        return statistics.pool_deviations(logs) if logs and len(self.ends) > 1 else None

    def search_result(self, entrant: Entrant) -> Result:
        """Return the search result: of its rounds, and where these are none, or too few for a drop, of the checked
        launches, too.
        """
        check = entrant.check
        failed = Result(
            config=entrant.index,
            role="search",
            status=check.status,
            error=check.error,
            max_abs_error=check.max_abs_error,
        )
        if check.status != "ok":
            return failed
        reference = self.entrants[0]
        samples, base = entrant.search, reference.search[: len(entrant.search)]
        is_thin = not samples or (entrant.is_dropped and len(samples) < statistics.LEAST_SAMPLES)
        if is_thin and entrant.quick and reference.quick:
            samples, base = entrant.samples, [*reference.quick[:1] * len(entrant.quick), *base]
        return replace(failed, status="censored" if entrant.is_dropped else "ok", **describe(samples, base))

    def confirm_result(self, entrant: Entrant) -> Result:
        """Return the confirmation result; finalists keep their samples in round order, so that pairs can be formed."""
        failed = Result(config=entrant.index, role="confirm", status=entrant.check.status, error=entrant.check.error)
        if entrant.check.status != "ok":
            return failed
        samples = [round(sample, 4) for sample in entrant.confirm] if entrant.index in self.finalists else None
        return replace(failed, samples=samples, **describe(entrant.confirm, self.entrants[0].confirm, self.ends))


def is_slow(entrant: Entrant, best: Entrant) -> bool:
    """Return whether `entrant` may be dropped beside the fastest one, both timed in the same rounds."""
    if statistics.is_hopeless(statistics.paired_ratios(entrant.search, best.search)):
        return True
    return len(entrant.search) >= statistics.FAR_ROUNDS and statistics.is_far(entrant.samples, best.samples)


class Shuffler:
    """The order of rounds: random, the same for the same seed, and no config twice in a row, which would find its
    operands in the L2.
    """

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.last: int | None = None

    def __call__(self, slots: list, number: int) -> list:
        """Return the slots of a round (a pair that begins with the entry's index, or an Entrant) in its order."""
        for _ in range(DRAWS):
            order = self.random.sample(slots, len(slots))
            names = [self.last, *map(name_slot, order)]
            if all(name != after for name, after in itertools.pairwise(names)):
                break
        self.last = names[-1]
        return order


def name_slot(slot: Any) -> int:
    """Return the entry's index of a slot."""
    return slot[0] if isinstance(slot, tuple) else slot.index


def part_ratios(samples: list[float], reference: list[float], ends: Sequence[int]) -> list[float]:
    """Return the median ratio to the reference of each part; `ends`: after how many rounds each part ended."""
    ratios = statistics.paired_ratios(samples, reference)
    return [statistics.median(ratios[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def describe(samples: list[float], reference: list[float], ends: Sequence[int] = ()) -> dict:
    """Return the times of a Result, and the ratio to the reference with its interval.

    With several parts the ratio is the median of theirs, and the interval has all of them.
    """
    low, high = statistics.median_interval(statistics.paired_ratios(samples, reference))
    parts = part_ratios(samples, reference, ends or [len(samples)])
    ratio = {"ratio": statistics.median(parts), "ratio_low": min(low, *parts), "ratio_high": max(high, *parts)}
    return statistics.summarize(samples)._asdict() | ratio
