"""`tune`: from a shape to a choice that the library makes, on simulated times."""

import json

import pytest

from deep_gemm import _C, selection
from deep_gemm.selector import Selector
from tests.fakes.in_process_worker import InProcessWorker
from tuner import cli, errors
from tuner.db import Store
from tuner.search import sweep
from tuner.ship import models

pytestmark = pytest.mark.usefixtures("in_process")
SKU = "nvidia-h200-sm132"
DEVICE = _C.Device.known("h200")


def tune(capsys, tmp_path, *arguments: object) -> dict:
    """Run `tune` into a folder of this test and return what it printed."""
    shared = ["--backend", "simulated", "--db", tmp_path / "t.db", "--out", tmp_path / "models", "--effort", "quick"]
    assert cli.run(["tune", *map(str, [*arguments, *shared]), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def find_winner(tmp_path, problem):
    """Return the winner that the sweep stored."""
    with Store.open(tmp_path / "t.db", "ro") as store:
        return store.load_best(problem_key=problem.key)[0].config


def test_a_shape_becomes_an_installed_choice(capsys, tmp_path, monkeypatch):
    problem = _C.Problem("fp8_gemm", 48, 2112, 7168)
    found = tune(capsys, tmp_path, 48, 2112, 7168)
    monkeypatch.setenv("DG_MODEL_DIR", str(tmp_path / "models"))
    selection.forget_selectors()
    choice = selection.explain(problem, DEVICE)
    assert choice.source == "exact" and choice.config.as_dict() == found["config"]
    with Store.open(tmp_path / "t.db", "ro") as store:
        ratios = {str(row.config): row.ratio for row in store.load_measurements(role="confirm") if row.status == "ok"}
    assert ratios[found["name"]] <= 1.02 * ratios[str(find_winner(tmp_path, problem))]


def test_other_problems_are_chosen_for_as_before(capsys, tmp_path):
    packaged = models.find_model("h200")
    found = tune(capsys, tmp_path, 48, 2112, 7168)
    new = models.read_model(tmp_path / "models" / f"{SKU}.dgsel", "named")
    (changed,) = (one for one in models.compare(packaged, new) if one["change"] != "same")
    assert changed["op"] == "fp8_gemm" and not changed["forest_changed"] and changed["exact_added"] <= 1
    assert changed["exact_removed"] == found["entries_lost"]
    assert models.verify(new) > 0
    for m in (16, 333, 4096):
        problem = _C.Problem("bf16_gemm", m, 2112, 7168)
        assert new.selector.choose(problem, DEVICE).config == packaged.selector.choose(problem, DEVICE).config


def test_without_an_artefact_the_heuristic_answers_for_all_else(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("tuner.ship.tuned.selector_files.read_selector_file", lambda sku, path: None)
    first, second = (_C.Problem("fp8_gemm", m, 2112, 7168) for m in (48, 512))
    for problem in (first, second):
        tune(capsys, tmp_path, problem.m, problem.n, problem.k)
    new = Selector((tmp_path / "models" / f"{SKU}.dgsel").read_bytes())
    for problem in (first, second):
        choice = new.choose(problem, DEVICE)
        assert choice.source == "exact" and choice.config == find_winner(tmp_path, problem)
    for other in (_C.Problem("fp8_gemm", 49, 2112, 7168), _C.Problem("fp8_gemm", 48, 4096, 7168)):
        choice = new.choose(other, DEVICE)
        assert choice.source == "analytic" and choice.config == _C.get_analytic_config(other, DEVICE)


def test_the_board_at_hand_gets_its_winner_where_another_was_measured_since(capsys, tmp_path, monkeypatch):
    """A merged database, or one of a board whose power limit was changed: the other's artefact was written instead."""
    first = tune(capsys, tmp_path, 48, 512, 1024)
    with monkeypatch.context() as patch:
        worker = InProcessWorker()
        worker.backend.device = _C.Device.known(f"{SKU}-500w")
        patch.setattr(sweep, "make_worker", lambda options: worker)
        assert tune(capsys, tmp_path, 48, 512, 1024)["sku"] == worker.backend.device.sku
    again = tune(capsys, tmp_path, 48, 512, 1024)
    assert (again["sku"], again["config"]) == (first["sku"], first["config"]) and first["sku"] == SKU


def test_text_says_what_was_installed(capsys, tmp_path):
    arguments = [
        "tune",
        "48",
        "512",
        "1024",
        "--backend",
        "simulated",
        "--db",
        str(tmp_path / "t.db"),
        "--effort",
        "quick",
    ]
    assert cli.run([*arguments, "--out", str(tmp_path / "models")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"fp8_gemm m=48 n=512 k=1024 on {SKU}: ") and "chosen" in "".join(lines)
    assert lines[-1] == f"written: {tmp_path / 'models' / SKU}.dgsel" and max(map(len, lines[1:-1])) <= 100


def test_simulated_times_are_never_installed(capsys, tmp_path):
    assert cli.run(["tune", "48", "512", "1024", "--backend", "simulated"]) == errors.EXIT_USAGE
    assert "simulated times must not decide" in capsys.readouterr().err and not (tmp_path / ".deep_gemm").exists()


@pytest.mark.parametrize("arguments", [("0", "1", "1"), ("1", "1", "1", "--op", "x"), ("1", "1", "1", "--effort", "x")])
def test_wrong_arguments_are_usage_errors(capsys, tmp_path, arguments):
    shared = ["--backend", "simulated", "--out", str(tmp_path / "models")]
    assert cli.run(["tune", *arguments, *shared]) == errors.EXIT_USAGE
    assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "models").exists()


def test_a_damaged_artefact_is_refused_before_anything_is_measured(capsys, tmp_path):
    path = tmp_path / "models" / f"{SKU}.dgsel"
    path.parent.mkdir()
    path.write_bytes(b"half of an artefact")
    shared = ["--backend", "simulated", "--db", tmp_path / "t.db", "--out", path.parent]
    assert cli.run(["tune", "48", "2112", "7168", *map(str, shared)]) == errors.EXIT_INTEGRITY
    assert f"{path}: " in capsys.readouterr().err and path.read_bytes() == b"half of an artefact"
    assert not (tmp_path / "t.db").exists()
