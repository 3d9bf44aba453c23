"""The energy of each config of a job: not raced, but run alone, one after the other, while the board's power is read.

All configs have their turn in two rounds, the second in the opposite order. What drifts, such as the temperature of the
board, then changes the two readings of a config by different amounts, and their disagreement is the block's noise.
A launch takes `power_w` x `median_us` microjoules. As in a race, config 0 is the reference of all ratios, every result
is checked before and after, and the same config gets the same cold operands.
"""

from collections.abc import Callable
from typing import Protocol

from tuner.measure import statistics
from tuner.measure.power import Draw, PowerUnknown
from tuner.measure.protocol import Job
from tuner.measure.race import Entrant, Race, Timer, describe
from tuner.measure.records import Plan, Report, Result

ROUNDS = 2


class PowerTimer(Timer, Protocol):
    """A Timer that reads the power of configs, too."""

    def check_power(self) -> None:
        """Begin a block: its powers are all measured in one way. Raises: PowerUnknown where none can be read."""

    def draw(self, index: int, seconds: float) -> Draw:
        """Run a prepared config for so long and return what it drew. Raises: PowerUnknown."""


class EnergyRun(Race):
    """Measures the energy of `count` configs; `progress` as in a race."""

    def __init__(self, timer: PowerTimer, count: int, plan: Plan, progress: Callable[[str, int | None], None]):
        super().__init__(timer, count, plan, range(count), progress)
        self.power = timer
        self.draws: dict[int, list[Draw]] = {index: [] for index in range(count)}
        self.unknown: dict[int, str] = {}

    def run(self) -> Report:
        """Measure all configs; where no power can be read, the results say why. Raises: ReferenceFailed; of the timer.

        Nothing is launched where the board has no reading at all.
        """
        try:
            self.power.check_power()
        except PowerUnknown as error:
            self.unknown = dict.fromkeys(self.draws, str(error))
            return self.make_report()
        self.run_stages(self.check_all, self.prepare_all, self.measure_power, self.recheck)
        return self.make_report()

    def measure_power(self) -> None:
        """Read the power of every config in both rounds; a config without a reading is left out of the second."""
        for number in range(ROUNDS):
            order = [entrant.index for entrant in self.alive() if entrant.index not in self.unknown]
            for index in reversed(order) if number % 2 else order:
                self.progress("energy", index)
                try:
                    self.draws[index].append(self.power.draw(index, self.plan.energy_s))
                except PowerUnknown as error:
                    self.unknown[index] = str(error)

    def make_report(self) -> Report:
        """Return a confirmation result for each config that was right, and a search result for the others."""
        reference = [draw.time_us for draw in self.draws[0]]
        return Report(
            results=[self.energy_result(entrant) for entrant in self.entrants],
            search_rounds=0,
            confirm_rounds=ROUNDS,
            noise=self.find_noise(),
            reference_us=statistics.median(reference) if reference else None,
            seconds=self.seconds,
        )

    def energy_result(self, entrant: Entrant) -> Result:
        """Return the result of one config: its time, clock and power over both rounds, or why there is none."""
        index, found = entrant.index, self.draws[entrant.index]
        if entrant.check.status != "ok":
            return self.search_result(entrant)
        if index in self.unknown:
            return Result(config=index, role="confirm", status="skipped", error=self.unknown[index])
        times, clocks = [draw.time_us for draw in found], [draw.clock_mhz for draw in found if draw.clock_mhz]
        base = times if 0 in self.unknown else [draw.time_us for draw in self.draws[0]]
        measured = describe(times, base)
        if 0 in self.unknown:
            measured |= dict.fromkeys(("ratio", "ratio_low", "ratio_high"))
        return Result(
            config=index,
            role="confirm",
            status="ok",
            clock_mhz=statistics.median(clocks) if clocks else None,
            power_w=sum(draw.power_w for draw in found) / len(found),
            **measured,
        )

    def find_noise(self) -> float | None:
        """Return the median over the configs of how far the energies of both rounds are apart; None without any."""
        apart = []
        for draws in self.draws.values():
            energies = sorted(draw.power_w * draw.time_us for draw in draws)
            if len(energies) == ROUNDS:
                apart.append(energies[-1] / energies[0] - 1.0)
        return statistics.median(apart) if apart else None


def make_race(timer: PowerTimer, job: Job, progress: Callable[[str, int | None], None]) -> Race:
    """Return what measures a job: a race, or where its plan says so the energy of each config."""
    if job.plan.energy_s:
        return EnergyRun(timer, len(job.configs), job.plan, progress)
    return Race(timer, len(job.configs), job.plan, job.must_confirm, progress, job.order, job.has_twin)
