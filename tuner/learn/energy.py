"""Time and energy of the configs of one problem, and which of them are on the front: none is better in both.

Energies are compared as times are, by their ratio to the reference config of the same block: boards and days differ.
A config that several blocks have counts with the newest of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from deep_gemm import _C
from tuner.db.rows import MeasurementRow
from tuner.problems.regimes import is_energy

#: How far beyond the fastest config, and the one of least energy, the area under a front reaches.
REACH = 1.5


class Energy(NamedTuple):
    """What a launch of one config takes: joules and watts, and its time and energy over those of the reference."""

    energy_j: float
    power_w: float
    time_ratio: float
    energy_ratio: float

    @property
    def point(self) -> tuple[float, float]:
        """Return (time, energy) as ratios: both the smaller, the better."""
        return self.time_ratio, self.energy_ratio


def read_energies(rows: Iterable[MeasurementRow]) -> dict[_C.Config, Energy]:
    """Return the energies that rows of one problem hold, of one board, kernel and regime; other rows do not count."""
    blocks: dict[tuple, list[MeasurementRow]] = {}
    for row in rows:
        block = row.block
        if is_energy(block.regime) and row.status == "ok" and row.power_w and row.median_us and row.ratio:
            blocks.setdefault((block.created, block.block_id), []).append(row)
    found: dict[_C.Config, Energy] = {}
    for key in sorted(blocks):
        reference = next((row for row in blocks[key] if row.is_reference), None)
        if reference is not None:
            found |= {row.config: compare(row, reference) for row in blocks[key]}
    return found


def compare(row: MeasurementRow, reference: MeasurementRow) -> Energy:
    """Return the energy of a row beside that of its block's reference."""
    energy_j = joules(row)
    return Energy(energy_j, row.power_w or 0.0, row.ratio or 1.0, energy_j / joules(reference))


def joules(row: MeasurementRow) -> float:
    """Return the energy of one launch in joules: power x time."""
    return (row.power_w or 0.0) * (row.median_us or 0.0) * 1e-6


def find_front(energies: Mapping[_C.Config, Energy]) -> list[_C.Config]:
    """Return the configs that none other beats in both time and energy, the fastest first."""
    front: list[_C.Config] = []
    least = float("inf")
    for config in sorted(energies, key=lambda config: energies[config].point):
        if energies[config].energy_ratio < least:
            front.append(config)
            least = energies[config].energy_ratio
    return front


def find_corner(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the point up to which an area counts: REACH times the least time, and the least energy, of all points."""
    times, energies = zip(*points, strict=True)
    return REACH * min(times), REACH * min(energies)


def measure_area(points: Iterable[tuple[float, float]], corner: tuple[float, float]) -> float:
    """Return the hypervolume in two dimensions: the area below `corner` in which some point is better in both."""
    area, ceiling = 0.0, corner[1]
    for time, energy in sorted(points):
        if time < corner[0] and energy < ceiling:
            area += (corner[0] - time) * (ceiling - energy)
            ceiling = energy
    return area
