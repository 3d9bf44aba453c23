"""What a database knows, how well, and what it lacks: coverage of presets, noise, stale rows, failures."""

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np

from deep_gemm.jit import hashing
from deep_gemm.older_kernels import list_serving
from tuner.db.summaries import BlockSummary, Failure, add_statuses
from tuner.measured import FAILURES
from tuner.problems import shapes, workload
from tuner.problems.regimes import is_own

QUANTILES = {"median": 0.5, "p95": 0.95, "max": 1.0}
#: Examples per finding; the counts are complete.
MAX_EXAMPLES = 8


def inspect(store, sku: str, op: str, preset: str = "") -> dict:
    """Return the report on one SKU and op kind that `--json` prints; `preset` limits the coverage to one preset.

    The database counts: no row becomes an object, and time and memory grow with the number of blocks.
    """
    current = hashing.kernel_hash(op)
    summaries = store.load_summaries(sku, op)
    blocks = [block for block in summaries if block.legal.configs and is_own(block.regime)]
    newest = store.newest_kernel_hash(op, sku)
    fresh = [block for block in blocks if block.identity.kernel_hash == newest]
    return {
        "sku": sku,
        "op": op,
        "kernel_hash": {
            "tree": current,
            "newest": newest,
            "matches": newest == current,
            "serves": newest in list_serving(op, current),
        },
        "rows": count_rows(blocks),
        "identities": describe_identities(blocks, current),
        "coverage": describe_coverage(blocks, newest, current, op, [preset] if preset else shapes.preset_names()),
        "noise": describe_noise(fresh, store.load_spreads(sku, newest, op)),
        "stale": describe_stale(blocks, current),
        "failures": describe_failures(store, fresh, find_failures(store, sku, newest, op, fresh)),
    }


def count_rows(blocks: Iterable[BlockSummary]) -> int:
    """Return how many rows the blocks have together."""
    return sum(block.legal.rows for block in blocks)


def describe_identities(blocks: list[BlockSummary], current: str) -> list[dict]:
    """Return the counts per kernel hash, compiler and regime, the newest first; `current` is the package's hash."""
    groups = defaultdict(list)
    for block in blocks:
        groups[block.identity].append(block)
    found = [
        {
            "kernel_hash": identity.kernel_hash,
            "compiler": identity.compiler,
            "regime": identity.regime,
            "current": identity.kernel_hash == current,
            "rows": count_rows(group),
            "problems": len({block.problem_key for block in group}),
            "configs": len(frozenset().union(*{block.legal.configs for block in group})),
            "newest": max(block.created for block in group),
        }
        for identity, group in groups.items()
    ]
    return sorted(found, key=lambda entry: entry["newest"], reverse=True)


def describe_coverage(
    blocks: list[BlockSummary], newest: str | None, current: str, op: str, presets: list[str]
) -> dict:
    """Return for each preset with problems of `op` how many of them have a finished block, and which have none.

    Blocks count per kernel hash: the database's newest, and the package's own (`current`). Blocks do not count that
    are of another workload than the default one, or that went through fewer draws of it than a sweep would now.
    """
    draws: defaultdict[str | None, Counter[str]] = defaultdict(Counter)
    for block in blocks:
        if block.status == "finished" and workload.is_default(block.workload):
            of_problem, key = draws[block.identity.kernel_hash], block.problem_key
            of_problem[key] = max(of_problem[key], workload.count_stored_draws(block.workload))
    found = {}
    for name in presets:
        problems = [problem for problem in shapes.load_preset(name) if problem.op == op]
        if not problems:
            continue
        wanted = {problem: workload.count_draws(problem, workload.Workload()) for problem in problems}
        missing = [problem for problem in problems if draws[newest][problem.key] < wanted[problem]]
        found[name] = {
            "problems": len(problems),
            "measured": len(problems) - len(missing),
            "current": sum(draws[current][problem.key] >= wanted[problem] for problem in problems),
            "missing": [str(problem) for problem in missing[:MAX_EXAMPLES]],
        }
    return found


def describe_noise(blocks: list[BlockSummary], spreads: dict[str, np.ndarray]) -> dict:
    """Return four kinds of noise, all relative.

    These are the noise of blocks, the anchor's drift within a regime, the spread of confirmation rounds, and the
    width of the ratios' intervals. Rows of other blocks than `blocks`, as those of sentinels, do not count.
    """
    legal = {block.block_id: block.legal.configs for block in blocks if block.legal is not block.stored}
    kept = np.isin(spreads["block_id"], [block.block_id for block in blocks])
    for place in np.flatnonzero(np.isin(spreads["block_id"], list(legal))):
        kept[place] &= spreads["config_id"][place] in legal[spreads["block_id"][place]]
    return {
        "block": quantiles(np.array([block.noise for block in blocks if block.noise is not None])),
        "anchor_drift": quantiles(np.array(find_drift(blocks))),
        "confirmation_mad": quantiles((spreads["mad_us"] / spreads["median_us"])[kept]),
        "ratio_interval": quantiles((spreads["ratio_high"] / spreads["ratio_low"] - 1.0)[kept]),
    }


def find_drift(blocks: Iterable[BlockSummary]) -> list[float]:
    """Return how far each block's anchor is from the median of its regime."""
    anchors: defaultdict[str, list[float]] = defaultdict(list)
    for block in blocks:
        if block.anchor_us:
            anchors[block.regime].append(block.anchor_us)
    medians = {regime: np.median(values) for regime, values in anchors.items()}
    return [float(abs(value / medians[regime] - 1.0)) for regime, values in anchors.items() for value in values]


def quantiles(values: np.ndarray) -> dict | None:
    """Return count, median, p95 and maximum of the values that are not NaN; None without any."""
    values = values[~np.isnan(values)]
    return (
        {"count": len(values)} | {name: float(np.quantile(values, share)) for name, share in QUANTILES.items()}
        if len(values)
        else None
    )


def describe_stale(blocks: list[BlockSummary], current: str) -> dict:
    """Return how many rows are of other kernels than the package's, and how many problems have only such rows."""
    stale = [block for block in blocks if block.identity.kernel_hash != current]
    fresh = {block.problem_key for block in blocks if block.identity.kernel_hash == current}
    return {"rows": count_rows(stale), "problems": len({block.problem_key for block in stale} - fresh)}


def find_failures(store, sku: str, kernel_hash: str | None, op: str, blocks: list[BlockSummary]) -> list[Failure]:
    """Return the rows that failed; where no block counts any, the rows are not looked through."""
    has_failed = any(not block.stored.statuses.keys().isdisjoint(FAILURES) for block in blocks)
    return store.load_failures(sku, kernel_hash, op, FAILURES) if has_failed else []


def describe_failures(store, blocks: list[BlockSummary], failures: list[Failure]) -> dict:
    """Return the counts by status, and the configs with most failures, each with an example."""
    statuses = add_statuses(block.legal for block in blocks)
    legal = {block.block_id: block.legal.configs for block in blocks}
    configs: defaultdict[int, list[Failure]] = defaultdict(list)
    for failure in failures:
        if failure.config_id in legal.get(failure.block_id, ()):
            configs[failure.config_id].append(failure)
    worst = sorted(configs.values(), key=lambda group: (-len(group), group[0].config_id))[:MAX_EXAMPLES]
    return {"statuses": dict(sorted(statuses.items())), "configs": [describe_failed(store, group) for group in worst]}


def describe_failed(store, failures: list[Failure]) -> dict:
    """Return the failures of one config."""
    config, problem, log = store.describe_failure(failures[0])
    return {
        "config": str(config),
        "failures": dict(Counter(failure.status for failure in failures)),
        "example": f"{problem}: {log[-200:]}",
    }
