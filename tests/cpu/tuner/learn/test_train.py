"""Training: what the trees learn from, the guards, and a training folder that is whole, private and unchanged, or
refused.
"""

import json
import os
import stat
from dataclasses import replace
from importlib import metadata

import numpy as np
import pytest

import deep_gemm
from deep_gemm import _C
from tests.fakes import synthetic
from tests.fakes.weights import are_near, make_chain
from tuner import cli, errors
from tuner.commands.train import print_record
from tuner.learn import baselines, learner, residual, train
from tuner.learn.dataset import LOG_TWO, UNMEASURED
from tuner.learn.forest import write_forest
from tuner.learn.record import to_json
from tuner.search.recording import describe_environment

SETTINGS = learner.Settings(trees=24, leaves=8, rate=0.3, sizes=(8,))


@pytest.fixture
def folder(tmp_path, learned):
    return synthetic.save_training(tmp_path / "training", learned, SETTINGS)


def all_rows(data):
    return np.arange(len(data.problems))


def test_targets_are_clipped_and_pointless_configs_count_as_twice_as_slow(data, learned):
    columns = learned.portfolio.columns
    targets = baselines.make_targets(data, all_rows(data), columns)
    assert np.abs(targets).max() <= LOG_TWO
    assert (targets[~data.candidate[:, columns]] == LOG_TWO).all()


def test_a_gap_takes_the_analytic_estimate(data, learned):
    columns = learned.portfolio.columns
    row, place = np.argwhere(data.candidate[:, columns])[0]
    state = data.state.copy()
    state[row, columns[place]] = UNMEASURED
    problem, config, pick = data.problems[row], data.configs[columns[place]], data.configs[data.heuristic[row]]
    expected = np.log(
        _C.estimate_time_us(problem, config, data.device) / _C.estimate_time_us(problem, pick, data.device)
    )
    assert baselines.make_targets(replace(data, state=state), all_rows(data), columns)[row, place] == pytest.approx(
        np.clip(expected, -LOG_TWO, LOG_TWO)
    )


def test_learning_beats_the_heuristic_on_its_own_problems(data, learned):
    full = np.flatnonzero(data.full_space)  # elsewhere most of the shortlist has no time
    choices = learner.choose(data, full, learned, residual.make_config_rows(data))
    assert data.log_ratio[full, choices.column].mean() < -0.005
    assert choices.answered.all()


def test_guards_silence_a_model_that_knows_nothing(data, monkeypatch):
    """Noise that is unrelated to the times: the largest margin loses least."""
    noise = np.random.default_rng(0)
    monkeypatch.setattr(
        learner, "predict_left_out", lambda data, rows, wanted, *more: noise.normal(0, 0.1, len(wanted.problem))
    )
    assert learner.fit_guards(data, residual.make_config_rows(data), SETTINGS).margin == max(learner.MARGINS)


def test_guards_take_the_largest_margin_of_those_that_cost_the_least(data, monkeypatch):
    """A model that knows every time: gains below the smallest margin are all that a margin costs."""
    monkeypatch.setattr(
        learner, "predict_left_out", lambda data, rows, wanted, *more: data.log_ratio[wanted.problem, wanted.column]
    )
    monkeypatch.setattr(learner, "MARGINS", (0.05, 0.003, 0.0025))
    rows = residual.make_config_rows(data)
    margin = learner.fit_guards(data, rows, SETTINGS).margin
    own = rows.where((rows.place != residual.UNRANKED) & (data.state[rows.problem, rows.column] != UNMEASURED))
    columns, scores = learner.lay_out(data, own, data.log_ratio[own.problem, own.column])
    costs = {
        each: data.log_ratio[all_rows(data), learner.apply_guards(columns, scores, each).column].mean()
        for each in learner.MARGINS
    }
    equal = [each for each in learner.MARGINS if costs[each] <= min(costs.values()) + learner.MARGIN_TOLERANCE]
    assert margin == max(equal) == 0.003 and costs[0.05] > costs[0.0025] + learner.MARGIN_TOLERANCE


def record_fits(monkeypatch, module) -> list:
    """Return a list that grows by the problems that each forest of `module` is fitted to."""
    seen, real = [], module.fit_trees

    def fit(data, rows, *more):
        seen.append(np.unique(rows.problem))
        return real(data, rows, *more)

    monkeypatch.setattr(module, "fit_trees", fit)
    return seen


def test_guards_are_judged_without_weights_near_the_held_out_ones(data, monkeypatch):
    rows, chain = residual.make_config_rows(data), replace(data, **make_chain(data))
    seen = record_fits(monkeypatch, learner)
    predicted = learner.predict_left_out(chain, rows, rows, SETTINGS)
    for index in np.flatnonzero(np.isfinite(predicted)):
        problem = chain.problems[rows.problem[index]]
        assert any(not any(are_near(problem, chain.problems[other]) for other in kept) for kept in seen)
    assert np.isfinite(predicted).any() and len(seen) > 1


def test_the_margin_is_the_largest_where_no_fold_can_learn(data, monkeypatch):
    """One family alone: what was trained on it says nothing of others."""
    rows = residual.make_config_rows(data, np.flatnonzero(data.families == data.families[0]))
    seen = record_fits(monkeypatch, learner)
    assert np.isinf(learner.predict_left_out(data, rows, rows, SETTINGS)).all() and not seen
    assert learner.fit_guards(data, rows, SETTINGS).margin == max(learner.MARGINS)
    prior = residual.make_examples(data, rows)
    assert np.isfinite(learner.predict_left_out(data, rows, rows, SETTINGS, prior)).any() and len(seen) == 1


def test_large_losses_cost_most():
    costs = learner.cost_of(np.array([-0.02, 0.02, 0.15]))
    assert costs == pytest.approx([-0.02, 0.04, 0.3 + 4 * 0.1])


def test_the_choice_rule():
    """The heuristic's pick is first; where it has no finite score the model does not answer."""
    columns = np.array([[5, 10, 11]] * 4)
    scores = np.array([[0.0, -0.10, -0.05], [0.0, -0.01, 0.0], [0.0, np.inf, -0.2], [np.inf] * 3])
    choices = learner.apply_guards(columns, scores, 0.02)
    assert choices.column.tolist() == [10, 5, 11, 5] and choices.alone.tolist() == [10, 10, 11, 5]
    assert choices.answered.tolist() == [True, True, True, False]


def test_the_hull_is_widened_by_its_extent():
    names = _C.config_feature_names()
    rows = np.zeros((2, len(names)), np.float32)
    rows[:, names.index("log2_n")], rows[:, names.index("num_sms")] = (8, 12), 132
    low, high = learner.widen(rows, 0.5)
    for name, value, is_inside in (
        *(("log2_n", 6.0, True), ("log2_n", 5.9, False), ("log2_n", 14.0, True), ("log2_n", 14.1, False)),
        *(("num_sms", 132, True), ("num_sms", 131, False), ("loop", 0, True), ("loop", 1, False)),
        *(("log2_k_alignment", 8, True), ("n_mod_256", 255, True), ("is_1d1d", 1, False)),
    ):
        moved = rows[:1].copy()
        moved[0, names.index("log2_n")], moved[0, names.index(name)] = 10, value
        assert learner.is_inside(moved, low, high).tolist() == [is_inside], (name, value)


def test_training_again_gives_the_same_folder(tmp_path, data, folder):
    synthetic.save_training(tmp_path / "again", train.train(data, SETTINGS), SETTINGS)
    assert (tmp_path / "again" / train.TRAINING).read_bytes() == (folder / train.TRAINING).read_bytes()


def test_a_folder_reads_back(data, learned, folder):
    found = train.load(folder)
    train.check_unchanged(found, data)
    kept = found.record
    assert kept.settings == SETTINGS and kept.guards == learned.guards and kept.identity == data.identity
    assert kept.portfolio == [data.configs[column] for column in learned.portfolio.columns]
    assert (kept.feature_min == learned.feature_min).all()
    assert to_json(kept.to_json()) == (folder / train.TRAINING).read_bytes()
    features = residual.make_config_rows(data).features
    assert (found.forest.predict(features) == learned.forest.predict(features)).all()


def test_a_clone_that_is_not_installed_can_sweep_and_train(tmp_path, data, learned, monkeypatch):
    """It is on the path of imports and has no metadata of a distribution."""
    find = metadata.Distribution.from_name

    def find_others(name):
        if name == "deep_gemm":
            raise metadata.PackageNotFoundError(name)
        return find(name)

    monkeypatch.setattr(metadata.Distribution, "from_name", find_others)
    train.save(tmp_path / "training", data, learned, SETTINGS, "tuning.db")
    assert train.load(tmp_path / "training").record.package_version == deep_gemm.__version__
    assert describe_environment({"environment": {}}, {})["package_version"] == deep_gemm.__version__


def test_a_training_that_cannot_be_written_keeps_the_old_evaluation(data, learned, folder, monkeypatch):
    (folder / train.EVALUATION).write_text("{}")

    def write_file(path, payload, mode=0):
        raise errors.StoreError(f"{path}: No space left on device; nothing was changed")

    monkeypatch.setattr(train, "write_file", write_file)
    with pytest.raises(errors.StoreError, match="No space left"):
        train.save(folder, data, learned, SETTINGS, "tuning.db")
    assert (folder / train.EVALUATION).read_text() == "{}"


def test_a_new_training_removes_the_old_evaluation(data, learned, folder):
    (folder / train.EVALUATION).write_text("{}")
    train.save(folder, data, learned, SETTINGS, "tuning.db")
    assert not (folder / train.EVALUATION).exists()


#: What is done to a training folder, and what the refusal says.
DAMAGE = {
    "forest": "not the one that was trained",
    "another forest": "not the one that was trained",
    "json": "line 1 column 2",
    "format": "format",
    "missing": "No such file",
    "large": "larger than",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_refused(folder, learned, damage):
    record = json.loads((folder / train.TRAINING).read_text())
    if damage == "forest":
        (folder / train.FOREST).write_bytes(b"not what was trained")
    elif damage == "another forest":  # as sound as the right one
        values = learned.forest.leaf_value.copy()
        values[-1] += 0.5
        (folder / train.FOREST).write_bytes(write_forest(replace(learned.forest, leaf_value=values)))
    elif damage == "large":
        os.truncate(folder / train.TRAINING, 1 << 40)
    elif damage == "json":
        (folder / train.TRAINING).write_text("{")
    elif damage == "format":
        (folder / train.TRAINING).write_text(json.dumps(record | {"format": 1}))
    else:
        (folder / train.FOREST).unlink()
    with pytest.raises(errors.IntegrityError, match=f"{DAMAGE[damage]}.*train again"):
        train.load(folder)


def test_no_folder_is_a_usage_error(tmp_path):
    with pytest.raises(errors.UsageError, match="tuner train"):
        train.load(tmp_path)


def test_changed_data_or_heuristic_is_refused(data, folder, monkeypatch):
    found = train.load(folder)
    with pytest.raises(errors.IntegrityError, match="the database or the op kind's estimate changed"):
        train.check_unchanged(found, replace(data, log_ratio=data.log_ratio + 1e-9))
    with pytest.raises(errors.IntegrityError, match="heuristic_version"):
        train.check_unchanged(replace(found, record=replace(found.record, heuristic_version="other")), data)
    train.check_unchanged(found, data)
    monkeypatch.setattr(_C, "estimate_revision", lambda op: 99)
    with pytest.raises(errors.IntegrityError, match="estimate changed"):
        train.check_unchanged(found, data)


@pytest.mark.parametrize("call", ["fsync", "replace", "chmod"])
def test_a_failing_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    train.write_file(path, b"old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(errors.TunerError, match="No space left"):
        train.write_file(path, b"new")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_files_are_private(folder):
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in (train.TRAINING, train.FOREST)} == {0o600}


def test_without_a_full_space_problem_nothing_can_be_chosen(data):
    with pytest.raises(errors.InconclusiveError, match="whole space"):
        train.train(replace(data, full_space=np.zeros(len(data.problems), bool)), SETTINGS)


def test_the_command_writes_a_folder(tmp_path, capsys):
    database = str(synthetic.make_small_database())
    assert (
        cli.run(
            [
                "train",
                "--db",
                database,
                "--out",
                str(tmp_path / "t"),
                "--trees",
                "4",
                "--portfolio-size",
                "8",
                "--json",
            ]
        )
        == 0
    )
    record = json.loads(capsys.readouterr().out)["ops"]["fp8_gemm"]
    assert len(record["portfolio"]) == 8 and record["identity"]["kernel_hash"] == synthetic.KERNEL_HASH
    assert len(train.load(tmp_path / "t" / "fp8_gemm").forest.tree_start) == 6


def test_what_was_left_out_is_said_in_words(capsys):
    record = {
        "data": {
            "problems": 9, "full_space_problems": 8, "families": 3, "configs": 7, "quarantined": [], "older": 2,
            "dropped": {"heuristic's pick not measured": 2, "few configs": 1},
        },
        "guards": {"margin": 0.005, "slack": 0.5}, "portfolio_curve": {}, "settings": {"trees": 4}, "portfolio": [],
    }  # fmt: skip
    print_record("fp8_gemm", record)
    found = capsys.readouterr().out
    assert "left out: 2 problems (heuristic's pick not measured), 1 problems (few configs); quarantined: none" in found
    assert "{" not in found and "\n2 problems are of older kernels" in found


def test_the_command_prints_a_portfolio_that_a_sweep_reads(tmp_path, capsys):
    from tuner.commands.sweep_options import load_configs

    assert (
        cli.run(
            [
                "train",
                "--db",
                str(synthetic.make_small_database()),
                "--portfolio-only",
                "--portfolio-size",
                "8",
                "--json",
            ]
        )
        == 0
    )
    text = capsys.readouterr().out
    (tmp_path / "portfolio.json").write_text(text)
    assert len(load_configs(tmp_path / "portfolio.json")) == len(json.loads(text)["configs"]) >= 8


def test_a_file_is_no_training_folder(tmp_path, capsys):
    (tmp_path / "afile").touch()
    assert cli.run(["train", "--db", str(synthetic.make_small_database()), "--out", str(tmp_path / "afile")]) == 2
    assert capsys.readouterr().err.endswith("afile: is a file; name a folder\n")


@pytest.mark.parametrize(("below", "out"), [("", ""), ("nvidia-h200-sm132", ""), (None, " --out {folder}")])
def test_what_is_not_trained_yet_is_said_with_the_command_that_does(tmp_path, monkeypatch, below, out):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "elsewhere" if below is None else train.default_folder(below)
    with pytest.raises(errors.UsageError) as raised:
        train.find_folders(folder)
    assert str(raised.value).endswith(f"run `python -m tuner train{out.format(folder=folder)}` first")
    with pytest.raises(errors.UsageError, match="--op nope: must be one of fp8_gemm, "):
        train.find_folders(folder, "nope")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--leaves", "1"], 2),
        (["--trees", "0"], 2),
        (["--device", "h100"], 3),
        (["--kernel-hash", "00"], 2),
        (["--op", "fp8_gemm", "--kernel-hash", "00"], 2),
        (["--regime", "foo"], 2),
        (["--compiler", "gcc"], 2),
        (["--op", "bf16_gemm"], 3),
        (["--op", "gemm"], 2),
        (["--portfolio-only", "--out", "folder"], 2),
        (["--portfolio-only", "--choose"], 2),
        (["--portfolio-only", "--trees", "4"], 2),
        (["--choose", "--leaves", "4"], 2),
    ],
)
def test_wrong_arguments(arguments, code, capsys):
    assert cli.run(["train", "--db", str(synthetic.make_small_database()), *arguments]) == code
    assert capsys.readouterr().err.count("\n") == 1


def test_the_training_folder_that_is_meant(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    root = tmp_path / ".deep_gemm" / "training"
    assert train.choose_folder(tmp_path / "mine", "h100") == tmp_path / "mine"
    assert train.choose_folder(None, "h200") == root / "nvidia-h200-sm132"
    with pytest.raises(errors.UsageError, match="h900"):
        train.choose_folder(None, "h900")
    with pytest.raises(errors.UsageError):
        train.find_folders(train.choose_folder(None, ""))
    (root / "nvidia-h20-sm78").mkdir(parents=True)
    assert train.choose_folder(None, "") == root / "nvidia-h20-sm78"
    (root / "nvidia-h200-sm132").mkdir()
    with pytest.raises(errors.UsageError, match="2 GPU models were trained"):
        train.choose_folder(None, "")
