"""Nested validation: no fold sees what it is scored on, statistics are right, the command writes what others read."""

import json
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from deep_gemm import _C
from tests.fakes import synthetic
from tuner import cli, errors
from tuner.commands import evaluate as command
from tuner.commands.tables import format_table
from tuner.learn import evaluate, learner, train, validate
from tuner.learn.dataset import build_dataset
from tuner.learn.evaluation import Evaluation
from tuner.learn.families import find_families, find_near, hold_out
from tuner.ship import gates

SETTINGS = learner.Settings(trees=8, sizes=(16,))


@pytest.fixture(scope="module")
def results(data):
    return validate.validate(data, SETTINGS, jobs=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, learned):
    path = tmp_path_factory.mktemp("evaluate") / "training" / "fp8_gemm"
    return synthetic.save_training(path, learned, SETTINGS)


def test_families_are_left_out_whole_and_once(data):
    folds = list(validate.family_folds(data))
    assert (np.sum([fold.held_out for fold in folds], axis=0) == 1).all() and len(folds) == len(
        set(data.families.tolist())
    )
    for fold in folds:
        assert not set(data.families[fold.held_out]) & set(data.families[~fold.held_out])


def test_nothing_is_trained_on_a_weight_near_a_left_out_family(data):
    """Two families of a chain are near each other: the fold of one learns from neither."""
    shapes = [(1000, 1000), (1200, 1000), (1440, 1000), (1728, 1000), (4000, 4000), (9000, 1000)]
    problems = [_C.Problem("fp8_gemm", m, n, k) for n, k in shapes for m in (64, 128)]
    data = replace(data, problems=problems, families=find_families(problems))
    (fold,) = [one for one in validate.family_folds(data) if one.held_out[0]]
    near = find_near(problems, fold.held_out)
    assert fold.held_out.sum() < near.sum() < len(problems), "a neighbour of another family"
    assert (validate.find_training(data, fold) == ~near).all()
    # the one rule of inner and outer folds
    assert (validate.find_training(data, fold) == hold_out(problems, fold.held_out).kept).all()
    other = replace(fold, split="model")
    assert (validate.find_training(data, other) == ~fold.held_out).all()


def test_models_are_left_out_with_all_their_shapes(data):
    folds = list(validate.model_folds(data))
    assert len(folds) >= 2
    for fold in folds:
        left = {
            (problem.n, problem.k) for problem, held_out in zip(data.problems, fold.held_out, strict=True) if held_out
        }
        kept = {
            (problem.n, problem.k)
            for problem, held_out in zip(data.problems, fold.held_out, strict=True)
            if not held_out
        }
        assert left and kept and not left & kept


def test_ranges_are_left_out_whole_and_once(data):
    for split, size in (("m_range", lambda problem: problem.m), ("weight_size", lambda problem: problem.n * problem.k)):
        folds = [fold for fold in validate.range_folds(data) if fold.split == split]
        assert len(folds) == validate.RANGES and (np.sum([fold.held_out for fold in folds], axis=0) == 1).all()
        values = np.array([size(problem) for problem in data.problems])
        ends = sorted((values[fold.held_out].min(), values[fold.held_out].max()) for fold in folds)
        assert all(high < low for (_, high), (low, _) in pairwise(ends))


def test_statistics_over_seeds_count_each_problem_once(data):
    rows = np.flatnonzero(data.full_space)
    once, thrice = (evaluate.summarize(data, np.tile(rows, n), np.tile(data.oracle[rows], n)) for n in (1, 3))
    assert once == replace(thrice, mean=once.mean, mean_interval=once.mean_interval) and once.wins > 0
    assert once.mean == pytest.approx(thrice.mean) and once.mean_interval == pytest.approx(thrice.mean_interval)


def test_every_seed_runs_every_fold(data, monkeypatch):
    folds = list(validate.family_folds(data))[:2]
    monkeypatch.setattr(validate, "make_folds", lambda data: folds)
    found = validate.validate(data, SETTINGS, jobs=1, num_seeds=2)
    assert [(result.seed, result.fold.label) for result in found] == [
        (seed, fold.label) for seed in (0, 1) for fold in folds
    ]
    held_out = folds[0].held_out | folds[1].held_out
    table = evaluate.evaluate(data, found)["family"]
    assert {each.problems for each in table.values()} == {int((held_out & data.full_space).sum())}


def test_later_seeds_skip_folds_without_scores(data, monkeypatch):
    folds = list(validate.family_folds(data))[:2]
    alone = replace(data, full_space=data.full_space & folds[1].held_out)
    monkeypatch.setattr(validate, "make_folds", lambda data: folds)
    found = validate.validate(alone, SETTINGS, jobs=1, num_seeds=2)
    assert [(result.seed, result.fold.label) for result in found] == [
        (0, folds[0].label), (0, folds[1].label), (1, folds[1].label),
    ]  # fmt: skip


def test_settings_are_chosen_by_what_is_not_held_out(data, monkeypatch):
    fold, asked = next(iter(validate.family_folds(data))), []

    def find_costs(data, rows, settings, prior=None) -> dict:
        asked.append((settings.trees, settings.leaves, set(rows.problem.tolist())))
        cost = 1.0 if settings.leaves == 15 else settings.trees / 1000
        return dict.fromkeys(learner.MARGINS, np.full(len(np.unique(rows.problem)), cost))

    monkeypatch.setattr(learner, "find_costs", find_costs)
    rows = learner.make_config_rows(data)
    train = np.flatnonzero(~fold.held_out)
    chosen = learner.choose_settings(data, train, SETTINGS, rows)
    assert (chosen.trees, chosen.leaves, chosen.min_leaf) == (128, 8, 0) and chosen.sizes == SETTINGS.sizes
    assert len(asked) == len(learner.CANDIDATES) and all(problems <= set(train.tolist()) for *_, problems in asked)
    asked.clear()
    results = validate.run_seeds(data, fold, SETTINGS, 2, rows, is_nested=True)
    assert [result.seed for result in results] == [SETTINGS.seed, SETTINGS.seed + 1]
    choosing, guards = asked[: len(learner.CANDIDATES)], asked[len(learner.CANDIDATES) :]
    assert all(problems <= set(train.tolist()) for *_, problems in choosing)
    assert [one[:2] for one in guards] == [(128, 8)] * 2, "one choice for all seeds; the guards are of the chosen trees"


@pytest.mark.parametrize(("cost", "is_chosen"), [(0.9, True), (0.999, False)])
def test_settings_that_win_by_chance_are_not_chosen(data, monkeypatch, cost, is_chosen):
    rows = learner.make_config_rows(data)
    problems = np.arange(len(data.problems))
    noise = np.random.default_rng(0).normal(0.0, 0.1, len(problems))
    noise -= noise.mean()  # so that the other settings cost least in both cases

    def find_costs(data, rows, settings, prior=None) -> dict:
        return dict.fromkeys(learner.MARGINS, cost + noise if settings.leaves == 8 else np.ones(len(problems)))

    monkeypatch.setattr(learner, "find_costs", find_costs)
    assert (learner.choose_settings(data, problems, SETTINGS, rows).leaves == 8) == is_chosen


def test_a_sum_is_clearly_lower_by_more_than_its_standard_error_over_families():
    ones = np.ones(8)
    apart, together = np.arange(8), np.repeat([0, 1], 4)
    assert learner.is_clearly_lower(-ones, apart) and learner.is_clearly_lower(-ones, together)
    assert not learner.is_clearly_lower(ones, apart) and not learner.is_clearly_lower(0 * ones, apart)
    one_family = np.where(together == 0, -1.0, 0.9)
    assert not learner.is_clearly_lower(one_family, together), "what one family gains another one loses"
    assert not learner.is_clearly_lower(-ones, 0 * apart), "one family says nothing about others"


def test_masked_problems_of_few_groups_are_scored_apart(data, results, monkeypatch):
    family = [result for result in results if result.fold.split == "family"]
    few = {data.problems[index] for index in np.flatnonzero(data.full_space)[::2]}
    whole = evaluate.evaluate(data, family)["family"]["model"]
    monkeypatch.setattr(evaluate, "has_few_groups", lambda problem: problem in few)
    parts = evaluate.evaluate(data, family)
    counts = [parts[split]["model"].problems for split in ("family", "few_groups")]
    assert counts == [whole.problems - len(few), len(few)]
    logs = [count * np.log1p(parts[split]["model"].mean) for count, split in zip(counts, parts, strict=True)]
    assert sum(logs) / sum(counts) == pytest.approx(np.log1p(whole.mean))


def test_values_of_m_are_left_out_over_all_families(data):
    folds = list(validate.size_folds(data))
    assert (np.sum([fold.held_out for fold in folds], axis=0) == 1).all()
    values = np.array([problem.m for problem in data.problems])
    assert all(not set(values[fold.held_out]) & set(values[~fold.held_out]) for fold in folds)


@pytest.mark.parametrize("index", [0, -1])
def test_nothing_measured_on_left_out_problems_reaches_the_fit(data, index):
    fold = validate.make_folds(data)[index]
    poison = {name: getattr(data, name).copy() for name in ("log_ratio", "search", "oracle", "heuristic_us")}
    poison["log_ratio"][fold.held_out] = np.random.default_rng(0).normal(size=poison["log_ratio"][fold.held_out].shape)
    poison["search"][fold.held_out] = 9.0
    poison["oracle"][fold.held_out] = 0
    poison["heuristic_us"][fold.held_out] = 1e9
    clean, poisoned = (validate.run_fold(table, fold, SETTINGS) for table in (data, replace(data, **poison)))
    assert clean.portfolio == poisoned.portfolio and (clean.answered == poisoned.answered).all()
    for method in ("model", "model_alone", "heuristic", "best_single", "nearest"):
        assert (clean.columns[method] == poisoned.columns[method]).all()


def test_processes_change_nothing(data, results):
    again = validate.run_fold(data, results[0].fold, SETTINGS)
    assert again.portfolio == results[0].portfolio and (again.columns["model"] == results[0].columns["model"]).all()


def test_a_fold_without_data_is_answered_by_the_heuristic(data):
    held_out = np.ones(len(data.problems), bool)
    held_out[:2] = False
    result = validate.run_fold(data, validate.Fold("family", "most", held_out), SETTINGS)
    assert not result.answered.any() and (result.columns["model"] == data.heuristic[held_out]).all()


@pytest.mark.full
def test_the_model_beats_the_heuristic_on_unseen_m_and_families():
    machine = synthetic.Machine(seed=2)
    rows = synthetic.full_rows(machine, synthetic.FEW_SHAPES, (1, 16, 128, 512, 2048))
    data = build_dataset(rows, synthetic.IDENTITY, machine.device)
    tables = evaluate.evaluate(data, validate.validate(data, SETTINGS, jobs=1))
    for split in ("unseen_m", "family"):
        assert tables[split]["model_alone"].mean < tables[split]["heuristic"].mean


def test_tables_count_problems_answers_and_wins(data, results):
    table = evaluate.evaluate(data, results)["family"]
    assert table["portfolio_best"].problems == int(data.full_space.sum()) and 0 <= table["model"].answered <= 1
    assert table["heuristic"].wins == table["heuristic"].losses == 0 and table["heuristic"].removed == 0


def test_statistics_by_hand(data):
    rows = np.flatnonzero(data.full_space)
    found = evaluate.summarize(data, rows, data.heuristic[rows])
    regret = np.exp(data.log_ratio[rows, data.heuristic[rows]] - data.log_ratio[rows, data.oracle[rows]])
    assert found.mean == pytest.approx(np.exp(np.log(regret).mean()) - 1)
    assert found.max == pytest.approx(regret.max() - 1) and found.within_2_percent == pytest.approx(
        (regret <= 1.02 + 1e-12).mean()
    )
    assert found.mean_interval[0] <= found.mean <= found.mean_interval[1]
    assert found.p95_interval[0] <= found.p95 <= found.max and found.worst_against_heuristic == 0


def test_intervals_resample_families_not_problems():
    logs = np.repeat(np.random.default_rng(0).normal(0.05, 0.03, 10), 50)
    clustered, _ = evaluate.resample(logs, np.repeat(np.arange(10), 50))
    independent, _ = evaluate.resample(logs, np.arange(500))
    assert clustered.std() > 4 * independent.std()


def test_resampled_tails_are_quantiles():
    logs = np.arange(100) / 100.0
    _, tails = evaluate.resample(logs, np.zeros(100, int))
    assert (tails == np.quantile(logs, 0.95, method="inverted_cdf")).all()


def test_the_command_leaves_evaluation_choices_and_plot(folder, data, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    plot = tmp_path / "regret.png"
    assert cli.run(["evaluate", "--training", str(folder.parent), "--jobs", "2", "--plot", str(plot), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["fp8_gemm"]
    document = json.loads((folder / train.EVALUATION).read_text())
    assert Evaluation.from_json(document).to_json() == document == {name: report[name] for name in document}
    assert set(report["splits"]) == set(validate.SPLITS) - {"few_groups", "rounds"} and len(report["gates"]) == 3
    assert plot.read_bytes().startswith(b"\x89PNG")
    choices = json.loads((folder / train.OUT_OF_FOLD).read_text())["rows"]
    assert {row["problem"] for row in choices} == {problem.key for problem in data.problems}
    assert {row["source"] for row in choices} <= {"learned", "analytic"}
    unconfirmed = json.loads((folder / train.UNCONFIRMED).read_text())
    assert report["unconfirmed"]["problems"] == len(unconfirmed["problems"])


def test_out_of_fold_choices_are_those_of_the_family_folds(data, results):
    chosen = {row["problem"]: row for row in validate.out_of_fold(data, results)}
    for result in results:
        if result.fold.split == "family":
            for row, column, answered in zip(result.rows, result.columns["model"], result.answered, strict=True):
                found = chosen[data.problems[row].key]
                assert found["config"] == data.configs[column].as_dict() and found["source"] == (
                    "learned" if answered else "analytic"
                )


def test_the_table_is_printed(folder, capsys, monkeypatch):
    monkeypatch.setattr(validate, "make_folds", lambda data: list(validate.family_folds(data))[:3])
    assert cli.run(["evaluate", "--training", str(folder.parent), "--jobs", "1"]) == 0
    text = capsys.readouterr().out
    assert "Leave one (n, k) family out" in text and "model with guards" in text and "mean regret" in text
    assert "below 0, the choice was faster" in text  # what a negative regret means
    assert max(map(len, [line for line in text.splitlines() if not line.startswith(("written", "fp8_gemm."))])) <= 100


def test_names_stay_whole_beside_the_widest_figures():
    statistics = SimpleNamespace(
        mean=0.299,
        mean_interval=[0.2202, 0.4044],
        p95=1.908,
        max=1.308,
        within_2_percent=1.0,
        wins=899,
        losses=899,
        worst_against_heuristic=1.251,
    )
    rows = [command.describe_method(name, statistics) for name in validate.METHODS.values()]
    text = format_table(command.HEADINGS, rows, indent="  ")
    assert all(f"  {name}  " in text for name in validate.METHODS.values() if name.endswith("hindsight"))
    assert "29.90% (22.02..40.44)" in text and max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    "name, fault",
    [
        ("none/regret.png", "cannot be written"),
        ("", "is a folder"),
        ("file/regret.png", "cannot be written"),
        ("t.db", "is a database, which would be lost"),
    ],
)
def test_a_plot_that_cannot_be_written_is_refused_before_the_work(folder, tmp_path, capsys, monkeypatch, name, fault):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    (tmp_path / "t.db").write_bytes(b"SQLite format 3\0 and rows")
    monkeypatch.setattr("tuner.learn.evaluate.run", lambda *arguments: pytest.fail("evaluated"))
    plot = tmp_path / name
    assert cli.run(["evaluate", "--training", str(folder.parent), "--plot", str(plot)]) == 2
    assert f"--plot {plot}: {fault}" in capsys.readouterr().err and not (tmp_path / "none").exists()
    assert (tmp_path / "t.db").read_bytes().endswith(b"rows")


def test_no_processes_cannot_evaluate(folder, capsys):
    assert cli.run(["evaluate", "--training", str(folder.parent), "--jobs", "0"]) == 2
    assert "--jobs 0: must be -1" in capsys.readouterr().err


def test_without_a_training_folder(tmp_path, capsys):
    assert cli.run(["evaluate", "--training", str(tmp_path / "none")]) == 2
    assert "tuner train" in capsys.readouterr().err


def test_gates():
    rows = np.arange(2)
    data = synthetic.make_small_dataset()
    model = replace(evaluate.summarize(data, rows, data.heuristic[rows]), mean=0.03, p95=0.0801, answered=0.7)
    verdicts = gates.check_gates({"family": {"model": model}})
    assert [verdict.met for verdict in verdicts] == [True, False, True] and not gates.is_passed(verdicts)
    assert "p95 regret 8.0% (missed: <= 8%)" in gates.format_verdict(verdicts[1])
    assert not any(verdict.met for verdict in gates.check_gates({}))


@pytest.mark.parametrize("command", ["evaluate", "export"])
@pytest.mark.parametrize(
    ("device", "fault"), [("h100", "was trained for nvidia-h200-sm132"), ("h900", "not a known GPU")]
)
def test_a_folder_of_another_gpu_model_is_refused(folder, capsys, command, device, fault):
    """--device was ignored beside --training."""
    assert cli.run([command, "--training", str(folder.parent), "--device", device]) == errors.EXIT_USAGE
    assert f"--device {device}: " in (shown := capsys.readouterr().err) and fault in shown
    assert train.find_folders(folder.parent, device="h200") == [folder]
