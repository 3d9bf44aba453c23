"""Words that are stored as small numbers: what they mean, who refuses others, and how older databases get them."""

import importlib
import io
import itertools
import sqlite3

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import func, select

from tests.fakes.databases import CONFIGS, add_block, add_context, make_database, make_problem, read_contents
from tests.fakes.large_database import write_large_database
from tests.fakes.old_databases import copy_as_schema_6
from tuner import errors
from tuner.db import Store, engine, export_flat, export_json, merge, schema, snapshot, tables
from tuner.db.words import Word

#: What recorded databases hold: to change one of them is to change what all of them say.
ROLES = {"confirm": 0, "search": 1}
STATUSES = {
    **{"ok": 0, "censored": 1, "incorrect": 2, "compile_error": 3, "crash": 4, "timeout": 5, "spill": 6},
    "skipped": 7,
}
MIGRATION = importlib.import_module("tuner.db.migrations.versions.0007_small_rows")


def read_raw(path, query: str) -> list[tuple]:
    """Return the answer of a query that goes past the tables."""
    with sqlite3.connect(path) as raw:
        found = raw.execute(query).fetchall()
    raw.close()
    return found


def test_the_numbers_of_words_are_frozen():
    for kind, numbers in ((tables.ROLE, ROLES), (tables.STATUS, STATUSES)):
        assert {word: kind.get_number(word) for word in kind.words} == numbers
        assert {kind.get_word(number): number for number in kind.numbers} == numbers
    assert MIGRATION.WORDS == {"role": tables.ROLES, "status": tables.STATUSES}


def test_a_row_has_words_in_python_and_numbers_in_the_file(tmp_path):
    path = tmp_path / "tuning.db"
    wanted = set(itertools.product(ROLES, STATUSES))
    with Store.open(path) as store:
        block_id = add_block(store, add_context(store), make_problem(), num_configs=1)
        configs = zip(STATUSES, CONFIGS[1:], strict=False)
        ids = {status: store.get_or_add_config("fp8_gemm", config) for status, config in configs}
        rows = [{"config_id": ids[status], "role": role, "status": status} for role, status in sorted(wanted)]
        store.add_measurements([row | {"block_id": block_id, "median_us": 7.5} for row in rows])
        found = [row for row in store.load_measurements() if row.config_id in ids.values()]
        assert {(row.role, row.status) for row in found} == wanted and len(found) == len(wanted)
        assert [row.role for row in found] == ["confirm", "search"] * len(STATUSES)
        assert {row.role for row in store.load_measurements(role="search")} == {"search"}
    raw = read_raw(path, f"SELECT role, status FROM measurement WHERE config_id IN {tuple(ids.values())}")
    assert set(raw) == {(ROLES[role], STATUSES[status]) for role, status in wanted}
    shown = read_raw(path, f"SELECT role, status FROM v_measurement WHERE config_id IN {tuple(ids.values())}")
    assert set(shown) == wanted


def test_words_are_compared_as_words(tmp_path):
    table = tables.measurement
    conditions = {
        table.c.status == "ok": 7,
        table.c.status != "ok": 1,
        table.c.status.in_(["ok", "compile_error"]): 8,
        table.c.status.not_in(["ok", "censored"]): 1,
        table.c.role == "confirm": 2,
    }
    with Store.open(make_database(tmp_path / "tuning.db", num_problems=1), "ro") as store, store.reading() as reader:
        for condition, count in conditions.items():
            query = select(func.count()).select_from(table).where(condition)
            assert reader.execute(query).scalar() == count, str(condition)


@pytest.mark.parametrize("word", ["fine", "OK", "", "0", "x" * 1000])
def test_an_unknown_word_is_refused_by_name(tmp_path, word):
    with Store.open(make_database(tmp_path / "tuning.db")) as store:
        row = {"block_id": 1, "config_id": 1, "role": "search", "status": word}
        with pytest.raises(errors.IntegrityError, match=r"tuning.db: row refused: .* none of ok, censored.*written"):
            store.add_measurements([row])
        assert store.check() == []


@pytest.mark.parametrize("value", ["-1", "8", "'ok'", "NULL"])
def test_the_file_refuses_what_is_no_number_of_a_word(tmp_path, value):
    with sqlite3.connect(make_database(tmp_path / "tuning.db")) as raw, pytest.raises(sqlite3.IntegrityError):
        raw.execute(f"UPDATE measurement SET status = {value} WHERE block_id = 1")
    raw.close()


@pytest.mark.parametrize("column, number", [("role", 2), ("status", 8), ("status", -1)])
def test_a_number_of_no_word_is_damage_for_every_reader(tmp_path, monkeypatch, column, number):
    path = make_database(tmp_path / "tuning.db")
    with sqlite3.connect(path) as raw:
        raw.execute("PRAGMA ignore_check_constraints = ON")
        raw.execute(f"UPDATE measurement SET {column} = {number} WHERE block_id = 1 AND config_id = 3")
    raw.close()
    with pytest.raises(errors.IntegrityError, match=f"breaks ck_measurement_{column}"):
        Store.open(path, "ro")
    monkeypatch.setattr(engine, "CHECKED_BYTES", 0)  # as in a large file
    with Store.open(path, "ro") as store:
        uses = [
            store.load_measurements,
            *([store.stats] if column == "status" else []),
            lambda: merge(tmp_path / "merged.db", [path]),
            lambda: export_json(path, tmp_path / "export.json"),
            lambda: export_flat(path, tmp_path / "export.csv", "csv"),
            lambda: snapshot(path, tmp_path / "snapshot.db"),
        ]
        for use in uses:
            with pytest.raises(errors.IntegrityError, match=f"measurement.{column}: unknown"):
                use()
        assert store.check()


def test_what_is_stored_as_text_is_no_word():
    """A damaged file may hold anything, the word itself, too."""
    word = Word(("ok", "censored"))
    assert [word.process_result_value(value, None) for value in (0, 1, None)] == ["ok", "censored", None]
    assert not {word.process_result_value(value, None) for value in ("ok", b"ok", 2, -1, 0.0)} & set(word.words)


def test_a_database_of_schema_6_keeps_everything(tmp_path):
    fresh = make_database(tmp_path / "fresh.db", num_problems=3)
    path = copy_as_schema_6(fresh, tmp_path / "old.db")
    assert {*read_raw(path, "SELECT role, typeof(status) FROM measurement")} == {(role, "text") for role in ROLES}
    Store.open(path).close()
    assert read_contents(path) == read_contents(fresh)
    statements = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
    assert [(name, schema.normalize(sql)) for name, sql in read_raw(path, statements)] == [
        (name, schema.normalize(sql)) for name, sql in read_raw(fresh, statements)
    ]
    for name in ("v_measurement", "v_latest", "v_best", "v_noise", "best"):
        assert sorted(read_raw(path, f"SELECT * FROM {name}")) == sorted(read_raw(fresh, f"SELECT * FROM {name}"))
    with Store.open(path, "ro") as store:
        assert store.check() == [] and store.count_unverified() == 0 and store.count_measurements() == 24


def test_an_impossible_row_of_schema_6_leaves_the_file_as_it_was(tmp_path):
    path = copy_as_schema_6(make_database(tmp_path / "fresh.db"), tmp_path / "old.db")
    with sqlite3.connect(path) as raw:
        raw.executescript("PRAGMA ignore_check_constraints = ON; UPDATE measurement SET status = 'fine'")
    raw.close()
    before = path.read_bytes()
    for mode in ("rw", "immutable"):
        with pytest.raises(errors.IntegrityError, match=r"measurement.status"):
            Store.open(path, mode)
    assert path.read_bytes() == before


def test_a_row_takes_less_than_in_schema_6(tmp_path):
    """By the bytes of its two words; a winner's by those of its key, which was there twice."""
    num_rows = write_large_database(tmp_path / "fresh.db", 9_000)
    path = copy_as_schema_6(tmp_path / "fresh.db", tmp_path / "old.db")
    sizes = []
    for _ in range(2):
        read_raw(path, "VACUUM")
        sizes.append(path.stat().st_size)
        Store.open(path).close()
    assert sizes[0] - sizes[1] > 8 * num_rows + 100 * num_rows // 45


def test_postgresql_changes_the_columns_in_place():
    """Its statements, because most systems have no server: no constraint may compare a number with a word meanwhile."""
    written = io.StringIO()
    context = MigrationContext.configure(
        dialect_name="postgresql", opts={"as_sql": True, "output_buffer": written, "transactional_ddl": False}
    )
    with Operations.context(context):
        MIGRATION.upgrade()
    dropped, changed, added = (
        [line for line in written.getvalue().split(";") if word in line] for word in ("DROP", "ALTER COLUMN", "ADD")
    )
    assert (len(dropped), len(changed), len(added)) == (3, 1, 3) and written.getvalue().count(";") == 7
    assert "role TYPE SMALLINT USING CASE role WHEN 'confirm' THEN 0 WHEN 'search' THEN 1 END, ALTER" in changed[0]
    assert changed[0].count("WHEN") == len(ROLES) + len(STATUSES) and "'skipped' THEN 7 END" in changed[0]
    names = {f"ck_measurement_{name}": condition for name, condition in MIGRATION.CHECKS.items()}
    assert names.items() <= schema.get_checks(tables.measurement).items()
