"""Counting and checking a whole database, inside a transaction that the caller holds."""

from collections import Counter, defaultdict
from dataclasses import asdict, astuple

from sqlalchemy import Connection, Table, func, select

from tuner import errors
from tuner.db import schema, tables
from tuner.db.naturals import check_tables, read_tables
from tuner.db.queries import Filter, join_measurements, load_best
from tuner.db.rows import Identity, MeasurementRow


def count(connection: Connection, path: object) -> dict:
    """Return counts, see Store.stats."""
    rows, legal = join_measurements(connection, path, Filter())
    counts = {
        table.name: count_rows(connection, table)
        for table in tables.metadata.sorted_tables
        if table is not tables.alembic_version
    }
    return {"tables": counts, "illegal": len(legal) - sum(legal), "coverage": count_coverage(rows)}


def count_rows(connection: Connection, table: Table) -> int:
    """Return the number of rows of a table."""
    return connection.execute(select(func.count()).select_from(table)).scalar_one()


def count_coverage(rows: list[MeasurementRow]) -> list[dict]:
    """Return per identity: problems, blocks, configs, rows and rows per status, first and last time."""
    groups: dict[Identity, list[MeasurementRow]] = defaultdict(list)
    for row in rows:
        groups[row.block.identity].append(row)
    ordered = sorted(groups, key=lambda identity: (identity.sku, *astuple(identity)))
    return [asdict(identity) | count_group(groups[identity]) for identity in ordered]


def count_group(rows: list[MeasurementRow]) -> dict:
    """Return the counts of rows of one identity."""
    times = sorted(row.block.created for row in rows)
    return {
        "problems": len({row.block.problem_id for row in rows}),
        "blocks": len({row.block.block_id for row in rows}),
        "configs": len({row.config_id for row in rows}),
        "boards": len({row.block.board for row in rows}),
        "rows": len(rows),
        "statuses": dict(sorted(Counter(row.status for row in rows).items())),
        "first": times[0],
        "last": times[-1],
    }


def check(connection: Connection, path: object) -> list[str]:
    """Return everything that is wrong, see Store.check."""
    if connection.dialect.name == "sqlite":
        found = schema.check_contents(connection, "integrity_check")
        if found:
            return found
    try:
        join_measurements(connection, path, Filter())
        load_best(connection, path, Filter())
        check_tables(path, read_tables(connection, path))
    except errors.IntegrityError as error:
        return [str(error)]
    return []
