"""Measured rows as one table: for each problem, the time of every config relative to the heuristic's pick.

One table holds one op kind, SKU, kernel hash, compiler and regime; rows of any other are never mixed in. A value is
log(time of config / time of the heuristic's pick), both timed in the same block, so that boards, days and clocks
cancel. Confirmation rounds come before search rounds, which come before censored rows (lower bounds: the race dropped
them).
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from deep_gemm import _C
from tuner import errors
from tuner.problems.fields import (
    CONFIG_FIELDS,
    OPS,
    PROBLEM_FIELDS,
    get_weight_shape,
    kernel_problem,
    to_config,
    to_problem,
)
from tuner.problems.shapes import model_names
from tuner.sources import find_device

#: What an illegal, pointless or unmeasured config counts as, and the clip of every training target: twice as slow.
LOG_TWO = math.log(2.0)
#: A problem belongs to the full-space set when this share of its candidates was measured; its best config is then
#: known.
FULL_SPACE_SHARE = 0.8
#: Weights whose two sizes (n and k; of groups of K m and n) both lie within this factor of each other form one family,
#: and are never split by validation.
FAMILY_FACTOR = 1.25
UNMEASURED, CENSORED, SEARCHED, CONFIRMED = 0, 1, 2, 3
FAILURES = ("incorrect", "compile_error", "crash", "timeout", "spill")
#: Failures of one kernel, not of its config: other variants of the op kind may use that.
BUILD_FAILURES = ("compile_error", "spill")


@dataclass(frozen=True)
class Identity:
    """What all rows of one table share."""

    op: str
    sku: str
    kernel_hash: str
    compiler: str
    regime: str


@dataclass(frozen=True)
class Dataset:
    """R problems (rows) x C configs (columns).

    `log_ratio` F64[R,C] is the best-known log ratio to the heuristic's pick (LOG_TWO where unmeasured), `search` the
    one that the search rounds alone saw (NaN where they did not), `state` I8[R,C] one of UNMEASURED..CONFIRMED,
    `candidate` bool[R,C], `legal` bool[R,C] what the run time may choose. A candidate is one of the default space or
    was timed; timed with a ring that could be deeper, it is no choice of the run time, which makes the oracle of some
    problems a config that only an exact entry can name. `heuristic`, `oracle` I64[R] are columns; the oracle is chosen
    on search rounds and scored on confirmation rounds.
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
    dropped: dict = field(default_factory=dict)
    newest: str = ""

    def regret_log(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return log(time of the chosen column / time of the oracle) per row; may be negative where the oracle was
        lucky.
        """
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
    """Load the table of one SKU; what is left out is the newest kernel hash and the compiler and regime with most rows.

    Raises: InconclusiveError where the store has no usable rows for it; UsageError for an unknown SKU.
    """
    device = find_device(store, sku)
    kernel_hash = kernel_hash or store.newest_kernel_hash(op, device.sku)
    rows = (
        store.load_measurements(sku=device.sku, kernel_hash=kernel_hash, op=op, regime=regime, compiler=compiler)
        if kernel_hash
        else []
    )
    if not rows:
        raise errors.InconclusiveError(
            f"no measurements of {op} on {device.sku}: run `python -m tuner sweep` there first, or name another --db or"
            " --device"
        )
    compiler, regime = (Counter(row[name] for row in rows).most_common(1)[0][0] for name in ("compiler", "regime"))
    rows = [row for row in rows if row["compiler"] == compiler and row["regime"] == regime]
    return build_dataset(rows, Identity(op, device.sku, kernel_hash, compiler, regime), device)


def build_dataset(rows: list[dict], identity: Identity, device: _C.Device) -> Dataset:
    """Arrange measured rows of one identity as a Dataset.

    Raises: InconclusiveError with fewer than two usable problems.
    """
    by_problem = group_by(attach_objects(rows), "problem")
    quarantined = find_quarantined(by_problem)
    usable, dropped = [], Counter()
    for problem in sorted(by_problem, key=problem_order):
        entry = read_problem(problem, by_problem[problem], device, quarantined_for(problem, quarantined))
        if isinstance(entry, str):
            dropped[entry] += 1
        else:
            usable.append(entry)
    if len(usable) < 2:
        raise errors.InconclusiveError(
            f"{len(usable)} usable problems of {len(by_problem)} ({dict(dropped)}): at least 2 are needed; measure more"
            " with `python -m tuner sweep`"
        )
    newest = max((row["created"] for row in rows), default="")
    return assemble(usable, identity, device, quarantined, dict(dropped), newest)


def problem_order(problem) -> tuple:
    """Sort problems by shape, so that every table and artefact has one order."""
    return problem.n, problem.k, problem.m, problem.key


def config_order(config) -> tuple:
    """Sort configs by tile, cluster, split of K, order of operands, and stages."""
    return (
        config.block_m,
        config.block_n,
        config.block_k,
        config.cluster_m,
        config.cluster_n,
        config.split_k,
        config.swap_ab,
        config.num_stages,
    )


def find_quarantined(by_problem: dict) -> dict:
    """Return {config: kernels} of the configs that failed on some problem and never succeeded on it.

    `kernels`: the problems (see kernel_problem) whose kernel did not build, or None where the config failed otherwise:
    then it stays out of every artefact, else out of those problems only.
    """
    failed, fine = {}, set()
    for problem, rows in by_problem.items():
        for row in rows:
            pair = (problem, row["config"])
            if row["status"] in FAILURES:
                failed[pair] = failed.get(pair, False) or row["status"] not in BUILD_FAILURES
            elif row["status"] in ("ok", "censored"):
                fine.add(pair)
    found: dict = {}
    for (problem, config), is_general in failed.items():
        if (problem, config) not in fine and found.get(config, ()) is not None:
            found[config] = None if is_general else {*found.get(config, ()), kernel_problem(problem)}
    return found


def quarantined_for(problem, quarantined: dict) -> set:
    """Return the configs that must not be used for `problem`."""
    kernel = kernel_problem(problem)
    return {config for config, kernels in quarantined.items() if kernels is None or kernel in kernels}


@dataclass(frozen=True)
class Entry:
    """One problem while the table is built: config -> (log ratio, state), and the search rounds' log ratios.

    `candidates` are those of the default space, `beyond` the timed configs that no default space of the variant has.
    """

    problem: object
    heuristic: object
    best_known: dict
    search: dict
    candidates: frozenset
    beyond: frozenset
    heuristic_us: float


def read_problem(problem, rows: list[dict], device: _C.Device, quarantined: set) -> Entry | str:
    """Return the Entry of one problem without `quarantined` configs, or the reason why it cannot be used."""
    heuristic = _C.get_analytic_config(problem, device)
    rows = [row for row in rows if row["config"] not in quarantined and row["block_status"] == "finished"]
    values = defaultdict(list)
    offsets = {heuristic: 0.0}
    for block_rows in group_by(rows, "block_id").values():
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
    search = {config: value for (config, state), value in known.items() if state == SEARCHED}
    candidates = frozenset(_C.get_candidates(problem, device)) - quarantined
    beyond = frozenset(best_known).difference(default_space(kernel_problem(problem), device))
    return Entry(problem, heuristic, best_known, search, candidates, beyond, heuristic_time(rows, heuristic))


@lru_cache(maxsize=64)
def default_space(variant, device: _C.Device) -> frozenset:
    """Return the default space of a variant; a table's problems share a handful."""
    return frozenset(_C.get_default_space(variant, device))


def relative_rows(block_rows: list[dict], heuristic, offsets: dict) -> list[tuple]:
    """Return (config, state, log ratio to the heuristic's pick) of the timed rows of one block; `offsets` is what
    earlier blocks found.
    """
    anchors = find_anchors(block_rows, heuristic, offsets)
    found = []
    for row in block_rows:
        anchor = anchors.get(row["role"], next(iter(anchors.values()), None))
        if anchor is not None and row["status"] in ("ok", "censored") and to_value(row):
            state = CENSORED if row["status"] == "censored" else CONFIRMED if row["role"] == "confirm" else SEARCHED
            found.append((row["config"], state, math.log(to_value(row)) - anchor))
    return found


def find_anchors(block_rows: list[dict], heuristic, offsets: dict) -> dict:
    """Return {role: the log value that the heuristic's pick has, or would have, in this block}.

    A block without the pick is tied to it through its own reference, else through any config that an earlier block
    timed. A pick that left the race early is a pick all the same: the heuristic of today may choose what was slow then.
    """
    ranked = {}
    for row in block_rows:
        is_timed = row["status"] == "ok" or (
            row["status"] == "censored" and row["config"] == heuristic and bool(to_value(row))
        )
        if is_timed and row["config"] in offsets:
            rank = 0 if row["config"] == heuristic else 1 if row["config_id"] == row["reference_config_id"] else 2
            anchor = rank, math.log(to_value(row)) - offsets[row["config"]]
            ranked[row["role"]] = min(ranked.get(row["role"], anchor), anchor)
    return {role: anchor for role, (_, anchor) in ranked.items()}


def to_value(row: dict) -> float | None:
    """Return the row's time relative to its block's reference (drift cancels per round), or its median in microseconds."""
    return row["ratio"] if row["ratio"] is not None else row["median_us"]


def heuristic_time(rows: list[dict], heuristic) -> float:
    """Return the median time of the heuristic's pick in microseconds, NaN where no row has it."""
    times = [
        row["median_us"]
        for row in rows
        if row["status"] in ("ok", "censored") and row["median_us"] and row["config"] == heuristic
    ]
    return float(np.median(times)) if times else math.nan


def group_by(rows: list[dict], name: str) -> dict:
    """Group rows by one of their fields."""
    groups = defaultdict(list)
    for row in rows:
        groups[row[name]].append(row)
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
        dropped,
        newest,
    )


def measured_share(entry: Entry) -> float:
    """Return the share of the problem's candidates that have a timed row."""
    return len(entry.candidates & entry.best_known.keys()) / max(len(entry.candidates), 1)


def find_oracle(log_ratio: np.ndarray, search: np.ndarray, state: np.ndarray) -> np.ndarray:
    """Return the best column per row: chosen on search rounds among the confirmed configs, so that its score is
    unbiased.
    """
    confirmed = (state == CONFIRMED) & ~np.isnan(search)
    enough = confirmed.sum(axis=1) >= 2
    chosen = np.where(confirmed, search, np.inf).argmin(axis=1)
    timed = np.where(state >= SEARCHED, log_ratio, np.inf).argmin(axis=1)
    return np.where(enough, chosen, timed)


def find_families(problems: list) -> np.ndarray:
    """Return a family number per problem: the connected components of weights within FAMILY_FACTOR in both sizes."""
    pairs = sorted({get_weight_shape(problem) for problem in problems})
    logs = np.log(np.array(pairs, dtype=float))
    near = (np.abs(logs[:, None] - logs[None]) <= math.log(FAMILY_FACTOR) + 1e-12).all(axis=2)
    family = np.arange(len(pairs))
    for _ in pairs:
        merged = np.where(near, family[None], len(pairs)).min(axis=1)
        if (merged == family).all():
            break
        family = merged
    numbers = {label: index for index, label in enumerate(sorted(set(family.tolist())))}
    of_pair = {pair: numbers[label] for pair, label in zip(pairs, family.tolist(), strict=True)}
    return np.array([of_pair[get_weight_shape(problem)] for problem in problems])


def attach_objects(rows: list[dict]) -> list[dict]:
    """Return the rows with their `problem` and `config` as objects, one object per distinct one."""
    problems, configs = {}, {}
    attached = []
    for row in rows:
        problem_fields = tuple(row[name] for name in PROBLEM_FIELDS)
        config_fields = tuple(row[name] for name in CONFIG_FIELDS)
        if problem_fields not in problems:
            problems[problem_fields] = to_problem(row)
        if config_fields not in configs:
            configs[config_fields] = to_config(row)
        attached.append({**row, "problem": problems[problem_fields], "config": configs[config_fields]})
    return attached
