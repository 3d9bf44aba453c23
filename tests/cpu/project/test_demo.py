"""The demo's parts that need no GPU, on the packaged artefact and snapshot."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

import deep_gemm.models
from deep_gemm import _C
from examples import demo
from tuner.db import snapshot_path
from tuner.learn.dataset import load_dataset
from tuner.learn.sources import open_database

ARTEFACT = Path(next(iter(deep_gemm.models.__path__))) / f"{demo.RECORDED_SKU}.dgsel"


@pytest.mark.full
def test_recorded_comparison_shows_choices_of_selectors_that_never_saw_the_problem(capsys):
    path = snapshot_path(demo.RECORDED_SKU)
    with open_database(str(path)) as store:
        data = load_dataset(store, "", op=demo.OP)
    oracle = {problem.key: data.configs[column] for problem, column in zip(data.problems, data.oracle.tolist())}
    left_out = {key: _C.Choice(config, "learned", "left out") for key, config in oracle.items()}
    rows = demo.compare_recorded(ARTEFACT, path, left_out)
    assert len(rows) == demo.ROWS
    assert sum(row["source"] == "exact" for row in rows) > demo.ROWS // 2  # what a call runs, not the trees alone
    plain = {problem.key: problem for problem in data.problems}
    assert all(_C.Problem(demo.OP, row["m"], row["n"], row["k"]).key in plain for row in rows)
    assert all(0.5 < row["speed_up"] < 2 and row["learned_us"] > 0 for row in rows)
    # What was left out here is the measured best, so no choice is faster by more than noise.
    assert all(row["left_out_us"] <= 1.05 * min(row["learned_us"], row["heuristic_us"]) for row in rows)
    demo.show(rows, "title")
    text = capsys.readouterr().out
    means = [math.exp(sum(math.log(row[key]) for row in rows) / len(rows)) for key in ("left_out_speed_up", "speed_up")]
    assert f"geometric mean speed-up: {means[0]:.3f}x left out, {means[1]:.3f}x in-sample" in text
    assert "in-sample: the speed-up of the exported selector, which was trained on these very problems" in text
    assert max(map(len, text.splitlines())) <= 100


def test_choices_of_left_out_families_are_read_from_the_evaluation(tmp_path):
    problem = _C.Problem(demo.OP, 64, 2112, 7168)
    config = _C.get_analytic_config(problem, _C.Device.known("h200"))
    row = problem.as_dict() | {"problem": problem.key, "config": config.as_dict(), "source": "learned"}
    (tmp_path / demo.OP).mkdir()
    (tmp_path / demo.OP / "out_of_fold.json").write_text(json.dumps({"rows": [row]}))
    (choice,) = demo.read_left_out(tmp_path).values()
    assert (choice.config, choice.source) == (config, "learned")


def test_the_demo_replays_and_learns_the_op_kind_that_it_shows_alone(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(demo, "run_tuner", lambda *words: commands.append([str(word) for word in words]))
    monkeypatch.setattr(demo, "find_gpu", lambda: None)
    monkeypatch.setattr(demo, "compare_recorded", lambda *arguments: [])
    monkeypatch.setattr(demo, "read_left_out", lambda training: {})
    monkeypatch.setattr("sys.argv", ["demo", "--out", str(tmp_path)])
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "x.dgsel").write_bytes(b"")
    demo.main()
    assert [words[0] for words in commands] == ["simulate", "train", "evaluate", "export"]
    assert all(words[words.index("--op") + 1] == demo.OP for words in commands)


def test_a_command_is_shown_as_it_can_be_copied(monkeypatch, capsys):
    monkeypatch.setattr(demo.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=0))
    demo.run_tuner("train", "--db", "/a folder/" + 100 * "x", "--out", "[demo]")
    assert capsys.readouterr().out == f"$ python -m tuner train --db '/a folder/{100 * 'x'}' --out '[demo]'\n"


def test_product_on_the_cpu_is_right():
    assert demo.multiply(_C.Problem(demo.OP, 5, 136, 272), "cpu") == pytest.approx(0, abs=5e-6)
