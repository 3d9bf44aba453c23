"""A measuring worker in this process: the same messages, simulated times, and faults that a test picks by config."""

import json
from typing import ClassVar, Self

from deep_gemm import _C
from tuner.measure import protocol
from tuner.measure.race import Check, ReferenceFailed
from tuner.measure.simulated import SimulatedBackend, SimulatedTimer
from tuner.measure.worker_client import WorkerFailure


class FaultyTimer(SimulatedTimer):
    """Simulated times with wrong results: `incorrect` configs fail the check, `turning` ones only the check after
    timing.
    """

    incorrect: ClassVar[set] = set()
    turning: ClassVar[set] = set()

    def __init__(self, problem, configs: list, device, seed: int):
        super().__init__(problem, configs, device, seed)
        self.configs, self.checked = configs, set()

    def check(self, index: int) -> Check:
        """Return the check that the test asked for."""
        config, is_second = self.configs[index], index in self.checked
        self.checked.add(index)
        wrong = config in self.incorrect or (config in self.turning and is_second)
        return Check("incorrect", error="D differs") if wrong else super().check(index)


class FaultyBackend(SimulatedBackend):
    """A simulated backend with faulty configs."""

    def make_timer(self, problem, configs: list, seed: int) -> FaultyTimer:
        """Return the timer of one job."""
        return FaultyTimer(problem, configs, self.device, seed)


class InProcessWorker:
    """Stands in for worker_client.MeasuringWorker.

    `crashing` and `hanging` are configs, `unexplained` whole problems.
    """

    def __init__(self, crashing=(), hanging=(), incorrect=(), turning=(), unexplained=(), on_job=lambda job: None):
        self.backend = FaultyBackend()
        self.crashing, self.hanging, self.unexplained, self.on_job = (
            set(crashing),
            set(hanging),
            set(unexplained),
            on_job,
        )
        FaultyTimer.incorrect, FaultyTimer.turning = set(incorrect), set(turning)
        self.jobs: list[dict] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def start(self) -> dict:
        """Return the hello."""
        return self.backend.hello()

    def run(self, job: dict, limit_s: float, on_progress=lambda stage: None) -> dict:
        """Run one job here."""
        assert limit_s >= 10.0
        job = json.loads(protocol.encode_message(job)[protocol.HEADER.size :])
        self.jobs.append(job)
        self.on_job(job)
        parsed = protocol.parse_job(job)
        self.fail_as_told(parsed.problem, parsed.configs)
        try:
            return json.loads(json.dumps(self.backend.run(job, lambda stage, config: None), allow_nan=False))
        except ReferenceFailed as error:
            raise WorkerFailure("reference", str(error), 0) from error

    def fail_as_told(self, problem: "_C.Problem", configs: list) -> None:
        """Raise the failure of the first faulty config, or of a problem that fails with no one to blame."""
        for index, config in enumerate(configs):
            if config in self.crashing or config in self.hanging:
                raise WorkerFailure("crash" if config in self.crashing else "timeout", "fault", index, "the log's end")
        if problem in self.unexplained:
            raise WorkerFailure("crash", "in a round", None)
