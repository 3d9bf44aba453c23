"""Measured rows as one flat table in a file, for other programs: the columns of the view `v_measurement`.

Rows are in the order of their keys and written part by part, so that a database of any size takes little memory. Times
are microseconds. `block_id`, `problem_id` and `config_id` group rows of one file; other databases have other ids.
"""

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from sqlalchemy import text

from tuner import errors
from tuner.db import tables
from tuner.db.files import is_recorded
from tuner.db.queries import check_measurements
from tuner.db.store import Store
from tuner.db.views import V_MEASUREMENT
from tuner.files import check_replaceable, replacing

ROWS_AT_A_TIME = 20_000
#: What the text of a formula begins with, for one spreadsheet or another.
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
QUERY = f"{V_MEASUREMENT} ORDER BY m.block_id, m.config_id, m.role"
#: Columns of the view that no table has under the same name.
OWN_TYPES: dict[str, type] = (
    dict.fromkeys(("problem_key", "config_key", "board", "block_status", "session"), str)
    | dict.fromkeys(("is_reference", "block_id", "problem_id", "config_id"), int)
)  # fmt: skip
SOURCES = (tables.device, tables.config, tables.problem, tables.block, tables.measurement)
TYPES = {column.name: column.type.python_type for table in SOURCES for column in table.columns} | OWN_TYPES


def export_flat(source: str | os.PathLike, target: str | os.PathLike, kind: str) -> int:
    """Write the measured rows of a database to the file `target` and return its size; `kind` is csv or parquet.

    Guarantees: readers of `target` see the old file or the new one. Raises: UsageError, also where Parquet needs a
    module that is not installed; StoreError; IntegrityError.
    """
    write, path = {"csv": write_csv, "parquet": write_parquet}[kind], Path(target).absolute()
    check_replaceable("TARGET", path)
    if kind == "parquet":
        import_pyarrow()
    mode = "immutable" if is_recorded(source) else "ro"
    with Store.open(source, mode) as store, store.reading() as connection, replacing(path) as fresh:
        check_measurements(connection, store.target)
        result = connection.execution_options(yield_per=ROWS_AT_A_TIME).execute(text(QUERY))
        parts = ([tuple(row) for row in part] for part in result.partitions(ROWS_AT_A_TIME))
        write(fresh, list(result.keys()), parts)
    return path.stat().st_size


def write_csv(path: Path, names: Sequence[str], parts: Iterable[list[tuple]]) -> None:
    """Write rows as CSV with a line of names; what is missing is empty, and no text is a formula."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for rows in parts:
            writer.writerows([[mark_formula(value) for value in row] for row in rows])


def mark_formula(value: object) -> object:
    """Return text that a spreadsheet would run as a formula with an apostrophe before it, anything else as it is."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULAS) else value


def write_parquet(path: Path, names: Sequence[str], parts: Iterable[list[tuple]]) -> None:
    """Write rows as Parquet: 64-bit integers, 64-bit floats and text, all nullable."""
    pyarrow, parquet = import_pyarrow()
    types = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
    schema = pyarrow.schema([(name, types[TYPES[name]]) for name in names])
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for rows in parts:
            columns = [pyarrow.array(column, field.type) for column, field in zip(zip(*rows), schema, strict=True)]
            writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))


def import_pyarrow() -> tuple:
    """Return the modules pyarrow and pyarrow.parquet. Raises: UsageError."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise errors.UsageError(
            '--format parquet: pyarrow is not installed; run pip install "deep_gemm[parquet]", or use --format csv'
        ) from error
    return pyarrow, parquet
