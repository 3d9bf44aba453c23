"""Opening a PostgreSQL database by URL: for a fleet, because many processes may write to it at once.

Writers hold a shared advisory lock as long as they are open. Whoever creates or migrates the schema needs the same lock
for itself alone, so that no schema changes below a writer. A second lock lets writers open one after the other.

Guarantees: the server frees the locks of a process that dies. A reader sees one state of the database, whatever writers
    do meanwhile.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from sqlalchemy import Connection, Engine, create_engine, inspect

from tuner import errors
from tuner.db import schema, tables, views
from tuner.db.faults import translated

FLEET_LOCK = 0x44474D54  # held by writers together, or by a migration alone
OPENING_LOCK = FLEET_LOCK + 1  # held while a writer looks at the schema
LOCK_TIMEOUT_MS = 60_000
#: The order in which a merge locks the tables: that of the writing methods, so that none waits for the other in turn.
LOCK_ORDER = ("measurement", "compilation", "block", "best", "sweep", "config", "problem", "environment", "device")


def open_postgresql(url: str, mode: str) -> tuple[Engine, Callable[[], None]]:
    """Return the engine of a database and the function that closes it.

    Raises: UsageError, StoreError; IntegrityError where a reader finds another schema than this package's.
    """
    if not url.startswith(("postgresql://", "postgresql+psycopg://")) or mode == "immutable":
        raise errors.UsageError(
            f"--db {url.partition('://')[0]}://...: a path of a SQLite file, or postgresql+psycopg://... (not"
            " immutable)"
        )
    try:
        engine = create_engine(
            url.replace("postgresql://", "postgresql+psycopg://", 1),
            execution_options={"postgresql_readonly": mode == "ro"},
        )
    except ModuleNotFoundError as error:
        raise errors.UsageError(
            "--db postgresql+psycopg://...: the driver is missing; install psycopg[binary]"
        ) from error
    name = describe(engine)
    with ExitStack() as cleanup, translated(name):
        cleanup.callback(engine.dispose)
        if mode == "rw":
            prepare_writer(cleanup.enter_context(engine.connect()), name)
        else:
            with engine.begin() as connection:
                check_schema(connection, name)
        return engine, cleanup.pop_all().close


def describe(engine: Engine) -> str:
    """Return the URL of a database without its password."""
    return engine.url.render_as_string(hide_password=True)


def check_schema(connection: Connection, name: str) -> None:
    """Raise UsageError for a database without our tables, and IntegrityError for one of another schema."""
    if not inspect(connection).has_table("alembic_version"):
        raise errors.UsageError(
            f"{name}: holds no tuning database; create it with `python -m tuner db init --db URL`, or sweep into it"
        )
    check_not_newer(connection, name)
    if schema.is_outdated(connection):
        raise errors.IntegrityError(
            f"{name}: its schema is older than schema {tables.SCHEMA_VERSION}; run `python -m tuner db upgrade --db"
            " URL` while nothing writes to it"
        )


def check_not_newer(connection: Connection, name: str) -> None:
    """Raise IntegrityError for a database that a newer package has written."""
    found = schema.read_revision(connection)
    if found > tables.REVISION:
        raise errors.IntegrityError(
            f"{name}: schema {found}: written by a newer deep_gemm, this one knows schema {tables.REVISION}; upgrade"
            " the package"
        )


def prepare_writer(connection: Connection, name: str) -> None:
    """Create or upgrade the schema where needed, and take the writers' lock on `connection`, which stays open."""
    connection.exec_driver_sql(f"SET lock_timeout = {LOCK_TIMEOUT_MS}")
    connection.commit()  # a rollback would undo the setting
    connection.exec_driver_sql(f"SELECT pg_advisory_lock({OPENING_LOCK})")
    try:
        bring_up_to_date(connection, name)
        connection.exec_driver_sql(f"SELECT pg_advisory_lock_shared({FLEET_LOCK})")
    finally:
        connection.rollback()
        connection.exec_driver_sql(f"SELECT pg_advisory_unlock({OPENING_LOCK})")
        connection.commit()


def bring_up_to_date(connection: Connection, name: str) -> None:
    """Give a database the schema of today, unless it has it. Raises: StoreError while others write to it."""
    is_new = not inspect(connection).has_table("alembic_version")
    if not is_new:
        check_not_newer(connection, name)
        if not schema.is_outdated(connection) and not views.find_missing(connection):
            return
    with alone(connection, name):
        (schema.create_schema if is_new else schema.migrate)(connection)
        views.create(connection)
        connection.commit()


@contextmanager
def alone(connection: Connection, name: str) -> Iterator[None]:
    """Hold the fleet's lock for oneself. Raises: StoreError while somebody writes."""
    if not connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({FLEET_LOCK})").scalar():
        raise errors.StoreError(
            f"{name}: its schema must be upgraded, and another process is writing to it; wait for it or stop it"
        )
    try:
        yield
    finally:
        connection.rollback()
        connection.exec_driver_sql(f"SELECT pg_advisory_unlock({FLEET_LOCK})")


def lock_tables(connection: Connection) -> None:
    """Let others only read until the transaction ends: a merge writes what it compared with the rows that are there."""
    connection.exec_driver_sql(f"LOCK TABLE {', '.join(LOCK_ORDER)} IN SHARE ROW EXCLUSIVE MODE")
