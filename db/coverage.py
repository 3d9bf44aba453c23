"""Counting and checking a whole database, inside a transaction that the caller holds."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass, field
from itertools import groupby

from sqlalchemy import Connection, Table, func, select

from tuner import errors
from tuner.db import queries, schema, tables
from tuner.db.naturals import check_tables, read_tables
from tuner.db.queries import Filter, LegalPairs, join_measurements, load_best
from tuner.db.rows import BlockRow, Identity


@dataclass
class Group:
    """What is counted of one identity: its blocks that have rows, its configs, and its rows by status."""

    blocks: list[BlockRow] = field(default_factory=list)
    configs: set[int] = field(default_factory=set)
    statuses: Counter = field(default_factory=Counter)


def count(connection: Connection, path: object) -> dict:
    """Return counts, see Store.stats."""
    groups, illegal = count_groups(connection, path)
    counts = {
        table.name: count_rows(connection, table)
        for table in tables.metadata.sorted_tables
        if table is not tables.alembic_version
    }
    ordered = sorted(groups, key=lambda identity: (identity.sku, *astuple(identity)))
    return {
        "tables": counts,
        "illegal": illegal,
        "coverage": [asdict(identity) | describe_group(groups[identity]) for identity in ordered],
    }


def count_groups(connection: Connection, path: object) -> tuple[dict[Identity, Group], int]:
    """Return what is counted per identity, and the rows whose config is no longer legal on their board."""
    devices, configs = queries.load_devices(connection, path), queries.load_configs(connection, path)
    blocks, pairs = queries.load_blocks(connection, path, Filter(), devices), LegalPairs(devices, configs)
    groups: dict[Identity, Group] = defaultdict(Group)
    illegal = 0
    for block_id, rows in load_block_rows(connection):
        block = blocks[block_id]
        group = groups[block.identity]
        group.blocks.append(block)
        for config_id, status in rows:
            group.configs.add(config_id)
            group.statuses[status] += 1
            illegal += not pairs.is_legal(block, config_id)
    return groups, illegal


def load_block_rows(connection: Connection) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    """Yield (block id, [(config id, status)]) of every block that has rows, without their other columns."""
    table = tables.measurement
    query = select(table.c.block_id, table.c.config_id, table.c.status).order_by(*table.primary_key.columns)
    for block_id, rows in groupby(connection.execute(query), key=lambda row: row[0]):
        yield block_id, [(config_id, status) for _, config_id, status in rows]


def describe_group(group: Group) -> dict:
    """Return the counts of one identity."""
    times = [block.created for block in group.blocks]
    return {
        "problems": len({block.problem_id for block in group.blocks}),
        "blocks": len(group.blocks),
        "configs": len(group.configs),
        "boards": len({block.board for block in group.blocks}),
        "rows": group.statuses.total(),
        "statuses": dict(sorted(group.statuses.items())),
        "first": min(times),
        "last": max(times),
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
        join_measurements(connection, path, Filter())
        load_best(connection, path, Filter())
        check_tables(path, read_tables(connection, path))
    except errors.IntegrityError as error:
        return [str(error)]
    return []
