"""python -m tuner db: create, upgrade, check, publish, merge, export and count tuning databases."""

import json
from pathlib import Path
from typing import Annotated

import typer

from deep_gemm import environment
from deep_gemm.text import printable
from tuner import errors

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
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]

app = typer.Typer(
    name="db",
    no_args_is_help=True,
    help="Create, upgrade, check, publish, merge and count tuning databases. Example: python -m tuner db stats",
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
def check(db: Recorded = "", as_json: AsJson = False) -> None:
    """Check every page, reference and row of a database. Example: python -m tuner db check --db h200.db"""
    from tuner.learn.sources import open_database

    with open_database(db) as store:
        problems = store.check()
    report(
        as_json,
        {"database": str(store.target), "problems": problems},
        f"{store.target}: sound" if not problems else "\n".join(map(printable, problems)),
    )
    if problems:
        raise errors.IntegrityError(
            f"{store.target}: {len(problems)} problems found; salvage its rows with `sqlite3 {store.target} .recover`"
        )


@app.command()
def snapshot(
    target: Annotated[
        Path, typer.Argument(help="The file to write. An older snapshot is replaced unless it holds more.")
    ],
    db: Database = "",
    sku: Annotated[
        str, typer.Option(help="Keep only this SKU's blocks with its newest kernel hash, such as nvidia-h200-sm132.")
    ] = "",
    max_bytes: Annotated[int, typer.Option(min=1, help="Fail if the result is larger than this.")] = 8_000_000,
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
        f"{target}: {result['bytes']} bytes, {describe_gain(result['tables'])}",
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
    report(as_json, {"target": target, "gained": gained}, f"{target}: {describe_gain(gained)}")


@app.command()
def export(
    target: Annotated[Path, typer.Argument(help="The JSON file to write.")],
    db: Database = "",
    as_json: AsJson = False,
) -> None:
    """Write a whole database as JSON. Equal databases give equal files.

    Example: python -m tuner db export h200.json --db h200.db
    """
    from tuner.db import export_json

    size = export_json(get_database(db), target)
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
def stats(db: Recorded = "", as_json: AsJson = False) -> None:
    """Count rows per table and per identity (SKU, op, kernel hash, compiler, regime).

    Example: python -m tuner db stats --db h200.db
    """
    from tuner.learn.sources import open_database

    with open_database(db) as store:
        found = store.stats()
    if as_json:
        print(json.dumps(found, sort_keys=True))
    else:
        print_stats(found)


def print_stats(found: dict) -> None:
    """Print the counts, one line per identity."""
    rows = describe_gain(found["tables"]) if any(found["tables"].values()) else "no rows"
    print(printable(f"{found['database']}: {rows}; {found['illegal']} rows of configs that are no longer legal"))
    for entry in found["coverage"]:
        identity = f"{entry['sku']} {entry['op']} {entry['kernel_hash'][:12]} {entry['compiler']} {entry['regime']}"
        counts = ", ".join(f"{entry[name]} {name}" for name in ("problems", "configs", "boards", "blocks", "rows"))
        print(printable(f"  {identity}: {counts} ({describe_gain(entry['statuses'])}), last {entry['last']}"))
