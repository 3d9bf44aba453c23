"""Running several steps on a GPU machine: commands, budgets, the effect of failures, and the files written."""

import subprocess
import sys
import time

import pytest

from benchmarks import gpu_session, upstream
from benchmarks.gpu_session import (
    LISTS,
    PROGRAMS,
    SCRIPTS,
    Step,
    format_table,
    get_exit_code,
    make_step,
    run_step,
    run_steps,
    split_budget,
)
from benchmarks.stamp import ROOT, read_json, write_json
from tests.gpu import sanitizer
from tuner.problems.shapes import preset_names


def make_python(name: str, code: str, result=None) -> Step:
    """Return a step that runs some Python."""
    return Step(name, [sys.executable, "-c", code], result)


def test_steps_write_into_the_folder_within_their_budget(tmp_path):
    whole, shard = make_step("suite", tmp_path, 540.0), make_step("suite:2/3", tmp_path, 540.0)
    assert whole.result == tmp_path / "gpu_record.json" and whole.command[-4:] == [
        "--gpus",
        "all",
        "--time-budget",
        "510.0",
    ]
    assert set(gpu_session.SUITE_OPTIONS) <= set(whole.command)
    assert shard.result == tmp_path / "gpu_record_2of3.json" and "2/3" in shard.command
    assert "--gpus" not in shard.command  # which runs beside others, on a GPU of its own
    races = make_step("racecheck", tmp_path, 230.0)
    assert races.result == tmp_path / "racecheck.json" and races.command[-2:] == ["--time-budget", "200.0"]
    assert sanitizer.parse_arguments(races.command[3:]).tools == ("racecheck",)
    section = make_step("suite-worker_faults:1/2", tmp_path, 540.0)
    assert section.result == tmp_path / "gpu_record_worker_faults_1of2.json" and "worker_faults" in section.command
    for name in SCRIPTS:
        step = make_step(name, tmp_path, 540.0)
        assert (ROOT / "benchmarks" / f"{name}.py").is_file() and str(step.result) in step.command
    assert make_step("build", tmp_path, 540.0).result is None
    sweep = make_step("sweep-attention", tmp_path, 150.0)
    assert sweep.result == tmp_path / "sweep.db" and sweep.command[-2:] == ["--time-budget", "120.0"]
    assert "loops" in sweep.command and "--portfolio-size" not in sweep.command
    portfolio = make_step("sweep-portfolio_dense", tmp_path, 150.0).command
    assert "loops" not in portfolio and portfolio[portfolio.index("--portfolio-size") + 1] == "24"


def test_deepgemm_is_a_peer_where_it_has_the_ops(tmp_path):
    peer, families = tmp_path / "deep_gemm", {family.name for family in upstream.list_families()}
    assert make_step("upstream", tmp_path, 60.0, peer).command[-2:] == ["benchmarks.upstream", str(peer)]
    for name in SCRIPTS:
        command = make_step(name, tmp_path, 60.0, peer).command
        assert (command[-2:] == ["--deepgemm", str(peer)]) == (name in families)
        assert "--deepgemm" not in make_step(name, tmp_path, 60.0).command
    with pytest.raises(ValueError, match=r"upstream: expected .* upstream \(with --deepgemm\)"):
        make_step("upstream", tmp_path, 60.0)


def test_a_folder_of_deepgemm_is_that_of_the_caller(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "peer").mkdir()
    with pytest.raises(SystemExit) as exit_:
        gpu_session.main(["dense_fp8", "--deepgemm", "peer", "--out", "out"])
    assert exit_.value.code == 2
    (tmp_path / "peer" / "__init__.py").touch()
    ran = []
    monkeypatch.setattr(gpu_session, "run_steps", lambda *_, deepgemm: ran.append(deepgemm) or [])
    assert gpu_session.main(["dense_fp8", "--deepgemm", "peer", "--out", "out"]) == 0
    assert ran == [tmp_path / "peer"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_know_the_options_that_they_are_given(name, tmp_path):
    text = (ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
    if "main(FAMILY" in text:
        text = (ROOT / "benchmarks" / "harness.py").read_text(encoding="utf-8")
    options = [word for word in make_step(name, tmp_path, 540.0).command if word.startswith("--")]
    assert options and all(f'"{option}"' in text for option in options)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_told_where_their_result_goes_and_know_their_options(name, tmp_path):
    step = make_step(name, tmp_path, 60.0)
    text = (ROOT / f"{PROGRAMS[name][0].replace('.', '/')}.py").read_text(encoding="utf-8")
    options = [word for word in step.command if word.startswith("--")]
    assert all(f'"{option}"' in text for option in options) and step.command[-2:] == ["--out", str(step.result)]
    assert ("--work" in options) == (name == "tuned_models")


def test_due_steps_run_in_the_place_of_the_step_that_finds_them(tmp_path):
    """Those that are asked for by name run once."""
    found = ["callers@60", "host_time@70", "pdl@50", "host_ops@40"]

    def run(step: Step, budget_s: float) -> dict:
        if step.name == "due":
            write_json(step.result, {"due": [{"step": text, "reason": "stale"} for text in found]})
        return {"step": step.name, "status": "ok", "exit_code": 0, "seconds": budget_s, "result": None}

    rows = run_steps(["build", "callers@30", "due", "pdl@20"], tmp_path, 99.0, 999.0, run)
    assert [row["step"] for row in rows] == ["build", "callers", "due", "host_time", "host_ops", "pdl"]
    assert [row["seconds"] for row in rows[3:]] == [70.0, 40.0, 20.0]
    command = make_step("due", tmp_path, 60.0).command
    assert command[-3:] == ["benchmarks.due", "--out", str(tmp_path / "due.json")]


@pytest.mark.parametrize("broken", ["build", "due"])
def test_nothing_is_due_where_it_could_not_be_found(tmp_path, broken):
    def run(step: Step, budget_s: float) -> dict:
        status = "failed" if step.name == broken else "ok"
        return {"step": step.name, "status": status, "exit_code": 1, "seconds": budget_s, "result": None}

    rows = run_steps(["build", "due"], tmp_path, 99.0, 99.0, run)
    assert [row["status"] for row in rows] == {"build": ["failed", "skipped"], "due": ["ok", "failed"]}[broken]
    assert get_exit_code(rows) == 1


@pytest.mark.parametrize("name", LISTS)
def test_lists_hold_steps_whose_files_fit_into_what_comes_back(name, tmp_path):
    steps = [make_step(split_budget(text, 500.0)[0], tmp_path, 500.0) for text in LISTS[name]]
    results = {step.result for step in steps if step.result}
    assert steps[0].name == "build" and 0 < len(results) <= 7  # session.json is the eighth
    budgets = [split_budget(text, 0.0)[1] for text in LISTS[name][1:]]
    assert all(budgets) or name == "suite"
    presets = [step.command[step.command.index("--preset") + 1] for step in steps if "--preset" in step.command]
    assert set(presets) <= set(preset_names())


def test_a_budget_may_stand_behind_a_name():
    assert split_budget("host_time@90", 500.0) == ("host_time", 90.0)
    assert split_budget("suite:1/2", 500.0) == ("suite:1/2", 500.0)
    assert split_budget("suite:1/2@90", 500.0) == ("suite:1/2", 90.0)


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


def test_nothing_runs_after_a_failed_build(tmp_path):
    def run(step: Step, budget_s: float) -> dict:
        status = {"suite": "failed", "build": "failed", "host_time": "ok"}[step.name]
        return {"step": step.name, "status": status, "exit_code": 1, "seconds": budget_s, "result": None}

    names = ["suite", "build", "host_time"]
    assert [row["status"] for row in run_steps(names, tmp_path, 99.0, 99.0, run)] == ["failed", "failed", "skipped"]
    assert [row["status"] for row in run_steps(names[::2], tmp_path, 99.0, 99.0, run)] == ["failed", "ok"]


def test_steps_share_the_total_in_their_order(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(gpu_session.time, "monotonic", lambda: now[0])

    def run(step: Step, budget_s: float) -> dict:
        now[0] += budget_s
        assert read_json(tmp_path / "session.json")["steps"] if step.name != "build" else True
        return {"step": step.name, "status": "ok", "exit_code": 0, "seconds": budget_s, "result": None}

    names = ["build@100", "host_time@50", "pdl", "compile_time"]
    rows = run_steps(names, tmp_path, 80.0, 245.0, run)
    assert [row["seconds"] for row in rows] == [100.0, 50.0, 80.0, 0.0]
    assert [row["status"] for row in rows] == ["ok", "ok", "ok", "skipped"]
    assert read_json(tmp_path / "session.json")["steps"] == rows


def test_the_session_writes_results_and_prints_the_table_last(tmp_path, monkeypatch, capsys):
    result = tmp_path / "host_time.json"
    write = make_python("host_time", f"open({str(result)!r}, 'w').write('{{}}')", result)
    monkeypatch.setattr(gpu_session, "make_step", lambda name, out, budget_s, deepgemm: write)
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


def test_a_session_begins_without_the_native_module():
    """Its first step builds it."""
    code = (
        "import runpy, sys; sys.modules['deep_gemm'] = None; sys.argv = ['gpu_session', '--help'];"
        " runpy.run_module('benchmarks.gpu_session', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "suite" in done.stdout, done.stderr
