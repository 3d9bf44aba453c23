"""Commands that work on every op kind: what has too few rows is left out and named, the rest is done."""

import json

import pytest

from deep_gemm import _C
from deep_gemm.selector import Selector
from tests.fakes import synthetic
from tuner import cli, errors
from tuner.learn.each_op import try_each
from tuner.problems.regimes import name_rested

DENSE = tuple(_C.Problem("fp8_gemm", m, 2112, 7168) for m in (64, 512))
LONE = _C.Problem("bf16_gemm", 64, 2112, 7168)
FEW = "bf16_gemm: 1 of 1 measured problems can be used: at least 2 are needed; measure at least 1 more with"


def write(path, *problems, share: int = 1):
    """Write a database in which some problems were measured, with every so many-th config of their space."""
    machine = synthetic.Machine()
    rows = [
        row
        for problem in problems
        for row in machine.measure(problem, _C.get_candidates(problem, machine.device)[::share])
    ]
    synthetic.write_database(path, rows)
    return str(path)


@pytest.fixture
def database(tmp_path):
    """A database with enough of one op kind, and one problem of another."""
    return write(tmp_path / "a.db", *DENSE, LONE)


def train(database: str, folder, *more: str) -> int:
    """Train a small selector; return the exit code."""
    return cli.run(["train", "--db", database, "--out", str(folder), "--trees", "4", "--portfolio-size", "4", *more])


def test_too_few_rows_of_one_op_kind_leave_it_alone_out(database, tmp_path, capsys):
    assert train(database, tmp_path / "t", "--json") == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert list(found["ops"]) == ["fp8_gemm"] and list(found["left_out"]) == ["bf16_gemm"]
    assert found["left_out"]["bf16_gemm"].startswith(FEW)
    assert shown.err == f"tuner: left out {found['left_out']['bf16_gemm']}\n"
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["fp8_gemm"]


def test_an_op_kind_that_is_named_is_an_error(database, tmp_path, capsys):
    assert train(database, tmp_path / "t", "--op", LONE.op) == errors.EXIT_INCONCLUSIVE
    assert capsys.readouterr().err.startswith(f"tuner: {FEW}") and not (tmp_path / "t").exists()


def test_where_no_op_kind_has_enough_all_are_named(tmp_path, capsys):
    database = write(tmp_path / "a.db", DENSE[0], LONE)
    assert train(database, tmp_path / "t") == errors.EXIT_INCONCLUSIVE
    shown = capsys.readouterr().err
    assert FEW in shown and FEW.replace("bf16", "fp8") in shown and not (tmp_path / "t").exists()


def test_an_op_kind_without_a_whole_space_is_left_out(tmp_path, capsys):
    path = tmp_path / "a.db"
    write(path, *DENSE)
    write(path, *(_C.Problem(LONE.op, m, 4096, 512) for m in (64, 512)), share=4)
    assert cli.run(["train", "--db", str(path), "--out", str(tmp_path / "t"), "--choose"]) == 0
    shown = capsys.readouterr().err
    assert "left out bf16_gemm: none of 2 problems was measured over its whole space" in shown and "at least 1" in shown


def test_what_no_row_of_an_op_kind_has_leaves_it_out(tmp_path, capsys, monkeypatch):
    path = tmp_path / "a.db"
    write(path, *DENSE)
    monkeypatch.setattr(synthetic, "REGIME", "graph-warm")
    write(path, *(_C.Problem(LONE.op, m, 2112, 7168) for m in (64, 512)))
    assert train(str(path), tmp_path / "t", "--regime", "graph-warm") == 0
    shown = capsys.readouterr()
    assert (
        "left out fp8_gemm: --regime graph-warm: no rows of fp8_gemm" in shown.err and "bf16_gemm: 2 prob" in shown.out
    )
    assert train(str(path), tmp_path / "t", "--regime", name_rested("graph-warm")) == errors.EXIT_USAGE


def test_an_earlier_training_of_what_is_left_out_is_named(database, tmp_path, capsys):
    earlier = write(tmp_path / "b.db", *DENSE, LONE, _C.Problem(LONE.op, 512, 2112, 7168))
    assert train(earlier, tmp_path / "t") == 0 and not capsys.readouterr().err
    assert train(database, tmp_path / "t") == 0
    assert f"remove {tmp_path / 't' / LONE.op} to have none" in capsys.readouterr().err


def test_the_heuristic_chooses_for_what_was_left_out(database, tmp_path, capsys):
    folder = str(tmp_path / "t")
    assert train(database, folder) == 0
    assert cli.run(["evaluate", "--training", folder, "--jobs", "1"]) == 0
    assert cli.run(["export", "--training", folder, "--force"]) == 0
    device = _C.Device.known(synthetic.SKU)
    selector = Selector((tmp_path / "t" / f"{synthetic.SKU}.dgsel").read_bytes())
    assert list(selector.metadata["ops"]) == ["fp8_gemm"]
    choice = selector.choose(LONE, device, "auto")
    assert (choice.source, choice.config) == ("analytic", _C.get_analytic_config(LONE, device))
    capsys.readouterr()
    for command in ("evaluate", "export"):
        assert cli.run([command, "--training", folder, "--op", LONE.op]) == errors.EXIT_USAGE
        assert f"no {LONE.op}/training.json there" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["train", "--portfolio-only", "--json"], ["db", "audit", "--json"], ["simulate"]])
def test_other_commands_leave_it_out_as_well(database, capsys, words):
    more = ["--samplers", "analytic", "--seeds", "1", "--json"] if words == ["simulate"] else []
    assert cli.run([*words, *more, "--db", database]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith(f"tuner: left out {FEW}") and shown.err.count("\n") == 1
    assert "fp8_gemm" in json.loads(shown.out).get("ops", json.loads(shown.out))


def test_a_damaged_database_is_never_left_out():
    def damaged(op: str) -> None:
        raise errors.IntegrityError(op)

    with pytest.raises(errors.IntegrityError, match="fp8_gemm"):
        try_each(["fp8_gemm", "bf16_gemm"], damaged)
