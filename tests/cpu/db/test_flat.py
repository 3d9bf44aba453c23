"""Measured rows as one table: a file says the same as the database, whatever reads it."""

import csv
import os
import sys

import pytest

from tests.fakes.databases import make_database
from tuner import cli
from tuner.db import Store, flat, views

FIELDS = ("median_us", "mad_us", "ratio", "ratio_low", "ratio_high", "num_samples")


@pytest.fixture
def database(tmp_path, monkeypatch):
    """A database whose rows are written in several parts."""
    monkeypatch.setattr(flat, "ROWS_AT_A_TIME", 7)
    return make_database(tmp_path / "tuning.db")


def read_rows(database) -> dict[tuple, tuple]:
    """Return the measured rows of a database by their keys."""
    with Store.open(database, "ro") as store:
        return {
            (row.block.problem_key, row.config_key, row.role): (
                row.status, row.block.problem.m, row.config.block_n, row.block.sku, row.block.created,
                *(getattr(row, name) for name in FIELDS),
            )
            for row in store.load_measurements()
        }  # fmt: skip


def by_key(rows) -> dict[tuple, tuple]:
    """Return rows of an exported table by their keys."""
    return {
        (row["problem_key"], row["config_key"], row["role"]): (
            row["status"], row["m"], row["block_n"], row["sku"], row["created"], *(row[name] for name in FIELDS),
        )
        for row in rows
    }  # fmt: skip


def test_parquet_holds_every_row_with_its_types(database, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    target = tmp_path / "rows.parquet"
    assert cli.run(["db", "export", str(target), "--db", str(database), "--format", "parquet"]) == 0
    table = parquet.read_table(target)
    assert by_key(table.to_pylist()) == read_rows(database) and table.num_rows == 24
    types = {field.name: str(field.type) for field in table.schema}
    assert (types["m"], types["median_us"], types["op"], types["is_reference"]) == (
        "int64",
        "double",
        "string",
        "int64",
    )
    assert len(types) == views.V_MEASUREMENT.split("FROM measurement")[0].count(",") + 1


def test_csv_holds_every_row(database, tmp_path):
    target = tmp_path / "rows.csv"
    assert cli.run(["db", "export", str(target), "--db", str(database), "--format", "csv"]) == 0
    with target.open(newline="", encoding="utf-8") as file:
        found = by_key(csv.DictReader(file))
    wanted = {
        key: tuple("" if value is None else str(value) for value in row) for key, row in read_rows(database).items()
    }
    assert found == wanted and len(found) == 24


@pytest.mark.parametrize("beginning", ["=", "+", "-", "@", "\t", "\r"])
def test_no_text_is_a_formula(database, tmp_path, beginning):
    text = f"{beginning}1+2"
    with Store.open(database) as store, store.writing() as connection:
        connection.exec_driver_sql("UPDATE block SET regime = ?", (text,))
        connection.exec_driver_sql("UPDATE measurement SET checksum = NULL")
    assert cli.run(["db", "export", str(tmp_path / "rows.csv"), "--db", str(database), "--format", "csv"]) == 0
    with (tmp_path / "rows.csv").open(newline="", encoding="utf-8") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert text not in cells and f"'{text}" in cells
    assert flat.mark_formula(-1.5) == -1.5 and flat.mark_formula("nvidia") == "nvidia"


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_no_export_replaces_a_database_or_what_is_no_file(database, tmp_path, kind, capsys):
    other, pipe = make_database(tmp_path / "other.db"), tmp_path / "pipe"
    os.mkfifo(pipe)
    whole = {path: path.read_bytes() for path in (database, other)}
    for target, fault in (
        (database, "is a database, which would be lost"),
        (other, "is a database, which would be lost"),
        (pipe, "is no regular file"),
        (tmp_path, "is a folder"),
    ):
        assert cli.run(["db", "export", str(target), "--db", str(database), "--format", kind]) == 2
        assert f"TARGET {target}: {fault}" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in whole} == whole and pipe.is_fifo()


def test_what_is_missing_is_named_and_nothing_is_written(database, tmp_path, monkeypatch, capsys):
    target = tmp_path / "rows"
    words = ["db", "export", str(target), "--db", str(database), "--format"]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert cli.run([*words, "parquet"]) == 2
    assert 'pip install "deep_gemm[parquet]"' in capsys.readouterr().err
    assert cli.run([*words, "arrow"]) == 2
    assert "one of json, csv, parquet" in capsys.readouterr().err
    assert not target.exists()
