"""python -m tuner inspect: coverage, noise, stale rows and failures of a database."""

import json

import typer

from tuner.problems.fields import OP_NAMES


def register(app) -> None:
    """Add `inspect` to the command line."""
    app.command("inspect")(inspect)


def inspect(
    database: str = typer.Option(
        "",
        "--db",
        help="Database to read. Default: $DG_TUNER_DB, else ~/.deep_gemm/tuning.db, else the recorded snapshot.",
    ),
    device: str = typer.Option("", help="SKU or short name (h200). Default: the only one in the database."),
    op: str = typer.Option("", help=f"One of {OP_NAMES}. Default: every op kind with rows."),
    preset: str = typer.Option("", help="Show the coverage of this preset only. Default: all presets."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Show what the database covers, how noisy it is, and what is stale or failed.

    Example: python -m tuner inspect --db tuning.db
    """
    from tuner.learn.inspection import inspect as inspect_store
    from tuner.learn.sources import find_device, find_ops, open_database

    with open_database(database) as store:
        sku = find_device(store, device).sku
        found = [inspect_store(store, sku, kind, preset) for kind in find_ops(store, sku, op)]
    if as_json:
        print(json.dumps({"sku": sku, "ops": {entry["op"]: entry for entry in found}}, indent=1, sort_keys=True))
        return
    for entry in found:
        print_report(entry)


def print_report(found: dict) -> None:
    """Print one line per finding."""
    hashes = found["kernel_hash"]
    print(
        f"{found['op']} on {found['sku']}: {found['rows']} rows, newest of kernel {(hashes['newest'] or 'none')[:16]},"
        f" {'the same as' if hashes['matches'] else 'NOT that of'} this package"
    )
    for entry in found["identities"]:
        print(
            f"  kernel {entry['kernel_hash'][:16]} {entry['compiler']} {entry['regime']}: {entry['problems']} problems,"
            f" {entry['configs']} configs, {entry['rows']} rows to {entry['newest']}"
        )
    for name, entry in found["coverage"].items():
        dots = ", ..." if entry["problems"] - entry["measured"] > len(entry["missing"]) else ""
        missing = f"; missing {', '.join(entry['missing'])}{dots}" if entry["missing"] else ""
        print(
            f"coverage of {name}: {entry['measured']} of {entry['problems']} problems, {entry['current']} with this"
            f" package's kernel{missing}"
        )
    for name, entry in found["noise"].items():
        if entry:
            print(
                f"noise, {name.replace('_', ' ')}: median {entry['median']:.2%}, p95 {entry['p95']:.2%}, max"
                f" {entry['max']:.2%} ({entry['count']})"
            )
    print(
        f"stale: {found['stale']['rows']} rows of other kernels; {found['stale']['problems']} problems have no others"
    )
    print(f"statuses: {', '.join(f'{status} {count}' for status, count in found['failures']['statuses'].items())}")
    for entry in found["failures"]["configs"]:
        print(f"  failed {entry['config']}: {entry['failures']}; {entry['example']}")
