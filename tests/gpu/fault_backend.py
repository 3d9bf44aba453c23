"""The measuring process of the section `worker_faults`: tuner.measure.backend as it is, but that a job may name a
fault. Its kernel then runs in place of the config BLAMED, so that an error of the driver takes the way that it takes in
a sweep.
"""

from tuner.measure import backend as measure
from tuner.measure.backend import CudaBackend, CudaTimer
from tuner.problems.workload import Workload

from . import fault_kernels

#: The config of a job whose launch fails.
BLAMED = 1
#: A fault is launched up to so many times. While the processes of the other faults failed at the same moment, an H200's
#: driver said nothing of 2 in 10 misaligned addresses.
MAX_LAUNCHES = 3


class FaultyTimer(CudaTimer):
    """Launches the backend's fault where the config BLAMED is checked."""

    def check_kernel(self, index: int, kernel, is_new: bool) -> measure.Check:
        """Fail, or check the kernel."""
        if index == BLAMED and self.backend.fault:
            for _ in range(MAX_LAUNCHES):
                fault_kernels.launch(self.backend.fault)
            raise AssertionError(f"{self.backend.fault}: the driver said nothing, {MAX_LAUNCHES} times")
        return super().check_kernel(index, kernel, is_new)


class FaultyBackend(CudaBackend):
    """CudaBackend for jobs that may have a field more: `fault`, one of fault_kernels.FAULTS."""

    fault = ""

    def run(self, message: dict, progress) -> dict:
        """Measure, or fail."""
        self.fault = message.get("fault", "")
        return super().run({name: value for name, value in message.items() if name != "fault"}, progress)

    def make_timer(self, job) -> FaultyTimer:
        """Return the race's timer."""
        return FaultyTimer(self, job.problem, job.configs, job.plan, Workload(job.workload, job.seed))
