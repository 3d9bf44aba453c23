"""`inspect`: coverage, noise, stale rows and failures are counted from the rows, and nothing is written."""

import json
import shutil

import pytest

from deep_gemm import _C, older_kernels
from tests.fakes import databases, synthetic
from tuner import cli, errors
from tuner.commands import db as db_command
from tuner.commands import inspect as inspect_command
from tuner.commands.tables import WIDTH
from tuner.db import Store
from tuner.learn import inspection
from tuner.problems import regimes, shapes

SKU = synthetic.SKU
CURRENT, OLD = "ab" * 32, "cd" * 32
DEMO = shapes.load_preset("demo")


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A database with three demo problems of this kernel, two of an older one, and an open block."""
    path = tmp_path_factory.mktemp("inspect") / "tuning.db"
    with Store.open(path) as store:
        context = databases.add_context(store)
        for index, problem in enumerate(DEMO[:2]):
            databases.add_block(store, context, problem, kernel_hash=OLD, anchor_us=100.0 + index)
        for index, problem in enumerate(DEMO[1:4]):
            databases.add_block(
                store, context, problem, kernel_hash=CURRENT, anchor_us=200.0 + index, noise=0.001 * (index + 1)
            )
        databases.add_block(store, context, DEMO[5], kernel_hash=CURRENT, finish=False)
    return path


@pytest.fixture
def found(database, monkeypatch):
    monkeypatch.setattr(inspection.hashing, "kernel_hash", lambda op: CURRENT)
    with Store.open(database, mode="ro") as store:
        return inspection.inspect(store, SKU, "fp8_gemm", "demo")


def test_coverage_counts_finished_blocks_of_the_newest_kernel(found):
    assert found["coverage"]["demo"]["problems"] == len(DEMO)
    assert found["coverage"]["demo"]["measured"] == found["coverage"]["demo"]["current"] == 3
    assert (
        str(DEMO[0]) in found["coverage"]["demo"]["missing"]
        and str(DEMO[2]) not in found["coverage"]["demo"]["missing"]
    )


def test_older_kernels_that_serve_are_told_from_others(database, monkeypatch):
    monkeypatch.setattr(inspection.hashing, "kernel_hash", lambda op: "5e" * 32)
    with Store.open(database, mode="ro") as store:
        assert inspection.inspect(store, SKU, "fp8_gemm")["kernel_hash"]["serves"] is False
        monkeypatch.setattr(older_kernels, "SERVED", {"fp8_gemm": ("5e" * 32, CURRENT)})
        hashes = inspection.inspect(store, SKU, "fp8_gemm")["kernel_hash"]
    assert hashes == {"tree": "5e" * 32, "newest": CURRENT, "matches": False, "serves": True}


def test_stale_rows_are_those_of_other_kernels(found):
    assert found["kernel_hash"] == {"tree": CURRENT, "newest": CURRENT, "matches": True, "serves": True}
    assert found["stale"]["problems"] == 1 and found["stale"]["rows"] == sum(
        entry["rows"] for entry in found["identities"] if not entry["current"]
    )
    assert [entry["current"] for entry in found["identities"]] == [True, False]


def test_noise_is_that_of_the_newest_kernels_blocks(found):
    noise = found["noise"]
    assert noise["block"]["count"] == 4 and noise["block"]["max"] == 0.003
    assert noise["anchor_drift"]["max"] == pytest.approx(201 / 200.5 - 1, abs=0.06)
    assert 0 < noise["confirmation_mad"]["median"] < 1


def test_sentinels_are_no_noise_of_problems(found, database, monkeypatch, tmp_path):
    path = shutil.copy(database, tmp_path / "with_sentinels.db")
    with Store.open(path) as store:
        context = databases.add_context(store) | {"regime": regimes.name_sentinel(databases.REGIME)}
        block = databases.add_block(store, context, DEMO[7], kernel_hash=CURRENT)
        with store.writing() as connection:
            wide = "UPDATE measurement SET mad_us = median_us, ratio_high = 9 * ratio_low WHERE block_id = ?"
            connection.exec_driver_sql(wide, (block,))
    monkeypatch.setattr(inspection.hashing, "kernel_hash", lambda op: CURRENT)
    with Store.open(path, mode="ro") as store:
        assert (
            len(store.load_spreads(SKU, CURRENT, "fp8_gemm")["ratio_low"]) > found["noise"]["ratio_interval"]["count"]
        )
        assert inspection.inspect(store, SKU, "fp8_gemm", "demo")["noise"] == found["noise"]


def test_the_database_is_opened_once(database, monkeypatch, capsys):
    """To open a large one takes long: its pages and references are checked."""
    opened, real = [], Store.open.__func__
    monkeypatch.setattr(Store, "open", classmethod(lambda *given, **more: opened.append(given) or real(*given, **more)))
    assert cli.run(["inspect", "--db", str(database)]) == 0
    assert len(opened) == 1 and capsys.readouterr().out


def test_failures_are_counted_by_status_and_config(found, database):
    with Store.open(database, mode="ro") as store:
        rows = store.load_measurements(sku=SKU, kernel_hash=CURRENT)
    statuses = [row.status for row in rows]
    assert found["failures"]["statuses"] == {status: statuses.count(status) for status in sorted(set(statuses))}
    failed = list(found["failures"]["configs"])
    assert (
        sum(sum(entry["failures"].values()) for entry in failed)
        == sum(status in inspection.FAILURES for status in statuses)
        > 0
    )


def test_the_command_reads_and_writes_nothing(database, capsys):
    before = database.read_bytes()
    assert cli.run(["inspect", "--db", str(database)]) == 0
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines()]
    with Store.open(database, mode="ro") as store:
        rows = store.load_measurements(sku=SKU)
    (counted,) = (line for line in lines if line[:2] == ["fp8_gemm", CURRENT[:8]])
    assert counted[2:4] == ["NO", str(len(rows))] and counted[8] == str(len(rows))  # all are of other kernels
    assert ["fp8_gemm", "demo", "12", "3", "0"] in [line[:5] for line in lines]
    assert "block: one config against itself" in text and "compile_error" in text
    assert max(map(len, text.splitlines()[1:])) <= WIDTH and len(lines) < 40
    assert cli.run(["inspect", "--db", str(database), "--device", "h200", "--preset", "demo", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (
        list(report["ops"]) == ["fp8_gemm"]
        and set(report["ops"]["fp8_gemm"]["coverage"]) == {"demo"}
        and report["sku"] == SKU
    )
    assert database.read_bytes() == before


def test_an_empty_sku_has_no_noise(database):
    with Store.open(database, mode="ro") as store:
        report = inspection.inspect(store, "nvidia-h100-sm132", "fp8_gemm", "demo")
    assert report["rows"] == 0 and report["noise"]["block"] is None and report["coverage"]["demo"]["measured"] == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--preset", "none"], 2),
        (["--device", "none"], 2),
        (["--db", "missing.db"], 2),
        (["--op", "gemm"], 2),
        (["--op", "bf16_gemm"], 3),
        (["--device", "h100"], 3),
    ],
)
def test_wrong_arguments(database, capsys, arguments, code):
    given = arguments if "--db" in arguments else ["--db", str(database), *arguments]
    assert cli.run(["inspect", *given]) == code
    assert capsys.readouterr().err.count("\n") == 1


def test_without_any_database_the_recorded_snapshot_is_read(tmp_path, monkeypatch):
    from tuner.learn import sources

    monkeypatch.delenv("DG_TUNER_DB", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sources, "snapshot_path", lambda sku: synthetic.make_small_database())
    with sources.open_database("") as store:
        assert store.mode == "immutable" and sources.find_device(store, "") == _C.Device.known(SKU)


def test_an_empty_database_of_the_user_does_not_hide_the_recorded_one(tmp_path, monkeypatch):
    from tuner.db import Store
    from tuner.learn import sources

    monkeypatch.setenv("DG_TUNER_DB", str(tmp_path / "own.db"))
    for add in (lambda store: None, add_sentinels):  # a sweep may be stopped after its first ones
        with Store.open(tmp_path / "own.db", mode="rw") as store:
            add(store)
        with sources.open_database("") as store:
            assert "snapshots" in str(store.target)


def add_sentinels(store) -> None:
    """Add what a sweep leaves that was stopped before its first problem."""
    context = databases.add_context(store) | {"regime": regimes.name_sentinel(databases.REGIME)}
    databases.add_block(store, context, databases.make_problem(128))


def test_an_empty_database_has_no_measurements(tmp_path, capsys):
    Store.open(tmp_path / "empty.db", mode="rw").close()
    assert cli.run(["inspect", "--db", str(tmp_path / "empty.db")]) == errors.EXIT_INCONCLUSIVE
    assert "no measurements in" in capsys.readouterr().err


def test_skipped_configs_are_not_failed_ones():
    statuses = {"ok": 3, "censored": 2, "skipped": 4, "crash": 1}
    found = {
        "op": "fp8_gemm", "kernel_hash": {"newest": "a" * 64, "matches": True}, "failures": {"statuses": statuses},
        "rows": 10, "stale": {"rows": 0}, "identities": [],
    }  # fmt: skip
    assert inspect_command.describe_rows(found) == ("fp8_gemm", "a" * 8, "yes", 10, 3, 2, 1, 4, 0, "-")
    found["kernel_hash"] |= {"matches": False, "serves": True}
    assert inspect_command.describe_rows(found)[2] == "older"
    entry = {"op": "fp8_gemm", "kernel_hash": "a" * 64, "statuses": statuses, "problems": 2, "configs": 5, "rows": 10}
    assert db_command.describe_counts(entry | {"last": "2026-11-28T00"}) == (
        *("fp8_gemm", "a" * 8, 2, 5, 10, 2, 1, 4, "2026-11-28"),
    )
