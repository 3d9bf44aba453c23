"""Faults of the database: kill -9, a full or read-only disk, many processes (damaged files: test_db_damage.py).

SIGKILL tests the death of a process, not the loss of power.
"""

import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.databases import (
    CONFIGS,
    add_block,
    add_context,
    count_rows,
    make_database,
    make_problem,
    make_rows,
    memory_folder,
)
from tests.fakes.processes import exit_code, fork, read_all, run_child
from tuner import errors
from tuner.db import Store, engine, schema, snapshot
from tuner.db.lock import WriterLock, lock_path, read_holder

KILLS = 25
#: How many processes race to create a file, and how often.
RACES = [(16, 1), pytest.param((32, 5), marks=pytest.mark.full)]
NOBODY = 65534


@pytest.fixture
def folder(tmp_path):
    """A folder where commits are quick."""
    with memory_folder(tmp_path) as path:
        yield path


# What was acknowledged is there, whenever the writer was killed.


def write_and_acknowledge(path: Path, write_end: int) -> None:
    """Commit blocks for ever; after each commit write the block's id and its number of rows to the pipe."""
    with Store.open(path) as store:
        context = add_context(store)
        ids = [store.get_or_add_config("fp8_gemm", config) for config in CONFIGS[:16]]
        problem_id = store.get_or_add_problem(make_problem())
        os.write(write_end, struct.pack("<II", 0, 0))
        while True:
            block_id = store.add_block(context | {"problem_id": problem_id})
            rows = make_rows(block_id, ids)
            store.add_measurements(rows, finish=True)
            os.write(write_end, struct.pack("<II", block_id, len(rows)))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 40))])
def test_no_acknowledged_row_is_lost_by_sigkill(folder, seed):
    path, generator = folder / "tuning.db", random.Random(seed)
    acknowledged: dict[int, int] = {}
    for _ in range(KILLS):
        child, read_end = fork(lambda write_end: write_and_acknowledge(path, write_end))
        said = os.read(read_end, 8) + b"".join(os.read(read_end, 8) for _ in range(generator.randrange(3)))  # it writes
        time.sleep(generator.uniform(0.0, 0.006))
        os.kill(child, signal.SIGKILL)
        said += read_all(read_end)
        assert exit_code(child) == -signal.SIGKILL
        pairs = struct.iter_unpack("<II", said[: len(said) // 8 * 8])
        acknowledged |= {block_id: rows for block_id, rows in pairs if block_id}
        check_acknowledged(path, acknowledged)
    assert len(acknowledged) >= KILLS // 2
    with Store.open(path, "ro") as store:
        assert store.check() == []


def check_acknowledged(path: Path, acknowledged: dict[int, int]) -> None:
    """Check, on the file as the killed writer left it, that every acknowledged block has all its rows and no other has
    some.
    """
    with Store.open(path, "ro") as store, store.reading() as connection:
        found = dict(
            connection.exec_driver_sql("SELECT block_id, count(*) FROM measurement GROUP BY block_id").fetchall()
        )
        finished = set(connection.exec_driver_sql("SELECT id FROM block WHERE status = 'finished'").scalars())
    assert all(found.get(block_id) == rows for block_id, rows in acknowledged.items())
    assert set(found) == finished and set(found.values()) <= {18}


def test_a_writer_killed_inside_a_transaction_leaves_nothing_of_it(tmp_path):
    path = make_database(tmp_path / "tuning.db")
    before = count_rows(path)

    def die_halfway(write_end: int) -> None:
        with Store.open(path) as store, store.writing() as connection:
            connection.exec_driver_sql("PRAGMA cache_size = 1")  # spill pages into the file before the commit
            connection.exec_driver_sql("DELETE FROM measurement")
            connection.exec_driver_sql("UPDATE block SET regime = 'spoilt', extra = hex(zeroblob(9000))")
            os.kill(os.getpid(), signal.SIGKILL)

    for mode in ("ro", "rw"):
        assert run_child(lambda write_end: die_halfway(write_end))[0] == -signal.SIGKILL
        assert path.with_name("tuning.db-journal").exists()
        with pytest.raises(errors.IntegrityError, match="journal"):
            Store.open(path, "immutable")
        with Store.open(path, mode) as store:
            assert store.check() == [] and len(store.load_measurements(regime="graph-cold")) == before
        assert not path.with_name("tuning.db-journal").exists()


@pytest.mark.parametrize("count", [6, pytest.param(20, marks=pytest.mark.full)])
def test_a_database_killed_while_it_is_created_can_be_created_again(folder, count):
    generator = random.Random(2)
    for number in range(count):
        path = folder / f"{number}.db"
        child, read_end = fork(lambda _, path=path: Store.open(path).close())
        time.sleep(generator.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
        read_all(read_end)
        exit_code(child)
        with Store.open(path) as store:
            store.start_sweep({"preset": "x"})
            assert store.check() == []


def test_a_database_killed_inside_its_creation_can_be_created_again(tmp_path, monkeypatch):
    path = tmp_path / "tuning.db"

    def create_and_die(connection) -> None:
        create(connection)
        connection.exec_driver_sql("PRAGMA cache_size = 1")  # spill pages into the file before the commit
        connection.exec_driver_sql(
            "INSERT INTO environment (key, flags) VALUES ('a', hex(zeroblob(9000))), ('b', hex(zeroblob(9000)))"
        )
        os.kill(os.getpid(), signal.SIGKILL)

    create = schema.create_schema
    monkeypatch.setattr(schema, "create_schema", create_and_die)
    assert run_child(lambda _: Store.open(path))[0] == -signal.SIGKILL
    monkeypatch.undo()
    assert path.stat().st_size and path.with_name("tuning.db-journal").exists()
    with Store.open(path) as store:
        assert store.check() == [] and not any(store.stats()["tables"].values())


# A full or read-only disk.


def fill(store, context, written: list[int]) -> None:
    """Add blocks until the database is full; append m of each that was written."""
    for m in range(2, 100):
        add_block(store, context, make_problem(m), num_configs=40)
        written.append(m)


def test_a_full_database_keeps_its_rows_and_goes_on_when_there_is_space(folder):
    path = folder / "tuning.db"
    with Store.open(path) as store:
        context = add_context(store)
        add_block(store, context, make_problem(1))
        with store.engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 6}")
        written = [1]
        with pytest.raises(errors.StoreError, match="disk or its quota is full"):
            fill(store, context, written)
        finished = [row.block for row in store.load_measurements() if row.block.status == "finished"]
        assert len({block.problem_key for block in finished}) == len(written)
        with store.engine.connect() as connection:
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 10_000}")
        add_block(store, context, make_problem(500), num_configs=40)
        assert store.check() == []


def test_the_file_size_limit_is_a_typed_error(tmp_path):
    path = make_database(tmp_path / "tuning.db")
    before = count_rows(path)

    def write_beyond_the_limit(write_end: int) -> None:
        with Store.open(path) as store:
            context = add_context(store)
            size = path.stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 8192, size + 8192))
            for m in range(100, 200):
                add_block(store, context, make_problem(m), num_configs=60)

    code, said = run_child(write_beyond_the_limit)
    assert code == 2 and json.loads(said)[0] == "StoreError" and str(path) in json.loads(said)[1]
    assert count_rows(path) >= before
    with Store.open(path) as store:
        assert store.check() == []
        add_block(store, add_context(store), make_problem(300))


@pytest.fixture
def open_folder():
    """A folder that every user can enter (pytest's own cannot be entered by others)."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def as_nobody(work: Callable[[int], None]) -> Callable[[int], None]:
    """Return `work` to be run without root's rights, which ignore permissions."""

    def drop_rights_and_work(write_end: int) -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        work(write_end)

    return drop_rights_and_work


def test_read_only_folders_and_files(open_folder):
    path = make_database(open_folder / "tuning.db")
    lock_path(path).unlink()
    path.chmod(0o444)
    open_folder.chmod(0o555)
    before = path.read_bytes()

    def read(write_end: int) -> None:
        for mode in ("ro", "immutable"):
            with Store.open(path, mode) as store:
                os.write(write_end, b"%d " % len(store.load_measurements()))

    assert run_child(as_nobody(read)) == (0, b"24 24 ")
    for work in (
        lambda _: Store.open(path),
        lambda _: Store.open(open_folder / "new.db"),
        lambda _: Store.open(open_folder / "sub" / "new.db"),
        lambda _: snapshot(path, open_folder / "s.db"),
    ):
        code, said = run_child(as_nobody(work))
        assert code == 2, said
        kind, message = json.loads(said)
        assert kind == "StoreError" and str(open_folder) in message and "Permission denied" in message
    assert path.read_bytes() == before and [file.name for file in open_folder.iterdir()] == ["tuning.db"]


def test_a_read_only_file_in_a_writable_folder(open_folder):
    path = make_database(open_folder / "tuning.db")
    lock_path(path).unlink()
    path.chmod(0o444)
    open_folder.chmod(0o777)

    def write(write_end: int) -> None:
        with Store.open(path) as store:
            store.start_sweep({"preset": "x"})

    code, said = run_child(as_nobody(write))
    assert code == 2 and json.loads(said)[0] == "StoreError" and "read-only" in json.loads(said)[1]
    assert count_rows(path) == 24


# Many processes.


def open_together(openers: int, work: Callable[[int], None]) -> list[tuple[int, bytes]]:
    """Start children that all wait for one pipe to close, then run `work`; return their exit codes and
    messages.
    """
    gate_read, gate_write = os.pipe()

    def wait_and_work(write_end: int) -> None:
        os.close(gate_write)
        os.read(gate_read, 1)
        work(write_end)

    children = [fork(wait_and_work) for _ in range(openers)]
    os.close(gate_read)
    os.close(gate_write)
    said = [read_all(read_end) for _, read_end in children]
    return [(exit_code(child), text) for (child, _), text in zip(children, said, strict=True)]


@pytest.mark.parametrize("races", RACES)
def test_openers_of_a_fresh_file_wait_for_each_other(folder, races):
    openers, times = races
    for number in range(times):
        path = folder / f"{number}.db"

        def work(write_end: int, path: Path = path) -> None:
            with Store.open(path, "rw", wait_s=60.0) as store:
                store.start_sweep({"preset": "x"})

        assert open_together(openers, work) == [(0, b"")] * openers
        with Store.open(path, "ro") as store:
            assert store.stats()["tables"]["sweep"] == openers and store.check() == []


@pytest.mark.parametrize("races", RACES)
def test_openers_of_a_fresh_file_are_safe_without_the_lock(folder, monkeypatch, races):
    """On a file system without flock SQLite's own locks still make the schema exactly once."""
    monkeypatch.setattr(engine, "WriterLock", lambda path, wait_s: type("NoLock", (), {"release": lambda self: None})())
    openers, times = races
    for number in range(times):
        path = folder / f"{number}.db"

        def work(write_end: int, path: Path = path) -> None:
            with Store.open(path) as store:
                store.start_sweep({"preset": "x"})

        assert open_together(openers, work) == [(0, b"")] * openers
        with Store.open(path, "ro") as store:
            assert store.stats()["tables"]["sweep"] == openers and store.check() == []


def test_a_second_writer_is_refused_with_the_holders_process_id(tmp_path):
    path = make_database(tmp_path / "tuning.db")

    def hold(write_end: int) -> None:
        with Store.open(path):
            os.write(write_end, b"x")
            time.sleep(60)

    child, read_end = fork(hold)
    assert os.read(read_end, 1) == b"x"
    for wait_s in (0.0, 0.2):
        with pytest.raises(errors.StoreError, match=f"process {child} is writing"):
            Store.open(path, wait_s=wait_s)
    assert count_rows(path) == 24 and read_holder(path) == child
    os.kill(child, signal.SIGKILL)
    assert exit_code(child) == -signal.SIGKILL
    os.close(read_end)
    with Store.open(path) as store:
        assert read_holder(path) == os.getpid()
        store.start_sweep({"preset": "x"})
    assert read_holder(path) is None


def test_readers_see_whole_blocks_while_a_sweep_writes(folder):
    path = folder / "tuning.db"
    Store.open(path).close()
    child, read_end = fork(lambda write_end: write_and_acknowledge(path, write_end))
    os.read(read_end, 8)
    counts = []
    for _ in range(20):
        counts.append(count_rows(path))
        assert counts[-1] % 18 == 0
    os.kill(child, signal.SIGKILL)
    exit_code(child)
    os.close(read_end)
    assert counts == sorted(counts) and counts[-1] > counts[0]


def test_a_foreign_lock_ends_in_an_error_that_names_the_holder(tmp_path, monkeypatch):
    path = make_database(tmp_path / "tuning.db")
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_MS", 200)
    with Store.open(path) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(errors.StoreError, match=f"locked .*{os.getpid()}"):
            store.start_sweep({"preset": "x"})
        other.execute("ROLLBACK")
        other.close()
        store.start_sweep({"preset": "x"})


def test_lock_files_that_are_not_plain_files(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    lock_path(tmp_path / "tuning.db").symlink_to(victim)
    with pytest.raises(errors.StoreError, match=r"tuning\.db\.lock"):
        Store.open(tmp_path / "tuning.db")
    assert victim.read_text() == "precious"
    lock_path(tmp_path / "other.db").mkdir()
    with pytest.raises(errors.StoreError):
        WriterLock(tmp_path / "other.db")
