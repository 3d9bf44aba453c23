"""Race the configs of one problem: check, time in interleaved rounds, drop the slow, confirm the few that matter.

Independent of CUDA: a Timer launches and times; the race decides what to launch next. Config 0 is the reference (the
heuristic's pick): it runs in every round and every other time is judged by its ratio to it in the same round. The
rounds that choose (search) and the rounds that score (confirmation) are different rounds, so that the winner's score is
unbiased.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tuner.measure import statistics

#: Single launches shorter than this carry too much launch latency to drop a config by (host time per launch is a few
#: us).
QUICK_MIN_US = 50.0
#: A single launch this much slower than the fastest one is enough to drop a config without any round.
QUICK_DROP_RATIO = 2.5
#: Rounds advance the starting config by this many places, and odd rounds run backwards, so that neighbours change.
ROTATION = 7
#: Items queued before the host waits: the device never idles, and a hang is noticed within this many replays.
BATCH_ITEMS = 96
#: The configs that must be confirmed may exceed the plan's confirm_seconds by this factor before rounds are cut, to no
#: fewer than 10.
CONFIRM_OVERRUN = 8.0
MIN_CONFIRM_ROUNDS = 10


@dataclass
class Check:
    """Outcome of one checked launch: status `ok`, `incorrect`, `skipped` or `compile_error`; time of that one launch."""

    status: str = "ok"
    quick_us: float | None = None
    max_abs_error: float | None = None
    error: str | None = None


class Timer(Protocol):
    """What a race needs of a device. An index names a config of the job."""

    def check(self, index: int) -> Check:
        """Launch once into a poisoned D and compare; the reference (index 0) is checked against dequantised operands."""

    def prepare(self, index: int) -> None:
        """Make `index` ready for `time` (capture its graph)."""

    def time(self, sequence: Sequence[int]) -> list[float]:
        """Run the configs of `sequence` back to back; return microseconds per launch, one for each entry."""

    def launches(self, index: int) -> int:
        """Return the number of launches of one entry of `time`."""


class ReferenceFailed(Exception):
    """The reference config itself did not pass its check, so nothing can be compared with it."""

    def __init__(self, check: Check):
        super().__init__(check.error or check.status)
        self.check = check


@dataclass
class Entrant:
    """One config in the race."""

    index: int
    check: Check = field(default_factory=Check)
    is_dropped: bool = False
    search: list[float] = field(default_factory=list)
    confirm: list[float] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        """Whether the config is right and still in the race."""
        return self.check.status == "ok" and not self.is_dropped


class Race:
    """One race over `count` configs; `progress(stage, index)` is called before anything that could hang or crash."""

    def __init__(
        self,
        timer: Timer,
        count: int,
        plan: dict,
        must_confirm: Sequence[int],
        progress: Callable[[str, int | None], None],
    ):
        self.timer, self.plan, self.progress = timer, plan, progress
        self.entrants = [Entrant(index) for index in range(count)]
        self.must_confirm = {0, *must_confirm}
        self.twin: list[float] = []  # the reference once more per confirmation round: what equal configs differ by
        self.finalists: set[int] = set()
        self.seconds: dict[str, float] = {}

    def run(self) -> dict:
        """Run the race and return its report. Raises: ReferenceFailed; whatever the timer raises."""
        for stage in (self.check_all, self.prepare_all, self.run_search, self.run_confirmation, self.recheck):
            start = time.monotonic()
            stage()
            self.seconds[stage.__name__] = round(time.monotonic() - start, 4)
        return self.make_report()

    def check_all(self) -> None:
        """Check every config once; drop those whose single launch is hopelessly slow."""
        for entrant in self.entrants:
            self.progress("check", entrant.index)
            entrant.check = self.timer.check(entrant.index)
            if entrant.index == 0 and entrant.check.status != "ok":
                raise ReferenceFailed(entrant.check)
        alive = [entrant for entrant in self.entrants if entrant.is_alive and entrant.check.quick_us]
        fastest = min((entrant.check.quick_us for entrant in alive), default=0.0)
        for entrant in alive:
            slow = entrant.check.quick_us > QUICK_DROP_RATIO * max(fastest, QUICK_MIN_US)
            entrant.is_dropped = slow and entrant.index not in self.must_confirm

    def prepare_all(self) -> None:
        """Make every survivor ready for timing."""
        for entrant in self.alive():
            self.progress("prepare", entrant.index)
            self.timer.prepare(entrant.index)

    def alive(self) -> list[Entrant]:
        """Return the configs still in the race."""
        return [entrant for entrant in self.entrants if entrant.is_alive]

    def run_search(self) -> None:
        """Run search rounds, dropping after each; stop early when the plan's search_seconds are over."""
        end = time.monotonic() + self.plan["search_seconds"]
        for number in range(self.plan["search_rounds"]):
            order = rotate(self.alive(), number)
            times = self.run_sequence("search", [entrant.index for entrant in order])
            for entrant, time_us in zip(order, times, strict=True):
                entrant.search.append(time_us)
            self.drop_slow()
            if time.monotonic() > end:
                break

    def drop_slow(self) -> None:
        """Drop what is hopeless beside the fastest so far; the reference, what must be confirmed and the first few
        stay.
        """
        ranked = sorted(self.alive(), key=lambda entrant: statistics.median(entrant.search))
        for entrant in ranked[self.plan["finalists"] :]:
            ratios = statistics.paired_ratios(entrant.search, ranked[0].search)
            entrant.is_dropped = entrant.index not in self.must_confirm and statistics.is_hopeless(ratios)

    def run_confirmation(self) -> None:
        """Time finalists in paired rounds that no choice depends on; the reference runs twice a round."""
        if not self.plan["confirm_rounds"]:
            return
        chosen = self.choose_finalists()
        slots = [(entrant.index, entrant.confirm) for entrant in chosen] + [(0, self.twin)]
        rounds = self.choose_rounds(chosen)
        per_batch = 1 if self.plan["isolate"] else max(BATCH_ITEMS // len(slots), 1)
        for start in range(0, rounds, per_batch):
            batch = [slot for number in range(start, min(start + per_batch, rounds)) for slot in rotate(slots, number)]
            times = self.run_sequence("confirm", [index for index, _ in batch])
            for (_, samples), time_us in zip(batch, times, strict=True):
                samples.append(time_us)

    def choose_finalists(self) -> list[Entrant]:
        """Return the fastest of the search, what must be confirmed, then more survivors while the plan's time allows."""
        ranked = sorted(self.alive(), key=lambda entrant: statistics.median(entrant.search))
        wanted = {entrant.index for entrant in ranked[: self.plan["finalists"]]} | self.must_confirm
        self.finalists = {entrant.index for entrant in ranked if entrant.index in wanted}
        chosen = [entrant for entrant in ranked if entrant.index in wanted]
        for entrant in ranked:
            if entrant.index in wanted:
                continue
            if self.estimate_seconds([*chosen, entrant]) > self.plan["confirm_seconds"]:
                break
            chosen.append(entrant)
        return chosen

    def estimate_seconds(self, chosen: list[Entrant]) -> float:
        """Return the time that the plan's confirmation rounds of `chosen` and the reference's twin take."""
        one_round_us = sum(
            statistics.median(entrant.search) * self.timer.launches(entrant.index)
            for entrant in [*chosen, self.entrants[0]]
        )
        return self.plan["confirm_rounds"] * one_round_us * 1e-6

    def choose_rounds(self, chosen: list[Entrant]) -> int:
        """Return the number of confirmation rounds: the plan's, fewer only where very long kernels would take too much
        time.
        """
        wanted = self.plan["confirm_rounds"]
        affordable = int(
            wanted * CONFIRM_OVERRUN * self.plan["confirm_seconds"] / max(self.estimate_seconds(chosen), 1e-9)
        )
        return min(wanted, max(affordable, MIN_CONFIRM_ROUNDS))

    def run_sequence(self, stage: str, sequence: list[int]) -> list[float]:
        """Time a sequence; in isolation one entry at a time, so that a fault can be blamed on its config."""
        if self.plan["isolate"]:
            return [time_us for index in sequence for time_us in self.run_one(stage, index)]
        self.progress(stage, None)
        return self.timer.time(sequence)

    def run_one(self, stage: str, index: int) -> list[float]:
        """Time one entry by itself."""
        self.progress(stage, index)
        return self.timer.time([index])

    def recheck(self) -> None:
        """Check every config that may rank once more after timing: right then wrong is wrong."""
        for entrant in self.alive():
            self.progress("recheck", entrant.index)
            again = self.timer.check(entrant.index)
            if again.status != "ok":
                entrant.check = again
        if not self.entrants[0].is_alive:
            raise ReferenceFailed(self.entrants[0].check)

    def make_report(self) -> dict:
        """Return rows (one per config and role) and what is stored beside them."""
        rows = [self.search_row(entrant) for entrant in self.entrants]
        rows += [self.confirm_row(entrant) for entrant in self.entrants if entrant.confirm]
        reference = self.entrants[0].confirm or self.entrants[0].search
        return {
            "rows": rows,
            "search_rounds": len(self.entrants[0].search),
            "confirm_rounds": len(self.twin),
            "noise": (
                statistics.measure_noise(statistics.paired_ratios(self.twin, self.entrants[0].confirm))
                if self.twin
                else 0.0
            ),
            "reference_us": statistics.median(reference),
            "seconds": self.seconds,
        }

    def search_row(self, entrant: Entrant) -> dict:
        """Return the search row: rounds where there were any, else the single checked launch."""
        row = {
            "config": entrant.index,
            "role": "search",
            "status": entrant.check.status,
            "error": entrant.check.error,
            "max_abs_error": entrant.check.max_abs_error,
        }
        if entrant.check.status != "ok":
            return row
        row["status"] = "censored" if entrant.is_dropped else "ok"
        if entrant.search:
            return row | describe(entrant.search, self.entrants[0].search[: len(entrant.search)])
        return row | describe([entrant.check.quick_us], [self.entrants[0].check.quick_us])

    def confirm_row(self, entrant: Entrant) -> dict:
        """Return the confirmation row; finalists keep their samples, in round order, so that pairing can be recomputed."""
        row = {"config": entrant.index, "role": "confirm", "status": entrant.check.status, "error": entrant.check.error}
        if entrant.check.status != "ok":
            return row
        samples = [round(sample, 4) for sample in entrant.confirm] if entrant.index in self.finalists else None
        return row | describe(entrant.confirm, self.entrants[0].confirm) | {"samples": samples}


def rotate(entries: list, number: int) -> list:
    """Return `entries` in the order of round `number`."""
    start = number * ROTATION % max(len(entries), 1)
    order = entries[start:] + entries[:start]
    return order[::-1] if number % 2 else order


def describe(samples: list[float], reference: list[float]) -> dict:
    """Return the statistics of a row: times, and the ratio to the reference with its interval."""
    ratios = statistics.paired_ratios(samples, reference)
    low, high = statistics.median_interval(ratios)
    return statistics.summarize(samples) | {"ratio": statistics.median(ratios), "ratio_low": low, "ratio_high": high}
