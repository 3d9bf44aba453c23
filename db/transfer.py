"""Merging databases, and writing and reading them as JSON.

JSON format 1: {"application": "deep_gemm tuning database", "format": 1, "tables": {name: {"columns": [...], "rows":
[[...]]}}}. The tables are in natural form (see naturals.py), the rows sorted by natural key, bytes are hexadecimal
text.
Equal databases give equal bytes.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from sqlalchemy import Connection, select

from tuner import errors
from tuner.db import checksums, queries, tables
from tuner.db.faults import one_line
from tuner.db.files import is_recorded
from tuner.db.naturals import (
    KEYS,
    Tables,
    check_measurements,
    check_row,
    check_tables,
    encode,
    load_names,
    merge_tables,
    natural_key,
    read_tables,
    to_natural,
    write_tables,
)
from tuner.db.postgresql import lock_tables
from tuner.db.rows_merge import merge_measurements
from tuner.db.store import Store
from tuner.files import replacing

APPLICATION = "deep_gemm tuning database"
FORMAT = 1
#: Measured rows that are read and checked together.
ROWS_AT_A_TIME = 20_000
SMALL_TABLES = tuple(name for name in KEYS if name != "measurement")
BLOBS = {"samples"}
#: The values of columns that an export of an older schema does not have.
ADDED: dict[str, dict[str, Any]] = (
    {name: {} for name in KEYS}
    | {name: tables.get_added_defaults(name) for name in tables.FIELDS}
    | {"block": {"workload": ""}, "compilation": {"variant": ""}, "measurement": {"checksum": None}}
)


def load_tables(source: str | os.PathLike, original: str | os.PathLike = "") -> Tables:
    """Return the checked contents of a database. Raises: UsageError, StoreError, IntegrityError.

    Errors in rows name `original`, where `source` is a copy of it.
    """
    with open_source(source) as store, store.reading() as connection:
        found = read_tables(connection, original or store.target)
        check_tables(original or store.target, found)
    return found


def merge(target: str | os.PathLike, sources: Iterable[str | os.PathLike]) -> dict:
    """Add all rows of `sources` to `target`, which is created if needed; return how many rows each table gained.

    Idempotent and commutative: sweeps and blocks are recognised by their random uid, everything else by its natural
    key.
    Raises: UsageError, StoreError, IntegrityError, after which nothing was written.
    """
    sources = list(sources)
    additions = [load_small_tables(source) for source in sources]
    with Store.open(target, "rw") as store, store.writing() as connection:
        gained = add_to(connection, store.target, additions)
        gained["measurement"] = sum(add_rows(connection, source) for source in sources)
    return gained


def load_small_tables(source: str | os.PathLike) -> Tables:
    """Return the checked contents of a database without its measured rows, which are checked, too."""
    with open_source(source) as store, store.reading() as connection:
        found = read_tables(connection, store.target, SMALL_TABLES)
        check_tables(store.target, found)
        queries.check_measurements(connection, store.target)
    return found


def add_rows(connection: Connection, source: str | os.PathLike) -> int:
    """Add the measured rows of a database whose other tables were added; return how many are new."""
    with open_source(source) as store, store.reading() as reader:
        return merge_measurements(connection, reader, store.target)


def open_source(source: str | os.PathLike) -> Store:
    """Open a database for reading."""
    return Store.open(source, "immutable" if is_recorded(source) else "ro")


def add_tables(target: str | os.PathLike, additions: list[Tables]) -> dict:
    """Merge contents into `target` in one transaction; return how many rows each table gained."""
    with Store.open(target, "rw") as store, store.writing() as connection:
        return add_to(connection, store.target, additions)


def add_to(connection: Connection, path: object, additions: list[Tables]) -> dict:
    """Merge tables into a database, in the caller's transaction; return how many rows each gained."""
    if connection.dialect.name == "postgresql":
        lock_tables(connection)
    names = list(additions[0]) if additions else []
    known = read_tables(connection, path, names)
    wanted = known
    for addition in additions:
        wanted = merge_tables(wanted, addition)
    write_tables(connection, wanted, known)
    return {name: len(wanted[name]) - len(known[name]) for name in names}


def export_json(source: str | os.PathLike, target: str | os.PathLike) -> int:
    """Write a whole database to the file `target` as JSON (see the head of this file) and return its size in bytes.

    Guarantees: readers of `target` see the old file or the new one. Raises: UsageError, StoreError, IntegrityError.
    """
    path = Path(target).absolute()
    with open_source(source) as store, store.reading() as connection, replacing(path) as fresh:
        found = read_tables(connection, store.target, SMALL_TABLES)
        check_tables(store.target, found)
        with fresh.open("w", encoding="ascii") as file:
            write_document(file, found, read_measurements(connection, store.target, found))
    return path.stat().st_size


def read_measurements(connection: Connection, path: object, found: Tables) -> Iterator[dict]:
    """Yield the checked rows of `measurement` in natural form and in the order of their natural keys, read part by
    part; `found` are the other tables.
    """
    table, block, config = tables.measurement, tables.block, tables.config
    query = (
        # Outer joins, so that a row that refers to nothing is found.
        select(table)
        .outerjoin(block, block.c.id == table.c.block_id)
        .outerjoin(config, config.c.id == table.c.config_id)
        .order_by(block.c.uid, config.c.key, table.c.role)
    )
    names, columns = load_names(connection), {column.name: column for column in table.columns}
    digests = checksums.digest_natural(found)
    result = connection.execution_options(yield_per=ROWS_AT_A_TIME).execute(query)
    for part in result.mappings().partitions(ROWS_AT_A_TIME):
        rows = [to_natural(path, table.name, dict(row), names) for row in part]
        for row in rows:
            check_row(path, table.name, columns, row, found)
        check_measurements(path, rows, *digests)
        yield from rows


def write_document(file: TextIO, found: Tables, measurements: Iterable[dict]) -> None:
    """Write tables as a JSON document, the measured rows one after the other."""
    file.write(f'{{"application":{dump(APPLICATION)},"format":{FORMAT},"tables":{{')
    for place, name in enumerate(sorted(KEYS)):
        columns = [column.name for column in tables.metadata.tables[name].columns if column.name != "id"]
        rows = measurements if name == "measurement" else (found[name][key] for key in sorted(found[name]))
        file.write(f'{"," * bool(place)}{dump(name)}:{{"columns":{dump(columns)},"rows":[')
        for number, row in enumerate(rows):
            file.write("," * bool(number) + dump([encode(row[column]) for column in columns]))
        file.write("]}")
    file.write("}}\n")


def dump(value: object) -> str:
    """Return compact JSON of finite numbers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def import_json(target: str | os.PathLike, source: str | os.PathLike) -> dict:
    """Merge a file that export_json wrote into `target`; return how many rows each table gained.

    Rows of an export that has no checksums get one here.
    Raises: UsageError, StoreError; IntegrityError for anything that export_json does not write. Then nothing was
    written.
    """
    try:
        payload = Path(source).read_bytes()
    except OSError as error:
        raise errors.UsageError(
            f"{source}: {error.strerror}; name a file that `python -m tuner db export` wrote"
        ) from error
    found = parse_json(source, payload)
    check_tables(source, found)
    return add_tables(target, [checksums.add_checksums(found)])


def parse_json(source: object, payload: bytes) -> Tables:
    """Return the tables of a JSON document. Raises: IntegrityError."""
    try:
        document = json.loads(payload)
        if (document["application"], document["format"], sorted(document["tables"])) != (
            APPLICATION,
            FORMAT,
            sorted(KEYS),
        ):
            raise ValueError(f"application {document['application']!r}, format {document['format']!r}")
        return {name: from_document(name, document["tables"][name]) for name in KEYS}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise errors.IntegrityError(
            f"{source}: not an export of a tuning database ({type(error).__name__}: {one_line(error)}); write one with"
            " `python -m tuner db export`"
        ) from error


def from_document(name: str, table: dict) -> dict[tuple, dict]:
    """Return one table of a JSON document."""
    rows = {}
    for values in table["rows"]:
        row = ADDED[name] | dict(zip(table["columns"], values, strict=True))
        for column in BLOBS & set(row):
            row[column] = None if row[column] is None else bytes.fromhex(row[column])
        rows[natural_key(name, row)] = row
    if len(rows) != len(table["rows"]):
        raise ValueError(f"{name} has two rows of one key")
    return rows
