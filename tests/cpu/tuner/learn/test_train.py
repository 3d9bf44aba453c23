"""Training: what the forest learns from, the guards, and a training folder that is whole, private and unchanged, or
refused.
"""

import json
import os
import stat
from dataclasses import replace

import numpy as np
import pytest

from deep_gemm import _C
from tests.fakes import synthetic
from tuner import cli, errors
from tuner.learn import forest, learner, train
from tuner.learn.dataset import LOG_TWO, UNMEASURED
from tuner.learn.record import to_json

SETTINGS = learner.Settings(kind="extra-trees", trees=6, sizes=(8,), boosted=5)


@pytest.fixture(scope="module")
def data():
    return synthetic.make_small_dataset()


@pytest.fixture(scope="module")
def learned(data):
    return train.train(data, SETTINGS)


@pytest.fixture
def folder(tmp_path, data, learned):
    train.save(tmp_path / "training", data, learned, SETTINGS, str(synthetic.make_small_database()))
    return tmp_path / "training"


def all_rows(data):
    return np.arange(len(data.problems))


@pytest.mark.parametrize("kind", learner.KINDS)
def test_scores_are_those_of_scikit_learn_bit_by_bit(data, learned, kind):
    features = learner.make_features(data, all_rows(data), learned.portfolio.columns)
    targets = learner.make_targets(data, all_rows(data), learned.portfolio.columns)
    ensemble = learner.fit_ensemble(features, targets, replace(SETTINGS, kind=kind))
    scores, spreads = learner.predict(forest.flatten(ensemble), features)
    assert (scores == ensemble.predict(features.astype(np.float32))).all()
    assert spreads.shape == scores.shape and (spreads >= 0).all()


def test_features_are_those_of_the_run_time(data, learned):
    portfolio = [data.configs[column] for column in learned.portfolio.columns]
    features = learner.make_features(data, np.array([3]), learned.portfolio.columns)
    assert features[0].tolist() == _C.get_features(data.problems[3], data.device, portfolio)
    assert features.shape[1] == len(_C.feature_names(data.problems[3].op, portfolio))


def test_targets_are_clipped_and_pointless_configs_count_as_twice_as_slow(data, learned):
    columns = learned.portfolio.columns
    targets = learner.make_targets(data, all_rows(data), columns)
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
    assert learner.make_targets(replace(data, state=state), all_rows(data), columns)[row, place] == pytest.approx(
        np.clip(expected, -LOG_TWO, LOG_TWO)
    )


def test_learning_beats_the_heuristic_on_its_own_problems(data, learned):
    choices = learner.choose(data, all_rows(data), learned)
    assert data.log_ratio[all_rows(data), choices.column].mean() < -0.001
    assert choices.answered.mean() >= 0.7


def test_guards_silence_a_model_that_knows_nothing(data, learned):
    columns = learned.portfolio.columns
    features = learner.make_features(data, all_rows(data), columns)
    noise = np.random.default_rng(0).normal(0, 0.02, (len(features), len(columns)))
    assert learner.fit_guards(data, all_rows(data), columns, features, noise, SETTINGS)[0].margin == max(
        learner.MARGINS
    )


def test_the_choice_rule():
    columns, heuristic = np.array([10, 11]), np.array([5, 5, 5, 5])
    scores = np.array([[-0.10, -0.05], [-0.01, 0.0], [-0.10, -0.2], [0.0, -0.3]])
    spreads = np.array([[0.1, 0.0], [0.0, 0.0], [0.0, 0.9], [0.0, 0.0]])
    choices = learner.apply_guards(
        columns, heuristic, scores, spreads, np.array([True, True, True, False]), learner.Guards(0.02, 0.5, 0.0)
    )
    assert choices.column.tolist() == [10, 5, 5, 5] and choices.alone.tolist() == [10, 5, 11, 11]
    assert choices.answered.tolist() == [True, True, False, False]


def test_the_hull_is_widened_by_its_extent():
    low, high = learner.widen(np.array([[0.0, 5.0], [10.0, 5.0]]), 0.1)
    assert low.tolist() == [-1.0, 5.0] and high.tolist() == [11.0, 5.0]
    assert learner.is_inside(np.array([[11.0, 5.0 + 4e-6], [11.1, 5.0], [0.0, 5.1]]), low, high).tolist() == [
        True,
        False,
        False,
    ]


def test_training_again_gives_the_same_folder(tmp_path, data, folder):
    train.save(tmp_path / "again", data, train.train(data, SETTINGS), SETTINGS, str(synthetic.make_small_database()))
    assert (tmp_path / "again" / train.TRAINING).read_bytes() == (folder / train.TRAINING).read_bytes()


def test_a_folder_reads_back(data, learned, folder):
    found = train.load(folder)
    train.check_unchanged(found, data)
    kept = found.record
    assert kept.settings == SETTINGS and kept.guards == learned.guards and kept.identity == data.identity
    assert kept.portfolio == [data.configs[column] for column in learned.portfolio.columns]
    assert (kept.feature_min == learned.feature_min).all()
    assert to_json(kept.to_json()) == (folder / train.TRAINING).read_bytes()
    features = learner.make_features(data, all_rows(data), learned.portfolio.columns)
    assert (learner.predict(found.forest, features)[0] == learner.predict(learned.forest, features)[0]).all()


def test_a_new_training_removes_the_old_evaluation(data, learned, folder):
    (folder / train.EVALUATION).write_text("{}")
    train.save(folder, data, learned, SETTINGS, "tuning.db")
    assert not (folder / train.EVALUATION).exists()


@pytest.mark.parametrize("damage", ["forest", "json", "format", "missing", "large"])
def test_a_damaged_folder_is_refused(folder, damage):
    record = json.loads((folder / train.TRAINING).read_text())
    if damage == "forest":
        (folder / train.FOREST).write_bytes(b"not what was trained")
    elif damage == "large":
        os.truncate(folder / train.TRAINING, 1 << 40)
    elif damage == "json":
        (folder / train.TRAINING).write_text("{")
    elif damage == "format":
        (folder / train.TRAINING).write_text(json.dumps(record | {"format": 1}))
    else:
        (folder / train.FOREST).unlink()
    with pytest.raises(errors.IntegrityError, match="train again"):
        train.load(folder)


def test_no_folder_is_a_usage_error(tmp_path):
    with pytest.raises(errors.UsageError, match="tuner train"):
        train.load(tmp_path)


def test_changed_data_or_heuristic_is_refused(data, folder):
    found = train.load(folder)
    with pytest.raises(errors.IntegrityError, match="database changed"):
        train.check_unchanged(found, replace(data, log_ratio=data.log_ratio + 1e-9))
    with pytest.raises(errors.IntegrityError, match="heuristic_version"):
        train.check_unchanged(replace(found, record=replace(found.record, heuristic_version="other")), data)


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
                "--kind",
                "extra-trees",
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
    assert len(train.load(tmp_path / "t" / "fp8_gemm").forest.tree_start) == 5


def test_the_command_prints_a_portfolio_that_a_sweep_reads(tmp_path, capsys):
    from tuner.commands.sweep import load_configs

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


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--kind", "magic"], 2),
        (["--trees", "0"], 2),
        (["--device", "h100"], 3),
        (["--kernel-hash", "00"], 2),
        (["--op", "fp8_gemm", "--kernel-hash", "00"], 3),
        (["--op", "bf16_gemm"], 3),
        (["--op", "gemm"], 2),
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
