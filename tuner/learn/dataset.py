"""Measured rows as one table: for each problem, the time of every config relative to the heuristic's pick.

All rows of a table share one identity: op kind, SKU, kernel hash, compiler and regime. A value is log(time of the
config / time of the heuristic's pick), both timed in the same block, so that boards, days and clocks cancel. A value
comes from confirmation rounds where there are any, else from search rounds, else from a censored row. That is a lower
bound, because the race dropped the config early. Of configs that were timed again after rests it is the mean of both.
Rows are read for some problems at a time, see entries.py.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property

import numpy as np

from deep_gemm import _C
from deep_gemm.older_kernels import list_serving
from tuner import errors
from tuner.db.rows import Identity, MeasurementRow
from tuner.learn.entries import (
    CENSORED,
    CONFIRMED,
    SEARCHED,
    UNMEASURED,
    Packed,
    Packing,
    group_by,
    read_problem,
)
from tuner.learn.families import find_families
from tuner.learn.sources import find_device
from tuner.measured import FAILURES, TIMED
from tuner.problems.fields import OPS, kernel_identity
from tuner.problems.regimes import is_own, is_rested, is_simulated, name_rested
from tuner.problems.shapes import model_names
from tuner.problems.workload import count_stored_draws

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
#: Failures of one kernel; other variants of the op kind may still use its config.
BUILD_FAILURES = ("compile_error", "spill")
#: Problems that a table has at least.
LEAST_PROBLEMS = 2
#: Problems whose rows are in memory together.
PROBLEMS_AT_A_TIME = 500
__all__ = ["CENSORED", "CONFIRMED", "LOG_TWO", "SEARCHED", "UNMEASURED", "Dataset", "build_dataset", "load_dataset"]


@dataclass(frozen=True)
class Dataset:
    """R problems (rows) x C configs (columns).

        log_ratio    F64[R,C]   best-known log ratio to the heuristic's pick, LOG_TWO where unmeasured
        search       F64[R,C]   log ratio of the search rounds alone, NaN where they did not time the config
        state        I8[R,C]    where the log ratio comes from: UNMEASURED, CENSORED, SEARCHED or CONFIRMED
        candidate    bool[R,C]  whether the config is of the problem's default space, or was timed beyond it
        legal        bool[R,C]  whether the run time may choose the config
        full_space   bool[R]    whether nearly all candidates were measured, and the heuristic's pick of today
        heuristic    I64[R]     column of the heuristic's pick, or of what stands in for it (entries.find_pick)
        oracle       I64[R]     column of the best config, chosen on search rounds and scored on confirmation rounds
        heuristic_us F64[R]     time of the heuristic's pick in microseconds, NaN where it has none
        families     I64[R]     family of weights, see families.find_families

    A config whose ring could be deeper may be timed, and may even be the oracle; the run time then takes it from the
    exact table only. `quarantined` failed otherwise than by not building for some variant; `failed` has those as well.
    `built` has, for those that failed, the variants that they were timed for. `newest` is the time of the newest row,
    `older` counts problems, usable or not, whose rows are of older kernels.
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
    built: dict = field(default_factory=dict)
    dropped: dict = field(default_factory=dict)
    newest: str = ""
    older: int = 0

    @cached_property
    def late_kinds(self) -> dict[str, bool]:
        """Return what _C.get_shortlist must be told: of which kinds of configs that came late any was timed."""
        timed = [self.configs[column] for column in np.flatnonzero((self.state != UNMEASURED).any(axis=0))]
        return {
            name: any(getattr(config, feature) >= least for config in timed) for name, feature, least in _C.LATE_KINDS
        }

    def find_banned(self, problem) -> set:
        """Return the configs that failed, and that were not timed for any problem of the variant either."""
        variant = kernel_identity(problem) if self.failed else None
        return {config for config in self.failed if variant not in self.built.get(config, ())}

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
    backend: str | None = None,
    with_older: bool | None = None,
) -> Dataset:
    """Load the table of one SKU and op kind.

    By default its rows are of the newest kernel hash, and of the compiler and regime with most rows; of problems that
    these kernels did not run, of older kernels whose measurements choose for them, too (deep_gemm.older_kernels).
    `with_older`: whether those count, by default unless a hash is asked for. `backend`: only of times that it takes,
    "simulated" ones or those of a GPU. Raises: InconclusiveError where the store has no usable rows for it; UsageError
    for an unknown SKU; IntegrityError for a damaged database, also where the damage is of rows that are left out.
    """
    device = find_device(store, sku)
    store.check_blocks()
    asked, kernel_hash = kernel_hash, kernel_hash or store.newest_kernel_hash(op, device.sku)
    identity = choose_identity(store, device.sku, op, kernel_hash, compiler, regime, backend) if kernel_hash else None
    if identity is None:
        check_filters(store, device.sku, op, kernel_hash=asked, compiler=compiler, regime=regime)
        raise errors.InconclusiveError(
            f"no measurements of {op} on {device.sku}: measure at least {LEAST_PROBLEMS} problems there with `python -m"
            " tuner sweep`, or name another --db or --device"
        )
    takes_older = not asked if with_older is None else with_older
    hashes = list_serving(op, identity.kernel_hash)
    serving = [replace(identity, kernel_hash=one) for one in (hashes if takes_older else hashes[:1])]
    return arrange(lambda statuses: load_parts(store, serving, statuses), identity, device)


def check_filters(store, sku: str, op: str, **asked: str | None) -> None:
    """Raise UsageError for an identity that is asked for and that no row has, though there are rows."""
    known = [block.identity for block in store.load_summaries(sku, op) if is_own(block.regime)]
    for name, value in asked.items():
        there = sorted({getattr(identity, name) for identity in known})
        if value and there and value not in there:
            flag = "--" + name.replace("_", "-")
            raise errors.UsageError(f"{flag} {value}: no rows of {op} on {sku} have it; use one of {', '.join(there)}")


def choose_identity(
    store,
    sku: str,
    op: str,
    kernel_hash: str,
    compiler: str | None,
    regime: str | None,
    backend: str | None = None,
) -> Identity | None:
    """Return the identity whose compiler and regime together have most rows, None where there are no rows."""
    rows: Counter[tuple[str, str]] = Counter()
    for block in store.load_summaries(sku, op):
        known = block.identity
        is_wanted = (known.kernel_hash, compiler or known.compiler, regime or known.regime) == (
            kernel_hash,
            known.compiler,
            known.regime,
        )
        is_taken = backend is None or is_simulated(known.regime) == (backend == "simulated")
        if is_wanted and is_taken and block.legal.rows and is_own(known.regime):
            rows[known.compiler, known.regime] += block.legal.rows
    return Identity(op, sku, kernel_hash, *max(rows, key=lambda pair: (rows[pair], pair))) if rows else None


def load_parts(store, identities: list[Identity], statuses: Sequence[str]) -> Iterator[list[MeasurementRow]]:
    """Yield the rows of identities, all rows of some problems at a time; of a problem those of the first one that has
    any. With `statuses`, only problems that have a row of one of these.
    """
    known: set[int] = set()
    for identity in identities:
        after_rests = replace(identity, regime=name_rested(identity.regime))
        measured, rested = store.list_problems(identity), set(store.list_problems(after_rests))
        problems = measured
        if statuses:  # a config may have failed after rests only
            failed = store.list_problems(identity, statuses), store.list_problems(after_rests, statuses)
            problems = sorted({*failed[0], *failed[1]})
        problems = [problem for problem in problems if problem not in known]
        known.update(measured)
        for start in range(0, len(problems), PROBLEMS_AT_A_TIME):
            ids = tuple(problems[start : start + PROBLEMS_AT_A_TIME])
            rows = store.load_measurements(**asdict(identity), problem_ids=ids)
            if again := tuple(rested.intersection(ids)):
                rows += store.load_measurements(**asdict(after_rests), problem_ids=again)
            yield rows


def build_dataset(rows: Iterable[MeasurementRow], identity: Identity, device: _C.Device) -> Dataset:
    """Arrange measured rows of one identity as a Dataset. Raises: InconclusiveError with fewer than two problems."""
    known = list(rows)
    return arrange(lambda statuses: [known], identity, device)


def arrange(read: Callable[[Sequence[str]], Iterable[list]], identity: Identity, device: _C.Device) -> Dataset:
    """Arrange as a Dataset what `read` gives: lists of rows, all rows of a problem in one of them.

    Given statuses, it may leave out problems without rows of these. No more than one list is kept at a time: 10^7 rows
    as objects would take 9 GB. Raises: InconclusiveError with fewer than two problems.
    """
    quarantined = find_quarantined(map(group_by_problem, read(FAILURES)))
    usable, packing, newest, older = [], Packing(), "", 0
    dropped: Counter[str] = Counter()
    for rows in read(()):
        newest = max([newest, *(row.block.created for row in rows)])
        for problem, own in group_by_problem(rows).items():
            older += own[0].block.kernel_hash != identity.kernel_hash
            entry = read_problem(problem, own, device, quarantined_for(problem, quarantined))
            if isinstance(entry, str):
                dropped[entry] += 1
            else:
                usable.append(packing.pack(entry))
    if len(usable) < LEAST_PROBLEMS:
        reasons = "".join(f", {count} not: {reason}" for reason, count in sorted(dropped.items()))
        lacking = LEAST_PROBLEMS - len(usable)
        raise errors.InconclusiveError(
            f"{identity.op}: {len(usable)} of {len(usable) + dropped.total()} measured problems can be used{reasons}:"
            f" at least {LEAST_PROBLEMS} are needed; measure at least {lacking} more with `python -m tuner sweep`"
        )
    usable.sort(key=lambda entry: problem_order(entry.problem))
    return replace(assemble(usable, packing, identity, device, quarantined, dict(dropped), newest), older=older)


def group_by_problem(rows: Iterable[MeasurementRow]) -> dict[_C.Problem, list[MeasurementRow]]:
    """Return {problem: rows}."""
    return group_by(rows, lambda row: row.block.problem)


def problem_order(problem) -> tuple:
    """Return the sort key of problems, by shape: every table and artefact has this order."""
    return problem.n, problem.k, problem.m, problem.key


def config_order(config) -> tuple:
    """Return the sort key of configs."""
    return tuple(getattr(config, name) for name in CONFIG_ORDER)


def find_quarantined(parts: Iterable[dict]) -> dict:
    """Return {config: kernels} of the configs that failed on some problem and never succeeded on it.

    Each part is {problem: all its rows}. `kernels` are the problems, as kernel_identity makes them, whose kernel did
    not build: the config is not used for those. It is None where the config failed in another way: then the config
    stays out of every artefact.
    """
    found: dict = {}
    for by_problem in parts:
        for problem, rows in by_problem.items():
            for config, is_general in find_failed(rows).items():
                if found.get(config, ()) is not None:
                    found[config] = None if is_general else {*found.get(config, ()), kernel_identity(problem)}
    return found


def find_failed(rows: list[MeasurementRow]) -> dict[_C.Config, bool]:
    """Return the configs that only failed on the problem of `rows`, and whether otherwise than by not building.

    Back to back and after rests they must be right: one that is so in one of these ways alone failed as well, and so
    did one that is right with fewer draws of the group sizes alone.
    """
    failures = [row for row in rows if row.status in FAILURES]
    fine: dict[tuple, int] = {}
    for row in rows if failures else ():
        if row.status in TIMED:
            fine[find_way(row)] = max(count_stored_draws(row.block.workload), fine.get(find_way(row), 0))
    failed: dict[_C.Config, bool] = {}
    for row in failures:
        if fine.get(find_way(row), 0) < count_stored_draws(row.block.workload):
            failed[row.config] = failed.get(row.config, False) or row.status not in BUILD_FAILURES
    return failed


def find_way(row: MeasurementRow) -> tuple[_C.Config, bool]:
    """Return the config of a row, and whether it was launched after rests."""
    return row.config, is_rested(row.block.regime)


def quarantined_for(problem, quarantined: dict) -> set:
    """Return the configs that must not be used for `problem`."""
    kernel = kernel_identity(problem)
    return {config for config, kernels in quarantined.items() if kernels is None or kernel in kernels}


def find_legal(problems: list, configs: list, device: _C.Device, quarantined: dict) -> np.ndarray:
    """Return bool[R,C]: which configs the run time may choose."""
    found = np.zeros((len(problems), len(configs)), bool)
    for row, problem in enumerate(problems):
        excluded = quarantined_for(problem, quarantined)
        found[row] = [config not in excluded and _C.is_worth_trying(problem, config, device) for config in configs]
    return found


def assemble(
    entries: list[Packed],
    packing: Packing,
    identity: Identity,
    device: _C.Device,
    quarantined: dict,
    dropped: dict,
    newest: str,
) -> Dataset:
    """Lay the entries out as arrays."""
    used = np.zeros(len(packing.numbers), bool)
    for entry in entries:
        used[entry.known] = used[entry.heuristic] = True
    configs = sorted((config for config, number in packing.numbers.items() if used[number]), key=config_order)
    column = np.full(len(used), -1)
    column[[packing.numbers[config] for config in configs]] = np.arange(len(configs))
    shape = len(entries), len(configs)
    log_ratio, search = np.full(shape, LOG_TWO), np.full(shape, np.nan)
    state, candidate = np.zeros(shape, np.int8), np.zeros(shape, bool)
    for row, entry in enumerate(entries):
        log_ratio[row, column[entry.known]], state[row, column[entry.known]] = entry.values, entry.states
        search[row, column[entry.searched]] = entry.search_values
        candidate[row, column[entry.candidates[used[entry.candidates]]]] = True
    problems = [entry.problem for entry in entries]
    return Dataset(
        identity,
        device,
        problems,
        configs,
        log_ratio,
        search,
        state,
        candidate,
        find_legal(problems, configs, device, quarantined),
        np.array([is_whole(entry, configs[column[entry.heuristic]], device) for entry in entries]),
        np.array([column[entry.heuristic] for entry in entries]),
        find_oracle(log_ratio, search, state),
        np.array([entry.heuristic_us for entry in entries]),
        find_families(problems),
        model_names(problems),
        sorted((config for config, kernels in quarantined.items() if kernels is None), key=config_order),
        sorted(quarantined, key=config_order),
        find_built(quarantined, configs, problems, state),
        dropped,
        newest,
    )


def is_whole(entry: Packed, heuristic: _C.Config, device: _C.Device) -> bool:
    """Return whether a problem was measured over nearly its whole space, the heuristic's pick of today included.

    Where another config stands in for the pick, regrets and gains over the heuristic would be those of another pick.
    """
    return entry.share >= FULL_SPACE_SHARE and heuristic == _C.get_analytic_config(entry.problem, device)


def find_built(quarantined: dict, configs: list, problems: list, state: np.ndarray) -> dict:
    """Return {config: variants that it was timed for} of the quarantined configs that have a column."""
    timed = {config: np.flatnonzero(state[:, configs.index(config)]) for config in quarantined if config in configs}
    return {config: {kernel_identity(problems[row]) for row in rows} for config, rows in timed.items()}


def find_oracle(log_ratio: np.ndarray, search: np.ndarray, state: np.ndarray) -> np.ndarray:
    """Return the best column per row: the best confirmed config by its search rounds, so that its score is unbiased.

    Rows with fewer than two confirmed configs take the best one that was timed.
    """
    confirmed = (state == CONFIRMED) & ~np.isnan(search)
    enough = confirmed.sum(axis=1) >= 2
    chosen = np.where(confirmed, search, np.inf).argmin(axis=1)
    timed = np.where(state >= SEARCHED, log_ratio, np.inf).argmin(axis=1)
    return np.where(enough, chosen, timed)
