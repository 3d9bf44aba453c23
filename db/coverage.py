"""Counting and checking a whole database, inside a transaction that the caller holds."""

from collections import defaultdict
from dataclasses import asdict, astuple

from sqlalchemy import Connection, Table, func, select

from tuner import errors
from tuner.db import schema, tables
from tuner.db.checksums import count_unverified
from tuner.db.faults import damaged
from tuner.db.naturals import KEYS, check_tables, read_tables
from tuner.db.queries import Filter, check_measurements, load_best, load_blocks, load_configs, load_devices
from tuner.db.rows import Identity
from tuner.db.summaries import BlockSummary, add_statuses, load_summaries


def count(connection: Connection, path: object) -> dict:
    """Return counts, see Store.stats."""
    groups: dict[Identity, list[BlockSummary]] = defaultdict(list)
    illegal = 0
    for block in load_summaries(connection, path, Filter()):
        groups[block.identity].append(block)
        illegal += block.stored.rows - block.legal.rows
    counts = {
        table.name: count_rows(connection, table)
        for table in tables.metadata.sorted_tables
        if table is not tables.alembic_version
    }
    ordered = sorted(groups, key=lambda identity: (identity.sku, *astuple(identity)))
    return {
        "tables": counts,
        "illegal": illegal,
        "unverified": count_unverified(connection),
        "coverage": [asdict(identity) | describe_group(groups[identity]) for identity in ordered],
    }


def describe_group(blocks: list[BlockSummary]) -> dict:
    """Return the counts of the blocks of one identity that have rows."""
    statuses = add_statuses(block.stored for block in blocks)
    created = [block.created for block in blocks]
    return {
        "problems": len({block.problem_id for block in blocks}),
        "blocks": len(blocks),
        "configs": len(frozenset().union(*{block.stored.configs for block in blocks})),
        "boards": len({block.board for block in blocks}),
        "rows": statuses.total(),
        "statuses": dict(sorted(statuses.items())),
        "first": min(created),
        "last": max(created),
    }


def count_rows(connection: Connection, table: Table) -> int:
    """Return the number of rows of a table."""
    return connection.execute(select(func.count()).select_from(table)).scalar_one()


def check(connection: Connection, path: object) -> list[str]:
    """Return everything that is wrong, see Store.check."""
    if connection.dialect.name == "sqlite":
        found = schema.check_contents(connection, "integrity_check")
        if found:
            return found
    try:
        check_blocks(connection, path)
        check_measurements(connection, path)
        load_best(connection, path, Filter())
        check_tables(path, read_tables(connection, path, [name for name in KEYS if name != "measurement"]))
    except errors.IntegrityError as error:
        return [str(error)]
    return []


def check_blocks(connection: Connection, path: object) -> None:
    """Raise IntegrityError unless problems, configs, boards and blocks are possible, and each measured config is of its
    block's op kind.
    """
    load_configs(connection, path)
    load_blocks(connection, path, Filter(), load_devices(connection, path))
    block, problem, config, measurement = tables.block, tables.problem, tables.config, tables.measurement
    wrong = (
        select(measurement.c.block_id, measurement.c.config_id)
        .join(block, block.c.id == measurement.c.block_id)
        .join(problem, problem.c.id == block.c.problem_id)
        .join(config, config.c.id == measurement.c.config_id)
        .where(config.c.op != problem.c.op)
    )
    found = connection.execute(wrong.limit(1)).first()
    if found is not None:
        raise damaged(path, f"block {found[0]}: config {found[1]} is of another op kind")
