"""Replaying a recorded database: searchers see only what they ask for, and more measurements mean less regret."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from deep_gemm import _C
from tests.fakes.sweeps import run_sweep
from tests.fakes.weights import are_near, make_chain
from tuner import cli, errors
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


def means(described: dict, name: str) -> list[float]:
    """Return the mean regret of a searcher by budget."""
    return [entry["mean"] for entry in described["searchers"][name]]


def test_regret_falls_with_the_number_of_configs(data):
    budgets = (4, 24, 10**6)
    found = simulation.describe(simulation.simulate(data, np.arange(4), [0, 1, 2], ("random",), budgets), budgets)
    few, many, whole = means(found, "random")
    assert few >= many >= whole - 1e-9 and whole == pytest.approx(means(found, "exhaustive")[0], abs=1e-9)
    assert means(found, "heuristic")[0] > whole - 1e-9
    entry = found["searchers"]["random"][0]
    assert entry["low"] <= entry["mean"] <= entry["high"] and entry["mean"] <= entry["p95"] <= entry["max"]
    assert found["problems"] == 4 and found["families"] == len(set(data.families.tolist()))


@pytest.mark.full
def test_orders_do_better_than_chance(data):
    found = simulation.describe(simulation.simulate(data, np.arange(4), [0, 1]))
    assert means(found, "analytic")[0] <= means(found, "random")[0]
    assert means(found, "forest")[-1] <= means(found, "random")[-1] + 1e-9


def test_the_trees_of_a_replay_never_saw_the_family(data, monkeypatch):
    seen = []
    real = simulation.fit_trees
    monkeypatch.setattr(
        simulation, "fit_trees", lambda *args: seen.append(set(args[1].problem.tolist())) or real(*args)
    )
    rows = np.arange(4)
    predicted = simulation.predict_by_trees(data, rows)
    assert predicted.keys() == set(rows.tolist()) and seen
    for family in np.unique(data.families):
        own = set(np.flatnonzero(data.families == family).tolist())
        assert any(not own & fold for fold in seen)
    assert all(not (data.families[list(fold)] == family).all() for fold in seen for family in data.families)


def test_the_trees_of_a_replay_never_saw_a_weight_near_it(data, monkeypatch):
    """Four weights, of which each is near the next one: the trees for one learn from those that are not."""
    chain, seen = replace(data, **make_chain(data)), []
    real = simulation.fit_trees
    monkeypatch.setattr(
        simulation, "fit_trees", lambda *args: seen.append(set(args[1].problem.tolist())) or real(*args)
    )
    assert simulation.predict_by_trees(chain, np.arange(4)).keys() == {0, 1, 2, 3}
    for row in range(4):
        far = {other for other in range(4) if not are_near(chain.problems[row], chain.problems[other])}
        assert any(kept <= far for kept in seen)


def test_a_replay_of_one_family_takes_the_estimate(data):
    problems = [_C.Problem("fp8_gemm", m, 4096, 7168) for m in (16, 64, 512, 1024)]
    alone = replace(data, problems=problems, families=np.zeros(4, np.int64))
    assert simulation.predict_by_trees(alone, np.arange(1)) == {0: simulation.predict_by_estimate(alone, 0)}


def test_op_kinds_are_joined(data):
    one = simulation.simulate(data, np.arange(2), [0], ("analytic",))
    joined = simulation.join([one, one])
    assert len(joined.families) == 4 and joined.spaces == one.spaces * 2
    assert means(simulation.describe(joined), "analytic") == means(simulation.describe(one), "analytic")


def test_a_replay_is_told_only_what_was_recorded(data):
    for row in range(4):
        for column in np.flatnonzero(data.candidate[row]):
            config, log_ratio, status, *_ = simulation.recorded_outcome(data, row, int(column))
            assert config == data.configs[column] and np.isfinite(log_ratio)
            assert status == ("censored" if np.isnan(data.search[row, column]) else "ok")


def test_problems_are_spread_evenly(data):
    assert list(simulation.choose_problems(data, 0)) == [0, 1, 2, 3]
    assert list(simulation.choose_problems(data, 2)) == [0, 3]
    counts = simulation.find_measured(data).sum(axis=1)
    assert (
        list(simulation.choose_problems(data, 0, int(counts.max()))) == np.flatnonzero(counts == counts.max()).tolist()
    )


def test_command(recorded, capsys):
    command = ["simulate", "--db", str(recorded), "--problems", "2", "--seeds", "1"]
    assert cli.run([*command, "--samplers", "forest,random", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["fp8_gemm"]
    assert result["problems"] == 2 and result["identity"]["op"] == "fp8_gemm"
    assert result["searchers"].keys() == {"forest", "random", "heuristic", "exhaustive"}
    assert cli.run([*command, "--samplers", "analytic"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("fp8_gemm: 2 problems") and lines[-2].split()[0] == "exhaustive"
    assert max(map(len, lines)) <= 100
    assert cli.run([*command, "--samplers", "analytic", "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("| searcher | 8 configs |")


@pytest.mark.parametrize("samplers", ["", "exhaustive", "random,grid"])
def test_unknown_samplers_are_usage_errors(recorded, capsys, samplers):
    assert cli.run(["simulate", "--db", str(recorded), "--samplers", samplers]) == 2
    assert "--samplers" in capsys.readouterr().err


@pytest.mark.parametrize("samplers", ["random", "nsga2"])
@pytest.mark.parametrize(
    ("seed", "said"),
    [
        ("-1", "greater than or equal to 0"),
        ("4294967296", "less than or equal to 4294967295"),
        ("4294967295", "the last of 2 seeds must be at most 4294967295"),
    ],
)
def test_seeds_are_those_that_samplers_take(recorded, capsys, samplers, seed, said):
    command = ["simulate", "--db", str(recorded), "--samplers", samplers, "--seed", seed, "--seeds", "2"]
    assert cli.run(command) == errors.EXIT_USAGE
    assert said in capsys.readouterr().err


def test_the_least_number_of_configs_says_what_it_left(recorded, capsys):
    assert cli.run(["simulate", "--db", str(recorded), "--least-configs", "100000"]) == errors.EXIT_INCONCLUSIVE
    message = capsys.readouterr().err
    assert re.search(r"--least-configs 100000: no problem has so many, at most \d+ were measured; name", message)


def test_command_without_data(tmp_path, capsys):
    absent = tmp_path / "absent.db"
    for words in (["simulate", "--db", str(absent)], ["compare", str(absent), str(absent)]):
        assert cli.run(words) == 2
        assert f"database {absent}: no such file; create it" in capsys.readouterr().err
    with Store.open(tmp_path / "empty.db"):
        pass
    assert cli.run(["simulate", "--db", str(tmp_path / "empty.db"), "--device", "h200"]) == 3
    assert "Traceback" not in capsys.readouterr().err


def test_one_form_of_the_result_is_asked_for(recorded, capsys):
    assert cli.run(["simulate", "--db", str(recorded), "--json", "--markdown"]) == errors.EXIT_USAGE
    shown = capsys.readouterr()
    assert not shown.out and shown.err == "tuner: --json and --markdown: give one of them\n"
