"""A GPU that runs kernels of two sets, simulated: the real race and the real messages on invented times.

A time is the simulated one of the config, times what a test plants for the set, times the board's slow drift, times a
bias of this graph in this turn (where its operands lie), times the noise of one replay. The spreads are those seen on
an H200: 0.4 % a replay, up to 0.2 % between two graphs of one kernel, clocks that wander by a percent.
"""

import json
import math
import random
from collections.abc import Callable

from deep_gemm import _C
from tuner.measure import protocol
from tuner.measure.race import Check, Race, ReferenceFailed
from tuner.measure.sets import parse_sets_job
from tuner.measure.simulated import NOISE_SPREAD, simulate_time_us
from tuner.measure.worker_client import WorkerFailure

GRAPH_SPREAD, DRIFT_SPREAD = 0.002, 0.0005
H200 = _C.Device.known("h200")


class SetsTimer:
    """The race's Timer; `plant(problem, entry)` is the factor of an entry's time, or a Check that it fails with."""

    def __init__(self, job, plant: Callable, seed: int):
        self.random = random.Random(f"{seed} {job.problem.key} {job.turn}")
        self.planted = [plant(job.problem, entry) for entry in job.configs]
        self.drift = 0.0
        self.times_us = [
            simulate_time_us(job.problem, _C.Config(**json.loads(entry.config)), H200)
            * (1.0 if isinstance(planted, Check) else planted)
            * math.exp(self.random.gauss(0.0, GRAPH_SPREAD))
            for entry, planted in zip(job.configs, self.planted, strict=True)
        ]

    def check(self, index: int) -> Check:
        """Return the check that was planted, else a passed one."""
        planted = self.planted[index]
        return planted if isinstance(planted, Check) else Check(quick_us=self.times_us[index])

    def prepare(self, index: int, part: int = 0) -> None:
        """Do nothing: there is no graph to capture."""

    def time(self, sequence) -> list[float]:
        """Return one noisy time per entry, while the clock drifts."""
        return [self.time_one(index) for index in sequence]

    def time_one(self, index: int) -> float:
        """Return one noisy time."""
        self.drift += self.random.gauss(0.0, DRIFT_SPREAD)
        return self.times_us[index] * math.exp(self.drift + self.random.gauss(0.0, NOISE_SPREAD))

    def launches(self, index: int) -> int:
        """Return the launches of one entry."""
        return 1


class SetsWorker:
    """Stands in for the MeasuringWorker of two sets; `crashing` are problems with which the process dies."""

    def __init__(self, plant: Callable = lambda problem, entry: 1.0, seed: int = 0, crashing=()):
        self.plant, self.seed, self.crashing = plant, seed, set(crashing)
        self.jobs: list[dict] = []

    def start(self) -> dict:
        """Return a hello."""
        from tuner.measure.simulated import SimulatedBackend

        return SimulatedBackend().hello()

    def __enter__(self) -> "SetsWorker":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def run(self, job: dict, limit_s: float) -> dict:
        """Run one job here, its messages encoded as they would travel."""
        job = json.loads(protocol.encode_message(job)[protocol.HEADER.size :])
        self.jobs.append(job)
        parsed = parse_sets_job(job)
        if parsed.problem in self.crashing:
            raise WorkerFailure("crash", "no reply (signal 11)", 1)
        timer = SetsTimer(parsed, self.plant, self.seed)
        options = (parsed.plan, parsed.must_confirm, lambda stage, index: None, parsed.order, parsed.has_twin)
        race = Race(timer, len(parsed.configs), *options)
        try:
            return json.loads(json.dumps(race.run().to_json(), allow_nan=False))
        except ReferenceFailed as error:
            raise WorkerFailure("reference", str(error), 0) from error


def make_side(config, kernel: str, **fields: object) -> dict:
    """Return what a set says of a problem, as set_child.describe does."""
    side = {"status": "ok", "error": None, "config": config.as_dict(with_defaults=False), "name": str(config)}
    side |= {"chosen_by": "given", "kernel": f"{kernel}.cubin", "symbol": "kernel", "registers": 168}
    return side | {"spill_bytes": 0, "local_bytes": 0, "shared_bytes": 1024} | fields
