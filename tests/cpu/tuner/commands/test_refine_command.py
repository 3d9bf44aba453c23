"""`refine`: a file of shapes becomes entries of the exact table, from a few measured configs each; simulated times."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

import deep_gemm
from deep_gemm import _C
from deep_gemm.selector import Selector
from tests.fakes.in_process_worker import InProcessWorker
from tuner import cli, errors
from tuner.db import Store
from tuner.db.lock import WriterLock
from tuner.search import sweep
from tuner.ship import tuned

pytestmark = pytest.mark.usefixtures("in_process")
DEVICE = _C.Device.known("h200")
PROBLEMS = [_C.Problem("fp8_gemm", m, 2112, 7168) for m in (48, 1040)] + [_C.Problem("bf16_gemm", 48, 4096, 7168)]


def refine(tmp_path, *arguments: object) -> int:
    """Run `refine` on PROBLEMS into a folder of this test and return the exit code."""
    shapes = tmp_path / "shapes.json"
    shapes.write_text(json.dumps([problem.as_dict() for problem in PROBLEMS]))
    shared = ["--shapes", shapes, "--backend", "simulated", "--db", tmp_path / "t.db", "--out", tmp_path / "models"]
    return cli.run(["refine", *map(str, [*shared, *arguments])])


def read_times(database, problem) -> dict:
    """Return {config: its best-known ratio to the heuristic's pick} of one problem."""
    with Store.open(database, "ro") as store:
        rows = store.load_measurements(problem_key=problem.key)
    searched = {row.config: row.ratio for row in rows if row.role == "search"}
    return searched | {row.config: row.ratio for row in rows if row.role == "confirm" and row.status == "ok"}


def test_the_best_of_a_few_is_installed_for_every_shape(capsys, tmp_path):
    finalists = tuned.list_finalists(PROBLEMS, DEVICE, tmp_path / "models", 3)
    assert refine(tmp_path, "--best", 3, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["problems"] == len(report["installed"]) == 3 and not report["failed"]
    selector = Selector((tmp_path / "models" / f"{DEVICE.sku}.dgsel").read_bytes())
    for problem, found in zip(PROBLEMS, report["installed"], strict=True):
        times = read_times(tmp_path / "t.db", problem)
        assert times.keys() == {*finalists[problem], _C.get_analytic_config(problem, DEVICE)} and len(times) <= 4
        choice = selector.choose(problem, DEVICE)
        assert choice.source == "exact" and choice.config.as_dict() == found["config"]
        assert times[choice.config] <= 1.02 * min(times.values())


def test_winners_are_those_of_the_board_at_hand_where_another_was_measured_since(capsys, tmp_path, monkeypatch):
    worker = InProcessWorker()
    worker.backend.device = _C.Device.known(f"{DEVICE.sku}-500w")
    assert refine(tmp_path, "--best", 1) == 0
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "make_worker", lambda options: worker)
        assert refine(tmp_path, "--best", 1) == 0
    capsys.readouterr()
    assert refine(tmp_path, "--best", 1, "--json") == 0
    assert {one["sku"] for one in json.loads(capsys.readouterr().out)["installed"]} == {DEVICE.sku}


@pytest.mark.parametrize("op", ["fp8_gemm", "bf16_gemm"])
def test_finalists_are_the_lowest_scores_and_without_scores_the_best_estimates(tmp_path, monkeypatch, op):
    problem = _C.Problem(op, 1040, 2112, 7168)
    configs = _C.get_shortlist(problem, DEVICE, 5)[:5]
    choice = SimpleNamespace(scores=dict(zip(configs, (0.0, -0.1, math.inf, 0.2, -0.3), strict=True)))
    monkeypatch.setattr(tuned, "choose_before", lambda *arguments: choice)
    for count, places in ((1, [4]), (3, [4, 1, 0]), (4, [4, 1, 0, 3])):
        assert tuned.rank_finalists(problem, DEVICE, tmp_path, count) == [configs[place] for place in places]
    every = tuned.rank_finalists(problem, DEVICE, tmp_path, 16)
    assert every[:4] == [configs[place] for place in (4, 1, 0, 3)] and len(set(every)) == len(every) == 16
    assert set(every[4:]) < set(_C.get_shortlist(problem, DEVICE, 16))
    choice.scores = None
    assert tuned.rank_finalists(problem, DEVICE, tmp_path, 3) == configs[:3]


def test_text_has_a_line_for_each_shape(capsys, tmp_path):
    assert refine(tmp_path, "--best", 1) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(PROBLEMS) + 1 and max(map(len, lines[:-1])) <= 120
    assert lines[-2].startswith("3 of 3 problems written") and lines[-1].startswith("written: ")


def test_what_could_not_be_measured_is_a_failure_beside_what_was_installed(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "make_worker", lambda options: InProcessWorker(unexplained=[PROBLEMS[1]]))
    assert refine(tmp_path, "--best", 1, "--json") == errors.EXIT_FAILURE
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert list(report["failed"]) == [str(PROBLEMS[1])] and len(report["installed"]) == 2
    assert said.err.splitlines()[-1].startswith(f"tuner: 1 of 3 problems could not be measured; {PROBLEMS[1]}: ")
    selector = Selector((tmp_path / "models" / f"{DEVICE.sku}.dgsel").read_bytes())
    assert [selector.choose(problem, DEVICE).source == "exact" for problem in PROBLEMS] == [True, False, True]


def test_a_second_run_installs_what_was_measured_beside_what_cannot_be(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "make_worker", lambda options: InProcessWorker(unexplained=[PROBLEMS[1]]))
    assert refine(tmp_path, "--best", 1) == errors.EXIT_FAILURE
    capsys.readouterr()
    assert refine(tmp_path, "--best", 1, "--out", tmp_path / "again", "--json") == errors.EXIT_FAILURE
    said = capsys.readouterr()
    assert len(json.loads(said.out)["installed"]) == 2 and "1 of 3 problems" in said.err
    assert (tmp_path / "again" / f"{DEVICE.sku}.dgsel").is_file()


def test_nothing_is_added_to_a_damaged_artefact(capsys, tmp_path):
    path = tmp_path / "models" / f"{DEVICE.sku}.dgsel"
    path.parent.mkdir()
    path.write_bytes(b"half of an artefact")
    assert refine(tmp_path) == errors.EXIT_INTEGRITY
    assert f"{path}: " in capsys.readouterr().err and path.read_bytes() == b"half of an artefact"


def test_nothing_is_added_to_an_artefact_of_another_gpu_model(capsys, tmp_path):
    path = tmp_path / "models" / f"{DEVICE.sku}.dgsel"
    path.parent.mkdir()
    content = next(Path(deep_gemm.__file__).with_name("models").glob("*h100*.dgsel")).read_bytes()
    path.write_bytes(content)
    assert refine(tmp_path) == errors.EXIT_INTEGRITY
    assert f"{path}: is of nvidia-h100" in capsys.readouterr().err and path.read_bytes() == content


def test_an_artefact_that_another_process_adds_to_is_waited_for(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(tuned, "WAIT_S", 0.1)
    path = tmp_path / "models" / f"{DEVICE.sku}.dgsel"
    path.parent.mkdir()
    lock = WriterLock(path, 0)
    try:
        assert refine(tmp_path, "--best", 1) == errors.EXIT_FAILURE
    finally:
        lock.release()
    assert not path.exists() and str(path) in capsys.readouterr().err
    assert refine(tmp_path, "--best", 1) == 0 and path.is_file()


@pytest.mark.parametrize("name", ["file", "file/models"])
def test_a_folder_that_cannot_be_one_is_refused_before_anything_is_measured(capsys, tmp_path, name):
    (tmp_path / "file").write_text("")
    assert refine(tmp_path, "--out", tmp_path / name) == errors.EXIT_USAGE
    said = capsys.readouterr().err
    assert said.startswith(f"tuner: --out {tmp_path / name}: ") and "is a file; name a folder" in said
    assert not (tmp_path / "t.db").exists()


@pytest.mark.parametrize("arguments", [("--best", 0), ("--effort", "x"), ("--backend", "x")])
def test_wrong_arguments_are_usage_errors(capsys, tmp_path, arguments):
    assert refine(tmp_path, *arguments) == errors.EXIT_USAGE
    assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "models").exists()
