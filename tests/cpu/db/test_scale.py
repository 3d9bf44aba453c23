"""What commands cost as a database grows: never more than linear, and what is asked of one problem not even that."""

import time
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import event

from tests.fakes import databases
from tests.fakes.large_database import NUM_CONFIGS, OP, ROWS_OF_BLOCK, make_problem, write_large_database
from tuner import cli
from tuner.db import Store, export_json, queries
from tuner.learn import inspection

SKU = databases.SKU
SMALL, FACTOR = 9_000, 4
#: Times that the larger database may take, in CPU time of this process: linear is 4, quadratic 16.
MAX_GROWTH = 8.0
COMMANDS = {
    "stats": ["db", "stats", "--db", "{db}"],
    "check": ["db", "check", "--db", "{db}"],
    "inspect": ["inspect", "--db", "{db}"],
    "show": ["db", "show", "1", "512", "1024", "--db", "{db}"],
    "merge": ["db", "merge", "{out}/merged.db", "{db}"],
    "export": ["db", "export", "{out}/export.json", "--db", "{db}"],
    "import": ["db", "import", "{db}.json", "--db", "{out}/imported.db"],
    "snapshot": ["db", "snapshot", "{out}/snapshot.db", "--db", "{db}", "--sku", "h200", "--max-bytes", "1000000000"],
    "select": ["select", "1", "512", "1024", "--device", "h200", "--explain", "--db", "{db}"],
}


@pytest.fixture(scope="module")
def databases_of_two_sizes(tmp_path_factory) -> list[Path]:
    """Two databases, the second four times as large, each with its export beside it."""
    with databases.memory_folder(tmp_path_factory.mktemp("scale")) as folder:
        paths = [folder / "small.db", folder / "large.db"]
        for path, rows in zip(paths, (SMALL, FACTOR * SMALL), strict=True):
            assert write_large_database(path, rows) == rows
            export_json(path, f"{path}.json")
        yield paths


def test_the_generated_database_is_sound(tmp_path):
    path = tmp_path / "some.db"
    assert write_large_database(path, 100, has_samples=True) == 3 * ROWS_OF_BLOCK
    with Store.open(path, "ro") as store:
        assert store.check() == []
        found = store.stats()
        (row, *_) = store.load_measurements(problem_key=make_problem(2)["key"])
    assert found["tables"]["measurement"] == found["coverage"][0]["rows"] == 3 * ROWS_OF_BLOCK
    assert found["illegal"] == 0 and len(row.samples) == 30 and row.block.problem.op == OP


def test_a_filter_is_applied_by_the_database(tmp_path):
    path = tmp_path / "some.db"
    write_large_database(path, 20 * ROWS_OF_BLOCK)
    with Store.open(path, "ro") as store:
        read = []
        event.listen(store.engine, "after_cursor_execute", lambda *arguments: read.append(arguments[2]))
        rows = store.load_measurements(problem_key=make_problem(7)["key"], role="confirm")
        assert {row.block.problem_id for row in rows} == {7} and len(rows) == 5
        (query,) = (text for text in read if "FROM measurement" in text)
    assert "WHERE measurement.role = ?" in query and 'problem."key" = ?' in query


def test_counting_loads_no_rows(tmp_path, monkeypatch):
    """stats and inspect let the database count: of the rows they read only the numbers of confirmed ones."""
    path = tmp_path / "some.db"
    write_large_database(path, 20 * ROWS_OF_BLOCK)
    monkeypatch.setattr(queries, "load_own_rows", None)
    with Store.open(path, "ro") as store:
        coverage = store.stats()["coverage"]
        found = inspection.inspect(store, SKU, OP, "demo")
        plans = [explain(store, query) for query in read_queries(store, lambda: store.load_summaries(SKU, OP))]
    assert coverage[0]["rows"] == found["rows"] == 20 * ROWS_OF_BLOCK
    assert coverage[0]["configs"] == found["identities"][0]["configs"] == NUM_CONFIGS
    assert found["noise"]["confirmation_mad"]["count"] == found["noise"]["ratio_interval"]["count"] == 100
    (plan,) = (plan for plan in plans if "measurement" in plan)
    assert "SEARCH measurement USING PRIMARY KEY (block_id=?)" in plan and "TEMP B-TREE" not in plan


def test_one_problem_is_found_by_indices(tmp_path):
    path = tmp_path / "some.db"
    write_large_database(path, 20 * ROWS_OF_BLOCK)
    key = make_problem(7)["key"]
    with Store.open(path, "ro") as store:
        plans = [
            explain(store, query)
            for query in read_queries(store, lambda: store.load_measurements(problem_key=key))
            if "FROM measurement" in query[0]
        ]
    (plan,) = plans
    assert "SEARCH measurement USING PRIMARY KEY (block_id=?)" in plan
    assert "ix_block_problem_id" in plan and "sqlite_autoindex_problem" in plan
    assert "SCAN measurement" not in plan and "SCAN block" not in plan


def read_queries(store, read) -> list[tuple[str, tuple]]:
    """Return the statements that `read` executes, with their parameters."""
    seen = []

    def note(connection, cursor, statement, parameters, context, is_many):
        seen.append((statement, parameters))

    event.listen(store.engine, "after_cursor_execute", note)
    read()
    event.remove(store.engine, "after_cursor_execute", note)
    return [(text, values) for text, values in seen if text.startswith("SELECT")]


def explain(store, query: tuple[str, tuple]) -> str:
    """Return SQLite's plan of a query, a line per step."""
    text, values = query
    with store.reading() as connection:
        return "\n".join(row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values))


def test_noise_is_found_by_one_pass(monkeypatch):
    """Each value is looked at a fixed number of times, however many blocks there are."""
    calls = []
    median = np.median
    monkeypatch.setattr(inspection.np, "median", lambda values: calls.append(len(values)) or median(values))

    class Block:
        def __init__(self, number: int):
            self.regime, self.anchor_us = f"regime {number % 2}", 100.0 + number

    drift = inspection.find_drift([Block(number) for number in range(1000)])
    assert len(drift) == 1000 and sum(calls) == 1000


@pytest.mark.full
@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_is_more_than_linear(databases_of_two_sizes, tmp_path, capsys, name):
    seconds = []
    for path in databases_of_two_sizes:
        out = tmp_path / path.stem
        out.mkdir()
        words = [word.format(db=path, out=out) for word in COMMANDS[name]]
        cli.run([*words, "--help"])  # imports are no part of it
        start = time.process_time()
        assert cli.run(words) == 0, capsys.readouterr().err
        seconds.append(time.process_time() - start)
    capsys.readouterr()
    assert seconds[1] <= MAX_GROWTH * max(seconds[0], 0.05), seconds
