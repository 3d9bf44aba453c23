"""Faults on the GPU, planted in measuring processes (F-W2): each is one failure that names the config to blame, the
process is replaced, its canary passes, and what it times next is within 2 % of what was timed before any fault.

A fresh process takes seconds to start, so each kind of fault has a process of its own, and they fail and start side by
side. They are timed one after the other, while no other works. The suite runs this section when all others are done.
"""

import functools
import time
from concurrent.futures import ThreadPoolExecutor

from deep_gemm import _C
from deep_gemm.selection import get_analytic_config
from tuner.measure.protocol import make_job
from tuner.measure.records import Plan
from tuner.measure.statistics import median
from tuner.measure.worker_client import DeviceRetired, MeasuringWorker, WorkerFailure

from .fault_backend import BLAMED
from .fault_kernels import FAULTS, HANG

BACKEND = "tests.gpu.fault_backend:FaultyBackend"
#: What the driver's error may be called where the kernel of a fault runs: by torch, which waits for the kernel, or by
#: the launch after it, see fault_backend.py.
SIGNS = {
    "illegal_address": ("illegal memory access", "CUDA_ERROR_ILLEGAL_ADDRESS"),
    "misaligned_address": ("misaligned address", "CUDA_ERROR_MISALIGNED_ADDRESS"),
    "illegal_instruction": ("illegal instruction", "CUDA_ERROR_ILLEGAL_INSTRUCTION"),
    "trap": ("unspecified launch failure", "CUDA_ERROR_LAUNCH_FAILED", "illegal instruction", "trap"),
    "shared_memory": ("CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_INVALID_CONFIGURATION"),
    HANG: ("no reply in time",),
}
TOLERANCE = 0.02
#: A timing that something else disturbed is repeated: what a fault left behind would disturb every one.
MAX_TIMINGS = 3
#: Seconds without a message: of a job, and of one that hangs.
LIMIT_S, HANG_LIMIT_S = 60.0, 4.0
#: What a failure may take beyond the limit of its job.
GRACE_S = 5.0
PROBLEM = {"op": "fp8_gemm", "m": 512, "n": 4096, "k": 7168}
PLAN = Plan(search_rounds=2, confirm_rounds=20, finalists=1, search_seconds=1.0, confirm_seconds=1.0)


class FaultyWorker(MeasuringWorker):
    """A measuring process that counts how often it was started."""

    num_starts = 0

    def launch(self) -> None:
        """Spawn the process."""
        self.num_starts += 1
        super().launch()


class Bench:
    """A measuring process for each fault, on one GPU, and what they timed before any."""

    def __init__(
        self,
        device,
        backend: str = BACKEND,
        environment: dict[str, str] | None = None,
        hang_limit_s: float = HANG_LIMIT_S,
    ):
        self.backend, self.environment, self.hang_limit_s = backend, environment, hang_limit_s
        problem = _C.Problem(**PROBLEM)
        configs = [get_analytic_config(problem, device)] * (BLAMED + 1)
        self.timed, self.faulty = (make_job(problem, configs[:count], [], PLAN, seed=1) for count in (1, BLAMED + 1))
        self.workers: dict[str, FaultyWorker] = {}
        self.baseline_us = 0.0
        # A measuring process dies with the thread that started it.
        self.pool = ThreadPoolExecutor(len(FAULTS))

    def start(self) -> None:
        """Start the processes, the first time, and take their baseline."""
        if not self.workers:
            self.workers = {fault: FaultyWorker(self.backend, self.environment) for fault in FAULTS}
            list(self.pool.map(FaultyWorker.start, self.workers.values()))
            self.baseline_us = median([self.time(fault) for fault in FAULTS])

    def stop(self) -> None:
        """End the processes."""
        for worker in self.workers.values():
            worker.stop()
        self.pool.shutdown()

    def time(self, fault: str) -> float:
        """Return the microseconds of a product in the process of a fault."""
        return float(self.workers[fault].run(self.timed, LIMIT_S)["reference_us"])

    def run_round(self) -> tuple[int, list[str]]:
        """Plant each fault once, and judge what comes of it."""
        self.start()
        failures = [found for found in self.pool.map(self.fail_and_replace, FAULTS) if found]
        failures += [found for found in map(self.judge_time, FAULTS) if found]
        return len(FAULTS), failures

    def fail_and_replace(self, fault: str) -> str:
        """Plant a fault and start the next process; return what is wrong, "" where nothing is."""
        worker = self.workers[fault]
        before, limit_s = worker.num_starts, self.hang_limit_s if fault == HANG else LIMIT_S
        failure = find_failure(worker, self.faulty | {"fault": fault}, limit_s)
        if isinstance(failure, str):
            return f"{fault}: {failure}"
        kind = "timeout" if fault == HANG else "crash"
        if (failure.kind, failure.config) != (kind, BLAMED):
            return f"{fault}: {failure.kind} of config {failure.config}, expected {kind} of {BLAMED}: {failure}"
        if not any(sign in str(failure) for sign in SIGNS[fault]):
            return f"{fault}: the error is another: {failure}"
        if worker.process is not None:
            return f"{fault}: the process was not ended"
        return self.replace(fault, before)

    def replace(self, fault: str, before: int) -> str:
        """Start the next process, whose canary must pass at once."""
        worker = self.workers[fault]
        try:
            worker.start()
        except DeviceRetired as error:
            return f"{fault}: {error}"
        starts = worker.num_starts - before
        return f"{fault}: {starts} starts before the canary passed" if starts != 1 else ""

    def judge_time(self, fault: str) -> str:
        """Time a product; return by how much it is off, "" where it is as before.

        The last time is that of one more process: where a product's operands lie may cost 2 % in one process, and what
        a fault left behind would disturb the next one, too.
        """
        found: list[float] = []
        try:
            for turn in range(MAX_TIMINGS):
                if turn == MAX_TIMINGS - 1:
                    self.workers[fault].stop()
                    self.workers[fault].start()
                found.append(self.time(fault))
                if abs(found[-1] / self.baseline_us - 1) <= TOLERANCE:
                    return ""
        except (WorkerFailure, DeviceRetired) as error:
            return f"after {fault}: the next job failed: {error}"
        return f"after {fault}: {min(found):.2f} us, before {self.baseline_us:.2f} us"


def find_failure(worker: MeasuringWorker, job: dict, limit_s: float) -> WorkerFailure | str:
    """Return the failure of a job that must fail, or what came of it instead."""
    heard = [time.monotonic()]
    try:
        worker.run(job, limit_s, lambda stage: heard.append(time.monotonic()))
    except WorkerFailure as failure:
        late_s = time.monotonic() - heard[-1] - limit_s
        return f"the failure came {late_s:.1f} s late" if late_s > GRACE_S else failure
    except DeviceRetired as error:
        return str(error)
    return "the job did not fail"


@functools.cache
def get_bench(device) -> Bench:
    """Return the bench of this process: all rounds share it."""
    return Bench(device)


def worker_fault_jobs(world) -> list:
    """Return the jobs: rounds with one fault of each kind."""
    return [(f"round {number}: all", lambda: get_bench(world.device).run_round()) for number in range(world.num_faults)]
