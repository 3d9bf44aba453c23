"""Measured rows as one table: for each problem, the time of every config relative to the heuristic's pick.

All rows of a table share one identity: op kind, SKU, kernel hash, compiler and regime. A value is log(time of the
config
/ time of the heuristic's pick), both timed in the same block, so that boards, days and clocks cancel. A value comes
from
confirmation rounds where there are any, else from search rounds, else from a censored row. That is a lower bound,
because the race dropped the config early.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from deep_gemm import _C
from tuner import errors
from tuner.db.rows import Identity, MeasurementRow
from tuner.learn.families import find_families
from tuner.learn.sources import find_device
from tuner.problems.fields import OPS, kernel_identity
from tuner.problems.sentinels import is_sentinel
from tuner.problems.shapes import model_names

#: An illegal, pointless or unmeasured config counts as twice as slow; training targets are clipped to this as well.
LOG_TWO = math.log(2.0)
#: A problem belongs to the full-space set when this share of its candidates was measured; its best config is then
#: known.
FULL_SPACE_SHARE = 0.8
#: The fields by which configs are sorted: tile, cluster, split of K, order of the operands, stages, main loop. Every
#: table and artefact has this order.
CONFIG_ORDER = (
    *("block_m", "block_n", "block_k", "cluster_m", "cluster_n", "split_k", "swap_ab", "num_stages"),
    *("loop", "scale_warp", "tile_barrier", "reduce_add"),
)
UNMEASURED, CENSORED, SEARCHED, CONFIRMED = 0, 1, 2, 3
FAILURES = ("incorrect", "compile_error", "crash", "timeout", "spill")
#: Failures of one kernel; other variants of the op kind may still use its config.
BUILD_FAILURES = ("compile_error", "spill")


@dataclass(frozen=True)
class Dataset:
    """R problems (rows) x C configs (columns).

        log_ratio    F64[R,C]   best-known log ratio to the heuristic's pick, LOG_TWO where unmeasured
        search       F64[R,C]   log ratio of the search rounds alone, NaN where they did not time the config
        state        I8[R,C]    where the log ratio comes from: UNMEASURED, CENSORED, SEARCHED or CONFIRMED
        candidate    bool[R,C]  whether the config is of the problem's default space, or was timed beyond it
        legal        bool[R,C]  whether the run time may choose the config
        full_space   bool[R]    whether nearly all candidates were measured
        heuristic    I64[R]     column of the heuristic's pick
        oracle       I64[R]     column of the best config, chosen on search rounds and scored on confirmation rounds
        heuristic_us F64[R]     time of the heuristic's pick in microseconds, NaN where it has none
        families     I64[R]     family of weights, see families.find_families

    A config whose ring could be deeper may be timed, and may even be the oracle; the run time then takes it from the
    exact table only. `quarantined` failed otherwise than by not building for some variant; `failed` has those as well.
    `newest` is the time of the newest row.
    """

    identity: Identity
    device: _C.Device
    problems: list
    configs: list
    log_ratio: np.ndarray
    search: np.ndarray
    state: np.ndarray
    candidate: np.ndarray
    legal: np.ndarray
    full_space: np.ndarray
    heuristic: np.ndarray
    oracle: np.ndarray
    heuristic_us: np.ndarray
    families: np.ndarray
    models: list
    quarantined: list = field(default_factory=list)
    failed: list = field(default_factory=list)
    dropped: dict = field(default_factory=dict)
    newest: str = ""

    def regret_log(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return log(time of the chosen column / time of the oracle) per row, negative where the oracle was lucky."""
        return self.log_ratio[rows, columns] - self.log_ratio[rows, self.oracle[rows]]


def load_dataset(
    store,
    sku: str,
    *,
    op: str = OPS[0],
    kernel_hash: str | None = None,
    compiler: str | None = None,
    regime: str | None = None,
) -> Dataset:
    """Load the table of one SKU and op kind.

    By default its rows are of the newest kernel hash, and of the compiler and regime with most rows. Raises:
    InconclusiveError where the store has no usable rows for it; UsageError for an unknown SKU.
    """
    device = find_device(store, sku)
    kernel_hash = kernel_hash or store.newest_kernel_hash(op, device.sku)
    rows = (
        store.load_measurements(sku=device.sku, kernel_hash=kernel_hash, op=op, regime=regime, compiler=compiler)
        if kernel_hash
        else []
    )
    rows = [row for row in rows if not is_sentinel(row.block.regime)]
    if not rows:
        raise errors.InconclusiveError(
            f"no measurements of {op} on {device.sku}: run `python -m tuner sweep` there first, or name another --db or"
            " --device"
        )
    compiler = Counter(row.block.compiler for row in rows).most_common(1)[0][0]
    regime = Counter(row.block.regime for row in rows).most_common(1)[0][0]
    identity = Identity(op, device.sku, kernel_hash, compiler, regime)
    return build_dataset([row for row in rows if row.block.identity == identity], identity, device)


def build_dataset(rows: Iterable[MeasurementRow], identity: Identity, device: _C.Device) -> Dataset:
    """Arrange measured rows of one identity as a Dataset. Raises: InconclusiveError with fewer than two problems."""
    rows = list(rows)
    by_problem = group_by(rows, lambda row: row.block.problem)
    quarantined = find_quarantined(by_problem)
    usable: list[Entry] = []
    dropped: Counter[str] = Counter()
    for problem in sorted(by_problem, key=problem_order):
        entry = read_problem(problem, by_problem[problem], device, quarantined_for(problem, quarantined))
        if isinstance(entry, str):
            dropped[entry] += 1
        else:
            usable.append(entry)
    if len(usable) < 2:
        reasons = "".join(f", {count} not: {reason}" for reason, count in sorted(dropped.items()))
        raise errors.InconclusiveError(
            f"{identity.op}: {len(usable)} of {len(by_problem)} measured problems can be used{reasons}: at least 2 are"
            " needed; measure more with `python -m tuner sweep`"
        )
    newest = max((row.block.created for row in rows), default="")
    return assemble(usable, identity, device, quarantined, dict(dropped), newest)


def problem_order(problem) -> tuple:
    """Return the sort key of problems, by shape: every table and artefact has this order."""
    return problem.n, problem.k, problem.m, problem.key


def config_order(config) -> tuple:
    """Return the sort key of configs."""
    return tuple(getattr(config, name) for name in CONFIG_ORDER)


def find_quarantined(by_problem: dict) -> dict:
    """Return {config: kernels} of the configs that failed on some problem and never succeeded on it.

    `kernels` are the problems, as kernel_identity makes them, whose kernel did not build: the config is not used for
    those. It is None where the config failed in another way: then the config stays out of every artefact.
    """
    failed: dict[tuple, bool] = {}
    fine: set[tuple] = set()
    for problem, rows in by_problem.items():
        for row in rows:
            pair = (problem, row.config)
            if row.status in FAILURES:
                failed[pair] = failed.get(pair, False) or row.status not in BUILD_FAILURES
            elif row.status in ("ok", "censored"):
                fine.add(pair)
    found: dict = {}
    for (problem, config), is_general in failed.items():
        if (problem, config) not in fine and found.get(config, ()) is not None:
            found[config] = None if is_general else {*found.get(config, ()), kernel_identity(problem)}
    return found


def quarantined_for(problem, quarantined: dict) -> set:
    """Return the configs that must not be used for `problem`."""
    kernel = kernel_identity(problem)
    return {config for config, kernels in quarantined.items() if kernels is None or kernel in kernels}


@dataclass(frozen=True)
class Entry:
    """One problem while the table is built.

    `best_known` maps a config to (log ratio, state), `search` to the log ratio of its search rounds. `candidates` are
    the default space's, `beyond` the timed configs that are not in the default space of the problem's variant.
    """

    problem: object
    heuristic: object
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
    heuristic = _C.get_analytic_config(problem, device)
    rows = [row for row in rows if row.config not in quarantined and row.block.status == "finished"]
    values = defaultdict(list)
    offsets = {heuristic: 0.0}
    for block_rows in group_by(rows, lambda row: row.block.block_id).values():
        for config, state, log_ratio in relative_rows(block_rows, heuristic, offsets):
            values[config, state].append(log_ratio)
            if state >= SEARCHED:
                offsets.setdefault(config, log_ratio)
    if all((heuristic, state) not in values for state in (CENSORED, SEARCHED, CONFIRMED)):
        return "heuristic's pick not measured"
    known = {key: max(logs) if key[1] == CENSORED else float(np.median(logs)) for key, logs in values.items()}
    best_known = {}
    for (config, state), value in sorted(known.items(), key=lambda item: item[0][1]):
        best_known[config] = (value, state)
    # A snapshot may leave out the search rows of confirmed configs, see tuner.db.publish: their confirmation stands in.
    search = {
        config: value
        for (config, state), value in sorted(known.items(), key=lambda item: -item[0][1])
        if state in (SEARCHED, CONFIRMED)
    }
    candidates = frozenset(_C.get_candidates(problem, device)) - quarantined
    beyond = frozenset(best_known).difference(default_space(kernel_identity(problem), device))
    return Entry(problem, heuristic, best_known, search, candidates, beyond, heuristic_time(rows, heuristic))


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
        if anchor is not None and row.status in ("ok", "censored") and (value := to_value(row)):
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
    times = [
        row.median_us for row in rows if row.status in ("ok", "censored") and row.median_us and row.config == heuristic
    ]
    return float(np.median(times)) if times else math.nan


def group_by(rows: Iterable[MeasurementRow], get_key: Callable[[MeasurementRow], object]) -> dict:
    """Return {key: rows}, both in the order of the rows."""
    groups = defaultdict(list)
    for row in rows:
        groups[get_key(row)].append(row)
    return groups


def find_legal(problems: list, configs: list, device: _C.Device, quarantined: dict) -> np.ndarray:
    """Return bool[R,C]: which configs the run time may choose."""
    found = np.zeros((len(problems), len(configs)), bool)
    for row, problem in enumerate(problems):
        excluded = quarantined_for(problem, quarantined)
        found[row] = [config not in excluded and _C.is_worth_trying(problem, config, device) for config in configs]
    return found


def assemble(
    entries: list[Entry], identity: Identity, device: _C.Device, quarantined: dict, dropped: dict, newest: str
) -> Dataset:
    """Lay the entries out as arrays."""
    configs = sorted(
        {config for entry in entries for config in entry.best_known} | {entry.heuristic for entry in entries},
        key=config_order,
    )
    column = {config: index for index, config in enumerate(configs)}
    shape = len(entries), len(configs)
    log_ratio, search = np.full(shape, LOG_TWO), np.full(shape, np.nan)
    state, candidate = np.zeros(shape, np.int8), np.zeros(shape, bool)
    for row, entry in enumerate(entries):
        for config, (value, level) in entry.best_known.items():
            log_ratio[row, column[config]], state[row, column[config]] = value, level
        for config, value in entry.search.items():
            search[row, column[config]] = value
        candidate[row, [column[config] for config in entry.candidates | entry.beyond if config in column]] = True
    legal = find_legal([entry.problem for entry in entries], configs, device, quarantined)
    problems = [entry.problem for entry in entries]
    full_space = np.array([measured_share(entry) >= FULL_SPACE_SHARE for entry in entries])
    return Dataset(
        identity,
        device,
        problems,
        configs,
        log_ratio,
        search,
        state,
        candidate,
        legal,
        full_space,
        np.array([column[entry.heuristic] for entry in entries]),
        find_oracle(log_ratio, search, state),
        np.array([entry.heuristic_us for entry in entries]),
        find_families(problems),
        model_names(problems),
        sorted((config for config, kernels in quarantined.items() if kernels is None), key=config_order),
        sorted(quarantined, key=config_order),
        dropped,
        newest,
    )


def measured_share(entry: Entry) -> float:
    """Return the share of the problem's candidates that have a timed row."""
    return len(entry.candidates & entry.best_known.keys()) / max(len(entry.candidates), 1)


def find_oracle(log_ratio: np.ndarray, search: np.ndarray, state: np.ndarray) -> np.ndarray:
    """Return the best column per row: the best confirmed config by its search rounds, so that its score is unbiased.

    Rows with fewer than two confirmed configs take the best one that was timed.
    """
    confirmed = (state == CONFIRMED) & ~np.isnan(search)
    enough = confirmed.sum(axis=1) >= 2
    chosen = np.where(confirmed, search, np.inf).argmin(axis=1)
    timed = np.where(state >= SEARCHED, log_ratio, np.inf).argmin(axis=1)
    return np.where(enough, chosen, timed)
