"""python -m tuner db: create, upgrade, check, audit, merge, export, count and show tuning databases, and snapshots."""

import json
import textwrap
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from deep_gemm import environment
from deep_gemm.text import printable
from tuner import errors
from tuner.commands.options import AsJson
from tuner.commands.problem_options import OP_HELP, add_field_parameters
from tuner.commands.rankings import print_ranking
from tuner.commands.tables import WIDTH, format_table, print_left_out
from tuner.credentials import hide_credentials
from tuner.measured import FAILURES
from tuner.problems.fields import OP_NAMES

Database = Annotated[
    str,
    typer.Option(
        "--db",
        help=(
            "Path of a SQLite file, or postgresql+psycopg://... Default: $DG_TUNER_DB, else $HOME/.deep_gemm/tuning.db."
        ),
    ),
]
Recorded = Annotated[
    str,
    typer.Option(
        "--db",
        help="Path or URL. Default: $DG_TUNER_DB, else $HOME/.deep_gemm/tuning.db, else the recorded snapshot.",
    ),
]
RecordingOf = Annotated[
    str,
    typer.Option(
        "--device",
        help="SKU or short name (h200) whose rows or snapshot are meant. Default: all rows, this GPU's snapshot.",
    ),
]

STATS_HEADINGS = ("op kind", "kernel", "problems", "configs", "rows", "censored", "failed", "skipped", "last")
EXPORT_FORMATS = ("json", "csv", "parquet")
AUDIT_HEADINGS = ("problem", "config", "behind the best", "expected", "says the")

app = typer.Typer(
    name="db",
    no_args_is_help=True,
    help=(
        "Create, upgrade, check, audit, merge and show tuning databases, and make snapshots to publish."
        " Example: python -m tuner db stats"
    ),
)


def register(parent: typer.Typer) -> None:
    """Add `db` to the command line."""
    parent.add_typer(app, name="db")


def get_database(database: str) -> str:
    """Return the database to use: what --db says, else the environment's."""
    return database or environment.tuner_database()


def report(as_json: bool, result: dict, line: str) -> None:
    """Print a result as JSON or as one line."""
    print(json.dumps(result, sort_keys=True) if as_json else line)


def describe_gain(gained: dict) -> str:
    """Return "3 block, 120 measurement", or "nothing new"."""
    return ", ".join(f"{count} {name}" for name, count in gained.items() if count) or "nothing new"


def describe_rows(counted: dict, sentinels: int) -> str:
    """Return what a database holds, with how many of the measured rows are of sentinels, if any are."""
    return f"{describe_gain(counted)}{f'; {sentinels} measured rows are of sentinels' if sentinels else ''}"


@app.command()
def init(db: Database = "", as_json: AsJson = False) -> None:
    """Create a database unless it exists. Example: python -m tuner db init --db h200.db"""
    from tuner.db import Store

    with Store.open(get_database(db), "rw", wait_s=60.0) as store:
        rows = sum(store.stats()["tables"].values())
        report(as_json, {"database": str(store.target), "rows": rows}, f"{store.target}: ready, {rows} rows")


@app.command()
def upgrade(db: Database = "", as_json: AsJson = False) -> None:
    """Bring a database of an older package up to date, keeping every row.

    Example: python -m tuner db upgrade --db h200.db
    """
    from tuner.db import Store, tables

    target = get_database(db)
    if "://" not in target and not Path(target).exists():
        raise errors.UsageError(f"--db {target}: no such file; create it with `python -m tuner db init`")
    with Store.open(target, "rw", wait_s=60.0) as store:
        report(
            as_json,
            {"database": str(store.target), "schema": tables.SCHEMA_VERSION},
            f"{store.target}: schema {tables.SCHEMA_VERSION}",
        )


@app.command()
def check(db: Recorded = "", device: RecordingOf = "", as_json: AsJson = False) -> None:
    """Check every page, reference, row and checksum of a database. Example: python -m tuner db check --db h200.db"""
    from tuner.learn.sources import find_device, find_ops, open_database

    with open_database(db, device) as store:
        if device:
            find_ops(store, find_device(store, device).sku)
        problems, unverified = store.check(), store.count_unverified()
    sound = f"{store.target}: sound{describe_unverified(unverified)}"
    report(
        as_json,
        {"database": str(store.target), "problems": problems, "unverified": unverified},
        sound if not problems else "\n".join(map(printable, problems)),
    )
    if problems:
        raise errors.IntegrityError(
            f"{store.target}: {len(problems)} problems found; salvage its rows with `sqlite3 {store.target} .recover`"
        )


def describe_unverified(rows: int) -> str:
    """Return how many rows have no checksum, if any."""
    return f"; {rows} rows without a checksum, of before there were any: damage to them is not seen" if rows else ""


@app.command()
def audit(
    device: Annotated[str, typer.Option(help="SKU or short name (h200). Default: the only one in the database.")] = "",
    op: Annotated[str, typer.Option(help=f"One of {OP_NAMES}. Default: every op kind with rows.")] = "",
    top: Annotated[int, typer.Option(min=0, help="Doubtful rows to show for each op kind; 0: all.")] = 10,
    *,
    db: Recorded = "",
    as_json: AsJson = False,
) -> None:
    """Find what should be measured again, of what `train` learns from: rows that others contradict, noisy and throttled
    blocks.

    Example: python -m tuner db audit --op fp8_gemm --json > audit.json
    """
    from tuner.learn.audit import audit_op
    from tuner.learn.each_op import try_each
    from tuner.learn.sources import find_device, find_ops, open_database

    with open_database(db, device) as store:
        sku = find_device(store, device).sku
        found, left_out = try_each(find_ops(store, sku, op), lambda kind: audit_op(store, sku, kind))
    print_left_out(left_out)
    if as_json:
        print(json.dumps(describe_audits(found), indent=1, sort_keys=True))
        return
    for kind, each in found.items():
        print_audit(kind, each, top)


def describe_audits(found: dict) -> dict:
    """Return audits by op kind, and together what to sweep again, see Audit.to_json."""
    ops = {kind: each.to_json() for kind, each in found.items()}
    joined = {
        name: [row for each in ops.values() for row in each[name] or ()] for name in ("problems", "configs", "whole")
    }
    return {"ops": ops} | joined | {"configs": joined["configs"] or None}


def print_audit(op: str, found, top: int) -> None:
    """Print what an audit found of one op kind."""
    print(
        f"{op}: {len(found.doubts)} of {found.censored} early drops are contradicted ({found.thin} drops were on fewer"
        " than 3 samples)"
    )
    print(
        f"  {found.blocks} blocks: {found.older} of older kernels, {found.rested} after rests, {len(found.noisy)} with"
        " more than 2 % of noise,"
    )
    print(f"  {found.limited} at the power limit, {len(found.throttled)} throttled by heat or by the power supply")
    doubted, whole = len(found.problems()), len(found.whole())
    if doubted or whole:
        print(f"  to sweep again: {doubted} problems with the doubted configs, {whole} problems whole")
    shown = found.doubts[: top or None]
    if shown:
        rows = [
            (str(doubt.problem), str(doubt.config), f"+{doubt.behind:.0%}", f"{doubt.expected:+.0%}", doubt.source)
            for doubt in shown
        ]
        print(format_table(AUDIT_HEADINGS, rows, indent="  "))


@app.command()
def snapshot(
    target: Annotated[
        Path, typer.Argument(help="The file to write. An older snapshot is replaced unless it holds more.")
    ],
    db: Database = "",
    sku: Annotated[
        str,
        typer.Option(
            help="Keep only this SKU or short name (h200): of each op kind the newest two kernel hashes, and energies"
            " of problems of which no newer kernels have any."
        ),
    ] = "",
    max_bytes: Annotated[
        int,
        typer.Option(
            min=1,
            help="Fail if the result is larger than this. Older kernels are left out before, then visits to a"
            " sentinel between a board's first and last one, then search rows of confirmed configs, last of all"
            " energies that older kernels alone have.",
        ),
    ] = 8_000_000,
    as_json: AsJson = False,
) -> None:
    """Write a copy that may be published, without host names, paths and logs.

    Example: python -m tuner db snapshot published.db --db tuning.db --sku nvidia-h200-sm132
    """
    from tuner.db import snapshot as write_snapshot

    result = write_snapshot(get_database(db), target, sku or None, max_bytes)
    report(
        as_json,
        {"target": str(target)} | result,
        f"{target}: {result['bytes']} bytes, {describe_rows(result['tables'], result['sentinels'])}"
        f"{describe_left_out(result)}",
    )


def describe_left_out(result: dict) -> str:
    """Return which older kernels, sentinels and search rows did not fit, a line each."""
    rows = [
        (each["op"], f"{each['kernel_hash'][:8]}{', energies' if each['energies'] else ''}", each["rows"])
        for each in result["left_out"]
    ]
    rows += [("", "visits to sentinels", result["visits_left_out"])] if result["visits_left_out"] else []
    rows += [(op, "searches of confirmed configs", count) for op, count in result["searches_left_out"].items()]
    if not rows:
        return ""
    return "\nleft out, so that the file stays below --max-bytes:\n" + format_table(
        ("op kind", "kernel", "rows"), rows, indent="  "
    )


@app.command()
def merge(
    target: Annotated[str, typer.Argument(help="The database that gains rows; it is created if needed.")],
    sources: Annotated[list[str], typer.Argument(help="The databases to add; they are only read.")],
    as_json: AsJson = False,
) -> None:
    """Add the rows of other databases. Rows that are there already are not added again.

    Example: python -m tuner db merge all.db shard0.db shard1.db
    """
    from tuner.db import merge as merge_databases

    gained = merge_databases(target, sources)
    name = hide_credentials(target)
    report(as_json, {"target": name, "gained": gained}, f"{name}: {describe_gain(gained)}")


@app.command()
def export(
    target: Annotated[Path, typer.Argument(help="The file to write.")],
    kind: Annotated[
        str,
        typer.Option(
            "--format",
            help="json (the whole database, for `db import`), or csv or parquet (the measured rows as one table).",
        ),
    ] = "json",
    db: Database = "",
    as_json: AsJson = False,
) -> None:
    """Write a database for other programs. Equal databases give equal JSON files.

    Example: python -m tuner db export h200.json --db h200.db
    """
    from tuner.db import export_flat, export_json

    if kind not in EXPORT_FORMATS:
        raise errors.UsageError(f"--format {kind}: must be one of {', '.join(EXPORT_FORMATS)}")
    size = export_json(get_database(db), target) if kind == "json" else export_flat(get_database(db), target, kind)
    report(as_json, {"target": str(target), "bytes": size}, f"{target}: {size} bytes")


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="A file that `db export` wrote.")],
    db: Database = "",
    as_json: AsJson = False,
) -> None:
    """Add the rows of an exported JSON file, after checking every row.

    Example: python -m tuner db import h200.json --db h200.db
    """
    from tuner.db import import_json

    gained = import_json(get_database(db), source)
    report(as_json, {"source": str(source), "gained": gained}, f"{source}: {describe_gain(gained)}")


@app.command()
def stats(db: Recorded = "", device: RecordingOf = "", as_json: AsJson = False) -> None:
    """Count rows per table and per identity (SKU, op, kernel hash, compiler, regime).

    Example: python -m tuner db stats --db h200.db
    """
    from tuner.learn.sources import find_device, find_ops, open_database

    with open_database(db, device) as store:
        found = store.stats()
        if device:
            sku = find_device(store, device).sku
            find_ops(store, sku)
            found["coverage"] = [entry for entry in found["coverage"] if entry["sku"] == sku]
    if as_json:
        print(json.dumps(found, sort_keys=True))
    else:
        print_stats(found)


def print_stats(found: dict) -> None:
    """Print the counts: one table per GPU model, compiler and regime, with a line per op kind and kernel hash."""
    rows = describe_gain(found["tables"]) if any(found["tables"].values()) else "no rows"
    print(printable(found["database"]))
    kept = rows.replace(" ", "\xa0").replace(",\xa0", ", ")  # lines break between counts, not inside one
    illegal = f"{found['illegal']} rows of configs that are no longer legal"
    lines = textwrap.fill(f"{kept}; {illegal}{describe_unverified(found['unverified'])}", WIDTH)
    print(lines.replace("\xa0", " "))
    for (sku, compiler, regime), group in groupby(
        sorted(found["coverage"], key=get_place), key=lambda entry: get_place(entry)[:3]
    ):
        print("\n" + printable(f"{sku}, {compiler}, {regime}:"))
        print(format_table(STATS_HEADINGS, map(describe_counts, group), indent="  "))


def get_place(entry: dict) -> tuple:
    """Return what the identities of a database are sorted by."""
    return tuple(entry[name] for name in ("sku", "compiler", "regime", "op", "kernel_hash"))


def describe_counts(entry: dict) -> tuple:
    """Return the cells of one identity."""
    statuses = entry["statuses"]
    failed = sum(statuses.get(status, 0) for status in FAILURES)
    numbers = entry["problems"], entry["configs"], entry["rows"]
    counts = (*numbers, statuses.get("censored", 0), failed, statuses.get("skipped", 0))
    return entry["op"], entry["kernel_hash"][:8], *counts, entry["last"][:10]


@app.command()
@add_field_parameters
def show(
    op: Annotated[str, typer.Option(help=OP_HELP)] = "fp8_gemm",
    device: Annotated[str, typer.Option(help="SKU or short name (h200). Default: the only one in the database.")] = "",
    kernel_hash: Annotated[
        str, typer.Option(help="Only what was measured with these kernels. Default: the newest winner's.")
    ] = "",
    top: Annotated[int, typer.Option(min=0, help="Configs to show, fastest first; 0: all.")] = 20,
    *,
    db: Recorded = "",
    as_json: AsJson = False,
    **fields: Any,
) -> None:
    """Rank the configs that were measured for a problem. Example: python -m tuner db show 64 2112 7168"""
    from tuner.learn.ranking import rank
    from tuner.learn.sources import find_device, open_database
    from tuner.ship.selection import make_problem

    problem = make_problem(op, **fields)
    with open_database(db, device) as store:
        sku = find_device(store, device).sku
        ranking = rank(store, problem, sku, kernel_hash or None)
    if ranking is None:
        kernels = f" with kernels of the hash {kernel_hash} (all 64 digits count)" if kernel_hash else ""
        raise errors.InconclusiveError(
            f"{problem} was not measured on {sku}{kernels}: sweep it with `python -m tuner tune`, or see `python -m"
            " tuner inspect` for what was"
        )
    if as_json:
        print(json.dumps(ranking.to_json(), indent=1, sort_keys=True))
    else:
        print_ranking(str(store.target), ranking, top)
