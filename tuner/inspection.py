"""What is known, how well, and what is missing: coverage of presets, noise, stale rows, failures. Reads only."""

from collections import Counter, defaultdict

import numpy as np

from deep_gemm.jit import hashing
from tuner.learn.dataset import FAILURES, group_by
from tuner.problems import shapes, workload
from tuner.problems.fields import to_config, to_problem

QUANTILES = {"median": 0.5, "p95": 0.95, "max": 1.0}
#: Examples named per finding; the counts are complete.
MAX_EXAMPLES = 8


def inspect(store, sku: str, op: str, preset: str = "") -> dict:
    """Return coverage, noise, stale rows and failures of one SKU and op kind. `preset` limits the coverage to one."""
    current = hashing.kernel_hash(op)
    rows = store.load_measurements(sku=sku, op=op)
    newest = store.newest_kernel_hash(op, sku)
    fresh = [row for row in rows if row["kernel_hash"] == newest]
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


def describe_identities(rows: list[dict], current: str) -> list[dict]:
    """Return the counts of each (kernel hash, compiler, regime), the newest first."""
    groups = defaultdict(list)
    for row in rows:
        groups[row["kernel_hash"], row["compiler"], row["regime"]].append(row)
    found = [
        {
            "kernel_hash": key[0],
            "compiler": key[1],
            "regime": key[2],
            "current": key[0] == current,
            "rows": len(group),
            "problems": len({row["problem_key"] for row in group}),
            "configs": len({row["config_key"] for row in group}),
            "newest": max(row["created"] for row in group),
        }
        for key, group in groups.items()
    ]
    return sorted(found, key=lambda entry: entry["newest"], reverse=True)


def describe_coverage(rows: list[dict], newest: str | None, current: str, op: str, presets: list[str]) -> dict:
    """Return per preset with problems of `op` how many of them have a finished block of the newest rows' kernel and of
    the tree's, and which have none.

    Blocks of another workload than the default one do not count.
    """
    measured = defaultdict(set)
    for row in rows:
        if row["block_status"] == "finished" and workload.is_default(row["workload"]):
            measured[row["kernel_hash"]].add(row["problem_key"])
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


def describe_noise(rows: list[dict]) -> dict:
    """Return the A/A noise of blocks, the anchor's drift within a regime, and the spread of confirmation rounds, all
    relative.
    """
    blocks = {row["block_id"]: row for row in rows}
    anchors = group_by([row for row in blocks.values() if row["anchor_us"]], "regime")
    drift = [
        row["anchor_us"] / np.median([other["anchor_us"] for other in group]) - 1.0
        for group in anchors.values()
        for row in group
    ]
    confirmed = [
        row for row in rows if row["role"] == "confirm" and row["status"] == "ok" and row["mad_us"] is not None
    ]
    return {
        "a_a": quantiles([row["noise"] for row in blocks.values() if row["noise"] is not None]),
        "anchor_drift": quantiles([abs(value) for value in drift]),
        "confirmation_mad": quantiles([row["mad_us"] / row["median_us"] for row in confirmed]),
        "ratio_interval": quantiles(
            [row["ratio_high"] / row["ratio_low"] - 1.0 for row in confirmed if row["ratio_low"] and row["ratio_high"]]
        ),
    }


def quantiles(values: list[float]) -> dict | None:
    """Return count, median, p95 and maximum; None without values."""
    return (
        {"count": len(values)} | {name: float(np.quantile(values, share)) for name, share in QUANTILES.items()}
        if values
        else None
    )


def describe_stale(rows: list[dict], current: str) -> dict:
    """Return how many rows are of other kernels than the tree's, and how many problems have only such rows."""
    stale = [row for row in rows if row["kernel_hash"] != current]
    fresh = {row["problem_key"] for row in rows if row["kernel_hash"] == current}
    return {"rows": len(stale), "problems": len({row["problem_key"] for row in stale} - fresh)}


def describe_failures(rows: list[dict]) -> dict:
    """Return the counts by status, and the configs with failures with an example each, most failures first."""
    failed = [row for row in rows if row["status"] in FAILURES]
    configs = group_by(failed, "config_key")
    worst = sorted(configs.values(), key=lambda group: (-len(group), group[0]["config_key"]))[:MAX_EXAMPLES]
    return {
        "statuses": dict(sorted(Counter(row["status"] for row in rows).items())),
        "configs": [describe_failed(group) for group in worst],
    }


def describe_failed(rows: list[dict]) -> dict:
    """Return one config's failures."""
    first = rows[0]
    example = f"{to_problem(first)}: {(first['error'] or '')[-200:]}"
    return {
        "config": str(to_config(first)),
        "failures": dict(Counter(row["status"] for row in rows)),
        "example": example,
    }
