"""Export: the artefact holds what was learned and measured, is reproducible byte by byte, and is checked before it
replaces another.
"""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from deep_gemm import _C
from deep_gemm.artifact import read_artifact
from deep_gemm.jit.hashing import kernel_hash
from deep_gemm.selector import Selector
from tests.fakes import synthetic
from tuner import cli, errors
from tuner.learn import learner, train
from tuner.learn.artifact import build_artifact
from tuner.learn.dataset import CONFIRMED, SEARCHED, UNMEASURED
from tuner.learn.evaluation import Evaluation, Statistics, Unconfirmed
from tuner.ship import exact_table, export
from tuner.ship.exact import describe_estimate

SETTINGS = learner.Settings(trees=24, leaves=8, rate=0.3, sizes=(8,))
GOOD = {"mean": 0.01, "p95": 0.04, "answered": 0.9}
SKU = synthetic.SKU
KEPT = "batched_fp8_gemm"  # an op kind


@pytest.fixture
def folder(tmp_path, learned):
    path = synthetic.save_training(tmp_path / "training" / "fp8_gemm", learned, SETTINGS)
    write_evaluation(path, GOOD)
    return path


def write_evaluation(folder, model):
    """Write an evaluation whose guarded model has these statistics."""
    record = train.load(folder).record
    statistics = Statistics(
        problems=10,
        families=5,
        mean_interval=[0, 0.1],
        p95_interval=[0, 0.1],
        max=0.1,
        within_2_percent=0.8,
        wins=1,
        losses=0,
        worst_against_heuristic=0.0,
        confirmed=1.0,
        removed=0.5,
        **model,
    )
    splits = {"family": {"model": statistics}}
    identity = record.identity, record.fingerprint, record.estimator_sha256
    made = Evaluation(*identity, 5, True, splits, [], [], Unconfirmed(pairs=0, problems=0))
    (folder / train.EVALUATION).write_text(json.dumps(made.to_json()))


@pytest.fixture
def made(folder):
    # The table must be that of the database, whose rows carry the time at which they were written.
    found, data = train.load_with_data(folder, "")
    return found, data, export.make_export([(found, data)])


def test_trees_that_take_too_long_are_refused(folder, monkeypatch):
    found, data = train.load_with_data(folder, "")
    count = found.forest.num_comparisons()
    assert 24 * (SETTINGS.leaves - 1) >= count > 24
    monkeypatch.setattr(export, "MAX_COMPARISONS", count)
    export.check_comparisons(found)
    monkeypatch.setattr(export, "MAX_COMPARISONS", count - 1)
    with pytest.raises(errors.IntegrityError, match=f"{count} comparisons .* at most {count - 1}.*fewer trees"):
        export.make_export([(found, data)])


def test_golden_vectors_hold_every_kind_of_answer(made):
    _, arrays = read_artifact(made[2].content)
    choices = arrays["fp8_gemm/golden_choice"]
    assert (choices == 0).any() and (choices > 0).any()
    assert len(np.unique(arrays["fp8_gemm/golden_features"], axis=0)) > 100


def test_the_same_data_give_the_same_bytes(made, tmp_path):
    found, data, result = made
    again = export.make_export([(found, data)])
    assert again.content == result.content and again.card == result.card


def test_the_artefact_carries_the_datas_kernel_hash(made):
    metadata, _ = read_artifact(made[2].content)
    assert metadata["ops"]["fp8_gemm"]["kernel_hash"] == synthetic.KERNEL_HASH
    assert metadata["sku"] == SKU and metadata["stale"] is None
    assert metadata["features_version"] == _C.FEATURES_VERSION
    assert metadata["heuristic_version"] == _C.heuristic_version(SKU)
    assert metadata["created"] == made[0].record.newest_row[:10]


def test_a_stale_artefact_is_kept_but_never_used(made):
    found, data, _ = made
    selector = Selector(export.make_export([(found, data)], stale="the kernel changed").content)
    assert selector.metadata["stale"] == "the kernel changed"
    assert selector.choose(data.problems[0], data.device).source == "analytic"


def test_every_problem_gets_its_best_portfolio_config(made):
    found, data, result = made
    selector, entries = Selector(result.content), 0
    for row in range(0, len(data.problems), 3):
        timed = {config: data.log_ratio[row, data.configs.index(config)] for config in selector.configs("fp8_gemm")}
        choice = selector.choose(data.problems[row], data.device)
        if choice.source == "exact":
            best = min(data.log_ratio[row, data.configs.index(config)] for config in found.record.portfolio)
            assert timed[choice.config] <= min(best, exact_table.EXACT_GAIN_LOG)
            entries += 1
    assert entries >= 0.9 * len(data.problems) / 3


def exact_case(data, gain, state=CONFIRMED):
    """Return a table where the best of row 0 is outside the portfolio and `gain` (log) faster than the best in it."""
    portfolio = [0, 1]
    log_ratio, states = np.maximum(data.log_ratio, 0.0), data.state.copy()
    log_ratio[:, portfolio], states[:, portfolio] = -0.05, CONFIRMED
    log_ratio[0, 2], states[0, 2] = -0.05 - gain, state
    return replace(data, log_ratio=log_ratio, state=states, search=log_ratio.copy()), [
        data.configs[0],
        data.configs[1],
    ]


@pytest.mark.parametrize(
    ("gain", "state", "leaves"), [(0.015, CONFIRMED, True), (0.008, CONFIRMED, False), (0.5, SEARCHED, False)]
)
def test_only_a_confirmed_gain_above_one_percent_leaves_the_portfolio(data, gain, state, leaves):
    table, portfolio = exact_case(data, gain, state)
    configs, exact = exact_table.choose_exact(table, portfolio)
    assert (len(configs) == 3) == leaves and (configs[exact[data.problems[0]]] == data.configs[2]) == leaves


def test_a_portfolio_config_that_was_no_finalist_is_compared_on_search_rounds(data):
    table, portfolio = exact_case(data, 0.5)
    table.state[0, [0, 1]] = SEARCHED
    table.log_ratio[0, [0, 1]] = -0.545
    assert len(exact_table.choose_exact(table, portfolio)[0]) == 2
    table.log_ratio[0, [0, 1]] = -0.5
    assert len(exact_table.choose_exact(table, portfolio)[0]) == 3


def test_a_config_that_joined_serves_every_problem_whose_best_it_is(data):
    table, portfolio = exact_case(data, 0.015)
    # Gains of the same config, each too little to let it join; the last has no confirmation rounds.
    for row, (gain, state) in enumerate([(0.004, CONFIRMED), (0.001, CONFIRMED), (0.5, SEARCHED)], 1):
        table.log_ratio[row, 2], table.state[row, 2] = -0.05 - gain, state
    configs, exact = exact_table.choose_exact(table, portfolio)
    assert [configs[exact[data.problems[row]]] == data.configs[2] for row in range(4)] == [True, True, True, False]
    table.log_ratio[0, 2] = -0.05
    configs, exact = exact_table.choose_exact(table, portfolio)
    assert configs == portfolio and data.configs[2] not in [configs[index] for index in exact.values()]


def test_no_more_than_so_many_configs(data, monkeypatch):
    monkeypatch.setattr(exact_table, "MAX_CONFIGS", 32)
    columns = list(range(30))
    log_ratio, state = np.zeros_like(data.log_ratio), np.full_like(data.state, CONFIRMED)
    oracle = 30 + np.arange(len(data.problems)) % 20
    log_ratio[np.arange(len(oracle)), oracle] = -0.1
    log_ratio[oracle == 35, 35] = -0.5
    table = replace(data, log_ratio=log_ratio, search=log_ratio, state=state, oracle=oracle)
    configs, _ = exact_table.choose_exact(table, [data.configs[column] for column in columns])
    assert len(configs) == 32 and data.configs[35] in configs


def test_an_entry_far_behind_the_heuristics_pick_is_left_out(data, monkeypatch):
    table, portfolio = exact_case(data, 0.0)
    monkeypatch.setattr(exact_table, "MAX_CONFIGS", len(portfolio))
    table.state[3, table.heuristic[3]] = CONFIRMED
    table.log_ratio[3, [0, 1]] = 0.1
    table.state[4, [0, 1]] = UNMEASURED
    _, exact = exact_table.choose_exact(table, portfolio)
    assert data.problems[3] not in exact and data.problems[4] not in exact and data.problems[5] in exact


def test_simulated_times_are_not_installed(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DG_MODEL_DIR", str(tmp_path / "models"))
    load = train.load_with_data

    def load_as_simulated(*arguments):
        found, data = load(*arguments)
        record = replace(found.record, identity=replace(found.record.identity, regime="simulated"))
        return replace(found, record=record), data

    monkeypatch.setattr(train, "load_with_data", load_as_simulated)
    assert cli.run(["export", "--training", str(folder.parent), "--install", "--force"]) == 2
    message = capsys.readouterr().err
    assert "--install: fp8_gemm learned from simulated times" in message and "give --out" in message
    assert not (tmp_path / "models").exists()


def test_the_command_installs_what_the_library_then_uses(folder, tmp_path, monkeypatch, capsys):
    from deep_gemm import selection

    monkeypatch.setenv("DG_MODEL_DIR", str(tmp_path / "models"))
    assert cli.run(["export", "--training", str(folder.parent), "--install", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (
        report["passed"]
        and os.path.getsize(report["artifact"]) == report["bytes"]
        and report["ops"]["fp8_gemm"]["configs"] <= exact_table.MAX_CONFIGS
    )
    monkeypatch.setattr(selection, "kernel_hash", lambda op: synthetic.KERNEL_HASH)
    selection.forget_selectors()
    sources = {
        selection.explain(_C.Problem("fp8_gemm", m, 2112, 7168), _C.Device.known(SKU)).source for m in (128, 130)
    }
    selection.forget_selectors()
    assert "exact" in sources


def write_base(folder: Path, content: bytes, op: str, **changed) -> Path:
    """Write an artefact of one op kind, with the trees of another one, and its card."""
    metadata, arrays = read_artifact(content)
    arrays = {f"{op}/{name.partition('/')[2]}": array for name, array in arrays.items()}
    if op == KEPT:
        own = _C.get_candidates(_C.Problem(KEPT, 512, 2048, 2048, num_groups=4), _C.Device.known(SKU))
        rows = [list(config.as_dict().values()) for config in own[: len(arrays[f"{op}/configs"])]]
        arrays[f"{op}/configs"] = np.array(rows, np.int32)
    folder.mkdir()
    whole = {name: value for name, value in metadata["ops"]["fp8_gemm"].items() if name != "estimate_revision"}
    of_op = {"kernel_hash": kernel_hash(op), **describe_estimate(op)}
    ops, path = {op: whole | of_op | changed}, folder / f"{SKU}.dgsel"
    path.write_bytes(build_artifact(metadata | {"ops": ops}, arrays))
    path.with_suffix(".md").write_text(f"# Selector\n\n## {op}\n\n### Gates\n\nOnce.\n\n## other\n\nNot kept.\n")
    return path


def test_other_op_kinds_of_an_artefact_are_kept(folder, made, tmp_path, capsys):
    base, out = write_base(tmp_path / "base", made[2].content, KEPT, regime="of the base"), tmp_path / "out"
    arguments = ["export", "--training", str(folder.parent), "--out", str(out), "--keep", str(base), "--json"]
    assert cli.run(arguments) == 0 and json.loads(capsys.readouterr().out)["kept"] == [KEPT]
    (metadata, arrays), (kept, kept_arrays) = (read_artifact(one.read_bytes()) for one in (out / base.name, base))
    assert set(metadata["ops"]) == {"fp8_gemm", KEPT} and metadata["ops"][KEPT] == kept["ops"][KEPT]
    assert all((arrays[name] == array).all() for name, array in kept_arrays.items())
    card = (out / f"{SKU}.md").read_text()
    assert card.endswith(f"## {KEPT}\n\n### Gates\n\nOnce.\n") and "## fp8_gemm" in card
    assert f"As they were in the artefact before it: `{KEPT}`." in card


def test_what_cannot_be_kept_is_refused_before_anything_is_written(folder, made, tmp_path, capsys):
    own, damaged = write_base(tmp_path / "own", made[2].content, "fp8_gemm"), tmp_path / "damaged.dgsel"
    damaged.write_bytes(own.read_bytes()[:-8])
    old = write_base(tmp_path / "old", made[2].content, KEPT, kernel_hash="0" * 64)
    for base, words in ((own, "nothing"), (old, "nothing"), (damaged, "export the"), (tmp_path / "no", "No such")):
        arguments = ["export", "--training", str(folder.parent), "--out", str(tmp_path / "out"), "--keep", str(base)]
        assert cli.run(arguments) == 2
        assert f"--keep {base}: " in (error := capsys.readouterr().err) and words in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("miss", [{"mean": 0.031}, {"p95": 0.09}, {"answered": 0.6}])
def test_a_missed_gate_refuses_unless_forced(folder, tmp_path, capsys, miss):
    write_evaluation(folder, GOOD | miss)
    arguments = ["export", "--training", str(folder.parent), "--out", str(tmp_path / "out")]
    assert cli.run(arguments) == 1
    error = capsys.readouterr().err
    assert "1 missed" in error and error.count(" !") == 1 and max(map(len, error.splitlines()[:-1])) <= 100
    assert "tuner: not exported: 1 of 1 op kinds miss a limit (!)" in error and not (tmp_path / "out").exists()
    assert cli.run([*arguments, "--force"]) == 0
    assert "by force" in (tmp_path / "out" / f"{SKU}.md").read_text()


def test_the_model_card_says_what_it_must(made):
    card = made[2].card
    for heading in ("## fp8_gemm", "### Gates", "### Data", "### Validation", "### What the file holds", "### Limits"):
        assert heading in card
    assert "by force" not in card and synthetic.KERNEL_HASH[:16] in card
    assert re.search(r"\d+ exact entries with \d+ configs", card)


def test_without_an_evaluation_of_this_selector(folder, data, learned):
    found = train.load(folder)
    write_evaluation(folder, GOOD)
    whole = json.loads((folder / train.EVALUATION).read_text())
    others = {
        "another selector": {"estimator_sha256": "of another"},
        "another op kind": {"identity": whole["identity"] | {"op": "bf16_gemm"}},
        "another database": {"fingerprint": "of another"},
    }
    for message, other in others.items():
        (folder / train.EVALUATION).write_text(json.dumps(whole | other))
        with pytest.raises(errors.IntegrityError, match=f"it is of {message}"):
            export.load_evaluation(found)
    (folder / train.EVALUATION).unlink()
    with pytest.raises(errors.UsageError, match="tuner evaluate"):
        export.load_evaluation(found)


def test_a_failing_disk_leaves_the_old_artefact(made, tmp_path, monkeypatch):
    artifact, _ = export.write_export(made[2], tmp_path / "out", SKU)
    artifact.write_bytes(b"old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(errors.TunerError, match="No space left"):
        export.write_export(made[2], tmp_path / "out", SKU)
    assert artifact.read_bytes() == b"old" and sorted(os.listdir(tmp_path / "out")) == [f"{SKU}.dgsel", f"{SKU}.md"]


def test_a_walk_that_differs_is_never_written(made, monkeypatch):
    found, data, _ = made
    original = export.golden_arrays

    def wrong(*arguments):
        arrays = original(*arguments)
        return arrays | {"golden_scores": arrays["golden_scores"] + 1e-12}

    monkeypatch.setattr(export, "golden_arrays", wrong)
    with pytest.raises(errors.IntegrityError, match="golden problems"):
        export.make_export([(found, data)])


def test_an_oracle_of_the_portfolio_is_no_extra_config(data):
    """Its neighbour's lucky search round is better than the oracle's confirmation: the oracle stays the entry, and is
    there once.
    """
    row = int(np.flatnonzero(data.state[np.arange(len(data.problems)), data.oracle] == CONFIRMED)[0])
    oracle = int(data.oracle[row])
    lucky = int(next(column for column in range(len(data.configs)) if column != oracle and data.legal[row, column]))
    log_ratio, search, state = data.log_ratio.copy(), data.search.copy(), data.state.copy()
    log_ratio[row, oracle], search[row, oracle] = -0.08, -0.13
    log_ratio[row, lucky], search[row, lucky], state[row, lucky] = -0.10, -0.10, SEARCHED
    table = replace(data, log_ratio=log_ratio, search=search, state=state)
    portfolio = [data.configs[oracle], data.configs[lucky]]
    configs, exact = exact_table.choose_exact(table, portfolio)
    assert len(set(configs)) == len(configs) and configs[exact[data.problems[row]]] == data.configs[oracle]


def test_a_choice_that_differs_is_never_written(made, monkeypatch):
    """The native choice for every recorded problem is compared with that of the trees that were trained."""
    found, data, _ = made
    monkeypatch.setattr(export, "golden_arrays", lambda training, data: EMPTY_GOLDEN)
    changed = replace(found.forest, leaf_value=found.forest.leaf_value * 3.0)
    original = Selector

    class Wrong(original):
        def __init__(self, content):
            metadata, arrays = read_artifact(content)
            super().__init__(build_artifact(metadata, arrays | {"fp8_gemm/leaf_value": changed.leaf_value}))

    monkeypatch.setattr(exact_table, "Selector", Wrong)
    with pytest.raises(errors.IntegrityError, match="the trees that were trained choose"):
        export.make_export([(found, data)])


def test_configs_that_failed_are_in_quarantine(made, monkeypatch):
    found, data, _ = made
    named = exact_table.choose_exact(data, found.record.portfolio)[0]
    failed = [config for config in data.configs if config not in named][:2]
    failed_and_best = [*failed, found.record.portfolio[0]]
    variants = {_C.kernel_identity(problem) for problem in data.problems}
    built = {found.record.portfolio[0]: variants}
    selector = Selector(export.make_export([(found, replace(data, failed=failed_and_best, built=built))]).content)
    first, *others = selector.metadata["ops"]["fp8_gemm"]["quarantined"]
    assert first == [0, *(sorted(variant.to_json() for variant in variants))] and len(others) == 2
    assert selector.quarantined("fp8_gemm") == failed
    assert selector.configs("fp8_gemm")[-2:] == failed
    assert not {selector.choose(problem, data.device, "model").config for problem in data.problems} & (
        set(failed) - {_C.get_analytic_config(problem, data.device) for problem in data.problems}
    )
    monkeypatch.setattr(exact_table, "MAX_QUARANTINE_BYTES", 20)  # no room for the variants
    selector = Selector(export.make_export([(found, replace(data, failed=failed_and_best, built=built))]).content)
    assert selector.metadata["ops"]["fp8_gemm"]["quarantined"] == others
    many = replace(data, failed=data.configs[: exact_table.MAX_FAILED + 33])
    with pytest.raises(errors.IntegrityError, match="configs failed"):
        export.make_export([(found, many)])


EMPTY_GOLDEN = {
    "golden_features": np.zeros((0, len(_C.config_feature_names())), np.float32),
    "golden_scores": np.zeros(0),
    "golden_start": np.zeros(1, np.int32),
    "golden_choice": np.zeros(0, np.int32),
}
