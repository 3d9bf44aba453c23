"""Writing rows inside a transaction that the caller holds."""

import json
from typing import cast

from sqlalchemy import Connection, Table, func, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from tuner import errors
from tuner.db import tables
from tuner.db.checksums import load_block_digests, load_config_digests, with_checksums
from tuner.db.values import now, to_log_tail, to_row, to_samples
from tuner.problems.fields import kernel_variant

COMPILE_FIELDS = ("registers", "spill_bytes", "local_bytes", "smem_bytes", "compile_ms")
MEASUREMENT_FIELDS = tuple(column.name for column in tables.measurement.columns)
DIALECTS = {"sqlite": sqlite, "postgresql": postgresql}


def add_row(connection: Connection, table: Table, row: dict) -> int:
    """Insert a row and return its id."""
    return cast(tuple, connection.execute(insert(table).values(row)).inserted_primary_key)[0]


def get_or_add(connection: Connection, table: Table, row: dict) -> int:
    """Return the id of the row with the same natural key `key`, adding it where there is none.

    Another writer of a PostgreSQL database may add it at the same time: then it is that one's.
    """
    query = select(table.c.id).where(table.c.key == row["key"])
    found = connection.execute(query).scalar()
    if found is None:
        ignored = (
            DIALECTS[connection.dialect.name].insert(table).values(row).on_conflict_do_nothing(index_elements=["key"])
        )
        connection.execute(ignored)
        found = connection.execute(query).scalar_one()
    return found


def upsert(connection: Connection, table: Table, rows: list[dict], keep_known: bool = False) -> None:
    """Insert rows with all their columns, or replace the existing ones; with `keep_known`, NULL replaces nothing."""
    if not rows:
        return
    statement = DIALECTS[connection.dialect.name].insert(table)
    changed = {}
    for column in table.columns:
        if not column.primary_key:
            new = statement.excluded[column.name]
            changed[column.name] = func.coalesce(new, column) if keep_known else new
    connection.execute(
        statement.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=changed), rows
    )


def add_measurements(connection: Connection, rows: list[dict]) -> None:
    """Store measured rows and, once per config, what its compiler reported."""
    identities = load_identities(connection, {row.get("block_id") for row in rows})
    compilations = {}
    for row in rows:
        facts = {name: row.pop(name, None) for name in COMPILE_FIELDS}
        identity, compiled_dims = identities[row["block_id"]]
        # With compiled dims every problem has a kernel of its own, whose report is not the config's.
        if not compiled_dims and any(value is not None for value in facts.values()):
            key = identity | {"config_id": row.get("config_id")}
            compilations[tuple(key.values())] = to_row(tables.compilation, facts | key)
    stored = [to_measurement_row(row) for row in rows]
    blocks = load_block_digests(connection, list(identities))
    configs = load_config_digests(connection, {row["config_id"] for row in stored})
    upsert(connection, tables.measurement, with_checksums(stored, blocks, configs))
    # In one order for all writers: two of a fleet would else each wait for a row of the other.
    upsert(connection, tables.compilation, [compilations[key] for key in sorted(compilations)], keep_known=True)


def to_measurement_row(row: dict) -> dict:
    """Return a row with all columns of `measurement`, the checksum still NULL."""
    given = row | {"samples": to_samples(row.get("samples")), "error": to_log_tail(row.get("error"))}
    return dict.fromkeys(MEASUREMENT_FIELDS) | to_row(tables.measurement, given, own=("checksum",))


def load_identities(connection: Connection, block_ids: set) -> dict[int, tuple[dict, str]]:
    """Return {block id: (identity of its kernels apart from the config, compiled_dims)}.

    Raises: UsageError for a block that does not exist.
    """
    found = {}
    query = select(tables.block.c.kernel_hash, tables.block.c.compiler, tables.problem).join(tables.problem)
    for block_id in block_ids:
        row = (
            connection.execute(query.where(tables.block.c.id == block_id)).mappings().first()
            if isinstance(block_id, int)
            else None
        )
        if row is None:
            raise errors.UsageError(f"measurement.block_id = {block_id!r}: no such block; call add_block first")
        identity = {"kernel_hash": row["kernel_hash"], "compiler": row["compiler"], "variant": kernel_variant(row)}
        found[block_id] = identity, row["compiled_dims"]
    return found


def set_best(connection: Connection, fields: dict) -> None:
    """Store the winner of a problem."""
    row = to_row(tables.best, fields, own=("created",))
    tie_set = check_config_ids(connection, "best.tie_set", row.get("tie_set"))
    if not tie_set or row.get("config_id") != tie_set[0]:
        raise errors.UsageError(
            f"best.tie_set = {tie_set}: must begin with the winner, config_id = {row.get('config_id')}"
        )
    upsert(connection, tables.best, [row | {"created": now()}])


def check_config_ids(connection: Connection, what: str, text: str | None) -> list[int]:
    """Return the config ids of a JSON list. Raises: UsageError unless all exist, because a merge renumbers them."""
    ids = json.loads(text or "[]")
    known = set(connection.execute(select(tables.config.c.id)).scalars())
    if not isinstance(ids, list) or not all(type(index) is int and index in known for index in ids):
        raise errors.UsageError(
            f"{what} = {str(text)[:80]}: must be a list of config ids; get them by get_or_add_config"
        )
    return ids
