"""Many processes on one cache: killed while they write, starting cold together, stopped with the lock held."""

import contextlib
import hashlib
import multiprocessing
import os
import random
import signal
import time
import warnings
from pathlib import Path

import pytest

from deep_gemm.errors import DeepGemmError
from deep_gemm.jit import build, cache
from deep_gemm.jit.cache import DiskCache
from tests.fakes.compiler import make_source, use_fake_nvcc

NUM_PROCESSES = 16
LONG = pytest.mark.timeout(1800)
KEYS = [hashlib.sha256(b"%d" % i).hexdigest() for i in range(8)]

# Forked children start in milliseconds, and the parent has neither a GPU context nor threads that they would need.
fork = multiprocessing.get_context("fork")


def payload_of(key: str, version: int) -> bytes:
    """Return a payload that names its key and is long enough to be caught half written."""
    return (f"{key}:{version}:".encode() * 3000)[: 100_000 + version % 1000]


def belongs_to(key: str, payload: bytes) -> bool:
    version = int(payload.split(b":", 2)[1])
    return payload == payload_of(key, version)


# ---- killed while they write ----


def write_and_read(folder, seed: int, failures) -> None:
    """Put and get until killed; report every payload that no process put under its key."""
    disk, generator = DiskCache(folder, lock_timeout_s=1.0), random.Random(seed)
    while True:
        key = generator.choice(KEYS)
        with disk.lock(key) if generator.random() < 0.3 else contextlib.nullcontext():
            if generator.random() < 0.5:
                disk.put(key, payload_of(key, generator.randrange(10**6)))
        payload = disk.get(key)
        if payload is not None and not belongs_to(key, payload):
            failures.put((seed, key))


def start(folder, seed: int, failures):
    process = fork.Process(target=write_and_read, args=(folder, seed, failures), daemon=True)
    process.start()
    return process


def kill(process) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.join()


@pytest.mark.parametrize("num_kills", [8, pytest.param(1000, marks=[pytest.mark.full, LONG])])
def test_killed_writers_leave_nothing_wrong(tmp_path, num_kills):
    failures, generator = fork.SimpleQueue(), random.Random(1)
    processes = [start(tmp_path / "cache", seed, failures) for seed in range(NUM_PROCESSES)]
    for number in range(num_kills):
        time.sleep(generator.random() * 0.02)
        victim = generator.randrange(NUM_PROCESSES)
        kill(processes[victim])
        processes[victim] = start(tmp_path / "cache", NUM_PROCESSES + number, failures)
    for process in processes:
        kill(process)
    assert failures.empty()
    check_after_kills(tmp_path / "cache")


def check_after_kills(folder) -> None:
    """Check that every entry is whole, none was renamed to *.bad, and gc removes what killed processes left."""
    disk = DiskCache(folder)
    assert not list(folder.glob("*.bad"))
    assert (
        sum(1 for key in KEYS if (payload := disk.get(key)) is not None and belongs_to(key, payload))
        == len(list(folder.glob("*.kernel")))
        > 0
    )
    for orphan in [*folder.glob("*.tmp"), *folder.glob("*.lock")]:
        os.utime(orphan, (0, 0))
    disk.gc()
    assert not [path for path in folder.iterdir() if path.suffix != ".kernel"]


# ---- starting cold together ----


def build_all(barrier, sources, results, timeout_s: float) -> None:
    build.clear_memory()
    cache.get_disk_cache().lock_timeout_s = timeout_s
    barrier.wait()
    try:
        results.put(
            {hashlib.sha256(build.get_cubin_for_source(source, "kernel").cubin).hexdigest() for source in sources}
        )
    except (DeepGemmError, OSError, AssertionError) as error:  # the parent fails the test with it
        results.put(repr(error))


def run_together(sources, timeout_s: float = cache.LOCK_TIMEOUT_S, count: int = NUM_PROCESSES) -> list:
    """Build `sources` in `count` cold processes that start together, each in its own order."""
    barrier, results = fork.Barrier(count), fork.SimpleQueue()
    processes = []
    for seed in range(count):
        shuffled = random.Random(seed).sample(sources, len(sources))
        processes.append(fork.Process(target=build_all, args=(barrier, shuffled, results, timeout_s)))
    for process in processes:
        process.start()
    found = [results.get() for _ in processes]
    for process in processes:
        process.join()
    return found


COLD = [(6, 1, NUM_PROCESSES)]
COLD += [pytest.param(keys, 20, 64, marks=[pytest.mark.full, LONG]) for keys in (1, 20)]


@pytest.mark.parametrize("num_keys, num_rounds, count", COLD)
def test_cold_processes_build_each_key_once(monkeypatch, tmp_path, num_keys, num_rounds, count):
    for number in range(num_rounds):
        folder = tmp_path / str(number)
        folder.mkdir()
        use_fake_nvcc(monkeypatch, folder)
        sources = [make_source(count=folder / f"count{i}") for i in range(num_keys)]
        found = run_together(sources, count=count)
        assert found == [found[0]] * count and isinstance(found[0], set)
        assert [(folder / f"count{i}").read_text() for i in range(num_keys)] == ["compiled\n"] * num_keys
        assert sorted(path.suffix for path in (folder / "home/cache").iterdir()) == [".kernel"] * num_keys
        assert not list((folder / "home/jobs").iterdir()) and not list((folder / "tmp").iterdir())


def test_without_locks_the_results_are_the_same(monkeypatch, tmp_path):
    monkeypatch.setattr(DiskCache, "lock", lambda self, key: contextlib.nullcontext(False))
    use_fake_nvcc(monkeypatch, tmp_path)
    found = run_together([make_source(count=tmp_path / "count")])
    assert found == [found[0]] * NUM_PROCESSES and isinstance(found[0], set)
    assert 1 <= len((tmp_path / "count").read_text().splitlines()) <= NUM_PROCESSES


def test_different_keys_do_not_wait_for_each_other(monkeypatch, tmp_path):
    use_fake_nvcc(monkeypatch, tmp_path)
    slow = fork.Process(
        target=build.get_cubin_for_source, args=(make_source(sleep=60, count=tmp_path / "slow"), "kernel")
    )
    slow.start()
    try:
        wait_for(lambda: (tmp_path / "slow").exists())
        begin = time.monotonic()
        build.get_cubin_for_source(make_source(), "kernel")
        assert time.monotonic() - begin < 20
    finally:
        end_with_children(slow)


# ---- stopped with the lock held ----


def hold_lock(folder, key: str) -> None:
    with DiskCache(folder).lock(key):
        time.sleep(1000)


def test_stopped_lock_holder_costs_its_time_out_only(monkeypatch, tmp_path):
    home = use_fake_nvcc(monkeypatch, tmp_path)
    source = make_source(count=tmp_path / "count")
    key = build.hashing.compile_key(source, {}, build.get_toolchain(None))
    holder = fork.Process(target=hold_lock, args=(home / "cache", key), daemon=True)
    holder.start()
    wait_for(lambda: (home / f"cache/{key}.lock").exists())
    os.kill(holder.pid, signal.SIGSTOP)
    begin = time.monotonic()
    found = run_together([source], timeout_s=0.5)
    assert isinstance(found[0], set) and found == [found[0]] * NUM_PROCESSES
    assert time.monotonic() - begin < 30
    kill(holder)


def wait_for(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def end_with_children(process) -> None:
    """End a process that waits for a compiler, and the compiler, which leads a session of its own."""
    children = [int(child) for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    kill(process)
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


def warn_of_a_folder():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cache._warn(None, OSError(13, "Permission denied"))


def test_a_child_warns_though_another_thread_was_warning_at_the_fork():
    with cache._warn_guard:
        child = fork.Process(target=warn_of_a_folder, daemon=True)
        child.start()
    child.join(20)
    exit_code = child.exitcode
    child.kill()
    assert exit_code == 0
