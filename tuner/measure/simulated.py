"""A measuring backend without a GPU: times come from the analytic estimate, a fixed error per config, and seeded noise.

For trying the whole loop (sweep, train, export) and for tests. Its rows carry the regime `simulated`, so that no reader
ever mixes them with measured ones. The same (seed, problem, config) always gives the same times.
"""

import hashlib
import math
import random
import zlib
from collections.abc import Callable, Sequence

from deep_gemm import _C
from tuner.measure.protocol import parse_job
from tuner.measure.race import Check, Race
from tuner.problems.fields import get_weight_shape, variant_of

REGIME = "simulated"
#: Spread of the log error of the analytic estimate, and of one timing: about those of the measured H200 rows.
MODEL_SPREAD = 0.08
NOISE_SPREAD = 0.004


class SimulatedBackend:
    """Answers jobs as the GPU's backend does (see measure.CudaBackend), for a known device description."""

    def __init__(self, device: str = "h200"):
        self.device = _C.Device.known(device)

    def hello(self) -> dict:
        """Return a device row that no real device has."""
        device = self.device
        described = {
            "name": device.name,
            "sku": device.sku,
            "sm_count": device.sm_count,
            "smem_bytes": device.smem_bytes,
            "l2_bytes": device.l2_bytes,
            "compute_capability": list(device.compute_capability),
            "clock_mhz": device.clock_mhz,
            "memory_gbps": device.memory_gbps,
            "mig": device.mig,
            "memory_bytes": None,
            "power_limit_w": None,
            "uuid_hash": hashlib.sha256(f"simulated {device.sku}".encode()).hexdigest(),
        }
        return {
            "regime": REGIME,
            "device": described,
            "environment": {"driver": "simulated", "cuda": None, "torch": None, "python": None, "cpu_count": None},
        }

    def run(self, job: dict, progress: Callable[[str, int | None], None]) -> dict:
        """Run the race of one job on simulated times."""
        problem, configs = parse_job(job)
        progress("setup", None)
        timer = self.make_timer(problem, configs, job["seed"])
        report = Race(timer, len(configs), job["plan"], job["must_confirm"], progress).run()
        return report | {"anchor_us": 190.0, "clock_mhz": None, "power_w": None, "throttle": None}

    def make_timer(self, problem, configs: list, seed: int) -> "SimulatedTimer":
        """Return the race's timer; tests replace it to inject faults."""
        return SimulatedTimer(problem, configs, self.device, seed)


class SimulatedTimer:
    """The race's Timer on simulated times."""

    def __init__(self, problem, configs: list, device, seed: int):
        self.times_us = [simulate_time_us(problem, config, device) for config in configs]
        self.random = random.Random(zlib.crc32(f"{seed} {problem.key} {len(configs)}".encode()))

    def check(self, index: int) -> Check:
        """Return a passed check."""
        return Check(quick_us=self.times_us[index])

    def prepare(self, index: int) -> None:
        """Do nothing: there is no graph to capture."""

    def time(self, sequence: Sequence[int]) -> list[float]:
        """Return one noisy time per entry."""
        return [self.times_us[index] * math.exp(self.random.gauss(0.0, NOISE_SPREAD)) for index in sequence]

    def launches(self, index: int) -> int:
        """Return the launches of one entry."""
        return 1


def simulate_time_us(problem, config, device) -> float:
    """Return the true time of a simulated device: the estimate, off by a factor that only the variant, the weight's
    shape and the config decide.
    """
    label = " ".join(map(str, (*get_weight_shape(problem), *variant_of(problem), config.key(problem.op))))
    return _C.estimate_time_us(problem, config, device) * math.exp(
        random.Random(zlib.crc32(label.encode())).gauss(0.0, MODEL_SPREAD)
    )
