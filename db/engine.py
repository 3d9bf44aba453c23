"""Opening a tuning database: a SQLite file, or a PostgreSQL URL for a fleet.

SQLite files use a DELETE journal with FULL sync, so that a commit is durable when it returns (about 0.5 ms); BEGIN
IMMEDIATE for every write; 60 s of busy waiting; no memory mapping; untrusted schema objects; values of at most 16 MiB.
A Store has one connection, which its threads use in turn.

Guarantees: a file that is foreign, damaged or of a newer schema is never written to, because it is inspected through a
    read-only connection before a writing one exists. A new file gets its schema in one IMMEDIATE transaction, even if
    others open it at the same time. A writer upgrades a file of an older schema in the same way; a reader of a finished
    snapshot upgrades a copy in memory; other readers refuse such a file and name the command that upgrades it.
"""

import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import cast
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, exc
from sqlalchemy.pool import QueuePool

from deep_gemm import environment
from tuner import errors
from tuner.db import schema, tables, views
from tuner.db.faults import damaged, to_typed, translated
from tuner.db.lock import WriterLock
from tuner.db.postgresql import open_postgresql

BUSY_TIMEOUT_MS = 60_000
MAX_VALUE_BYTES = 1 << 24
#: The CHECKs of measured rows are evaluated at open in files up to this size. It would take 1 s for 10^6 rows; every
#: reader checks the rows that it loads anyway.
CHECKED_BYTES = 1 << 26
OLDEST_SQLITE = (3, 37, 0)  # the first with STRICT tables
#: A commit is durable when it returns.
WRITER_PRAGMAS = ("journal_mode = DELETE", "synchronous = FULL")
MODES = {"rw": "rwc", "ro": "ro", "immutable": "ro&immutable=1"}


def open_engine(target: str | os.PathLike, mode: str, wait_s: float) -> tuple[Engine, Callable[[], None]]:
    """Return the engine of a path or URL and the function that closes it.

    Raises: UsageError, StoreError, IntegrityError.
    """
    if mode not in MODES:
        raise errors.UsageError(f"mode = {mode!r}: one of {', '.join(MODES)}")
    if "://" in str(target):
        return open_postgresql(str(target), mode)
    path = check_path(target)
    if mode == "rw":
        return open_writer(path, wait_s)
    if not path.exists():
        raise errors.UsageError(
            f"database {path}: no such file; create it with `python -m tuner db init --db {path}`, or sweep into it"
        )
    with translated(path):
        engine = open_reader(path, mode)
    return engine, engine.dispose


def check_path(target: str | os.PathLike, flag: str = "--db") -> Path:
    """Return the absolute path of a database file. Raises: UsageError, which begins with `flag`, where it cannot be
    one.
    """
    if not str(target) or "\0" in str(target):
        raise errors.UsageError(f"{flag} {str(target)!r}: not a file name")
    path = Path(target).absolute()
    try:
        kind = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return path
    except OSError as error:
        raise errors.UsageError(f"{flag} {path}: {error.strerror}; name a file that this user can reach") from error
    if not stat.S_ISREG(kind):
        raise errors.UsageError(f"{flag} {path}: not a regular file; name the database's own file")
    return path


def open_writer(path: Path, wait_s: float) -> tuple[Engine, Callable[[], None]]:
    """Take the writer's lock, then open `path` for writing, creating it where there is none."""
    with ExitStack() as cleanup:
        make_folder(path.parent)
        cleanup.callback(WriterLock(path, wait_s).release)
        with translated(path):
            if path.exists() and path.stat().st_size:
                refuse_foreign(path)
            engine = make_sqlite_engine(path, "rw")
            cleanup.callback(engine.dispose)
            with engine.begin() as connection:
                if schema.is_fresh(connection):
                    schema.create_schema(connection)
                schema.check_identity(connection, path)
                if schema.is_outdated(connection):
                    upgrade(connection, path)
                views.create(connection)
        return engine, cleanup.pop_all().close


def upgrade(connection: Connection, path: Path) -> None:
    """Bring an older schema up to date, in the caller's transaction.

    Raises: IntegrityError where the rows do not fit it.
    """
    schema.migrate(connection)
    schema.check_identity(connection, path)
    problems = schema.check_contents(connection)
    if problems:
        raise damaged(path, problems[0])


def make_folder(folder: Path) -> None:
    """Create the database's folder, accessible to its owner only.

    Raises: UsageError where the folder above is missing, too: the path is probably mistyped.
    """
    home = environment.home_dir()
    try:
        folder.mkdir(mode=0o700, parents=home is not None and folder.parent == home, exist_ok=True)
    except FileNotFoundError as error:
        raise errors.UsageError(
            f"{folder}: no such folder, and {folder.parent} does not exist either; correct --db, or create the folder"
        ) from error
    except OSError as error:
        raise errors.StoreError(
            f"{folder}: {error.strerror}; name another --db, or make the folder writable"
        ) from error


def refuse_foreign(path: Path) -> None:
    """Raise IntegrityError for a file that is neither a tuning database nor empty, without writing to it."""
    reader = open_reader(path, "ro", for_writer=True)
    reader.dispose()


def open_reader(path: Path, mode: str, for_writer: bool = False) -> Engine:
    """Open an existing file for reading and check it.

    A writer may also open a new file, and one of an older schema. Raises: IntegrityError.
    """
    refuse_journal(path, mode)
    engine = make_sqlite_engine(path, mode)
    try:
        with engine.begin() as connection:
            # SQLite takes every file that is shorter than a page for an empty database, but only 0 bytes are one.
            is_whole = connection.exec_driver_sql("PRAGMA page_count").scalar() or not path.stat().st_size
            fresh = for_writer and is_whole and schema.is_fresh(connection)
        if not fresh:
            check_sound(engine, path, is_old_allowed=for_writer or mode == "immutable")
        if mode == "immutable" and is_old(engine):
            return upgrade_copy(engine, path)
    except BaseException:
        engine.dispose()
        raise
    return engine


def is_old(engine: Engine) -> bool:
    """Return whether a checked file has an older schema."""
    with engine.begin() as connection:
        return schema.is_outdated(connection)


def upgrade_copy(engine: Engine, path: Path) -> Engine:
    """Return an engine on a copy of a snapshot in memory with the schema of today; `engine` is given back.

    Raises: IntegrityError where the rows do not fit it.
    """
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    with engine.connect() as connection:
        cast(sqlite3.Connection, connection.connection.driver_connection).backup(copy)
    engine.dispose()
    configure(copy, "rw")
    upgraded = wrap_connection(lambda: copy, "BEGIN")
    try:
        with upgraded.begin() as connection:
            upgrade(connection, path)
        copy.execute("PRAGMA query_only = ON")
    except BaseException:
        upgraded.dispose()
        raise
    return upgraded


def refuse_journal(path: Path, mode: str) -> None:
    """Deal with the journal of a writer that died: refuse a snapshot that has one, roll back a database."""
    journal = path.with_name(f"{path.name}-journal")
    if not journal.exists():
        return
    if mode == "immutable":
        raise damaged(path, "there is a journal beside it, so it is no finished snapshot")
    engine = make_sqlite_engine(path, "ro")
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql("PRAGMA user_version").scalar()
    except exc.DBAPIError as error:
        roll_back(path, error.orig or error)
    finally:
        engine.dispose()


def roll_back(path: Path, error: BaseException) -> None:
    """Let SQLite undo the unfinished transaction of a dead writer.

    The file must carry our mark, or never have held anything.
    """
    if getattr(error, "sqlite_errorcode", None) not in (
        sqlite3.SQLITE_READONLY_ROLLBACK,
        sqlite3.SQLITE_READONLY_RECOVERY,
        sqlite3.SQLITE_READONLY_CANTLOCK,
    ):
        raise to_typed(path, error)
    check_mark(path)
    writer = make_sqlite_engine(path, "rw")
    try:
        with writer.connect() as connection:
            connection.exec_driver_sql("PRAGMA user_version").scalar()
    finally:
        writer.dispose()


def check_mark(path: Path) -> None:
    """Raise IntegrityError unless the file carries our mark, is empty, or has a first page that is still all zeros.

    The header is read without SQLite, which would first roll back the journal, or report a half-written file as
    damaged.
    """
    with path.open("rb") as file:
        header = file.read(100)
    if any(header) and header[68:72] != tables.APPLICATION_ID.to_bytes(4, "big"):
        raise errors.IntegrityError(
            f"{path}: not a tuning database of deep_gemm; it was left as it is: name another --db"
        )


def check_sound(engine: Engine, path: Path, is_old_allowed: bool) -> None:
    """Raise IntegrityError unless the file is a sound tuning database.

    The schema is compared first, before SQLite evaluates anything in it.
    """
    with engine.begin() as connection:
        schema.check_identity(connection, path)
        if not is_old_allowed:
            schema.check_current(connection, path)
        problems = schema.check_contents(connection, with_rows=path.stat().st_size <= CHECKED_BYTES)
    if problems:
        raise damaged(path, problems[0])


def make_sqlite_engine(path: Path, mode: str) -> Engine:
    """Return an engine with a single connection to `path`."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise errors.StoreError(
            f"SQLite {sqlite3.sqlite_version}: 3.37 or newer is needed for STRICT tables; use a newer Python build"
        )
    return wrap_connection(lambda: connect(path, mode), "BEGIN IMMEDIATE" if mode == "rw" else "BEGIN")


def wrap_connection(creator: Callable[[], sqlite3.Connection], begin: str) -> Engine:
    """Return an engine whose single connection `creator` makes; transactions start with `begin`."""
    engine = create_engine(
        "sqlite://",
        creator=creator,
        poolclass=QueuePool,
        pool_size=1,
        max_overflow=0,
        pool_timeout=BUSY_TIMEOUT_MS / 1000,
    )
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Return a configured connection of the driver, in autocommit mode: the engine begins transactions itself."""
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode={MODES[mode]}",
        uri=True,
        timeout=BUSY_TIMEOUT_MS / 1000,
        isolation_level=None,
        check_same_thread=False,
    )
    configure(connection, mode)
    return connection


def configure(connection: sqlite3.Connection, mode: str) -> None:
    """Set the limits and pragmas of a connection."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
    for pragma in (
        "trusted_schema = OFF",
        "cell_size_check = ON",
        "mmap_size = 0",
        "foreign_keys = ON",
        f"busy_timeout = {BUSY_TIMEOUT_MS}",
    ):
        connection.execute(f"PRAGMA {pragma}")
    for pragma in WRITER_PRAGMAS if mode == "rw" else ("query_only = ON",):
        connection.execute(f"PRAGMA {pragma}").fetchall()
