"""Measured rows of a snapshot without the columns at their end that they leave empty.

SQLite writes a byte for each column that a table has when a row is added, also for NULL, and reads columns that were
added later as NULL. So rows are written into a table that ends with their last value, and the columns behind it are
added afterwards: 10 bytes less for most rows of a snapshot, of some 44. VACUUM copies rows as they are. The file is an
ordinary database of the same schema; a row that is written into it later, or merged into another one, is whole.
"""

import sqlite3
from pathlib import Path

from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

from tuner.db.tables import measurement

NAMES = tuple(column.name for column in measurement.columns)
#: How many columns stand before those that may be left out: the key, and what nearly every row has.
NUM_BASE = NAMES.index("ratio_low")
WHOLE = "whole_measurement"


def compact(path: Path) -> None:
    """Rewrite a database without free pages, and its measured rows without empty columns at their end."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        shorten(connection)
        connection.execute("VACUUM")
    finally:
        connection.close()


def shorten(connection: sqlite3.Connection) -> None:
    """Write the rows of `measurement` anew, each with the columns up to its last value, in one transaction.

    `connection`: without transactions of its own (isolation_level=None). Views of the table stay as they are.
    """
    base, declarations = split_statement(str(CreateTable(measurement).compile(dialect=sqlite.dialect())))
    connection.execute("PRAGMA legacy_alter_table = ON")  # else views would follow the table to its other name
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"ALTER TABLE {measurement.name} RENAME TO {WHOLE}")
    connection.execute(base)
    copy_rows(connection, NUM_BASE)
    for length, declaration in enumerate(declarations, NUM_BASE + 1):
        connection.execute(f"ALTER TABLE {measurement.name} ADD COLUMN {declaration}")
        copy_rows(connection, length)
    connection.execute(f"DROP TABLE {WHOLE}")
    connection.execute("COMMIT")


def split_statement(statement: str) -> tuple[str, list[str]]:
    """Return the statement that creates the table with its first NUM_BASE columns, and the declarations of the others.

    SQLAlchemy writes a column a line.
    """
    declared = {line.split()[0]: line for line in statement.splitlines() if line.strip()}
    others = [declared[name] for name in NAMES[NUM_BASE:]]
    base = "\n".join(line for line in statement.splitlines() if line not in others)
    return base, [line.strip().rstrip(",") for line in others]


def copy_rows(connection: sqlite3.Connection, length: int) -> None:
    """Copy the rows whose last value is in the `length`-th column; with NUM_BASE, or before it."""
    columns = ", ".join(NAMES[:length])
    conditions = [f"{name} IS NULL" for name in NAMES[length:]]
    if length > NUM_BASE:
        conditions.append(f"{NAMES[length - 1]} IS NOT NULL")
    connection.execute(
        f"INSERT INTO {measurement.name} ({columns}) SELECT {columns} FROM {WHOLE} WHERE {' AND '.join(conditions)}"
    )
