"""Running several steps on a GPU machine: commands, budgets, the effect of failures, and the files written."""

import sys
import time

import pytest

from benchmarks import gpu_session
from benchmarks.gpu_session import SCRIPTS, Step, format_table, get_exit_code, make_step, run_step, run_steps
from benchmarks.stamp import ROOT, read_json


def make_python(name: str, code: str, result=None) -> Step:
    """Return a step that runs some Python."""
    return Step(name, [sys.executable, "-c", code], result)


def test_steps_write_into_the_folder_within_their_budget(tmp_path):
    whole, shard = make_step("suite", tmp_path, 540.0), make_step("suite:2/3", tmp_path, 540.0)
    assert whole.result == tmp_path / "gpu_record.json" and whole.command[-3:] == ["1/1", "--time-budget", "510.0"]
    assert shard.result == tmp_path / "gpu_record_2of3.json" and "2/3" in shard.command
    for name in SCRIPTS:
        step = make_step(name, tmp_path, 540.0)
        assert (ROOT / "benchmarks" / f"{name}.py").is_file() and str(step.result) in step.command
    assert make_step("build", tmp_path, 540.0).result is None


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_know_the_options_that_they_are_given(name, tmp_path):
    text = (ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
    if "harness import Family, main" in text:
        text = (ROOT / "benchmarks" / "harness.py").read_text(encoding="utf-8")
    options = [word for word in make_step(name, tmp_path, 540.0).command if word.startswith("--")]
    assert options and all(f'"{option}"' in text for option in options)


@pytest.mark.parametrize("name", ["nothing", "suite:", "suite:0/2", "suite:1", "build:1/2", "harness"])
def test_an_unknown_step_is_a_wrong_argument(name, tmp_path, capsys):
    with pytest.raises(SystemExit) as error:
        gpu_session.main([name, "--out", str(tmp_path / "out")])
    assert error.value.code == 2 and name in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_exit_codes_become_a_status(tmp_path):
    for code, status in {0: "ok", 1: "failed", 2: "cannot run", 3: "incomplete", 7: "crashed"}.items():
        row = run_step(make_python("x", f"raise SystemExit({code})", tmp_path / "none.json"), 60.0)
        assert (row["status"], row["exit_code"], row["result"]) == (status, code, None)
    assert run_step(make_python("x", "import os; os.kill(os.getpid(), 11)"), 60.0)["status"] == "crashed"


def test_a_step_that_hangs_is_killed_at_its_budget():
    start = time.monotonic()
    row = run_step(make_python("x", "import time; time.sleep(60)"), 0.5)
    assert row["status"] == "timed out" and time.monotonic() - start < 20.0


def test_nothing_runs_after_a_failed_build():
    steps = [make_python(name, "") for name in ("suite", "build", "host_time")]

    def run(step: Step, budget_s: float) -> dict:
        status = {"suite": "failed", "build": "failed", "host_time": "ok"}[step.name]
        return {"step": step.name, "status": status, "exit_code": 1, "seconds": budget_s, "result": None}

    assert [row["status"] for row in run_steps(steps, 1.0, run)] == ["failed", "failed", "skipped"]
    assert [row["status"] for row in run_steps(steps[::2], 1.0, run)] == ["failed", "ok"]


def test_the_session_writes_results_and_prints_the_table_last(tmp_path, monkeypatch, capsys):
    result = tmp_path / "host_time.json"
    write = make_python("host_time", f"open({str(result)!r}, 'w').write('{{}}')", result)
    monkeypatch.setattr(gpu_session, "make_step", lambda name, out, budget_s: write)
    monkeypatch.setenv("OUT", str(tmp_path))
    assert gpu_session.main(["host_time"]) == 0
    [row] = read_json(tmp_path / "session.json")["steps"]
    assert row["status"] == "ok" and row["result"] == "host_time.json"
    assert capsys.readouterr().out.splitlines()[-1] == format_table([row])


def test_the_worst_step_gives_the_exit_code():
    codes = [get_exit_code([{"status": status} for status in found]) for found in (
        ["ok"], ["ok", "incomplete"], ["incomplete", "failed"], ["skipped"], ["timed out"],
    )]  # fmt: skip
    assert codes == [0, 3, 1, 1, 1]
