"""The winner of one block: the first, by a fixed order, of the configs that cannot be told from the fastest."""

from collections.abc import Iterable
from typing import NamedTuple

from deep_gemm import _C
from tuner.db.rows import MeasurementRow
from tuner.measure import statistics
from tuner.measure.records import Result


class Winner(NamedTuple):
    """A config, and the configs that cannot be told from the fastest, fastest first."""

    config: _C.Config
    ties: list


def choose_winner(
    rows: Iterable[Result | MeasurementRow], heuristic, reference_us: float, noise: float, portfolio: set
) -> Winner | None:
    """Return the winner among the confirmation rows of one block, None where none of them is right."""
    timed = [
        statistics.Timed(row.config, row.ratio, row.config == heuristic, row.config in portfolio)
        for row in rows
        if row.role == "confirm" and row.status == "ok" and row.ratio is not None
    ]
    if not timed:
        return None
    ties = statistics.find_tie_set(timed, reference_us, noise)
    return Winner(statistics.choose_winner(ties).config, [entry.config for entry in ties])
