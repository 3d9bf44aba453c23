"""What the measured rows of one problem say about its configs, and how that is kept until a table is laid out.

Rows are objects, of which a large database has too many at a time: they are read for some problems, become an Entry
each, and that becomes arrays.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from deep_gemm import _C
from tuner.db.rows import MeasurementRow
from tuner.measured import TIMED
from tuner.problems.fields import kernel_identity
from tuner.problems.regimes import is_rested
from tuner.problems.workload import count_stored_draws

UNMEASURED, CENSORED, SEARCHED, CONFIRMED = 0, 1, 2, 3


@dataclass(frozen=True)
class Entry:
    """One problem while the table is built.

    `best_known` maps a config to (log ratio, state), `search` to the log ratio of its search rounds. `candidates` are
    the default space's, `beyond` the timed configs that are not in the default space of the problem's variant.
    """

    problem: _C.Problem
    heuristic: _C.Config
    best_known: dict
    search: dict
    candidates: frozenset
    beyond: frozenset
    heuristic_us: float


class Value(NamedTuple):
    """What one block says about one config: a log ratio to the heuristic's pick, and its state."""

    config: _C.Config
    state: int
    log_ratio: float


def read_problem(problem, rows: list[MeasurementRow], device: _C.Device, quarantined: set) -> Entry | str:
    """Return the Entry of one problem without `quarantined` configs, or the reason why it cannot be used."""
    rows = [row for row in rows if row.block.status == "finished"]
    heuristic = find_pick(problem, [row for row in rows if not is_rested(row.block.regime)], device)
    rows = [row for row in rows if row.config not in quarantined]
    rested = [row for row in rows if is_rested(row.block.regime)]
    rows = [row for row in rows if not is_rested(row.block.regime)]
    offsets, most = {heuristic: 0.0}, defaultdict[_C.Config, int](int)
    known = summarize_blocks(rows, heuristic, offsets, most)
    if all((heuristic, state) not in known for state in (CENSORED, SEARCHED, CONFIRMED)):
        return "heuristic's pick not measured"
    known = average_rested(known, summarize_blocks(rested, heuristic, offsets, most))
    best_known = {}
    for (config, state), value in sorted(known.items(), key=lambda item: item[0][1]):
        best_known[config] = (value, state)
    search = {config: value for (config, state), value in known.items() if state == SEARCHED}
    candidates = frozenset(_C.get_candidates(problem, device)) - quarantined
    beyond = frozenset(best_known).difference(default_space(kernel_identity(problem), device))
    return Entry(problem, heuristic, best_known, search, candidates, beyond, heuristic_time(rows, heuristic))


def find_pick(problem, rows: list[MeasurementRow], device: _C.Device) -> _C.Config:
    """Return the heuristic's pick; where only its tile with other knobs of the main loop was timed, that.

    The rule of the knobs follows from sweeps, so an older sweep may lack what it gives today. The time of the pick is
    then not known, and that of the tile stands in, without knobs if possible: what knobs gain was not seen there.
    """
    pick = _C.get_analytic_config(problem, device)
    tile = _C.without_loop_knobs(pick)
    timed = {row.config for row in rows if row.status in TIMED and to_value(row)}
    known = [tile, *sorted((config for config in timed if _C.without_loop_knobs(config) == tile), key=str)]
    is_seen = any(row.config == pick for row in rows)  # a pick that failed is not replaced: it would run, too
    return pick if is_seen else next((config for config in known if config in timed), pick)


def summarize_blocks(rows: list[MeasurementRow], heuristic, offsets: dict, most: dict) -> dict[tuple, float]:
    """Return {(config, state): log ratio} over all blocks of the rows: the median, of censored rows the largest.

    A snapshot may leave out the search rows of confirmed configs, see tuner.db.publish: in each such block their
    confirmation stands in, so that another board's search rounds alone do not speak for both.

    Of each config those blocks count that went through the most draws of the group sizes: fewer say less of the mean.
    `offsets`: see relative_rows; what the blocks find is added, and to `most` the draws of each config. Blocks of fewer
    draws than `most` has already say nothing of the config.
    """
    values = defaultdict(list)
    for block_rows in group_by(rows, lambda row: row.block.block_id).values():
        draws = count_stored_draws(block_rows[0].block.workload)
        found = relative_rows(block_rows, heuristic, offsets)
        searched = {value.config for value in found if value.state == SEARCHED}
        stand_ins = [
            value._replace(state=SEARCHED)
            for value in found
            if value.state == CONFIRMED and value.config not in searched
        ]
        for config, state, log_ratio in [*found, *stand_ins]:
            values[config, state].append((draws, log_ratio))
            most[config] = max(most[config], draws)
            if state >= SEARCHED:
                offsets.setdefault(config, log_ratio)
    drawn = {key: [log for draws, log in pairs if draws == most[key[0]]] for key, pairs in values.items()}
    return {key: max(logs) if key[1] == CENSORED else float(np.median(logs)) for key, logs in drawn.items() if logs}


def average_rested(steady: dict[tuple, float], rested: dict[tuple, float]) -> dict[tuple, float]:
    """Return {(config, state): log ratio} over both ways of timing, back to back and after rests.

    It is the mean where both are known. Every other config is taken to have gained by rests what the median of those
    did: the heuristic's pick, to which all ratios are, may be an exception.
    """
    found = {}
    for (config, state), value in steady.items():
        again = rested.get((config, state))
        if state != CENSORED and again is not None:
            found[config, state] = (value + again) / 2.0
    gains = {config: value - steady[config, state] for (config, state), value in found.items()}
    gain = float(np.median(list(gains.values()))) if gains else 0.0
    return {key: found.get(key, value + gain) for key, value in steady.items()}


@lru_cache(maxsize=64)
def default_space(variant, device: _C.Device) -> frozenset:
    """Return the default space of a variant; a table's problems share a handful."""
    return frozenset(_C.get_default_space(variant, device))


def relative_rows(block_rows: list[MeasurementRow], heuristic, offsets: dict) -> list[Value]:
    """Return the values of the timed rows of one block.

    `offsets` are the log ratios that earlier blocks found, by config.
    """
    anchors = find_anchors(block_rows, heuristic, offsets)
    found = []
    for row in block_rows:
        anchor = anchors.get(row.role, next(iter(anchors.values()), None))
        if anchor is not None and row.status in TIMED and (value := to_value(row)):
            state = CENSORED if row.status == "censored" else CONFIRMED if row.role == "confirm" else SEARCHED
            found.append(Value(row.config, state, math.log(value) - anchor))
    return found


def find_anchors(block_rows: list[MeasurementRow], heuristic, offsets: dict) -> dict:
    """Return {role: the log value that the heuristic's pick has, or would have, in this block}.

    In a block without the pick it follows from the block's reference, else from any config that an earlier block timed.
    A pick that was dropped early counts too: the heuristic may choose today what was slow when it was measured.
    """
    ranked: dict[str, tuple[int, float]] = {}
    for row in block_rows:
        is_pick, value = row.config == heuristic, to_value(row)
        is_timed = row.status == "ok" or (row.status == "censored" and is_pick)
        if value and is_timed and row.config in offsets:
            rank = 0 if is_pick else 1 if row.is_reference else 2
            anchor = rank, math.log(value) - offsets[row.config]
            ranked[row.role] = min(ranked.get(row.role, anchor), anchor)
    return {role: anchor for role, (_, anchor) in ranked.items()}


def to_value(row: MeasurementRow) -> float | None:
    """Return the row's ratio to its block's reference, from which drift cancels, or else its median in microseconds."""
    return row.ratio if row.ratio is not None else row.median_us


def heuristic_time(rows: list[MeasurementRow], heuristic) -> float:
    """Return the median time of the heuristic's pick in microseconds, NaN where no row has it."""
    times = [row.median_us for row in rows if row.status in TIMED and row.median_us and row.config == heuristic]
    return float(np.median(times)) if times else math.nan


def group_by(rows: Iterable[MeasurementRow], get_key: Callable[[MeasurementRow], object]) -> dict:
    """Return {key: rows}, both in the order of the rows."""
    groups = defaultdict(list)
    for row in rows:
        groups[get_key(row)].append(row)
    return groups


def measured_share(entry: Entry) -> float:
    """Return the share of the problem's candidates that have a timed row."""
    return len(entry.candidates & entry.best_known.keys()) / max(len(entry.candidates), 1)


@dataclass(frozen=True)
class Packed:
    """An Entry as arrays.

        known       I32[N]  numbers of the configs in `best_known`, with their values F64[N] and states I8[N]
        searched    I32[S]  numbers of the configs in `search`, with their values F64[S]
        candidates  I32[C]  numbers of `candidates` and `beyond`

    Numbers are those of one Packing. `share` is the measured part of the candidates.
    """

    problem: _C.Problem
    heuristic: int
    known: np.ndarray
    values: np.ndarray
    states: np.ndarray
    searched: np.ndarray
    search_values: np.ndarray
    candidates: np.ndarray
    share: float
    heuristic_us: float


class Packing:
    """Packs entries, and numbers their configs as they come."""

    def __init__(self) -> None:
        self.numbers: dict[_C.Config, int] = {}

    def number(self, configs: Iterable[_C.Config]) -> np.ndarray:
        """Return the numbers of configs, I32; a new one gets the next."""
        return np.array([self.numbers.setdefault(config, len(self.numbers)) for config in configs], np.int32)

    def pack(self, entry: Entry) -> Packed:
        """Return an entry as arrays."""
        return Packed(
            entry.problem,
            int(self.number([entry.heuristic])[0]),
            self.number(entry.best_known),
            np.array([value for value, _ in entry.best_known.values()], np.float64),
            np.array([state for _, state in entry.best_known.values()], np.int8),
            self.number(entry.search),
            np.array(list(entry.search.values()), np.float64),
            self.number(entry.candidates | entry.beyond),
            measured_share(entry),
            entry.heuristic_us,
        )
