"""The contents of a database without local ids: every reference is the natural key of the row that it refers to.

In this natural form databases can be compared, merged, scrubbed and written as JSON. A table is a dict from natural
keys (tuples) to rows; a row has every column except `id`. Lists of config ids (`order`, `tie_set`) are lists of config
keys.
"""

from collections.abc import Callable, Collection, Iterable
from itertools import compress

from sqlalchemy import Column, Connection, Table, insert, select, update

from tuner import errors
from tuner.db import tables
from tuner.db.checks import (
    MEASUREMENT_COLUMNS,
    check_key,
    check_rows,
    config_key,
    problem_key,
    read_references,
)
from tuner.db.checksums import Digests, Tables, digest_natural, verify
from tuner.db.faults import damaged, one_line
from tuner.db.rested import Dated, find_rests
from tuner.db.values import check_names, make_key, to_json, to_value
from tuner.db.writing import upsert

#: The natural key of every table, in an order in which the tables can be written.
KEYS = {
    "device": ("key",),
    "environment": ("key",),
    "problem": ("key",),
    "config": ("key",),
    "sweep": ("uid",),
    "block": ("uid",),
    "measurement": ("block_id", "config_id", "role"),
    "compilation": ("config_id", "variant", "kernel_hash", "compiler"),
    "best": ("problem_id", "sku", "kernel_hash", "compiler", "regime"),
}
REFERENCES = {
    "sweep_id": "sweep",
    "problem_id": "problem",
    "device_id": "device",
    "environment_id": "environment",
    "block_id": "block",
    "config_id": "config",
    "reference_config_id": "config",
}
CONFIG_LISTS = ("order", "tie_set")
#: Which of two versions of a row is the later one, by its status.
PROGRESS = {"running": 0, "open": 0, "interrupted": 1, "failed": 1, "finished": 2}


def read_tables(connection: Connection, path: object, wanted: Collection[str] = tuple(KEYS)) -> Tables:
    """Return tables in natural form, by default all. Raises: IntegrityError for a reference to nothing."""
    names = load_names(connection)
    found: Tables = {}
    for name in wanted:
        rows = [
            to_natural(path, name, dict(row), names)
            for row in connection.execute(select(tables.metadata.tables[name])).mappings()
        ]
        found[name] = {natural_key(name, row): row for row in rows}
    return found


def natural_key(table: str, row: dict) -> tuple:
    """Return a row's natural key."""
    return tuple(row[name] for name in KEYS[table])


def load_names(
    connection: Connection, wanted: Collection[str] = frozenset(REFERENCES.values())
) -> dict[str, dict[int, str]]:
    """Return {table: {id: natural key}} of the tables that are referred to, or of some of them."""
    found = {}
    for name in wanted:
        table = tables.metadata.tables[name]
        found[name] = dict(tuple(row) for row in connection.execute(select(table.c.id, table.c[KEYS[name][0]])))
    return found


def to_natural(path: object, name: str, row: dict, names: dict[str, dict[int, str]]) -> dict:
    """Return a stored row of table `name` without its id, its references replaced by natural keys."""
    try:
        return convert(dict(row), lambda table, index: names[table][index])
    except (KeyError, TypeError, ValueError) as error:
        place = next((f" {row[key]}" for key in ("id", "block_id", "problem_id", "config_id") if key in row), "")
        raise damaged(path, f"{name}{place}: {describe_reference(error)}") from error


def describe_reference(error: Exception) -> str:
    """Return what is wrong with a reference."""
    return str(error) if isinstance(error, ValueError) else "refers to something that does not exist"


def convert(row: dict, look_up: Callable) -> dict:
    """Return `row` without its id, `look_up(table, reference)` in the place of every reference.

    Raises: what `look_up` raises; ValueError where a list of configs is none.
    """
    row.pop("id", None)
    for column, table in REFERENCES.items():
        if row.get(column) is not None:
            row[column] = look_up(table, row[column])
    for column in CONFIG_LISTS:
        if row.get(column) is not None:
            row[column] = to_json([look_up("config", reference) for reference in read_references(row[column])])
    return row


def merge_tables(ours: Tables, theirs: Tables) -> Tables:
    """Return the union of two databases, of the tables in `ours`, which are in the order of KEYS.

    Of two versions of a row the later one stays, else the one with more values, else the greater; of two winners the
    one that was chosen by times after rests, too. The order of merging therefore does not matter, and merging again
    changes nothing. Raises: IntegrityError where one block would be of two boards or problems.
    """
    merged: Tables = {}
    for name in ours:
        merged[name] = dict(ours[name])
        key_of = make_rank(name, merged)
        for key, row in theirs[name].items():
            known = merged[name].get(key)
            if (
                name == "block"
                and known is not None
                and (known["device_id"], known["problem_id"]) != (row["device_id"], row["problem_id"])
            ):
                raise errors.IntegrityError(
                    f"block {key[0]}: two boards or problems under one uid; a block is one problem on one board"
                )
            if known != row:
                merged[name][key] = row if known is None else max(known, row, key=key_of)
    return merged


def make_rank(name: str, merged: Tables) -> Callable[[dict], tuple]:
    """Return the sort key of versions of a row of table `name`, given the merged tables that come before it."""
    if name != "best":
        return rank
    rested = find_rested(merged)
    return lambda row: (row["block_id"] in rested, rank(row))


def find_rested(found: Tables) -> set[str]:
    """Return the uids of the blocks that have times after rests."""
    rests = find_rests(date_row(row, found["device"][row["device_id"],]) for row in found.get("block", {}).values())
    return {uid for uid, block in rests.items() if block.status == "finished"}


def date_row(block: dict, device: dict) -> Dated:
    """Return a block's row as find_rests takes it, under its uid; `device` is the row that it refers to.

    The hash of the UUID names the board: the same one may have several rows, of other clocks.
    """
    of = block["problem_id"], device["sku"], block["kernel_hash"], block["compiler"]
    board = device["uuid_hash"] or device["key"]
    return Dated(block["uid"], of, board, block["regime"], block["status"], block["created"])


def rank(row: dict) -> tuple:
    """Return the sort key of versions of one row, which is equal only for equal rows."""
    progress = PROGRESS.get(row.get("status", ""), -1)
    known = sum(value is not None for value in row.values())
    return row.get("created") or "", progress, known, to_json({name: encode(value) for name, value in row.items()})


def encode(value: object) -> object:
    """Return a value as JSON has it; bytes as hexadecimal text."""
    return value.hex() if isinstance(value, bytes) else value


def write_tables(connection: Connection, wanted: Tables, known: Tables) -> None:
    """Bring a database that holds `known` to hold `wanted`, which includes it."""
    for name in wanted:
        changed = {key: row for key, row in wanted[name].items() if known[name].get(key) != row}
        ordered = sorted(changed, key=lambda key: (changed[key].get("created") or "", key))
        stored = to_stored([changed[key] for key in ordered], load_names(connection))
        is_new = [key not in known[name] for key in ordered]
        table = tables.metadata.tables[name]
        write_rows(
            connection,
            table,
            list(compress(stored, is_new)),
            [row for row, new in zip(stored, is_new, strict=True) if not new],
        )


def to_stored(rows: list[dict], names: dict[str, dict[int, str]]) -> list[dict]:
    """Return rows with the ids that their references have in one database: the inverse of to_natural."""
    ids = {table: {key: index for index, key in keys.items()} for table, keys in names.items()}
    return [convert(dict(row), lambda table, key: ids[table][key]) for row in rows]


def write_rows(connection: Connection, table: Table, new: list[dict], old: list[dict]) -> None:
    """Insert `new` rows and replace `old` ones."""
    if "id" not in table.c:
        upsert(connection, table, new + old)
        return
    if new:
        connection.execute(insert(table), new)
    key = KEYS[table.name][0]
    for row in old:
        connection.execute(update(table).where(table.c[key] == row[key]).values(row))


def check_tables(path: object, found: Tables) -> None:
    """Raise IntegrityError unless every row is possible.

    Its key must belong to its fields, its references must exist, and its values must be in range.
    """
    for name, rows in found.items():
        columns = {column.name: column for column in tables.metadata.tables[name].columns if column.name != "id"}
        for row in rows.values():
            check_row(path, name, columns, row, found)
    if "measurement" in found:
        check_measurements(path, found["measurement"].values(), *digest_natural(found))


def check_measurements(path: object, rows: Iterable[dict], blocks: Digests, configs: Digests) -> None:
    """Raise IntegrityError unless the values of rows of `measurement` are possible, and what was recorded.

    `blocks` and `configs` are the digests of what the rows refer to.
    """
    try:
        values = [tuple(row[name] for name in MEASUREMENT_COLUMNS) for row in rows]
        check_rows(path, values)
        verify(path, values, blocks, configs)
    except (TypeError, ValueError) as error:
        raise errors.IntegrityError(f"{path}: measurement: values of a wrong type ({error})") from error


def check_row(path: object, name: str, columns: dict[str, Column], row: dict, found: Tables) -> None:
    """Raise IntegrityError unless a row has exactly its columns, storable values, and references that exist."""
    if row.keys() != columns.keys():
        raise errors.IntegrityError(
            f"{path}: {name}: fields {sorted(row.keys() ^ columns.keys())} are missing or unknown"
        )
    for column, value in row.items():
        # References are natural keys here, text in the place of integers.
        if column not in REFERENCES and to_value(columns[column], value) is not value:
            raise errors.IntegrityError(f"{path}: {name}.{column}: {type(value).__name__} cannot be stored")
        if value is None and not columns[column].nullable:
            raise errors.IntegrityError(f"{path}: {name}.{column}: has no value, and must have one")
    check_names(name, row)
    if name in MAKE_KEY:
        check_key(path, f"{name} {row['key']}", row, MAKE_KEY[name])
    try:
        convert(dict(row), lambda table, key: found[table][key,])
    except (KeyError, TypeError, ValueError) as error:
        where = f"{name} {one_line(natural_key(name, row))}"
        raise errors.IntegrityError(f"{path}: {where}: {one_line(describe_reference(error))}") from error


MAKE_KEY = {"problem": problem_key, "config": config_key, "device": make_key, "environment": make_key}
