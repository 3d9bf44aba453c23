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

#: The regime, the workload and the compiler of a block.
Load = tuple[str, str, str]


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
    """Return {problem: load} of the problems that both sides measured under one load.

    Of several, one whose newest blocks have enough configs in common, and of these the one that both have newest.
    """
    a, b = take_newest(of_a), take_newest(of_b)

    def rank(key: tuple[str, Load]) -> tuple:
        first, second = (max(map(age, found[key].values())) for found in (a, b))
        return len(pair_rows(a[key], b[key])) >= MIN_CONFIGS, min(first, second), key

    return dict(sorted(a.keys() & b.keys(), key=rank))  # the last one of a problem stays


def take_confirmed(
    rows: list[MeasurementRow], loads: dict[str, Load] | None = None
) -> dict[str, dict[str, MeasurementRow]]:
    """Return {problem: {config: row}} of the newest block of each problem with confirmed times; no sentinels.

    Of a problem that `loads` has, only blocks of that load count.
    """
    found = {key: configs for key, configs in take_newest(rows).items() if (loads or {}).get(key[0], key[1]) == key[1]}
    ordered = sorted(found, key=lambda key: max(map(age, found[key].values())))
    return {key[0]: found[key] for key in ordered}


def take_newest(rows: list[MeasurementRow]) -> dict[tuple[str, Load], dict[str, MeasurementRow]]:
    """Return {(problem, load): {config: row}} of the newest block of each, with its confirmed times."""
    confirmed = [((row.block.problem_key, load_of(row)), row) for row in take_own(rows)]
    newest: dict[tuple, tuple] = {}
    for key, row in confirmed:
        newest[key] = max(age(row), newest.get(key, ("", 0)))
    found: defaultdict[tuple[str, Load], dict] = defaultdict(dict)
    for key, row in confirmed:
        if age(row) == newest[key]:
            found[key][row.config_key] = row
    return dict(found)


def take_own(rows: list[MeasurementRow]) -> list[MeasurementRow]:
    """Return the confirmed rows of a sweep's own regime."""
    return [row for row in rows if is_confirmed(row) and is_own(row.block.regime)]


def load_of(row: MeasurementRow) -> Load:
    """Return under which regime, with which sizes of groups and by which compiler's kernels a row was measured."""
    return row.block.regime, row.block.workload, row.block.compiler


def age(row: MeasurementRow) -> tuple[str, int]:
    """Return what blocks are sorted by, the oldest first: a merge of databases renumbers blocks."""
    return row.block.created, row.block.block_id


def pair_blocks(found_a: dict, found_b: dict) -> dict[str, list[Pair]]:
    """Return {problem: pairs} of the blocks that have enough configs in common, under one load."""
    blocks = {problem: pair_rows(configs, found_b.get(problem, {})) for problem, configs in found_a.items()}
    return {problem: pairs for problem, pairs in blocks.items() if len(pairs) >= MIN_CONFIGS}


def pair_rows(of_a: dict[str, MeasurementRow], of_b: dict[str, MeasurementRow]) -> list[Pair]:
    """Return the pairs of two blocks that are judged: long enough, and measured under one load."""
    pairs = [Pair(row, of_b[config]) for config, row in of_a.items() if config in of_b]
    return [pair for pair in pairs if pair.is_judged and load_of(pair.a) == load_of(pair.b)]
