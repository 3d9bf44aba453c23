"""A measuring backend without a GPU: a time is the analytic estimate, a fixed error per config, and seeded noise. The
power of a config has a part that it always draws, and one for its work, with another fixed error per config.

It serves to try the whole loop (sweep, train, export), and tests. Its rows carry the regime `simulated`, so that no
reader mixes them with measured ones. The same seed, problem and config always give the same times.
"""

import math
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from deep_gemm import _C
from deep_gemm.jit.hashing import package_hash
from tuner.measure.devices import describe_device
from tuner.measure.energy import make_race
from tuner.measure.power import Draw
from tuner.measure.protocol import parse_job
from tuner.measure.race import Check
from tuner.problems.fields import get_weight_shape, variant_of
from tuner.problems.regimes import SIMULATED

#: Standard deviation of the log error of the analytic estimate, and of one timing: about those of the H200 rows.
MODEL_SPREAD = 0.08
NOISE_SPREAD = 0.004
#: Assumptions: watts of a busy H200 without any work, and those of the work where the heuristic's pick does it; the
#: standard deviation of the log of the energy that the work takes.
IDLE_W, WORK_W = 200.0, 350.0
WORK_SPREAD = 0.12
#: About what the anchor takes on an H200.
ANCHOR_US = 190.0


def name_backend(ordinal: int) -> str:
    """Return the name of the backend that simulates the board of that number; each board has a UUID of its own."""
    return f"simulated=h200#{ordinal}" if ordinal else "simulated"


class SimulatedBackend:
    """Answers jobs as backend.CudaBackend does, for the description of a known device.

    Behind # the name may have the number of one of several simulated boards.
    """

    def __init__(self, device: str = "h200"):
        name, _, self.board = device.partition("#")
        self.device = _C.Device.known(name)

    def hello(self) -> dict:
        """Return what the parent must know, with a board that does not exist."""
        return {
            "package": package_hash(),
            "regime": SIMULATED,
            "device": describe_device(self.device, f"simulated {self.device.sku} {self.board}".rstrip()),
            "environment": {"driver": "simulated", "cuda": None, "torch": None, "python": None, "cpu_count": None},
        }

    def run(self, message: dict, progress: Callable[[str, int | None], None]) -> dict:
        """Run the race of one job on simulated times; return its report as JSON."""
        job = parse_job(message)
        progress("setup", None)
        timer = self.make_timer(job.problem, job.configs, job.seed)
        report = make_race(timer, job, progress).run()
        return replace(report, anchor_us=ANCHOR_US).to_json()

    def make_timer(self, problem, configs: list, seed: int) -> "SimulatedTimer":
        """Return the race's timer; tests replace it to inject faults."""
        return SimulatedTimer(problem, configs, self.device, seed)


class SimulatedTimer:
    """The race's Timer on simulated times."""

    def __init__(self, problem, configs: list, device, seed: int):
        self.times_us = [simulate_time_us(problem, config, device) for config in configs]
        self.subject = problem, list(configs), device
        self.random = random.Random(zlib.crc32(f"{seed} {problem.key} {len(configs)}".encode()))

    def check(self, index: int) -> Check:
        """Return a passed check."""
        return Check(quick_us=self.times_us[index])

    def prepare(self, index: int, part: int = 0) -> None:
        """Do nothing: there is no graph to capture."""

    def time(self, sequence: Sequence[int]) -> list[float]:
        """Return one noisy time per entry."""
        return [self.times_us[index] * math.exp(self.random.gauss(0.0, NOISE_SPREAD)) for index in sequence]

    def launches(self, index: int) -> int:
        """Return the launches of one entry."""
        return 1

    def check_power(self) -> None:
        """Do nothing: every simulated board has a power."""

    def draw(self, index: int, seconds: float) -> Draw:
        """Return the config's power, and its time with noise."""
        problem, configs, device = self.subject
        power_w = simulate_power_w(problem, configs[index], device)
        return Draw(power_w, device.clock_mhz, self.time([index])[0])


def simulate_time_us(problem, config, device) -> float:
    """Return the true time on a simulated device.

    It differs from the estimate by a factor that depends on the variant, the weight's shape and the config alone.
    """
    return _C.estimate_time_us(problem, config, device) * draw_error("", problem, config, MODEL_SPREAD)


def simulate_power_w(problem, config, device) -> float:
    """Return the true power on a simulated device: the shorter a config takes for the same work, the more it draws."""
    pick_us = _C.estimate_time_us(problem, _C.get_analytic_config(problem, device), device)
    work_us = pick_us * draw_error("power", problem, config, WORK_SPREAD)
    return IDLE_W + WORK_W * work_us / simulate_time_us(problem, config, device)


def draw_error(what: str, problem, config, spread: float) -> float:
    """Return a factor that is always the same for a variant, a weight's shape and a config."""
    parts = (*get_weight_shape(problem), *variant_of(problem), config.key(problem.op))
    label = " ".join(map(str, (*filter(None, [what]), *parts)))
    return math.exp(random.Random(zlib.crc32(label.encode())).gauss(0.0, spread))
