"""The Makefile runs what it says, whatever the environment holds."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks import gpu_session

ROOT = Path(__file__).parents[3]


def dry_run(*arguments: str, **environment: str) -> str:
    """Return the commands that make would run."""
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    # A make that runs these tests hands its flags and its depth down; then this make would print its directory too.
    inherited = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    done = subprocess.run(
        ["make", "-n", *arguments], cwd=ROOT, env={**inherited, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_environment_does_not_redirect_the_demo():
    assert "examples.demo --out demo\n" in dry_run("demo", OUT="/elsewhere")
    assert "examples.demo --out x\n" in dry_run("demo", "OUT=x", OUT="/elsewhere")


@pytest.mark.parametrize("target", ["demo", "test", "test-full", "build", "lint"])
def test_nothing_is_installed_where_install_is_0(target):
    commands = dry_run(target, "INSTALL=0", "PYTHON=some-python")
    assert commands and "pip" not in commands and ".venv" not in commands
    assert all(line.split()[0] in ("some-python", "echo") for line in commands.splitlines())
    assert ("building the native module" in commands) == (target in ("demo", "test", "test-full"))


def test_the_target_benchmark_runs_every_benchmark():
    commands = dry_run("benchmark", "INSTALL=0", "PYTHON=some-python").split()
    run = {word.removeprefix("benchmarks.") for word in commands if word.startswith("benchmarks.")}
    assert run >= set(gpu_session.SCRIPTS)


def test_a_make_within_make_says_the_same(monkeypatch):
    alone = dry_run("lint")
    monkeypatch.setenv("MAKEFLAGS", "w")
    monkeypatch.setenv("MAKELEVEL", "1")
    assert dry_run("lint") == alone


@pytest.mark.parametrize("target, extra", [("demo", "demo"), ("test", "test"), ("setup", "test")])
def test_a_second_make_installs_nothing_and_compiles_what_is_outdated(tmp_path, target, extra):
    first = dry_run(target, f"VENV={tmp_path}")
    assert first.count("pip install") == 4 and first.count("build_ext --inplace") == 1
    editable = [line for line in first.splitlines() if " -e " in line]
    assert editable and all("DG_BUILD_NATIVE=0" in line and "PYTHONWARNINGS=" in line for line in editable)
    assert first.index("pip install") < first.index("build_ext")
    (tmp_path / f".installed-{extra}").touch()
    second = dry_run(target, f"VENV={tmp_path}")
    assert "pip" not in second and second.count(f"{tmp_path}/bin/python setup.py -q build_ext --inplace") == 1
    os.utime(tmp_path / f".installed-{extra}", (0, 0))  # pyproject.toml has changed since
    assert dry_run(target, f"VENV={tmp_path}") == first


def test_ci_runs_lint_and_tests(tmp_path):
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    targets = script.splitlines()[-1].removeprefix("exec make ").split()
    commands = dry_run(*targets, f"VENV={tmp_path}")
    assert all(word in commands for word in ("ruff check", "ruff format --check", "clang_format", "mypy"))
    assert commands.index("pip install") < commands.index("ruff check") < commands.index("-m pytest")
