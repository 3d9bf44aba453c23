"""`export --exact-only`: what another board measured changes the choices of measured problems, and nothing else."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from deep_gemm import _C
from deep_gemm.artifact import read_artifact
from deep_gemm.selector import Selector
from tests.cpu.tuner.ship.test_export import GOOD, KEPT, write_base, write_evaluation
from tests.fakes import synthetic
from tuner import cli, errors
from tuner.learn import learner, train
from tuner.learn.artifact import build_artifact
from tuner.ship import exact_table, export
from tuner.ship.exact import to_rows

SETTINGS = learner.Settings(trees=8, leaves=8, rate=0.3, sizes=(8,))
SKU, OP = synthetic.SKU, "fp8_gemm"
EXACT = {f"{OP}/{name}" for name in ("configs", "exact_key", "exact_config")}


@pytest.fixture
def kept(tmp_path, learned):
    """An exported artefact, with its card."""
    folder = synthetic.save_training(tmp_path / "training" / OP, learned, SETTINGS)
    write_evaluation(folder, GOOD)
    made = export.make_export([train.load_with_data(folder, "")])
    return export.write_export(made, tmp_path / "kept", SKU)[0]


def write_second_board(path, selector: Selector, factor: float):
    """Copy the small database to `path`, and let a second board find the config that is chosen for a problem `factor`
    times as slow; return problem and config.
    """
    shutil.copy(synthetic.make_small_database(), path)
    data = synthetic.make_small_dataset()
    exact = ((problem, selector.choose(problem, data.device)) for problem in data.problems)
    problem, chosen = next((problem, choice.config) for problem, choice in exact if choice.source == "exact")
    again = [
        replace(
            one,
            block=replace(one.block, block_id="again"),
            ratio=one.ratio * (factor if one.config == chosen else 1.0),
        )
        for one in synthetic.make_small_rows()
        if one.block.problem == problem and one.ratio
    ]
    synthetic.write_database(path, again)
    return problem, chosen


def renew(kept, database, out, *words: str) -> int:
    return cli.run(["export", "--exact-only", "--keep", str(kept), "--db", str(database), "--out", str(out), *words])


def test_the_mean_of_both_boards_chooses_and_the_trees_stay(kept, tmp_path, capsys):
    problem, winner = write_second_board(tmp_path / "two.db", Selector(kept.read_bytes()), 1.5)
    assert renew(kept, tmp_path / "two.db", tmp_path / "out") == 0
    before, after = (read_artifact(path.read_bytes()) for path in (kept, tmp_path / "out" / kept.name))
    assert before[1].keys() == after[1].keys()
    changed = {name for name in before[1] if not np.array_equal(before[1][name], after[1][name])}
    assert changed and changed <= EXACT
    for name in before[0].keys() - {"arrays_sha256", "created"}:
        assert before[0][name] == after[0][name], name
    device = synthetic.make_small_dataset().device
    choices = [Selector(path.read_bytes()).choose(problem, device) for path in (kept, tmp_path / "out" / kept.name)]
    assert [choice.source for choice in choices] == ["exact", "exact"]
    assert choices[0].config == winner != choices[1].config
    card, old = ((path.with_suffix(".md")).read_text() for path in (tmp_path / "out" / kept.name, kept))
    lines = [line for line in card.splitlines() if line not in old.splitlines()]
    assert len(lines) == 2 and any("exact entries" in line and "renewed" in line for line in lines)
    assert any(line.startswith(f"{(tmp_path / 'out' / kept.name).stat().st_size} bytes; dated 20") for line in lines)
    assert "exact entries" in capsys.readouterr().out


def test_a_second_renewal_reads_like_the_first(kept, tmp_path):
    database = synthetic.make_small_database()
    assert renew(kept, database, tmp_path / "one", "--op", OP) == 0
    assert renew(tmp_path / "one" / kept.name, database, tmp_path / "two") == 0
    for name in (kept.name, f"{SKU}.md"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_config_that_failed_since_is_in_quarantine(kept, tmp_path):
    data = synthetic.make_small_dataset()
    failed = next(config for config in data.configs if config not in Selector(kept.read_bytes()).configs(OP))
    rows = [
        replace(one, status="incorrect", ratio=None, median_us=None, error="wrong") if one.config == failed else one
        for one in synthetic.make_small_rows()
    ]
    synthetic.write_database(tmp_path / "failed.db", rows)
    assert renew(kept, tmp_path / "failed.db", tmp_path / "out") == 0
    assert Selector((tmp_path / "out" / kept.name).read_bytes()).quarantined(OP) == [failed]


def test_a_config_that_was_timed_since_leaves_quarantine(kept, tmp_path):
    metadata, arrays = read_artifact(kept.read_bytes())
    metadata["ops"][OP]["quarantined"] = [0]
    kept.write_bytes(build_artifact(metadata, arrays))
    assert len(Selector(kept.read_bytes()).quarantined(OP)) == 1
    assert renew(kept, synthetic.make_small_database(), tmp_path / "out") == 0
    assert Selector((tmp_path / "out" / kept.name).read_bytes()).quarantined(OP) == []


def test_what_cannot_be_renewed_is_refused_before_anything_is_written(kept, tmp_path, capsys):
    database = synthetic.make_small_database()
    content, card = kept.read_bytes(), kept.with_suffix(".md")
    metadata, arrays = read_artifact(content)
    kept.write_bytes(build_artifact(metadata | {"stale": "other kernels"}, arrays))
    assert renew(kept, database, tmp_path / "out") == errors.EXIT_USAGE
    assert "marked as stale (other kernels)" in capsys.readouterr().err
    kept.write_bytes(content)
    card.unlink()
    assert renew(kept, database, tmp_path / "out") == errors.EXIT_USAGE
    assert f"has no card ({SKU}.md) beside it" in capsys.readouterr().err
    assert cli.run(["export", "--exact-only", "--keep", str(kept), "--db", str(database)]) == errors.EXIT_USAGE
    assert "--out or --install" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_rows_of_other_kernels_are_refused(kept, tmp_path, capsys):
    rows = [replace(one, block=replace(one.block, kernel_hash="cd" * 32)) for one in synthetic.make_small_rows()]
    synthetic.write_database(tmp_path / "other.db", rows)
    assert renew(kept, tmp_path / "other.db", tmp_path / "out") == errors.EXIT_INCONCLUSIVE
    assert "no rows of its kernels" in capsys.readouterr().err
    assert renew(kept, tmp_path / "other.db", tmp_path / "out", "--op", OP) == errors.EXIT_USAGE
    assert f"--op {OP}: no rows of its kernels" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_rows_of_another_regime_are_refused(kept, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(synthetic, "REGIME", "graph-warm")
    synthetic.write_database(tmp_path / "warm.db", list(synthetic.make_small_rows()))
    assert renew(kept, tmp_path / "warm.db", tmp_path / "out") == errors.EXIT_INCONCLUSIVE
    assert "no rows of its kernels and regime" in capsys.readouterr().err


def test_what_the_rows_do_not_speak_of_stays(kept, tmp_path, capsys, monkeypatch):
    """Entries of other problems, and configs that failed elsewhere, were lost without a word."""
    few = list(dict.fromkeys(one.block.problem for one in synthetic.make_small_rows()))[:3]
    rows = [one for one in synthetic.make_small_rows() if one.block.problem in few]
    metadata, arrays = read_artifact(kept.read_bytes())
    banned = to_rows([_C.Config(64, 48, 3)])
    variant = _C.kernel_identity(few[0]).to_json()
    arrays[f"{OP}/configs"] = np.concatenate([arrays[f"{OP}/configs"], banned])
    last = len(arrays[f"{OP}/configs"]) - 1
    metadata["ops"][OP]["quarantined"] = [[last, variant]]
    kept.write_bytes(build_artifact(metadata, arrays))
    synthetic.write_database(tmp_path / "few.db", rows)
    assert renew(kept, tmp_path / "few.db", tmp_path / "out") == 0
    before, after = (Selector(path.read_bytes()) for path in (kept, tmp_path / "out" / kept.name))
    data = synthetic.make_small_dataset()
    for problem in data.problems:
        one, other = (selector.choose(problem, data.device) for selector in (before, after))
        assert one.source == other.source and (problem in few or one.config == other.config)
    assert after.metadata["ops"][OP]["quarantined"][0][1:] == [variant]
    assert np.array_equal(read_artifact((tmp_path / "out" / kept.name).read_bytes())[1][f"{OP}/configs"][-1:], banned)
    capsys.readouterr()
    monkeypatch.setattr(exact_table, "MAX_CONFIGS", 4)
    assert renew(kept, tmp_path / "few.db", tmp_path / "less") == 0
    assert "exact entries without rows had no room" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--force"], "--force: has no effect beside --exact-only"),
        (["--device", "h200"], "--device: has no effect beside --exact-only"),
    ],
)
def test_options_without_effect_are_refused(kept, tmp_path, capsys, words, said):
    assert renew(kept, synthetic.make_small_database(), tmp_path / "out", *words) == errors.EXIT_USAGE
    assert said in capsys.readouterr().err
    assert cli.run(["export", "--exact-only", "--out", str(tmp_path / "out")]) == errors.EXIT_USAGE
    assert "needs --keep" in capsys.readouterr().err


def test_simulated_times_are_not_installed(kept, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DG_MODEL_DIR", str(tmp_path / "models"))
    monkeypatch.setattr(synthetic, "REGIME", "simulated")
    metadata, arrays = read_artifact(kept.read_bytes())
    metadata["ops"][OP]["regime"] = "simulated"
    kept.write_bytes(build_artifact(metadata, arrays))
    synthetic.write_database(tmp_path / "simulated.db", list(synthetic.make_small_rows()))
    words = ["export", "--exact-only", "--install", "--keep", str(kept), "--db", str(tmp_path / "simulated.db")]
    assert cli.run(words) == errors.EXIT_USAGE
    assert "learned from simulated times" in capsys.readouterr().err and not (tmp_path / "models").exists()


def test_simulated_times_of_a_kept_op_kind_are_not_installed(kept, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DG_MODEL_DIR", str(tmp_path / "models"))
    other = write_base(tmp_path / "other", kept.read_bytes(), KEPT, regime="simulated")
    (metadata, arrays), (more, more_arrays) = (read_artifact(path.read_bytes()) for path in (kept, other))
    joined = metadata | {"ops": metadata["ops"] | more["ops"]}
    kept.write_bytes(build_artifact(joined, arrays | more_arrays))
    words = ["export", "--exact-only", "--keep", str(kept), "--db", str(synthetic.make_small_database())]
    assert cli.run([*words, "--out", str(tmp_path / "out")]) == 0
    assert cli.run([*words, "--install"]) == errors.EXIT_USAGE
    assert f"{KEPT} learned from simulated times" in capsys.readouterr().err and not (tmp_path / "models").exists()
