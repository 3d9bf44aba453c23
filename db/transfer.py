"""Merging databases, and writing and reading them as JSON (see documents.py)."""

import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sqlalchemy import Connection, RowMapping, insert, select
from sqlalchemy.exc import IntegrityError as DuplicateError

from tuner import errors
from tuner.db import checksums, queries, tables
from tuner.db.documents import ROWS_AT_A_TIME, SMALL_TABLES, read_measured_rows, read_small_tables, write_document
from tuner.db.files import is_recorded
from tuner.db.naturals import (
    Tables,
    check_measurements,
    check_row,
    check_tables,
    load_names,
    merge_tables,
    read_tables,
    to_natural,
    to_stored,
    write_tables,
)
from tuner.db.postgresql import lock_tables
from tuner.db.rows_merge import BLOCKS_AT_A_TIME, merge_measurements
from tuner.db.store import Store
from tuner.files import check_replaceable, replacing


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
    """Write a whole database to the file `target` as JSON (see documents.py) and return its size in bytes.

    Guarantees: readers of `target` see the old file or the new one. Raises: UsageError, StoreError, IntegrityError.
    """
    path = Path(target).absolute()
    check_replaceable("TARGET", path)
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
    result = connection.execution_options(yield_per=ROWS_AT_A_TIME).execute(query)
    yield from to_checked(connection, path, found, result.mappings().partitions(ROWS_AT_A_TIME))


def read_measurements_of(connection: Connection, path: object, found: Tables, uids: Collection[str]) -> Iterator[dict]:
    """Yield the checked rows of some blocks in natural form; `found` are all other tables."""
    table = tables.measurement
    wanted = [index for index, uid in load_names(connection, ("block",))["block"].items() if uid in uids]
    parts = (
        connection.execute(select(table).where(table.c.block_id.in_(wanted[start : start + BLOCKS_AT_A_TIME])))
        for start in range(0, len(wanted), BLOCKS_AT_A_TIME)
    )
    yield from to_checked(connection, path, found, (part.mappings().all() for part in parts))


def to_checked(
    connection: Connection, path: object, found: Tables, parts: Iterable[Sequence[RowMapping]]
) -> Iterator[dict]:
    """Yield stored rows of `measurement` in natural form, checked part by part."""
    table, digests = tables.measurement, checksums.digest_natural(found)
    names, columns = load_names(connection), {column.name: column for column in table.columns}
    for part in parts:
        rows = [to_natural(path, table.name, dict(row), names) for row in part]
        for row in rows:
            check_row(path, table.name, columns, row, found)
        check_measurements(path, rows, *digests)
        yield from rows


def import_json(target: str | os.PathLike, source: str | os.PathLike) -> dict:
    """Merge a file that export_json wrote into `target`; return how many rows each table gained.

    Rows of an export that has no checksums get one here. The rows go part by part into a temporary database, which is
    merged: so `target` gets all of them or none.
    Raises: UsageError, StoreError; IntegrityError for anything that export_json does not write. Then nothing was
    written.
    """
    try:
        file = Path(source).open("rb")  # noqa: SIM115 (closed below; only opening it is the user's mistake)
    except OSError as error:
        raise errors.UsageError(
            f"{source}: {error.strerror}; name a file that `python -m tuner db export` wrote"
        ) from error
    with file, scratch_folder(source) as folder:
        scratch = folder / "imported.db"
        load_document(scratch, source, file)
        return merge(target, [scratch])


@contextmanager
def scratch_folder(source: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary folder for the rows of `source`. Raises: StoreError where there can be none."""
    try:
        made = tempfile.TemporaryDirectory()
    except OSError as error:
        raise errors.StoreError(
            f"{source}: there is no folder for a temporary database ({error.strerror}); set TMPDIR to one with free"
            " space"
        ) from error
    with made as folder:
        yield Path(folder)


def load_document(target: Path, source: object, file: BinaryIO) -> None:
    """Write the checked rows of a JSON document called `source` to the new database `target`.

    Raises: StoreError, IntegrityError.
    """
    found = read_small_tables(source, file)
    check_tables(source, found)
    file.seek(0)
    digests, table = checksums.digest_natural(found), tables.measurement
    columns = {column.name: column for column in table.columns}
    with Store.open(target, "rw") as store, store.writing() as connection:
        add_to(connection, target, [found])
        names = load_names(connection)
        for rows in read_measured_rows(source, file):
            for row in rows:
                check_row(source, table.name, columns, row, found)
            check_measurements(source, rows, *digests)
            add_new(connection, source, to_stored(checksums.with_checksums(rows, *digests), names))


def add_new(connection: Connection, source: object, rows: list[dict]) -> None:
    """Add measured rows. Raises: IntegrityError where one is there already."""
    try:
        connection.execute(insert(tables.measurement), rows)
    except DuplicateError as error:
        raise errors.IntegrityError(f"{source}: {tables.measurement.name} has two rows of one key") from error
