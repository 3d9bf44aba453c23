"""Creating the schema, and refusing files that do not have exactly this schema."""

import re
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import CheckConstraint, Connection, Table
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

from tuner import errors
from tuner.db import tables
from tuner.db.faults import damaged, one_line

MIGRATIONS = Path(__file__).with_name("migrations")


def make_alembic_config(connection: Connection) -> Config:
    """Return Alembic's configuration for `connection`; no ini file is needed."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def create_schema(connection: Connection) -> None:
    """Create every table by running the migrations; the caller's transaction makes it all or nothing."""
    tables.alembic_version.create(connection)
    command.upgrade(make_alembic_config(connection), "head")
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA application_id = {tables.APPLICATION_ID}")
        connection.exec_driver_sql(f"PRAGMA user_version = {tables.SCHEMA_VERSION}")


def is_fresh(connection: Connection) -> bool:
    """Return whether a SQLite file holds nothing at all and no application claims it."""
    marks = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("application_id", "user_version")]
    return marks == [0, 0] and not connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar()


def check_identity(connection: Connection, path: object) -> None:
    """Raise IntegrityError unless the SQLite file was made by this application, by no newer schema, and has our tables only."""
    if not connection.exec_driver_sql("PRAGMA page_count").scalar():
        raise damaged(path, "too short for a database")
    application_id = connection.exec_driver_sql("PRAGMA application_id").scalar()
    if application_id != tables.APPLICATION_ID:
        raise errors.IntegrityError(
            f"{path}: application_id {application_id:#x}: not a tuning database of deep_gemm; it was left as it is: name another --db"
        )
    version = connection.exec_driver_sql("PRAGMA user_version").scalar()
    if version > tables.SCHEMA_VERSION:
        raise errors.IntegrityError(
            f"{path}: schema {version}: written by a newer deep_gemm, this one knows schema {tables.SCHEMA_VERSION}; upgrade the package"
        )
    if version != tables.SCHEMA_VERSION:
        raise damaged(path, f"schema {version} does not exist")
    check_tables(connection, path)


def check_tables(connection: Connection, path: object) -> None:
    """Raise IntegrityError unless the file's schema is ours to the letter: no views, triggers, other tables or columns."""
    found = {name: normalize(sql) for name, sql in connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")}
    wanted = get_expected_tables()
    if found != wanted:
        names = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
        raise damaged(path, f"{', '.join(map(repr, names[:3]))} is not as the schema has it")
    revisions = [row[0] for row in connection.exec_driver_sql("SELECT version_num FROM alembic_version LIMIT 2")]
    if revisions != [tables.REVISION]:
        raise damaged(path, f"migration {revisions} is unknown")


@cache
def get_expected_tables() -> dict[str, str]:
    """Return the CREATE statement of every table in normal form."""
    return {table.name: normalize(str(CreateTable(table).compile(dialect=sqlite.dialect()))) for table in tables.metadata.sorted_tables}


def normalize(sql: str) -> str:
    """Return `sql` without quotes around names and with single spaces, so that only its meaning is compared."""
    return re.sub(r"\s*([(),])\s*", r"\1", " ".join(sql.replace('"', "").split()))


def check_contents(connection: Connection, pragma: str = "quick_check") -> list[str]:
    """Return what is wrong with pages, references and constraints, nothing when the SQLite file is sound.

    The constraints are asked for one by one, because SQLite leaves CHECKs out of the schema of a file that it opens for reading.
    """
    rows = connection.exec_driver_sql(f"PRAGMA {pragma}(20)").scalars().all()
    if rows != ["ok"]:
        return [one_line(row) for row in rows]
    dangling = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(20)
    broken = [message for table in tables.metadata.sorted_tables for message in check_constraints(connection, table)]
    return [f"{table} row {row} refers to a {target} that does not exist" for table, row, target, _ in dangling] + broken


def check_constraints(connection: Connection, table: Table) -> list[str]:
    """Return the CHECKs of `table` that some row breaks."""
    names, query = get_constraint_query(table)
    broken = connection.exec_driver_sql(query).one() if names else ()
    return [f"{table.name}: a row breaks {name}" for name, is_broken in zip(names, broken, strict=True) if is_broken]


@cache
def get_constraint_query(table: Table) -> tuple[list[str], str]:
    """Return the names of the table's CHECKs and a query with one column for each: 1 where some row breaks it."""
    checks = {check.name: f"max(NOT ({check.sqltext}))" for check in table.constraints if isinstance(check, CheckConstraint)}
    names = sorted(checks)
    return names, f"SELECT {', '.join(checks[name] for name in names)} FROM {table.name}"
