"""Choices beside a full sweep: which problems are drawn, and what the regrets are made of; simulated times."""

import math
from types import SimpleNamespace

import pytest

from benchmarks import choice_regret
from benchmarks.choices import Choices
from benchmarks.stamp import DATA, RESULTS, read_json
from deep_gemm import _C, selection
from tests.fakes.in_process_worker import InProcessWorker
from tuner.db import Store
from tuner.problems.fields import get_weight_shape
from tuner.problems.regimes import is_rested
from tuner.problems.shapes import load_preset, preset_names
from tuner.search import sweep
from tuner.search.wide_space import get_loop_space

FEW = {"fp8_gemm": 3, "m_grouped_fp8_gemm_masked": 2}
DEVICE = _C.Device.known("h200")
RECORD = RESULTS / "choice_regret.json"


@pytest.fixture(autouse=True)
def simulated(tmp_path, monkeypatch):
    """Measure few problems in this process, on simulated times, with the artefact of the package."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(choice_regret, "COUNTS", FEW)
    monkeypatch.setattr(sweep, "make_worker", lambda options: InProcessWorker())
    selection.forget_selectors()
    yield
    selection.forget_selectors()


def run(tmp_path, *arguments: str) -> tuple[int, dict]:
    """Return exit code and result of the benchmark."""
    out = tmp_path / "out.json"
    shared = ["--backend", "simulated", "--effort", "quick", "--out", str(out), "--db", str(tmp_path / "c.db")]
    return choice_regret.main([*shared, *arguments]), read_json(out)


def test_problems_are_those_of_the_seed_and_of_no_preset(monkeypatch):
    monkeypatch.undo()
    problems = choice_regret.draw()
    assert problems == choice_regret.draw() and len(set(problems)) == sum(choice_regret.COUNTS.values()) >= 40
    weights = {get_weight_shape(problem) for name in preset_names() for problem in load_preset(name)}
    weights |= {(row["n"], row["k"]) for row in read_json(DATA / "random_fp8.json")["rows"]}
    assert not weights & {get_weight_shape(problem) for problem in problems}
    assert {problem.op for problem in problems[:6]} == set(choice_regret.COUNTS), "mixed"
    assert all(problem.n % 64 == 0 and problem.k % 128 == 0 and problem.n <= 32768 for problem in problems)


def test_the_record_holds_the_draw_of_its_seed(monkeypatch):
    monkeypatch.undo()
    recorded = read_json(RECORD)
    problems = choice_regret.draw(seed=recorded["meta"]["seed"])
    assert {problem.key for problem in problems} == {row["problem"] for row in recorded["rows"]}


def test_the_new_draw_has_no_weight_of_an_old_one(monkeypatch):
    monkeypatch.undo()
    old, new = (
        {get_weight_shape(problem) for seed in seeds for problem in choice_regret.draw(seed=seed)}
        for seeds in (choice_regret.OLD_SEEDS, [choice_regret.SEED])
    )
    assert old and len(new) == sum(choice_regret.COUNTS.values()) and not old & new


def test_a_weight_that_is_known_is_drawn_again():
    first, *_ = plain = choice_regret.draw_op("fp8_gemm", 4, 15, set())
    again = choice_regret.draw_op("fp8_gemm", 4, 15, {get_weight_shape(first)})
    assert again[:3] == plain[1:] and len(again) == 4


@pytest.mark.parametrize(
    ("seed", "count", "mean", "is_met"),
    [
        (choice_regret.SEED, 40, 0.02, True),
        (choice_regret.SEED, 40, 0.021, False),
        (choice_regret.SEED, 39, 0.02, False),
        (choice_regret.OLD_SEEDS[0], 72, 0.01, False),
    ],
)
def test_only_enough_problems_of_the_new_draw_meet_the_target(seed, count, mean, is_met):
    assert choice_regret.is_met(seed, count, mean) is is_met


def test_an_old_draw_is_said_to_be_one(tmp_path, capsys):
    code, result = run(tmp_path, "--seed", str(choice_regret.OLD_SEEDS[0]))
    assert code == 0 and result["meta"]["seed"] == choice_regret.OLD_SEEDS[0]
    assert capsys.readouterr().out.splitlines()[-4].startswith("of the old draw (seed 14)")


def test_a_regret_is_the_pick_s_confirmed_time_over_that_of_the_best(tmp_path, capsys):
    code, result = run(tmp_path)
    assert (code, result["meta"]["complete"], len(result["rows"])) == (0, True, sum(FEW.values()))
    with Store.open(tmp_path / "c.db", "ro") as store:
        for row in result["rows"]:
            times = store.load_measurements(problem_key=row["problem"], role="confirm")
            ratios = [
                {str(one.config): one.ratio for one in times if is_rested(one.block.regime) == rested}
                for rested in (False, True)
            ]
            for role in choice_regret.ROLES:
                names = row[role]["config"], row["best"]
                shares = [found[names[0]] / found[names[1]] for found in ratios if found]
                assert row[role]["regret"] == pytest.approx(math.prod(shares) ** (1 / len(shares)) - 1, abs=1e-4)
    picks = {problem.key: Choices(problem.op, DEVICE).of(problem, ())["auto"] for problem in choice_regret.draw()}
    assert all(row["selector"]["config"] == str(picks[row["problem"]].config) for row in result["rows"])
    logs = [math.log1p(row["selector"]["regret"]) for row in result["rows"]]
    assert result["all"]["selector"]["mean"] == pytest.approx(math.expm1(sum(logs) / len(logs)), abs=1e-4)
    assert not result["all"]["is_met"] and capsys.readouterr().out.splitlines()[-1].startswith("all: 5 problems")


def test_the_choices_of_another_artefact_are_scored_without_measuring(tmp_path, monkeypatch):
    before = run(tmp_path)[1]
    monkeypatch.setattr(sweep, "make_worker", lambda options: pytest.fail("measured"))
    best = {row["problem"]: row["best"] for row in before["rows"]}

    def choose(self, problem, roles) -> dict:
        configs = get_loop_space(problem, DEVICE)
        config = next((one for one in configs if str(one) == best[problem.key]), configs[0])
        return {"auto": SimpleNamespace(config=config, source="learned")}

    monkeypatch.setattr(Choices, "of", choose)
    code, after = run(tmp_path, "--score")
    rows = {row["problem"]: row for row in after["rows"]}
    assert code == 0 and after["all"]["heuristic"] == before["all"]["heuristic"]
    assert sum(rows[key]["selector"]["regret"] == 0.0 for key in best) >= len(best) - 1


def test_scoring_chooses_for_the_gpu_of_the_database(tmp_path, monkeypatch):
    """On a machine without its GPU, too: the choices of an H200 for the times of an H100 are not those of a call."""
    before, chosen_for, find = run(tmp_path)[1], [], choice_regret.find_choices
    monkeypatch.setattr(choice_regret, "device_at_hand", lambda name: _C.Device.known("nvidia-h100-80gb-hbm3-sm132"))

    def record(problems: list, device) -> dict:
        chosen_for.append(device.sku)
        return find(problems, device)

    monkeypatch.setattr(choice_regret, "find_choices", record)
    assert run(tmp_path, "--score")[1]["rows"] == before["rows"] and chosen_for == [DEVICE.sku]


def test_what_time_did_not_suffice_for_is_no_result(tmp_path):
    run(tmp_path)
    choice_regret.COUNTS["fp8_gemm"] += 1
    try:
        code, result = run(tmp_path, "--score")
    finally:
        choice_regret.COUNTS["fp8_gemm"] -= 1
    assert code == 3 and not result["meta"]["complete"] and len(result["rows"]) == sum(FEW.values())


def test_masked_problems_of_few_groups_are_counted_apart():
    few, many = (
        _C.Problem("m_grouped_fp8_gemm_masked", 4096, 2048, 2048, num_groups=groups, expected_m=64) for groups in (4, 8)
    )
    assert choice_regret.name_kind(few) == "m_grouped_fp8_gemm_masked, at most 4 groups"
    assert choice_regret.name_kind(many) == many.op
