"""Clocks that drift or are throttled, and another tenant of the GPU: a disturbed time never wins, and noise is said."""

import json
import random

import pytest

from deep_gemm import _C
from tests.fakes.in_process_worker import InProcessWorker
from tests.fakes.sweeps import read_all, run_sweep
from tuner import cli
from tuner.measure.simulated import SimulatedTimer, simulate_time_us

DEVICE = _C.Device.known("h200")
PROBLEMS = [_C.Problem("fp8_gemm", m, n, k) for m, n, k in ((64, 2112, 7168), (333, 512, 1024))]
#: Rounds of the race are about this many launches in all.
NUM_LAUNCHES = 1500
#: Beyond this, `db audit` calls a block noisy.
MAX_NOISE = 0.02


class Disturbance:
    """By how much a launch takes longer than on a quiet GPU, from the launches before it."""

    def __init__(self, kind: str, seed: int):
        self.kind, self.count, self.random = kind, 0, random.Random(seed)

    def __call__(self) -> float:
        self.count += 1
        return getattr(self, self.kind)(self.count / NUM_LAUNCHES)

    def quiet(self, share: float) -> float:
        return 1.0

    def drifting(self, share: float) -> float:
        """The clocks sink by a quarter."""
        return 1.0 + share / 3.0

    def throttled(self, share: float) -> float:
        """The board alternates between full and two thirds of its clock, for a hundred launches each."""
        return 1.5 if self.count // 100 % 2 else 1.0

    def shared(self, share: float) -> float:
        """Another tenant slows every fourth launch to up to three times its time."""
        return self.random.uniform(1.0, 3.0) if self.random.random() < 0.25 else 1.0

    def crowded(self, share: float) -> float:
        """Other tenants slow every launch, each by another factor."""
        return self.random.uniform(1.0, 2.0)


class DisturbedTimer(SimulatedTimer):
    """Simulated times on such a GPU."""

    disturb: Disturbance

    def time(self, sequence) -> list[float]:
        return [time_us * self.disturb() for time_us in super().time(sequence)]


def sweep(path, kind: str, seed: int) -> tuple[list, list]:
    """Sweep the problems on a disturbed GPU; return all rows and the winners."""
    worker, disturb = InProcessWorker(), Disturbance(kind, seed)

    def make_timer(problem, configs: list, seed: int) -> SimulatedTimer:
        timer = DisturbedTimer(problem, configs, DEVICE, seed)
        timer.disturb = disturb
        return timer

    worker.backend.make_timer = make_timer
    run_sweep(path, PROBLEMS, worker, configs=_C.get_candidates(PROBLEMS[0], DEVICE)[::4])
    return read_all(path)


def behind(problem, config, rows) -> float:
    """Return how much slower a config really is than the fastest of those measured, as a ratio."""
    fastest = min(simulate_time_us(problem, row.config, DEVICE) for row in rows)
    return simulate_time_us(problem, config, DEVICE) / fastest


#: How much slower than the fastest the config may be that a sweep finds.
KINDS = {"quiet": 1.01, "drifting": 1.01, "throttled": 1.01, "shared": 1.02, "crowded": 1.25}
#: All with 20 seeds with --full.
CASES = [("throttled", 0), ("crowded", 0)]
CASES += [pytest.param(kind, seed, marks=pytest.mark.full) for kind in KINDS for seed in range(1, 21)]


@pytest.mark.usefixtures("few_sources")
@pytest.mark.parametrize("kind, seed", CASES)
def test_a_disturbed_time_never_wins_and_noise_is_said(tmp_path, capsys, kind, seed):
    path = tmp_path / "tuning.db"
    rows, best = sweep(path, kind, seed)
    noisy = []
    for winner in best:
        mine = [row for row in rows if row.block.problem_key == winner.problem_key]
        problem, noise = mine[0].block.problem, mine[0].block.noise
        assert behind(problem, winner.config, mine) <= KINDS[kind]
        assert min(behind(problem, config, mine) for config in winner.tie_set) <= 1.005 + noise
        noisy += [problem.m] if noise > MAX_NOISE else []
    assert len(noisy) == len(PROBLEMS) if kind == "crowded" else kind == "shared" or not noisy
    assert cli.run(["db", "audit", "--db", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["ops"]["fp8_gemm"]
    assert sorted(entry["problem"]["m"] for entry in found["noisy"]) == sorted(noisy)
