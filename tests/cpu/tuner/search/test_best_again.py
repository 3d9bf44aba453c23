"""`sweep --best`: the fastest configs of what was measured before are measured again, on this board."""

import json

import pytest

from deep_gemm import _C
from tests.fakes.sweeps import read_all, run_sweep
from tuner import cli, errors
from tuner.learn import recorded_configs
from tuner.learn.entries import CENSORED, CONFIRMED, SEARCHED, Entry
from tuner.learn.recorded_configs import Recorded, choose_best, rank_timed
from tuner.search.candidates import SweepOptions
from tuner.search.problem_run import EFFORTS

DEVICE = _C.Device.known("h200")
MEASURED, OTHER = (_C.Problem("fp8_gemm", m, 2112, 7168) for m in (16, 512))
NEW = _C.Problem("bf16_gemm", 16, 2112, 7168)

pytestmark = pytest.mark.usefixtures("in_process")


@pytest.fixture
def database(tmp_path):
    run_sweep(tmp_path / "t.db", [MEASURED, OTHER], num_trials=60, sampler="random")
    return tmp_path / "t.db"


def sweep(tmp_path, database, problems: list, *words: object) -> int:
    """Run `sweep` over a shape file and return the exit code."""
    shapes = tmp_path / "shapes.json"
    shapes.write_text(json.dumps([problem.as_dict() for problem in problems]))
    arguments = ["--shapes", shapes, "--db", database, "--backend", "simulated", *words]
    return cli.run(["sweep", *map(str, arguments)])


def test_each_problem_gets_its_own_and_all_are_confirmed(tmp_path, database, capsys):
    best = choose_best(database, 9, DEVICE.sku, [MEASURED, OTHER])
    before = {row.block.block_id for row in read_all(database)[0]}
    assert sweep(tmp_path, database, [MEASURED, OTHER], "--best", 9, "--no-sentinels", "--no-rests") == 0
    assert "2 of 2 problems measured now" in capsys.readouterr().out
    again = [row for row in read_all(database)[0] if row.block.block_id not in before]
    for problem in (MEASURED, OTHER):
        confirmed = {row.config for row in again if row.block.problem == problem and row.role == "confirm"}
        assert confirmed >= set(best[problem])
        assert confirmed - set(best[problem]) <= {_C.get_analytic_config(problem, DEVICE)}
    assert best[MEASURED] != best[OTHER] and len(best[OTHER]) == 9 > EFFORTS["quick"].finalists


def test_the_fastest_confirmed_ones_come_first():
    first, second, third, fourth = _C.get_candidates(OTHER, DEVICE)[:4]
    known = {first: (0.1, CONFIRMED), second: (-0.2, SEARCHED), third: (-0.1, CONFIRMED), fourth: (-0.3, CENSORED)}
    entry = Entry(OTHER, first, known, {}, frozenset(), frozenset(), 1.0)
    assert rank_timed(entry, DEVICE) == [third, first, second]


def test_rows_of_other_kernels_workloads_and_regimes_choose_nothing(tmp_path, database, capsys, monkeypatch):
    """A sweep with new kernels takes the place of all that was known of a problem, so that few configs would not do."""
    masked = _C.Problem("m_grouped_fp8_gemm_masked", 64, 512, 1024, num_groups=4, expected_m=16)
    run_sweep(database, [masked], num_trials=20, sampler="random")
    assert list(choose_best(database, 2, DEVICE.sku, [masked], "simulated")) == [masked]
    assert choose_best(database, 2, DEVICE.sku, [masked], "simulated", "skewed") == {}
    assert choose_best(database, 2, DEVICE.sku, [masked, OTHER], "graph-cold") == {}
    with monkeypatch.context() as patch:
        patch.setattr(recorded_configs, "compiler_kind", lambda: "another")
        assert choose_best(database, 2, DEVICE.sku, [OTHER], "simulated") == {}
    monkeypatch.setattr(recorded_configs, "kernel_hash", lambda op: "cd" * 32)
    assert sweep(tmp_path, database, [OTHER], "--best", 2, "--dry-run") == errors.EXIT_USAGE
    assert "with the present kernels" in capsys.readouterr().err


def test_those_measured_longest_ago_come_first(database):
    """So that a sweep that time ended goes on when it is run again."""
    run_sweep(database, [MEASURED], num_trials=60, sampler="random", resume=False)
    assert list(choose_best(database, 2, DEVICE.sku, [MEASURED, OTHER])) == [OTHER, MEASURED]


def test_all_are_confirmed_and_nothing_is_resumed(database):
    narrowed = Recorded(database, 0, 8).narrow(SweepOptions([MEASURED, OTHER], database), DEVICE.sku)
    assert narrowed.must_confirm == narrowed.finalists and not narrowed.resume
    assert {len(configs) for configs in narrowed.finalists.values()} == {8}


def test_the_rows_may_be_another_databases(tmp_path, database):
    words = ["--best", 2, "--portfolio-from", database, "--no-sentinels", "--no-rests"]
    assert sweep(tmp_path, tmp_path / "new.db", [MEASURED], *words) == 0
    best = choose_best(database, 2, DEVICE.sku, [MEASURED])[MEASURED]
    assert {row.config for row in read_all(tmp_path / "new.db")[0]} == {*best, _C.get_analytic_config(MEASURED, DEVICE)}


def test_what_was_never_measured_is_left_out(tmp_path, database, capsys):
    unknown = _C.Problem("fp8_gemm", 333, 2112, 7168)
    assert sweep(tmp_path, database, [NEW, MEASURED, unknown], "--best", 2, "--dry-run", "--json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["problems"] == 1
    assert said.err == f"--best 2: left out, without times on {DEVICE.sku}: 2 of 3 problems\n"
    assert sweep(tmp_path, database, [NEW, unknown], "--best", 2) == errors.EXIT_USAGE
    assert "has times of none of the problems" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--portfolio-size", "4"), ("--configs", "any.json"), ("--space", "wide")])
def test_configs_are_named_once(tmp_path, database, capsys, words):
    assert sweep(tmp_path, database, [MEASURED], "--best", 2, *words) == errors.EXIT_USAGE
    assert "cannot be combined with" in capsys.readouterr().err
