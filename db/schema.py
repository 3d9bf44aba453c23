"""Creating and upgrading the schema, and refusing files whose schema differs from it in anything."""

import re
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import CheckConstraint, Connection, Table, create_engine
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

from tuner import errors
from tuner.db import tables, views
from tuner.db.faults import damaged, one_line

MIGRATIONS = Path(__file__).with_name("migrations")


def make_alembic_config(connection: Connection) -> Config:
    """Return Alembic's configuration for `connection`; no ini file is needed."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def create_schema(connection: Connection) -> None:
    """Create every table by running the migrations, in the caller's transaction."""
    tables.alembic_version.create(connection)
    migrate(connection)


def migrate(connection: Connection, version: int = tables.SCHEMA_VERSION) -> None:
    """Run the migrations up to schema `version`, and mark a SQLite file with it; the newest schema gets its views."""
    views.drop(connection)
    command.upgrade(make_alembic_config(connection), f"{version:04d}")
    if version == tables.SCHEMA_VERSION:
        views.create(connection)
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA application_id = {tables.APPLICATION_ID}")
        connection.exec_driver_sql(f"PRAGMA user_version = {version}")


def is_outdated(connection: Connection) -> bool:
    """Return whether a checked database has an older schema; in PostgreSQL its last migration says so."""
    if connection.dialect.name == "sqlite":
        return read_version(connection) < tables.SCHEMA_VERSION
    return read_revision(connection) < tables.REVISION


def read_revision(connection: Connection) -> str:
    """Return the last migration that ran in a database."""
    return connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one()


def read_version(connection: Connection) -> int:
    """Return the schema that a SQLite file is marked with."""
    return connection.exec_driver_sql("PRAGMA user_version").scalar_one()


def is_fresh(connection: Connection) -> bool:
    """Return whether a SQLite file is empty and carries no application's mark."""
    marks = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("application_id", "user_version")]
    return marks == [0, 0] and not connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar()


def check_identity(connection: Connection, path: object) -> None:
    """Raise IntegrityError unless the SQLite file is a tuning database with a known schema and nothing else in it."""
    if not connection.exec_driver_sql("PRAGMA page_count").scalar():
        raise damaged(path, "too short for a database")
    application_id = connection.exec_driver_sql("PRAGMA application_id").scalar()
    if application_id != tables.APPLICATION_ID:
        raise errors.IntegrityError(
            f"{path}: application_id {application_id:#x}: not a tuning database of deep_gemm; it was left as it is:"
            " name another --db"
        )
    version = read_version(connection)
    if version > tables.SCHEMA_VERSION:
        raise errors.IntegrityError(
            f"{path}: schema {version}: written by a newer deep_gemm, this one knows schema {tables.SCHEMA_VERSION};"
            " upgrade the package"
        )
    if version < 1:
        raise damaged(path, f"schema {version} does not exist")
    check_tables(connection, path, version)


def check_current(connection: Connection, path: object) -> None:
    """Raise IntegrityError where a checked file has an older schema, which only a writer may bring up to date."""
    if is_outdated(connection):
        raise errors.IntegrityError(
            f"{path}: schema {read_version(connection)}, this deep_gemm reads schema {tables.SCHEMA_VERSION}; "
            f"run `python -m tuner db upgrade --db {path}`, on a copy if others still use the file"
        )


def check_tables(connection: Connection, path: object, version: int) -> None:
    """Raise IntegrityError unless the file's schema is exactly ours: no triggers, other views, tables or columns.

    Our own views may be missing. In a file of an older schema they may be others: a migration drops them unread.
    """
    found, wanted = read_tables(connection), get_expected_tables(version)
    for name, statement in views.get_statements().items():
        is_view = found.get(name, "").startswith("CREATE VIEW ")
        if found.get(name) == normalize(statement) or (is_view and version < tables.SCHEMA_VERSION):
            del found[name]
    if found != wanted:
        names = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
        raise damaged(path, f"{', '.join(map(repr, names[:3]))} is not as the schema has it")
    revisions = [row[0] for row in connection.exec_driver_sql("SELECT version_num FROM alembic_version LIMIT 2")]
    if revisions != [f"{version:04d}"]:
        raise damaged(path, f"migration {revisions} is unknown")


def read_tables(connection: Connection) -> dict[str, str]:
    """Return the statement of every object in a SQLite file in normal form."""
    return {
        name: normalize(sql)
        for name, sql in connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    }


@cache
def get_expected_tables(version: int = tables.SCHEMA_VERSION) -> dict[str, str]:
    """Return the CREATE statement of every table in normal form; for an older schema, as its migrations write them."""
    if version == tables.SCHEMA_VERSION:
        return {
            table.name: normalize(str(CreateTable(table).compile(dialect=sqlite.dialect())))
            for table in tables.metadata.sorted_tables
        }
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        tables.alembic_version.create(connection)
        migrate(connection, version)
        found = read_tables(connection)
    engine.dispose()
    return found


def normalize(sql: str) -> str:
    """Return `sql` without quotes around names and with single spaces, so that only its meaning is compared."""
    return re.sub(r"\s*([(),])\s*", r"\1", " ".join(sql.replace('"', "").split()))


def check_contents(connection: Connection, pragma: str = "quick_check", with_rows: bool = True) -> list[str]:
    """Return what is wrong with pages, references and constraints; [] when the SQLite file is sound.

    Every CHECK is evaluated by a query of our own, because SQLite ignores CHECKs in files that it opens for reading.
    For an older schema this happens after the upgrade. Without `with_rows`, those of measured rows are left out.
    """
    rows = connection.exec_driver_sql(f"PRAGMA {pragma}(20)").scalars().all()
    if rows != ["ok"]:
        return [one_line(row) for row in rows]
    dangling = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(20)
    broken = (
        []
        if is_outdated(connection)
        else [
            message
            for table in tables.metadata.sorted_tables
            if with_rows or table is not tables.measurement
            for message in check_constraints(connection, table)
        ]
    )
    # The rows of a table without rowid have no number.
    return [
        f"{table} row {row or '?'} refers to a {target} that does not exist" for table, row, target, _ in dangling
    ] + broken


def check_constraints(connection: Connection, table: Table) -> list[str]:
    """Return the CHECKs of `table` that some row breaks."""
    checks = get_checks(table)
    anyone = " OR ".join(f"NOT ({check})" for check in checks.values())
    if not checks or connection.exec_driver_sql(f"SELECT 1 FROM {table.name} WHERE {anyone} LIMIT 1").first() is None:
        return []
    each = ", ".join(f"max(NOT ({check}))" for check in checks.values())
    broken = connection.exec_driver_sql(f"SELECT {each} FROM {table.name}").one()
    return [f"{table.name}: a row breaks {name}" for name, is_broken in zip(checks, broken, strict=True) if is_broken]


@cache
def get_checks(table: Table) -> dict[str, str]:
    """Return the table's CHECKs in SQL, by name."""
    everywhere = [*table.constraints, *(check for column in table.columns for check in column.constraints)]
    found = {str(check.name): str(check.sqltext) for check in everywhere if isinstance(check, CheckConstraint)}
    return dict(sorted(found.items()))
