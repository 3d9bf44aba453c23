"""Faults of the database: damaged and hostile files, text that looks like SQL."""

import json
import os
import random
import shutil
import signal
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

from tests.fakes.databases import (
    CONFIGS,
    add_block,
    add_context,
    count_rows,
    make_database,
    make_problem,
    memory_folder,
)
from tests.fakes.processes import run_child
from tuner import errors
from tuner.db import Store, export_json, merge, snapshot, tables
from tuner.db.rows import MeasurementRow
from tuner.learn.sources import find_device


@pytest.fixture
def folder(tmp_path):
    """A folder where commits are quick."""
    with memory_folder(tmp_path) as path:
        yield path


# Damaged and hostile files.


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """A sound database."""
    return make_database(tmp_path_factory.mktemp("sound") / "tuning.db", num_problems=4)


def mutate(generator: random.Random, payload: bytes) -> bytes:
    """Return a damaged copy: flipped bits or bytes, a zeroed or swapped page, a truncated file, a changed header."""
    damaged, kind = bytearray(payload), generator.randrange(8)
    page, other = (generator.randrange(len(payload) // 4096) * 4096 for _ in range(2))
    if kind <= 2:
        for _ in range(generator.choice((1, 2, 8, 64))):
            damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
    elif kind == 3:
        damaged[page : page + 4096] = bytes([generator.choice((0, 255))]) * 4096
    elif kind == 4:
        damaged[page : page + 4096], damaged[other : other + 4096] = (
            damaged[other : other + 4096],
            damaged[page : page + 4096],
        )
    elif kind == 5:
        del damaged[generator.randrange(len(damaged)) :]
    elif kind == 6:
        damaged[generator.randrange(100)] = generator.randrange(256)
    else:
        place = page + generator.randrange(64)  # page headers and cell pointers
        damaged[place : place + 4] = generator.randbytes(4)
    return bytes(damaged)


@pytest.mark.parametrize("mutants", [100, pytest.param(2000, marks=[pytest.mark.full, pytest.mark.timeout(1800)])])
def test_damaged_files_are_refused_or_read_as_valid_rows(sound, folder, mutants):
    payload, generator = sound.read_bytes(), random.Random(4)
    path, refused = folder / "mutant.db", 0
    for _ in range(mutants):
        mutant = mutate(generator, payload)
        path.write_bytes(mutant)
        mode = generator.choice(("ro", "immutable", "rw"))
        refusal = None
        try:
            with Store.open(path, mode) as store:
                check_rows_are_possible(store.load_measurements())
        except errors.TunerError as error:
            refusal = str(error)
        if refusal is not None:
            refused += 1
            assert str(path) in refusal and len(refusal.splitlines()) == 1
            assert path.read_bytes() == mutant, "a refused file was written to"
        for leftover in folder.iterdir():
            leftover.unlink()
    assert refused > mutants // 3


def check_rows_are_possible(rows: list[MeasurementRow]) -> None:
    """Check what training relies on."""
    for row in rows:
        assert row.block.problem.key == row.block.problem_key
        assert row.status in tables.STATUSES and row.role in tables.ROLES
        assert row.status != "ok" or 0 < row.median_us < tables.MAX_TIME_US
        assert all(value > 0 for value in row.samples or [])


def test_every_truncation_is_refused(sound, tmp_path):
    payload, path = sound.read_bytes(), tmp_path / "cut.db"
    for size in [1, 15, 16, 99, 100, 101, *range(512, len(payload), 2048)]:
        path.write_bytes(payload[:size])
        for mode in ("ro", "rw"):
            with pytest.raises(errors.IntegrityError) as caught:
                Store.open(path, mode)
            assert ".recover" in str(caught.value)
        assert path.read_bytes() == payload[:size]


#: The measurement table of a development version of schema 3, with rowids.
WITH_ROWIDS = str(CreateTable(tables.measurement).compile(dialect=sqlite.dialect())).replace("WITHOUT ROWID,", "")
HOSTILE = {
    "application": "PRAGMA application_id = 252006673",
    "newer": f"PRAGMA user_version = {tables.SCHEMA_VERSION + 1}",
    "no version": "PRAGMA user_version = 0",
    "view": "CREATE VIEW evil AS SELECT * FROM measurement",
    "trigger": "CREATE TRIGGER evil AFTER INSERT ON sweep BEGIN DELETE FROM measurement; END",
    "table": "CREATE TABLE extra (x)",
    "index": "CREATE INDEX evil ON measurement (abs(status))",
    "generated column": "ALTER TABLE sweep ADD COLUMN evil TEXT GENERATED ALWAYS AS (hex(zeroblob(1000)))",
    "dropped column": "ALTER TABLE measurement DROP COLUMN error",
    "view in place of a table": "DROP TABLE compilation; CREATE VIEW compilation AS SELECT 1 AS config_id",
    "table without checks": (
        "DROP TABLE compilation; CREATE TABLE compilation (config_id, kernel_hash, compiler, registers, spill_bytes,"
        " local_bytes, smem_bytes, compile_ms)"
    ),
    "measurement with rowids": (
        f"ALTER TABLE measurement RENAME TO old; {WITH_ROWIDS}; INSERT INTO measurement SELECT * FROM old; DROP"
        " TABLE old"
    ),
    "measurement of an unknown config": (
        "PRAGMA foreign_keys = OFF; UPDATE measurement SET config_id = 999 WHERE config_id = 1"
    ),
    "unknown migration": "UPDATE alembic_version SET version_num = '9999'",
    "dangling reference": "PRAGMA foreign_keys = OFF; DELETE FROM config WHERE id = 1",
    "ignored check": "PRAGMA ignore_check_constraints = ON; UPDATE measurement SET median_us = -1",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_files_that_are_not_ours_to_the_letter_are_refused_untouched(sound, tmp_path, name):
    path = tmp_path / "hostile.db"
    path.write_bytes(sound.read_bytes())
    raw = sqlite3.connect(path, isolation_level=None)
    raw.executescript(HOSTILE[name])
    raw.close()
    before = path.read_bytes()
    for mode in ("ro", "immutable", "rw"):
        with pytest.raises(errors.IntegrityError) as caught:
            Store.open(path, mode)
        assert str(path) in str(caught.value) and caught.value.exit_code == errors.EXIT_INTEGRITY
    assert path.read_bytes() == before and {file.name for file in tmp_path.iterdir()} <= {
        "hostile.db",
        "hostile.db.lock",
    }


HOSTILE_LISTS = {
    "a number": "7",
    "text": '"7"',
    "an object": '{"7": 7}',
    "an unknown config": "[999999]",
    "a key": '["x"]',
    "a truth": "[true]",
    "lists": "[[1], [1]]",
    "no number": "[NaN]",
    "no JSON": "[1,",
    "nothing": "",
    "deep": "[" * 100_000,
}
#: The first row of a table.
FIRST = {"block": "id = 1", "best": "problem_id = 1"}


@pytest.mark.parametrize("column", ["block.order", "best.tie_set"])
@pytest.mark.parametrize("name", HOSTILE_LISTS)
def test_lists_of_configs_that_are_none(sound, folder, column, name):
    path, (table, field) = folder / "hostile.db", column.split(".")
    path.write_bytes(sound.read_bytes())
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute(f'UPDATE {table} SET "{field}" = ? WHERE {FIRST[table]}', (HOSTILE_LISTS[name],))
    raw.close()
    for use in (
        lambda: merge(folder / "merged.db", [path]),
        lambda: merge(path, [sound]),
        lambda: export_json(path, folder / "export.json"),
        lambda: snapshot(path, folder / "snapshot.db"),
        lambda: load_best(path) if table == "best" else export_json(path, folder / "export.json"),
    ):
        with pytest.raises(errors.IntegrityError) as caught:
            use()
        assert str(path) in str(caught.value) and len(str(caught.value)) < 600
    assert check(path) and not (folder / "snapshot.db").exists() and not (folder / "export.json").exists()


def check(path: Path) -> list[str]:
    """Return what `check` finds."""
    with Store.open(path, "ro") as store:
        return store.check()


def load_best(path: Path) -> None:
    """Read the winners."""
    with Store.open(path, "ro") as store:
        store.load_best()


def test_ties_begin_with_the_winner(sound, folder):
    path = folder / "hostile.db"
    path.write_bytes(sound.read_bytes())
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("UPDATE best SET tie_set = '[2,1]' WHERE problem_id = 1")
    raw.close()
    with pytest.raises(errors.IntegrityError, match="do not begin with the winner"):
        load_best(path)


@pytest.mark.parametrize(
    "column, value",
    [("sku", "../../other"), ("sku", "\x1b[2J"), ("sku", ""), ("compute_capability", "nine"), ("name", "")],
)
def test_a_board_that_is_none(sound, folder, column, value):
    path = folder / "hostile.db"
    path.write_bytes(sound.read_bytes())
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute(f"UPDATE device SET {column} = ?", (value,))
    raw.close()
    with Store.open(path, "ro") as store, pytest.raises(errors.IntegrityError) as caught:
        find_device(store, "")
    assert "\x1b" not in str(caught.value)


def test_other_applications_files_are_refused_untouched(tmp_path):
    path = tmp_path / "other.db"
    raw = sqlite3.connect(path)
    raw.executescript("PRAGMA journal_mode = WAL; CREATE TABLE secrets (x); INSERT INTO secrets VALUES (1)")
    raw.close()
    before = path.read_bytes()
    for mode in ("ro", "rw", "immutable"):
        with pytest.raises(errors.IntegrityError, match="not a tuning database"):
            Store.open(path, mode)
    assert path.read_bytes() == before


@pytest.mark.parametrize("mark", [77, 0])
def test_another_applications_journal_is_not_rolled_back(tmp_path, mark):
    path = tmp_path / "other.db"
    raw = sqlite3.connect(path, isolation_level=None)
    raw.executescript(f"PRAGMA application_id = {mark}; CREATE TABLE secrets (x); INSERT INTO secrets VALUES (1)")
    raw.close()

    def die_halfway(write_end: int) -> None:
        raw = sqlite3.connect(path, isolation_level=None)
        raw.executescript(
            "PRAGMA cache_size = 1; BEGIN; INSERT INTO secrets SELECT hex(zeroblob(9000)) FROM (VALUES (1), (2), (3))"
        )
        os.kill(os.getpid(), signal.SIGKILL)

    assert run_child(die_halfway)[0] == -signal.SIGKILL
    before = path.read_bytes(), path.with_name("other.db-journal").read_bytes()
    for mode in ("ro", "rw"):
        with pytest.raises(errors.IntegrityError):
            Store.open(path, mode)
    assert (path.read_bytes(), path.with_name("other.db-journal").read_bytes()) == before


def test_things_that_are_no_databases(tmp_path):
    (tmp_path / "empty.db").touch()
    with pytest.raises(errors.IntegrityError):
        Store.open(tmp_path / "empty.db", "ro")
    Store.open(tmp_path / "empty.db").close()
    assert count_rows(tmp_path / "empty.db") == 0
    os.mkfifo(tmp_path / "fifo.db")
    (tmp_path / "dangling.db").symlink_to(tmp_path / "nowhere" / "x.db")
    for name in ("fifo.db", "dangling.db"):
        with pytest.raises(errors.TunerError):
            Store.open(tmp_path / name, "ro")
    (tmp_path / "text.db").write_text("x" * 5000)
    for mode in ("ro", "rw", "immutable"):
        with pytest.raises(errors.IntegrityError, match="not a database"):
            Store.open(tmp_path / "text.db", mode)


# Text is data.

FRAGMENTS = [
    "'",
    '"',
    ";",
    "--",
    "/*",
    "*/",
    "\\",
    "%",
    "_",
    "?",
    ":x",
    "$1",
    "@",
    "`",
    "[",
    "]",
    "\n",
    "\r",
    "\t",
    "\0",
    "\x1b[2J",
    "\x07",
    "é",
    "漢",
    "\U0001f600",
    "\u202e",
    "NULL",
    " OR 1=1",
    "'); DROP TABLE sweep; --",
    "' UNION SELECT 1 --",
    "{0}",
    "%s",
    "%(x)s",
    "${HOME}",
    "$(id)",
    "=cmd()",
    "file:x?mode=rw",
    "a" * 300,
]


@pytest.mark.parametrize("num_texts", [40, pytest.param(500, marks=pytest.mark.full)])
def test_sql_metacharacters_are_data(folder, num_texts):
    generator = random.Random(5)
    texts = FRAGMENTS + [
        "".join(generator.choices(FRAGMENTS, k=generator.randint(2, 6))) for _ in range(num_texts - len(FRAGMENTS))
    ]
    with Store.open(folder / "tuning.db") as store:
        context = add_context(store)
        block_id = add_block(store, context, make_problem())
        config_id = store.get_or_add_config("fp8_gemm", CONFIGS[0])
        # A thousand commits, whose durability is not the point here.
        store.engine.pool.connect().driver_connection.execute("PRAGMA synchronous = OFF")
        for text in texts:
            check_round_trip(store, text)
        for text in texts[:60]:
            store.add_measurements(
                [{"block_id": block_id, "config_id": config_id, "role": "search", "status": "crash", "error": text}]
            )
            assert [row.error for row in store.load_measurements(role="search") if row.config_id == config_id] == [text]
            check_filters(store, text)
        assert store.check() == [] and store.stats()["tables"]["measurement"] == 8


def check_round_trip(store: Store, text: str) -> None:
    """Check that text fields give back what they were given."""
    sweep_id = store.start_sweep({"preset": text, "shard": text, "host": text, "argv": [text, text]})
    environment_id = store.get_or_add_environment({"driver": text, "flags": text})
    with store.reading() as connection:
        sweep = connection.execute(tables.sweep.select().where(tables.sweep.c.id == sweep_id)).mappings().one()
        found = (
            connection.execute(tables.environment.select().where(tables.environment.c.id == environment_id))
            .mappings()
            .one()
        )
    assert (sweep["preset"], sweep["shard"], sweep["host"], json.loads(sweep["argv"])) == (
        text,
        text,
        text,
        [text, text],
    )
    assert (found["driver"], found["flags"]) == (text, text)


def check_filters(store: Store, text: str) -> None:
    """Check that filters compare, and that what must be a name is refused."""
    assert (
        store.load_measurements(sku=text)
        == store.load_measurements(kernel_hash=text)
        == store.load_best(regime=text)
        == []
    )
    assert store.newest_kernel_hash(text, text) is None
    with pytest.raises(errors.IntegrityError):
        store.start_sweep({"regime": text + "'"})


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.full)])
def test_file_names_are_only_names(folder, stride):
    for text in FRAGMENTS[::stride]:
        name = text.replace("/", "_").replace("\0", "_")[:100] + ".db"
        path = folder / "names" / name
        Store.open(path).close()
        for mode in ("ro", "immutable"):
            Store.open(path, mode).close()
        assert {file.name for file in path.parent.iterdir()} == {name, name + ".lock"}
        shutil.rmtree(path.parent)
