"""Replaying a recorded database: searchers see only what they ask for, and more measurements mean less regret."""

import json

import numpy as np
import pytest

from deep_gemm import _C
from tests.fakes.sweeps import run_sweep
from tuner import cli
from tuner.db import Store
from tuner.learn import simulation
from tuner.learn.dataset import load_dataset

PROBLEMS = [
    _C.Problem("fp8_gemm", m, n, k)
    for m, n, k in ((64, 2112, 7168), (512, 4096, 7168), (1024, 7168, 2048), (16, 1280, 8192))
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A database of four problems, measured whole on simulated times."""
    path = tmp_path_factory.mktemp("simulate") / "recorded.db"
    run_sweep(path, PROBLEMS, effort="full")
    return path


@pytest.fixture(scope="module")
def data(recorded):
    """The recorded rows as a table."""
    with Store.open(recorded, mode="ro") as store:
        return load_dataset(store, "nvidia-h200-sm132")


def test_regret_falls_with_the_share_that_is_measured(data):
    result = simulation.simulate(data, np.arange(4), seeds=[0, 1, 2], samplers=("random",), shares=(0.05, 0.3, 1.0))
    means = [entry["mean"] for entry in result["random"]]
    assert means[0] >= means[1] >= means[2] - 1e-9
    assert means[2] == pytest.approx(result["exhaustive"]["mean"], abs=1e-6)
    assert result["heuristic"]["mean"] > result["exhaustive"]["mean"] - 1e-9


def test_tpe_starts_better_than_random(data):
    result = simulation.simulate(data, np.arange(4), seeds=[0], shares=(0.05, 0.15))
    assert (
        result["tpe"][0]["mean"] <= result["random"][0]["mean"]
        and result["tpe"][1]["mean"] <= result["tpe"][0]["mean"] + 1e-9
    )


def test_a_replay_is_told_only_what_was_recorded(data):
    for row in range(4):
        for column in np.flatnonzero(data.candidate[row]):
            config, log_ratio, status = simulation.recorded_outcome(data, row, int(column))
            assert config == data.configs[column] and np.isfinite(log_ratio)
            assert status == ("censored" if np.isnan(data.search[row, column]) else "ok")


def test_problems_are_spread_evenly(data):
    assert list(simulation.choose_problems(data, 0)) == [0, 1, 2, 3]
    assert list(simulation.choose_problems(data, 2)) == [0, 3]


def test_command(recorded, capsys):
    assert cli.run(["simulate", "--db", str(recorded), "--problems", "2", "--seeds", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["fp8_gemm"]
    assert result["problems"] == 2 and {"tpe", "random", "exhaustive", "heuristic", "identity"} <= set(result)
    assert cli.run(["simulate", "--db", str(recorded), "--problems", "1", "--seeds", "1"]) == 0
    assert "exhaustive" in capsys.readouterr().out


def test_command_without_data(tmp_path, capsys):
    assert cli.run(["simulate", "--db", str(tmp_path / "absent.db")]) == 2
    with Store.open(tmp_path / "empty.db"):
        pass
    assert cli.run(["simulate", "--db", str(tmp_path / "empty.db"), "--device", "h200"]) == 3
    assert "Traceback" not in capsys.readouterr().err
