"""`baseline`: what `compare` and `inspect` use where nothing else is named; `compare` within one database."""

import contextlib
import json
import shutil
from types import SimpleNamespace

import pytest

from deep_gemm import _C
from tests.fakes import databases
from tests.fakes.databases import SKU
from tuner import cli, errors
from tuner.compare import baselines, blocks, sides
from tuner.compare.sides import Named, read_name
from tuner.db import Store
from tuner.db.lock import WriterLock

OLD, NEW = "cd" * 32, "ab" * 32
PROBLEMS = [_C.Problem("fp8_gemm", 64 * number, 2112, 7168) for number in range(1, 8)]


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A database with two sweeps of the same problems, each of another kernel hash."""
    path = tmp_path_factory.mktemp("baseline") / "tuning.db"
    with Store.open(path) as store:
        for kernel_hash in (OLD, NEW):
            context = databases.add_context(store, seed=int(kernel_hash == NEW))
            for problem in PROBLEMS:
                databases.add_block(store, context, problem, kernel_hash=kernel_hash)
    return path


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DG_TUNER_DB", str(tmp_path / "own.db"))
    monkeypatch.setattr(blocks, "MIN_CONFIGS", 2)
    return tmp_path


def compare(capsys, *arguments: str) -> dict:
    """Run `compare --json` and return its report."""
    cli.run(["compare", *arguments, "--json"])
    return json.loads(capsys.readouterr().out)


def test_a_kernel_hash_becomes_the_baseline(database, capsys, own_folder):
    assert cli.run(["baseline", "set", f"{database}@{OLD[:12]}"]) == 0
    assert OLD[:16] in capsys.readouterr().out
    assert baselines.load() == {SKU: {"fp8_gemm": Named(str(database), OLD)}}
    assert (own_folder / "baselines.json").exists()
    assert cli.run(["baseline", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[SKU]["fp8_gemm"]["which"] == OLD
    report = compare(capsys, str(database))
    assert report["a"] == f"{database}@{OLD}" and report["ops"][0]["problems"] == len(PROBLEMS)


def test_without_a_baseline_the_kernels_before_the_newest_are_taken(database, capsys):
    report = compare(capsys, str(database))
    assert report["a"].endswith("@previous") and report["ops"][0]["problems"] == len(PROBLEMS)
    named = compare(capsys, f"{database}@{OLD[:8]}", f"{database}@{NEW[:8]}")
    assert named["ops"] == report["ops"]


def test_a_sweep_and_a_driver_are_sides(database, capsys):
    report = compare(capsys, f"{database}@sweep:1", f"{database}@sweep:2")
    assert report["ops"][0]["problems"] == len(PROBLEMS)
    driven = compare(capsys, f"{database}@driver:580", str(database))
    assert driven["ops"][0]["problems"] == len(PROBLEMS)
    assert cli.run(["compare", f"{database}@driver:470", str(database)]) == errors.EXIT_INCONCLUSIVE
    assert "driver:470" in capsys.readouterr().err


def test_inspect_compares_with_the_baseline(database, capsys):
    assert cli.run(["baseline", "set", f"{database}@{OLD}"]) == 0
    capsys.readouterr()
    assert cli.run(["inspect", "--db", str(database), "--preset", "demo", "--json"]) == 0
    (part,) = json.loads(capsys.readouterr().out)["regressions"]
    assert part["a"] == f"{database}@{OLD}" and part["problems"] == len(PROBLEMS)
    assert cli.run(["inspect", "--db", str(database), "--preset", "demo"]) == 0
    assert "compared with" in capsys.readouterr().out


def test_one_kernel_hash_is_nothing_to_compare(tmp_path, capsys):
    path = databases.make_database(tmp_path / "one.db", num_problems=2)
    assert cli.run(["compare", str(path)]) == errors.EXIT_INCONCLUSIVE
    assert "baseline set" in capsys.readouterr().err


def test_no_baseline_says_where_it_would_be(capsys, own_folder):
    assert cli.run(["baseline", "list"]) == 0
    assert str(own_folder / "baselines.json") in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2, "baselines": {}}', '{"format": 1, "baselines": 3}'])
def test_a_damaged_file_is_refused(own_folder, capsys, text):
    (own_folder / "baselines.json").write_text(text, encoding="utf-8")
    assert cli.run(["baseline", "list"]) == errors.EXIT_INTEGRITY
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a.db", Named("a.db")),
        ("a.db@0123abcd", Named("a.db", "0123abcd")),
        ("@previous", Named("", "previous")),
        ("postgresql+psycopg://user@host/base", Named("postgresql+psycopg://user@host/base")),
        ("a.db@sweep:12", Named("a.db", "sweep:12")),
        ("odd@name.db", Named("odd@name.db")),
        ("a.db@3fd", Named("a.db", "3fd")),
        ("a.db@3FD8A380", Named("a.db", "3fd8a380")),
        ("postgresql+psycopg://user@db", Named("postgresql+psycopg://user@db")),
    ],
)
def test_names(text, named):
    assert read_name(text) == named


@pytest.mark.parametrize("which", ["zz", "", "sweep:", "sweep:x", "driver:", "newest"])
@pytest.mark.parametrize("command", [["compare"], ["baseline", "set"]])
def test_what_stands_behind_the_name_of_a_file_must_say_something(database, capsys, command, which):
    """The whole text was taken for the name of a file that is not there."""
    assert cli.run([*command, f"{database}@{which}"]) == errors.EXIT_USAGE
    message = capsys.readouterr().err
    assert (
        f"{database}@{which}: behind the @ must be a kernel hash" in message and "sweep:ID, driver:VERSION" in message
    )


def test_a_file_with_such_a_name_is_a_database(tmp_path):
    (tmp_path / "a@3fd8a380").touch()
    assert read_name(f"{tmp_path}/a@3fd8a380") == Named(f"{tmp_path}/a@3fd8a380")


def test_digits_that_several_kernel_hashes_begin_with_are_refused(monkeypatch):
    monkeypatch.setattr(sides.origins, "list_kernel_hashes", lambda connection, op, sku: ["ab1", "ab2", "c"])
    store = SimpleNamespace(reading=contextlib.nullcontext, target="a.db")
    assert sides.find_hash(store, "sku", "fp8_gemm", "ab2") == "ab2"
    with pytest.raises(
        errors.UsageError, match=r"a.db@ab: 2 kernel hashes of fp8_gemm begin so \(ab1, ab2\); give more"
    ):
        sides.find_hash(store, "sku", "fp8_gemm", "ab")


def test_a_baseline_that_another_process_sets_is_waited_for_and_kept(own_folder, monkeypatch):
    """Its file is read under the lock: what was written until then stays."""
    baselines.save(SKU, {"fp8_gemm": Named("a.db")})
    monkeypatch.setattr(baselines, "WAIT_S", 0.0)
    lock = WriterLock(own_folder / "baselines.json")
    with pytest.raises(errors.StoreError, match=r"baselines.json: process \d+ is writing to it"):
        baselines.save(SKU, {"bf16_gemm": Named("b.db")})
    lock.release()
    baselines.save(SKU, {"bf16_gemm": Named("b.db")})
    assert baselines.load()[SKU].keys() == {"fp8_gemm", "bf16_gemm"}


def test_op_kinds_that_do_not_have_what_is_named_are_left_out(database, tmp_path, capsys):
    """A hash is of one op kind: where there were two, none was kept without --op."""
    path = shutil.copy(database, tmp_path / "two.db")
    with Store.open(path) as store:
        other = _C.Problem("bf16_gemm", 64, 2112, 7168)
        databases.add_block(store, databases.add_context(store, 2), other, op=other.op, kernel_hash="ef" * 32)
    assert cli.run(["baseline", "set", f"{path}@{OLD}"]) == 0
    assert f"tuner: left out bf16_gemm: {path}: has no rows of bf16_gemm with kernel hash" in capsys.readouterr().err
    assert baselines.load() == {SKU: {"fp8_gemm": Named(str(path), OLD)}}
    assert cli.run(["baseline", "set", f"{path}@{'12' * 32}"]) == errors.EXIT_INCONCLUSIVE
