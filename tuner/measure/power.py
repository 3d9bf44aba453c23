"""The power that a board draws while one kernel runs on it without pause.

NVML counts a board's energy, but refreshes the counter only every some tens of milliseconds. So a window begins and
ends at a tick: where a new value is seen. Where a board has no such counter, its readings of power are averaged; from
Hopper on each of these is the mean of the last second, so that the kernel must have run for that long before.

The two ways need not agree, and the configs of a block are compared. So the first config that has a power decides for
its whole block: where the counter shows no tick later on, that config has no power. The next block chooses again.

Nothing is waited for without a limit, and the device never idles on the way: the load is fed all the time.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

from tuner.measure.statistics import median
from tuner.measure.telemetry import Telemetry

#: How long a kernel runs before its window, so that clock and power are its own and not those of the one before.
WARM_UP_S = 0.15
#: How far back a reading of power reaches (NVML's manual, nvmlDeviceGetPowerUsage).
AVERAGED_S = 1.0
#: A counter that shows no new value for so long counts as none; boards refresh it every 0.02 to 0.1 s.
TICK_LIMIT_S = 0.5
#: How often the counter is looked at: 0.4 % of a window of 0.25 s. Clocks and power are read less often.
POLL_S = 0.001
SAMPLE_S = 0.02


class PowerUnknown(Exception):
    """The power of this board cannot be read; the text says why."""


class Draw(NamedTuple):
    """What one kernel drew: watts, the clock of the SMs (None: not known), and microseconds per launch meanwhile."""

    power_w: float
    clock_mhz: float | None
    time_us: float


class Load(Protocol):
    """One kernel that is launched again and again."""

    def feed(self) -> None:
        """Queue launches, so that the device stays busy for some time to come."""

    def start(self) -> None:
        """Begin to count launches."""

    def stop(self) -> float:
        """Return the mean microseconds per launch since `start`, when the device is idle again."""


#: One of the two ways to measure: runs a load for so many seconds and returns what it drew.
Way = Callable[[Load, float], Draw]


class PowerMeter:
    """Measures the power of loads, all of a block in one way. `now` and `sleep` are in seconds; tests set them."""

    def __init__(
        self,
        telemetry: Telemetry,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.telemetry, self.now, self.sleep = telemetry, now, sleep
        self.way: Way | None = None  # None: the block has no power yet

    def start_block(self) -> None:
        """Choose anew how power is measured. Raises: PowerUnknown where neither energy nor power can be read."""
        self.way = None
        if self.telemetry.energy_mj() is None and self.telemetry.power_w() is None:
            reason = (
                "the board has no such reading, as a slice of MIG has none"
                if self.telemetry.is_open
                else "libnvidia-ml.so.1 was not found, or does not know the board"
            )
            raise PowerUnknown(f"NVML gives neither energy nor power: {reason}; sweep without --energy, or elsewhere")

    def measure(self, load: Load, seconds: float) -> Draw:
        """Run `load` for its warm-up and then for at least `seconds`; return what it drew.

        Raises: PowerUnknown, and what the load raises.
        """
        try:
            return self.way(load, seconds) if self.way else self.choose_way(load, seconds)
        finally:
            load.stop()

    def choose_way(self, load: Load, seconds: float) -> Draw:
        """Measure by the counter, where that gives nothing by readings. Raises: PowerUnknown."""
        if self.telemetry.energy_mj() is not None:
            with suppress(PowerUnknown):  # the counter stands still
                return self.settle(self.count_energy, load, seconds)
        return self.settle(self.average_power, load, seconds)

    def settle(self, way: Way, load: Load, seconds: float) -> Draw:
        """Measure in this way, and in no other until the block ends if it gives a power. Raises: PowerUnknown."""
        draw = way(load, seconds)
        self.way = way
        return draw

    def count_energy(self, load: Load, seconds: float) -> Draw:
        """Return the power by the energy counter. Raises: PowerUnknown where it stands still."""
        self.run(load, WARM_UP_S)
        first_s, first_mj = self.wait_for_tick(load)
        load.start()
        clocks = self.run(load, seconds, self.telemetry.clock_mhz)
        last_s, last_mj = self.wait_for_tick(load)
        return make_draw((last_mj - first_mj) / 1e3 / (last_s - first_s), clocks, load.stop())

    def average_power(self, load: Load, seconds: float) -> Draw:
        """Return the mean of the board's readings of power. Raises: PowerUnknown where there are none."""
        self.run(load, WARM_UP_S + AVERAGED_S)
        load.start()
        found = self.run(load, seconds, lambda: (self.telemetry.power_w(), self.telemetry.clock_mhz()))
        powers = [power for power, _ in found if power is not None]
        if not powers:
            raise PowerUnknown("NVML gave no power while the kernel ran; look at the board with nvidia-smi")
        return make_draw(sum(powers) / len(powers), [clock for _, clock in found], load.stop())

    def run(self, load: Load, seconds: float, sample: Callable = lambda: None) -> list:
        """Keep the load running for so many seconds; return what `sample` gave now and then."""
        start = self.now()
        found: list = []
        while (passed := self.now() - start) < seconds:
            load.feed()
            if passed >= SAMPLE_S * len(found):
                found.append(sample())
            self.sleep(POLL_S)
        return found

    def wait_for_tick(self, load: Load) -> tuple[float, int]:
        """Return the time (seconds) at which the counter showed a new value, and that value (millijoules).

        Raises: PowerUnknown where there is none within TICK_LIMIT_S.
        """
        start, old = self.now(), self.telemetry.energy_mj()
        while self.now() - start < TICK_LIMIT_S:
            load.feed()
            new = self.telemetry.energy_mj()
            if new is not None and old is not None and new > old:
                return self.now(), new
            old = new if old is None else old
            self.sleep(POLL_S)
        raise PowerUnknown(f"NVML's energy counter showed nothing new for {TICK_LIMIT_S} s")


def make_draw(power_w: float, clocks: list, time_us: float) -> Draw:
    """Return a Draw with the median of the clocks that are known. Raises: PowerUnknown for a power that is none."""
    if not power_w > 0.0:
        raise PowerUnknown(f"NVML gave a power of {power_w:.1f} W: not above 0; look at the board with nvidia-smi")
    known = [float(clock) for clock in clocks if clock is not None]
    return Draw(power_w, median(known) if known else None, time_us)
