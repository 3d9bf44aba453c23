"""The race: what is dropped, and on how many samples."""

import itertools
import math
from dataclasses import replace

import pytest

from deep_gemm import _C
from tuner.measure.race import Check, Entrant, Race, is_slow
from tuner.measure.records import Report
from tuner.measure.simulated import SimulatedTimer
from tuner.search.problem_run import EFFORTS

DEVICE = _C.Device.known("h200")
PROBLEM = _C.Problem("fp8_gemm", 512, 4096, 7168)
#: The reference, and two more that take as long or much longer.
SAME, SLOW = 1, 2
#: Times of the three: above what a single launch says anything about.
TIMES_US = [100.0, 100.0, 900.0]


class HeldUpTimer(SimulatedTimer):
    """Times as planted; a checked launch takes longer as often as `held_up` says, {config: launches}."""

    def __init__(self, held_up: dict[int, int], wrong: dict[int, int] | None = None):
        super().__init__(PROBLEM, _C.get_candidates(PROBLEM, DEVICE)[:3], DEVICE, 0)
        self.times_us, self.held_up, self.wrong = TIMES_US, dict(held_up), wrong or {}
        self.checks = [0, 0, 0]

    def check(self, index: int) -> Check:
        self.checks[index] += 1
        if self.checks[index] == self.wrong.get(index):
            return Check("incorrect", error="planted")
        factor = 9.0 if self.checks[index] <= self.held_up.get(index, 0) else 1.0
        return Check(quick_us=factor * self.times_us[index])


def run(timer: HeldUpTimer) -> dict:
    """Return {config: search result} of a race."""
    race = Race(timer, 3, EFFORTS["quick"], [], lambda stage, index: None)
    return {result.config: result for result in race.run().results if result.role == "search"}


def test_a_launch_that_was_held_up_drops_nothing():
    for launches in (1, 2):
        found = run(HeldUpTimer({SAME: launches}))
        assert found[SAME].status == "ok" and found[SAME].num_samples == EFFORTS["quick"].search_rounds


def test_what_is_always_slow_is_dropped_on_three_launches():
    timer = HeldUpTimer({})
    found = run(timer)
    assert found[SLOW].status == "censored" and found[SLOW].num_samples == 3 == timer.checks[SLOW]
    assert abs(found[SLOW].ratio - 9.0) < 1e-6 and timer.checks[SAME] == 2  # at the beginning and at the end


def test_a_slow_config_that_is_wrong_when_it_runs_again_is_wrong():
    found = run(HeldUpTimer({}, wrong={SLOW: 2}))
    assert found[SLOW].status == "incorrect" and found[SAME].status == "ok"


class ShortTimer(SimulatedTimer):
    """Three configs, too short for single launches to drop any. `times_us` are those of config `index`: of its checked
    launch, then of its rounds, of which the last one goes on. `num_timed` counts the rounds of each.
    """

    def __init__(self, times_us: list[float], index: int = SLOW):
        super().__init__(PROBLEM, _C.get_candidates(PROBLEM, DEVICE)[:3], DEVICE, 0)
        self.times_us, self.planned, self.index = [20.0, 19.0, 100.0], times_us, index
        self.num_timed = [0, 0, 0]

    def check(self, index: int) -> Check:
        return Check(quick_us=self.planned[0] if index == self.index else self.times_us[index])

    def time(self, sequence) -> list[float]:
        return [self.take(index) for index in sequence]

    def take(self, index: int) -> float:
        self.num_timed[index] += 1
        if index != self.index:
            return self.times_us[index]
        return self.planned[min(self.num_timed[index], len(self.planned) - 1)]


def race_short(timer: ShortTimer) -> dict:
    """Return {config: search result} of a race whose only finalists are the fastest one and the reference."""
    plan = replace(EFFORTS["quick"], finalists=1, confirm_rounds=0)
    results = Race(timer, 3, plan, [], lambda stage, index: None).run().results
    return {result.config: result for result in results if result.role == "search"}


def test_what_is_far_off_is_dropped_after_two_rounds_on_three_samples():
    timer = ShortTimer([100.0, 90.0, 95.0])
    found = race_short(timer)[SLOW]
    assert (found.status, found.num_samples, timer.num_timed) == ("censored", 3, [3, 3, 2])
    assert found.median_us == 95.0 and found.ratio == pytest.approx(95.0 / 20.0)


@pytest.mark.parametrize(
    "times_us, index",
    [
        ([45.0], SLOW),
        ([45.0, 100.0, 100.0], SLOW),
        ([100.0, 45.0, 100.0], SLOW),
        ([100.0, 100.0, 45.0, 100.0], SLOW),
        ([45.0, 19.0], SAME),
    ],
    ids=["near", "near when checked", "near at first", "near at last", "the best one was held up"],
)
def test_what_may_be_near_is_timed_in_a_third_round(times_us, index):
    timer = ShortTimer(times_us, index)
    found = race_short(timer)[SLOW]
    assert timer.num_timed == [3, 3, 3] and found.num_samples == 3


def test_one_round_drops_nothing_however_often_a_config_was_checked():
    best, other = (Entrant(index, quick=[time_us] * 3, search=[time_us]) for index, time_us in enumerate((1.0, 9.0)))
    assert not is_slow(other, best)
    for entrant in (best, other):
        entrant.search *= 2
    assert is_slow(other, best)


class PlacedTimer(SimulatedTimer):
    """Times as planted, by a factor longer in some parts of the confirmation: {(config, part): factor}."""

    def __init__(self, factors: dict[tuple[int, int], float]):
        super().__init__(PROBLEM, _C.get_candidates(PROBLEM, DEVICE)[:3], DEVICE, 0)
        self.times_us, self.factors = [100.0, 98.0, 101.0], factors
        self.parts = [0, 0, 0]
        self.prepared: list[tuple[int, int]] = []
        self.ran: list[int] = []

    def check(self, index: int) -> Check:
        return Check(quick_us=self.times_us[index])

    def prepare(self, index: int, part: int = 0) -> None:
        self.prepared.append((index, part))
        self.parts[index] = part

    def time(self, sequence) -> list[float]:
        self.ran += sequence
        return [self.times_us[index] * self.factors.get((index, self.parts[index]), 1.0) for index in sequence]


def race_placed(factors: dict[tuple[int, int], float], **plan: int) -> tuple[PlacedTimer, Report]:
    timer = PlacedTimer(factors)
    return timer, Race(timer, 3, replace(EFFORTS["quick"], **plan), [], lambda stage, index: None).run()


def find_ratio(report: Report, index: int) -> tuple[float, float, float]:
    (row,) = (row for row in report.results if row.role == "confirm" and row.config == index)
    return row.ratio, row.ratio_low, row.ratio_high


def test_each_part_of_the_confirmation_has_launches_of_its_own():
    timer, report = race_placed({})
    assert sorted(timer.prepared) == [(index, part) for index in range(3) for part in range(3)]
    assert report.confirm_rounds == 30 and report.spread == 0.0 and report.noise == 0.0
    timer, report = race_placed({}, confirm_parts=1)
    assert sorted(timer.prepared) == [(index, 0) for index in range(3)] and report.spread is None


def test_a_place_in_memory_decides_nothing_and_is_part_of_the_interval():
    """With one part, a config would have been taken for a tenth slower by where its operands happened to lie."""
    _, report = race_placed({(SAME, 1): 1.1})
    assert find_ratio(report, SAME) == pytest.approx((0.98, 0.98, 0.98 * 1.1))
    assert find_ratio(report, SLOW) == pytest.approx((1.01, 1.01, 1.01))
    logs = [0.0, math.log(1.1), 0.0]
    mean = sum(logs) / 3
    spread = math.sqrt(sum((log - mean) ** 2 for log in logs) / 4)  # of two configs with two degrees of freedom each
    assert report.spread == pytest.approx(spread) and report.noise == pytest.approx(spread / math.sqrt(3))


def test_rounds_are_divided_among_the_parts_and_none_is_lost():
    _, report = race_placed({}, confirm_rounds=11)
    assert report.confirm_rounds == 11
    _, report = race_placed({}, confirm_rounds=2)
    assert report.confirm_rounds == 2 and report.spread == 0.0
    _, report = race_placed({(SAME, 0): 2.0}, confirm_parts=0)
    assert report.confirm_rounds == 30 and find_ratio(report, SAME)[0] == pytest.approx(2 * 0.98)


def test_every_round_has_an_order_of_its_own():
    """What ran before a config lends it power and what the L2 holds: it must not be the same one each time."""
    timer = PlacedTimer({})
    Race(timer, 3, EFFORTS["quick"], [], lambda stage, index: None, has_twin=False).run()
    assert all(one != after for one, after in itertools.pairwise(timer.ran))
    before = [one for one, after in itertools.pairwise(timer.ran) if after == SLOW]
    assert 8 < before.count(0) < 25 and before.count(0) + before.count(SAME) == len(before) > 30
    timer, _ = race_placed({})  # the reference runs a second time in confirmation rounds
    assert all(one != after for one, after in itertools.pairwise(timer.ran))
