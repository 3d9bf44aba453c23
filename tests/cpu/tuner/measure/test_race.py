"""The race: what is dropped, and on how many samples."""

from deep_gemm import _C
from tuner.measure.race import Check, Race
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
