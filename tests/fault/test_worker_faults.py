"""Whatever a measuring process does, the sweep gets one failure in time, the next job is right, and nothing is left
behind.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deep_gemm.jit import hashing
from tuner import errors
from tuner.measure.worker_client import DeviceRetired, MeasuringWorker, WorkerFailure

ROOT = Path(__file__).parents[2]
LIMIT_S = 1.0
HANGS = ("sleep", "spin", "garbage_reply")
CRASHES = ("raise", "exit", "segv", "kill", "spawn_child", "short_reply", "huge_reply", "nan_reply", "unserialisable")


def make_worker(backend: str = "FaultyBackend", **environment: str) -> MeasuringWorker:
    """Return a worker whose jobs misbehave on demand."""
    told = {"PYTHONPATH": str(ROOT), "FAKE_PACKAGE": hashing.package_hash()} | environment
    return MeasuringWorker(f"tests.fakes.faulty_backend:{backend}", told, hello_limit_s=30.0)


@pytest.fixture
def worker():
    """A worker that is stopped at the end."""
    with make_worker() as made:
        yield made


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pid: int) -> bool:
    """Return whether a process ends within 5 s."""
    end = time.monotonic() + 5.0
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not is_alive(pid)


@pytest.mark.parametrize("fault", CRASHES + HANGS)
def test_every_fault_is_one_failure_in_time(worker, fault):
    pid = worker.run({"type": "job"}, LIMIT_S)["pid"]
    start = time.monotonic()
    with pytest.raises(WorkerFailure) as caught:
        worker.run({"type": "job", "fault": fault}, LIMIT_S)
    assert time.monotonic() - start < LIMIT_S + 5.0
    failure = caught.value
    assert failure.config == 3
    assert failure.kind == ("timeout" if fault in ("sleep", "spin") else "error" if fault == "raise" else "crash")
    assert not is_alive(pid) and worker.process is None
    if fault == "spawn_child":
        assert wait_until_gone(int(failure.log.split()[1]))
    if fault in ("segv", "kill"):
        assert f"signal {signal.SIGSEGV if fault == 'segv' else signal.SIGKILL}" in str(failure)
    assert worker.run({"type": "job"}, LIMIT_S)["answer"] == 42


def test_printing_is_no_fault(worker):
    assert worker.run({"type": "job", "fault": "print_garbage"}, LIMIT_S)["answer"] == 42
    with pytest.raises(WorkerFailure) as caught:
        worker.run({"type": "job", "fault": "exit"}, LIMIT_S)
    assert len(caught.value.log) <= 4 * 4096 and "\x1b" not in caught.value.log and "garbage" in caught.value.log


def test_a_device_that_never_starts_is_retired():
    with make_worker("BrokenBackend") as worker, pytest.raises(DeviceRetired, match="(?s)3 times.*canary"):
        worker.start()


@pytest.mark.parametrize("changed", [{"FAKE_UUID": "a" * 64}, {"FAKE_SKU": "faulty-500w"}])
def test_another_board_and_another_power_limit_are_refused(worker, changed):
    worker.start()
    worker.stop()
    worker.extra |= changed
    with pytest.raises(errors.TunerError, match="another GPU or at another power limit"):
        worker.start()


@pytest.mark.parametrize(
    "backend", ["tests.fakes.faulty_backend:FaultyBackend", pytest.param("simulated", marks=pytest.mark.full)]
)
def test_another_package_is_refused(worker, backend, monkeypatch):
    """Before any job: its kernels would be recorded as those of the package of the parent."""
    worker.backend = backend
    assert worker.start()["package"] == hashing.package_hash()
    worker.stop()
    monkeypatch.setattr(hashing, "package_hash", lambda: "0" * 64)
    with pytest.raises(errors.TunerError, match="would make other kernels.*check PYTHONPATH"):
        worker.run({"type": "job"}, LIMIT_S)
    assert worker.process is None


def test_the_environment_is_reduced(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("DG_JIT_CACHE_DIR", "/cache")
    from tuner.measure.worker_client import reduce_environment

    reduced = reduce_environment({"CUDA_VISIBLE_DEVICES": "3"})
    assert (
        "AWS_SECRET_ACCESS_KEY" not in reduced
        and reduced["DG_JIT_CACHE_DIR"] == "/cache"
        and reduced["CUDA_VISIBLE_DEVICES"] == "3"
    )


def test_the_measuring_process_dies_with_its_parent():
    script = (
        "import sys, time\n"
        "from tests.fault.test_worker_faults import make_worker\n"
        "worker = make_worker()\n"
        "print(worker.run({'type': 'job'}, 5.0)['pid'], flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    )
    try:
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
    finally:
        parent.kill()
        parent.communicate()
    assert wait_until_gone(pid)
