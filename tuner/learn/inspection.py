"""What a database knows, how well, and what it lacks: coverage of presets, noise, stale rows, failures."""

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np

from deep_gemm.jit import hashing
from tuner.db.rows import BlockRow, MeasurementRow
from tuner.learn.dataset import FAILURES, group_by
from tuner.problems import shapes, workload

QUANTILES = {"median": 0.5, "p95": 0.95, "max": 1.0}
#: Examples per finding; the counts are complete.
MAX_EXAMPLES = 8


def inspect(store, sku: str, op: str, preset: str = "") -> dict:
    """Return the report on one SKU and op kind that `--json` prints; `preset` limits the coverage to one preset."""
    current = hashing.kernel_hash(op)
    rows = store.load_measurements(sku=sku, op=op)
    newest = store.newest_kernel_hash(op, sku)
    fresh = [row for row in rows if row.block.kernel_hash == newest]
    return {
        "sku": sku,
        "op": op,
        "kernel_hash": {"tree": current, "newest": newest, "matches": newest == current},
        "rows": len(rows),
        "identities": describe_identities(rows, current),
        "coverage": describe_coverage(rows, newest, current, op, [preset] if preset else shapes.preset_names()),
        "noise": describe_noise(fresh),
        "stale": describe_stale(rows, current),
        "failures": describe_failures(fresh),
    }


def describe_identities(rows: list[MeasurementRow], current: str) -> list[dict]:
    """Return the counts per kernel hash, compiler and regime, the newest first; `current` is the package's hash."""
    found = [
        {
            "kernel_hash": identity.kernel_hash,
            "compiler": identity.compiler,
            "regime": identity.regime,
            "current": identity.kernel_hash == current,
            "rows": len(group),
            "problems": len({row.block.problem_key for row in group}),
            "configs": len({row.config_key for row in group}),
            "newest": max(row.block.created for row in group),
        }
        for identity, group in group_by(rows, lambda row: row.block.identity).items()
    ]
    return sorted(found, key=lambda entry: entry["newest"], reverse=True)


def describe_coverage(
    rows: list[MeasurementRow], newest: str | None, current: str, op: str, presets: list[str]
) -> dict:
    """Return for each preset with problems of `op` how many of them have a finished block, and which have none.

    Blocks count per kernel hash: the database's newest, and the package's own (`current`). Blocks of another workload
    than the default one do not count.
    """
    measured: defaultdict[str | None, set[str]] = defaultdict(set)
    for row in rows:
        if row.block.status == "finished" and workload.is_default(row.block.workload):
            measured[row.block.kernel_hash].add(row.block.problem_key)
    found = {}
    for name in presets:
        problems = [problem for problem in shapes.load_preset(name) if problem.op == op]
        if not problems:
            continue
        missing = [problem for problem in problems if problem.key not in measured[newest]]
        found[name] = {
            "problems": len(problems),
            "measured": len(problems) - len(missing),
            "current": sum(problem.key in measured[current] for problem in problems),
            "missing": [str(problem) for problem in missing[:MAX_EXAMPLES]],
        }
    return found


def describe_noise(rows: list[MeasurementRow]) -> dict:
    """Return four kinds of noise, all relative.

    These are the A/A noise of blocks, the anchor's drift within a regime, the spread of confirmation rounds, and the
    width of the ratios' intervals.
    """
    blocks = {row.block.block_id: row.block for row in rows}
    confirmed = [row for row in rows if row.role == "confirm" and row.status == "ok"]
    return {
        "a_a": quantiles([block.noise for block in blocks.values() if block.noise is not None]),
        "anchor_drift": quantiles(find_drift(blocks.values())),
        "confirmation_mad": quantiles(
            [row.mad_us / row.median_us for row in confirmed if row.mad_us is not None and row.median_us is not None]
        ),
        "ratio_interval": quantiles(
            [row.ratio_high / row.ratio_low - 1.0 for row in confirmed if row.ratio_low and row.ratio_high]
        ),
    }


def find_drift(blocks: Iterable[BlockRow]) -> list[float]:
    """Return how far each block's anchor is from the median of its regime."""
    anchors: defaultdict[str, list[float]] = defaultdict(list)
    for block in blocks:
        if block.anchor_us:
            anchors[block.regime].append(block.anchor_us)
    medians = {regime: np.median(values) for regime, values in anchors.items()}
    return [float(abs(value / medians[regime] - 1.0)) for regime, values in anchors.items() for value in values]


def quantiles(values: list[float]) -> dict | None:
    """Return count, median, p95 and maximum; None without values."""
    return (
        {"count": len(values)} | {name: float(np.quantile(values, share)) for name, share in QUANTILES.items()}
        if values
        else None
    )


def describe_stale(rows: list[MeasurementRow], current: str) -> dict:
    """Return how many rows are of other kernels than the package's, and how many problems have only such rows."""
    stale = [row.block for row in rows if row.block.kernel_hash != current]
    fresh = {row.block.problem_key for row in rows if row.block.kernel_hash == current}
    return {"rows": len(stale), "problems": len({block.problem_key for block in stale} - fresh)}


def describe_failures(rows: list[MeasurementRow]) -> dict:
    """Return the counts by status, and the configs with most failures, each with an example."""
    failed = [row for row in rows if row.status in FAILURES]
    configs = group_by(failed, lambda row: row.config_key)
    worst = sorted(configs.values(), key=lambda group: (-len(group), group[0].config_key))[:MAX_EXAMPLES]
    return {
        "statuses": dict(sorted(Counter(row.status for row in rows).items())),
        "configs": [describe_failed(group) for group in worst],
    }


def describe_failed(rows: list[MeasurementRow]) -> dict:
    """Return the failures of one config."""
    first = rows[0]
    return {
        "config": str(first.config),
        "failures": dict(Counter(row.status for row in rows)),
        "example": f"{first.block.problem}: {(first.error or '')[-200:]}",
    }
