"""Noisy blocks are measured once more, and the quieter one is kept, with the failures of both."""

import math

import pytest

from deep_gemm import _C
from tests.fakes.in_process_worker import InProcessWorker
from tests.fakes.sweeps import read_all, run_sweep
from tuner.measure.race import Check
from tuner.measure.simulated import SimulatedTimer
from tuner.measure.statistics import MAX_NOISE

DEVICE = _C.Device.known("h200")
PROBLEM = _C.Problem("fp8_gemm", 64, 2112, 7168)
CONFIGS = _C.get_candidates(PROBLEM, DEVICE)[::8]


class PlannedTimer(SimulatedTimer):
    """Simulated times with noise of a given spread; configs of `wrong` are wrong."""

    def __init__(self, configs: list, spread: float, wrong: tuple):
        super().__init__(PROBLEM, configs, DEVICE, 0)
        self.configs, self.spread, self.wrong = configs, spread, wrong

    def check(self, index: int) -> Check:
        return Check("incorrect", error="planted") if self.configs[index] in self.wrong else super().check(index)

    def time(self, sequence) -> list[float]:
        return [self.times_us[index] * math.exp(self.random.gauss(0.0, self.spread)) for index in sequence]


def sweep(path, *attempts: dict) -> tuple[list, int]:
    """Sweep the problem; each attempt to measure it is as planned. Return the rows and the number of attempts."""
    worker, begun = InProcessWorker(), []

    def make_timer(problem, configs: list, seed: int) -> SimulatedTimer:
        plan = {"spread": 0.001, "wrong": ()} | attempts[min(len(begun), len(attempts) - 1)]
        begun.append(plan)
        return PlannedTimer(configs, **plan)

    worker.backend.make_timer = make_timer
    run_sweep(path, [PROBLEM], worker, configs=CONFIGS, sentinels=False, rests=False)
    return read_all(path)[0], len(begun)


NOISY, QUIET = {"spread": 0.3}, {"spread": 0.001}


@pytest.mark.usefixtures("few_sources")
@pytest.mark.parametrize("attempts, number", [((QUIET,), 1), ((NOISY, QUIET), 2), ((NOISY, {"spread": 0.9}), 2)])
def test_a_noisy_block_is_measured_once_more(tmp_path, attempts, number):
    rows, count = sweep(tmp_path / "a.db", *attempts)
    noise = {row.block.noise for row in rows}
    assert count == number and len(noise) == 1 and (noise.pop() <= MAX_NOISE) == (QUIET in attempts)


@pytest.mark.usefixtures("few_sources")
@pytest.mark.parametrize(
    "attempts", [({**NOISY, "wrong": CONFIGS[2:3]}, QUIET), (NOISY, {**QUIET, "wrong": CONFIGS[2:3]})]
)
def test_a_config_that_was_wrong_once_is_wrong(tmp_path, attempts):
    rows, _ = sweep(tmp_path / "a.db", *attempts)
    assert {row.status for row in rows if row.config == CONFIGS[2]} == {"incorrect"}
    assert {row.config for row in rows if row.status in ("ok", "censored")} >= set(CONFIGS) - {CONFIGS[2]}


@pytest.mark.usefixtures("few_sources")
def test_a_reference_that_fails_the_second_time_judges_nothing(tmp_path):
    heuristic = _C.get_analytic_config(PROBLEM, DEVICE)
    rows, _ = sweep(tmp_path / "a.db", NOISY, {**QUIET, "wrong": (heuristic,)})
    assert {row.status for row in rows if row.config == heuristic} == {"incorrect"}
    reference = next(row for row in rows if row.role == "confirm" and row.is_reference)
    assert reference.config != heuristic and reference.ratio == 1.0
