"""python -m tuner inspect: coverage, noise, stale rows and failures of a database."""

import json

import typer

from tuner.commands import options as shared_options
from tuner.commands.tables import format_table
from tuner.measured import FAILURES

ROW_HEADINGS = ("op kind", "kernel", "current", "rows", "ok", "dropped", "failed", "skipped", "stale", "newest")
COVERAGE_HEADINGS = ("op kind", "preset", "total", "measured", "current", "missing, first")
REGRESSION_HEADINGS = ("op kind", "compared with", "problems", "whole", "slower", "suspect", "verdict")
NOISE_HEADINGS = ("op kind", "block", "anchor", "confirmation", "ratio interval")


def register(app) -> None:
    """Add `inspect` to the command line."""
    app.command("inspect")(inspect)


def inspect(
    database: str = shared_options.READ_DB,
    device: str = shared_options.SKU,
    op: str = shared_options.RECORDED_OP,
    preset: str = typer.Option("", help="Show the coverage of this preset only. Default: all presets."),
    as_json: shared_options.AsJson = False,
) -> None:
    """Show what the database covers, how noisy it is, what is stale or failed, and what became slower.

    Slower than the baseline (`baseline set`), or where none is set than the kernels before the newest.

    Example: python -m tuner inspect --db tuning.db
    """
    from tuner.learn.inspection import inspect as inspect_store
    from tuner.learn.sources import find_device, find_ops, open_database

    with open_database(database, device) as store:
        sku = find_device(store, device).sku
        found = [inspect_store(store, sku, kind, preset) for kind in find_ops(store, sku, op)]
        regressions = find_regressions(database, store, sku, op)
    if as_json:
        document = {"sku": sku, "ops": {entry["op"]: entry for entry in found}, "regressions": regressions}
        print(json.dumps(document, indent=1, sort_keys=True))
        return
    print(f"{sku} in {store.target}")
    print_rows(found)
    print_coverage(found)
    print_noise(found)
    print_failures(found)
    print_regressions(regressions)


def print_rows(found: list[dict]) -> None:
    """Print a line per op kind: its newest kernels, and its rows by status."""
    print(format_table(ROW_HEADINGS, map(describe_rows, found)))
    print("current: whether kernel is that of this package; older: its rows choose for this package's, too")
    print("stale: rows of other kernels than this package's")


def describe_rows(found: dict) -> tuple:
    """Return the cells of one op kind."""
    hashes, statuses = found["kernel_hash"], found["failures"]["statuses"]
    failed = sum(count for status, count in statuses.items() if status in FAILURES)
    counts = (found["rows"], statuses.get("ok", 0), statuses.get("censored", 0), failed, statuses.get("skipped", 0))
    newest = max((entry["newest"] for entry in found["identities"]), default="-")
    return (
        found["op"],
        (hashes["newest"] or "none")[:8],
        "yes" if hashes["matches"] else "older" if hashes["serves"] else "NO",
        *counts,
        found["stale"]["rows"],
        newest[:10],
    )


def print_coverage(found: list[dict]) -> None:
    """Print a line per op kind and preset: how many of its problems were measured."""
    rows = [
        (entry["op"], name, part["problems"], part["measured"], part["current"], ", ".join(part["missing"][:1]))
        for entry in found
        for name, part in entry["coverage"].items()
    ]
    if rows:
        print("\n" + format_table(COVERAGE_HEADINGS, [(*row[:5], row[5].removeprefix(f"{row[0]} ")) for row in rows]))


def print_noise(found: list[dict]) -> None:
    """Print a line per op kind: four kinds of noise."""
    rows = [
        (
            entry["op"],
            *(f"{part['median']:.2%}, {part['p95']:.2%}" if part else "-" for part in entry["noise"].values()),
        )
        for entry in found
    ]
    print("\n" + format_table(NOISE_HEADINGS, rows))
    print("median, 95 % quantile; block: one config against itself; anchor: a fixed product over the blocks")


def print_failures(found: list[dict]) -> None:
    """Print the configs that failed most."""
    rows = [
        (entry["op"], failed["config"], ", ".join(f"{count} {name}" for name, count in failed["failures"].items()))
        for entry in found
        for failed in entry["failures"]["configs"]
    ]
    if rows:
        print("\n" + format_table(("op kind", "failed config", "how often"), rows))
        print("--json has an example of each")


def find_regressions(database: str, store, sku: str, op: str) -> list[dict]:
    """Return the reports of `compare` on the database and its baseline, [] where it has nothing to compare with."""
    from tuner import errors
    from tuner.commands.compare import load_sides
    from tuner.compare import recorded

    try:
        (name, _), _, sides = load_sides("", database, sku, op, {database: store})
    except errors.InconclusiveError:
        return []
    return [{"a": name, **report} for report in recorded.describe(recorded.compare_sides(sides))]


def print_regressions(reports: list[dict]) -> None:
    """Print a line per op kind: what became slower."""
    rows = []
    for part in reports:
        verdicts = [row["verdict"] for row in (*part["configs"], *part["single"])]
        whole = f"{part['shift']['ratio']:.3f}" if part["shift"] else "-"
        counts = [verdicts.count(name) for name in ("slower", "suspect")]
        rows.append((part["op"], part["a"], part["problems"], whole, *counts, part["verdict"]))
    if rows:
        print("\n" + format_table(REGRESSION_HEADINGS, rows))
        print("whole: all configs alike, newest kernels over the others; `compare` says more")
