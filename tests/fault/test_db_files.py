"""Files of the tuner: replacements, the writer's lock over a fork, and a full disk."""

import errno
import os
import sqlite3
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tests.fakes.processes import run_child
from tuner import errors
from tuner.compare.kernel_sets import copy_whole
from tuner.db import Store, store
from tuner.db.lock import WriterLock, lock_path
from tuner.files import STALE_S, replacing, write_whole
from tuner.measure.stamp import write_json


@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077])
def test_results_have_a_mode_by_the_umask(tmp_path, umask):
    """As any file that a user's program writes, also in place of one with another mode; artefacts name their own."""
    path, before = tmp_path / "result.json", os.umask(umask)
    try:
        write_json(path, {"rows": []})
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
        path.chmod(0o600)
        write_json(path, {"rows": [{"new": 1}]})
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
        write_whole(path, b"new", 0o640)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    finally:
        os.umask(before)


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "No such file", "another"), KeyboardInterrupt()])
def test_what_goes_wrong_with_other_files_is_left_alone(tmp_path, error):
    (tmp_path / "file").write_text("old")

    def write():
        with replacing(tmp_path / "file") as fresh:
            fresh.write_text("new")
            raise error

    with pytest.raises(type(error)) as caught:
        write()
    assert caught.value is error and os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_a_copy_of_a_missing_file_names_both(tmp_path):
    with pytest.raises(errors.StoreError, match="target, copied from .*source: No such file.*; nothing was changed"):
        copy_whole(tmp_path / "source", tmp_path / "target")
    assert not list(tmp_path.iterdir())


def write_to_a_full_disk(path, *arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["write_bytes", "mkdir", "iterdir"])
def test_a_disk_that_fills_up_is_named(tmp_path, monkeypatch, call):
    monkeypatch.setattr(Path, call, write_to_a_full_disk)
    with pytest.raises(errors.StoreError, match="result.json: No space left on device; nothing was changed"):
        write_json(tmp_path / "result.json", {})
    monkeypatch.undo()
    assert not list(tmp_path.iterdir())


def make_leftover(folder, name, age_s):
    """Make a folder as a killed replacement leaves it."""
    made = folder / name
    made.mkdir()
    (made / "file").write_text("half")
    then = time.time() - age_s
    os.utime(made, (then, then))
    return made


def test_folders_of_killed_replacements_are_swept(tmp_path):
    old = make_leftover(tmp_path, ".card.md.abcd_123", STALE_S + 60)
    kept = [
        make_leftover(tmp_path, ".card.md.abcd_124", 60),
        make_leftover(tmp_path, ".other.md.abcd_123", STALE_S + 60),
        make_leftover(tmp_path, ".card.md.mine", STALE_S + 60),
        make_leftover(tmp_path, "card.md.abcd_123", STALE_S + 60),
    ]
    (tmp_path / ".card.md.link_123").symlink_to(kept[1])
    with replacing(tmp_path / "card.md") as fresh:
        fresh.write_text("new")
    assert not old.exists() and all((folder / "file").exists() for folder in kept)
    assert (tmp_path / "card.md").read_text() == "new" and (tmp_path / ".card.md.link_123").is_symlink()


def write_text(target):
    with replacing(target) as fresh:
        fresh.write_text("new")


def copy_new(target):
    source = target.with_name("source")
    source.write_text("new")
    copy_whole(source, target)
    source.unlink()


@pytest.mark.parametrize("write", [write_text, copy_new, lambda target: write_json(target, {"rows": [{"new": 1}]})])
def test_every_writer_of_files_is_whole_and_durable(tmp_path, monkeypatch, write):
    """A file is on the disk before it has its name; where that fails, the old one stays and nothing is left over."""
    target, steps = tmp_path / "file", []
    write(target)
    written = target.read_bytes()
    assert b"new" in written and [path.name for path in tmp_path.iterdir()] == ["file"]
    for name in ("fsync", "replace"):
        real = getattr(os, name)

        def recording(*arguments, name=name, real=real):
            steps.append(name)
            return real(*arguments)

        monkeypatch.setattr(os, name, recording)
    write(target)
    assert steps == ["fsync", "replace", "fsync"]

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    target.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(errors.StoreError, match="file: No space left on device; nothing was changed"):
        write(target)
    assert target.read_text() == "old" and {path.name for path in tmp_path.iterdir()} <= {"file", "source"}


def test_a_forked_child_does_not_hold_the_writers_lock(tmp_path):
    database = tmp_path / "tuning.db"
    lock = WriterLock(database)
    ready, leave = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b"x")
        os.read(leave[0], 1)
        lock.release()
        os._exit(0)
    try:
        os.read(ready[0], 1)
        os.close(lock.handle)  # as the kernel does when the writer dies: nothing gives the lock back
        lock.handle = -1
        WriterLock(database).release()
    finally:
        os.write(leave[1], b"x")
        assert os.waitpid(child, 0)[1] == 0
        for descriptor in (*ready, *leave):
            os.close(descriptor)


@pytest.mark.parametrize("is_alive", [False, True])
def test_the_lock_of_a_writer_that_was_killed_while_it_started_a_process_is_waited_for(tmp_path, is_alive):
    """Between its fork and the program that it starts, that process holds what the writer held. A writer that lives is
    not waited for.
    """
    database, ended = tmp_path / "tuning.db", subprocess.Popen(["true"])
    ended.wait()
    lock = WriterLock(database)
    lock_path(database).write_text(f"{os.getpid() if is_alive else ended.pid}\n")
    starting = subprocess.Popen(["sleep", "0.4"], pass_fds=[lock.handle])
    os.close(lock.handle)  # as the kernel does when the writer dies
    lock.handle = -1
    try:
        if is_alive:
            with pytest.raises(errors.StoreError, match=f"process {os.getpid()} is writing"):
                WriterLock(database)
        else:
            WriterLock(database).release()
            assert starting.poll() is not None
    finally:
        starting.wait()


def test_a_child_leaves_the_writers_lock_alone(tmp_path):
    database = tmp_path / "tuning.db"
    lock = WriterLock(database)
    assert run_child(lambda _: lock.release())[0] == 0
    with pytest.raises(errors.StoreError, match=str(os.getpid())):
        WriterLock(database)
    lock.release()


def test_a_disk_that_fails_does_not_keep_the_writers_lock(tmp_path, monkeypatch):
    lock = WriterLock(tmp_path / "tuning.db")
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", write_to_a_full_disk)
        lock.release()
    WriterLock(tmp_path / "tuning.db").release()


def limit_pages(opened: Store, pages: int) -> None:
    """Let the database grow to `pages` pages, as a quota does."""
    opened.engine.pool.connect().driver_connection.execute(f"PRAGMA max_page_count = {pages}")


@pytest.fixture
def full(tmp_path, monkeypatch):
    """A database that cannot grow, with no time between attempts."""
    monkeypatch.setattr(store, "RETRY_S", 0.0)
    with Store.open(tmp_path / "tuning.db") as opened:
        limit_pages(opened, 1)
        yield opened


LONG = "x" * 500_000


def test_writing_waits_until_there_is_space(full):
    reasons = []

    def free_some(reason: str) -> None:
        reasons.append(reason)
        if len(reasons) == 3:
            limit_pages(full, 100_000)

    full.patience_s, full.on_wait = 600.0, free_some
    assert full.start_sweep({"preset": LONG}) == 1
    assert len(reasons) == 3 and "full" in reasons[0] and len(reasons[0]) < 1000


def test_writing_gives_up_in_the_end_with_all_rows_intact(full, monkeypatch):
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr(store.time, "monotonic", lambda: float(next(clock)))
    full.patience_s = 600.0
    with pytest.raises(errors.DiskFullError, match="free some space"):
        full.start_sweep({"preset": LONG})
    assert next(clock) == 700  # asked for the time at 0, then after each of six attempts
    limit_pages(full, 100_000)
    full.start_sweep({"preset": "after"})
    found = sqlite3.connect(full.target)
    assert found.execute("SELECT preset FROM sweep").fetchall() == [("after",)]
    found.close()


def test_without_patience_a_full_disk_is_an_error_at_once(full):
    full.on_wait = lambda reason: pytest.fail("waited")
    with pytest.raises(errors.DiskFullError):
        full.start_sweep({"preset": LONG})
