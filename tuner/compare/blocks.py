"""Which blocks of two sweeps are compared: of each problem, the newest that both measured under one load."""

import math
from collections import defaultdict
from typing import NamedTuple

from tuner.db.rows import MeasurementRow
from tuner.problems import workload
from tuner.problems.regimes import is_energy, is_own

#: Blocks with fewer common configs say nothing about one of them beside the others.
MIN_CONFIGS = 3
#: Kernels faster than this are shown and not judged: the launch is most of their time.
MIN_US = 4.0

#: The regime and the workload of a block.
Load = tuple[str, str]


class Pair(NamedTuple):
    """What both sweeps have of a config of a problem: the last confirmed row of each."""

    a: MeasurementRow
    b: MeasurementRow

    @property
    def log_ratio(self) -> float:
        """Return the logarithm of B's time over A's."""
        assert self.a.median_us is not None and self.b.median_us is not None
        return math.log(self.b.median_us / self.a.median_us)

    @property
    def is_judged(self) -> bool:
        """Return whether both times are long enough."""
        return min(self.a.median_us or 0.0, self.b.median_us or 0.0) >= MIN_US


def is_confirmed(row: MeasurementRow) -> bool:
    """Return whether a row has a time that was not used for choosing, of the default group sizes."""
    is_timed = row.role == "confirm" and row.status == "ok" and bool(row.median_us)
    return is_timed and workload.is_default(row.block.workload)


def take_repeated(rows: list[MeasurementRow]) -> list[MeasurementRow]:
    """Return the confirmed rows, of sentinels and others; those of energy rest on two rounds only."""
    return [row for row in rows if is_confirmed(row) and not is_energy(row.block.regime)]


def choose_loads(of_a: list[MeasurementRow], of_b: list[MeasurementRow]) -> dict[str, Load]:
    """Return {problem: load} of the problems that both sides measured under one load: the one that both have newest."""
    newest: tuple[dict, dict] = ({}, {})
    for found, rows in zip(newest, (of_a, of_b), strict=True):
        for row in take_own(rows):
            key = (row.block.problem_key, load_of(row))
            found[key] = max(row.block.created, found.get(key, ""))
    common = newest[0].keys() & newest[1].keys()
    ordered = sorted(common, key=lambda key: (min(found[key] for found in newest), key))
    return dict(ordered)


def take_confirmed(
    rows: list[MeasurementRow], loads: dict[str, Load] | None = None
) -> dict[str, dict[str, MeasurementRow]]:
    """Return {problem: {config: row}} of the newest block of each problem with confirmed times; no sentinels.

    Of a problem that `loads` has, only blocks of that load count.
    """
    confirmed = [
        row for row in take_own(rows) if (loads or {}).get(row.block.problem_key, load_of(row)) == load_of(row)
    ]
    newest: dict[str, tuple] = {}
    for row in confirmed:
        newest[row.block.problem_key] = max(age(row), newest.get(row.block.problem_key, ("", 0)))
    found: defaultdict[str, dict] = defaultdict(dict)
    for row in confirmed:
        if age(row) == newest[row.block.problem_key]:
            found[row.block.problem_key][row.config_key] = row
    return dict(found)


def take_own(rows: list[MeasurementRow]) -> list[MeasurementRow]:
    """Return the confirmed rows of a sweep's own regime."""
    return [row for row in rows if is_confirmed(row) and is_own(row.block.regime)]


def load_of(row: MeasurementRow) -> Load:
    """Return under which regime and with which sizes of groups a row was measured."""
    return row.block.regime, row.block.workload


def age(row: MeasurementRow) -> tuple[str, int]:
    """Return what blocks are sorted by, the oldest first: a merge of databases renumbers blocks."""
    return row.block.created, row.block.block_id


def pair_blocks(found_a: dict, found_b: dict) -> dict[str, list[Pair]]:
    """Return {problem: pairs} of the blocks that have enough configs in common, under one regime and workload."""
    blocks = {}
    for problem, configs in found_a.items():
        others = found_b.get(problem, {})
        pairs = [Pair(row, others[config]) for config, row in configs.items() if config in others]
        pairs = [pair for pair in pairs if pair.is_judged and load_of(pair.a) == load_of(pair.b)]
        if len(pairs) >= MIN_CONFIGS:
            blocks[problem] = pairs
    return blocks
