"""Every system call of a write fails in turn: cache entry, kernel, file and database keep the old state or the new."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.databases import memory_folder

ROOT = Path(__file__).parents[2]
SHIM = ROOT / "tests/fakes/failing_calls.c"
ERRORS = ("ENOSPC", "EIO", "EACCES", "EROFS", "EDQUOT")
FEW = ["ENOSPC/once", "EACCES/ever"]
#: Works of tests/fakes/failing_calls.py: the calls that each has at least, and every how many-th fails in `make test`.
WORKS = {"Entry": (6, 1), "Kernel": (15, 1), "File": (8, 1), "Creation": (50, 40), "Block": (80, 70)}


@pytest.fixture(scope="module")
def shim(tmp_path_factory) -> Path:
    """The library that fails system calls."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    built = tmp_path_factory.mktemp("shim") / "failing_calls.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", built, SHIM, "-ldl"], check=True)
    return built


def run(shim: Path, folder: Path, faults: list[str], works: list[str]) -> dict[str, int]:
    """Return how many runs of each work had a failing call."""
    command = [sys.executable, "-m", "tests.fakes.failing_calls", str(folder), ",".join(faults), *works]
    environment = os.environ | {"LD_PRELOAD": str(shim), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_failing_calls_leave_the_old_state_or_the_new(shim, tmp_path):
    with memory_folder(tmp_path) as folder:
        failed = run(shim, folder, FEW, [f"{name}/{step}" for name, (_, step) in WORKS.items()])
    assert failed.keys() == WORKS.keys()
    assert all(failed[name] >= len(FEW) * (calls // step) for name, (calls, step) in WORKS.items()), failed


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", ["once", "ever"])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", WORKS)
def test_every_call_fails_with_every_error(shim, tmp_path, name, error, mode):
    with memory_folder(tmp_path) as folder:
        assert run(shim, folder, [f"{error}/{mode}"], [f"{name}/1"])[name] >= WORKS[name][0]
