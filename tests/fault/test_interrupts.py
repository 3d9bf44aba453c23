"""Ctrl-C at any moment: exit code 130 with a word, what was committed is kept, and a sweep is marked as interrupted."""

import contextlib
import runpy
import signal
import sqlite3
import sys

import pytest

import tuner
from deep_gemm import _C
from tests.fakes.in_process_worker import InProcessWorker
from tests.fakes.spaces import make_space
from tests.fakes.sweeps import run_sweep
from tuner import cli, errors
from tuner.commands import db as db_commands
from tuner.db import Store
from tuner.db.interrupts import interrupt_deferred

DEVICE = _C.Device.known("h200")
PROBLEM = _C.Problem("fp8_gemm", 64, 2112, 7168)


class InterruptAtCall:
    """Presses Ctrl-C at the n-th call of a Python function inside the `with`."""

    def __init__(self, place: int):
        self.place, self.count = place, 0

    def __call__(self, frame, event, argument) -> None:
        if event == "call":
            self.count += 1
            if self.count == self.place:
                signal.raise_signal(signal.SIGINT)

    def __enter__(self):
        sys.setprofile(self)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)


def count_calls(action) -> int:
    with InterruptAtCall(-1) as counter:
        action()
    return counter.count


def test_an_interrupt_anywhere_in_a_write_loses_no_connection(tmp_path):
    with Store.open(tmp_path / "tuning.db") as store:
        store.engine.pool._timeout = 0.05  # a lost connection would be missed for a minute
        store.start_sweep({"preset": "before"})
        total = count_calls(lambda: store.start_sweep({"preset": "counted"}))
        assert total > 100
        for place in range(1, total + 1, 3):
            # Where a destructor or a callback of the garbage collector runs, Python drops the exception.
            with contextlib.suppress(KeyboardInterrupt), InterruptAtCall(place):
                store.start_sweep({"preset": "x"})
            assert store.newest_kernel_hash("fp8_gemm", "x") is None


def test_a_transaction_ends_before_the_interrupt_does(tmp_path):
    with Store.open(tmp_path / "tuning.db") as store:
        store.start_sweep({"host": "node1"})

        def write() -> None:
            with store.writing() as connection:
                signal.raise_signal(signal.SIGINT)
                connection.exec_driver_sql("UPDATE sweep SET host = 'node7'")

        with pytest.raises(KeyboardInterrupt):
            write()
    connection = sqlite3.connect(tmp_path / "tuning.db")
    assert connection.execute("SELECT host FROM sweep").fetchall() == [("node7",)]
    connection.close()


def test_a_second_interrupt_takes_effect_at_once():
    steps = []

    def press_twice() -> None:
        with interrupt_deferred():
            for step in ("first", "second"):
                signal.raise_signal(signal.SIGINT)
                steps.append(step)

    with pytest.raises(KeyboardInterrupt):
        press_twice()
    assert steps == ["first"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.full)])
def test_a_sweep_that_is_interrupted_anywhere_says_so(tmp_path, monkeypatch, stride):
    """At every write of a sweep, and right before and after it."""
    space, name = make_space(PROBLEM, DEVICE)[:6], "writing"
    real = Store.writing
    for place in range(0, 60, stride):
        counter = {"count": 0}

        def interrupting(self, counter=counter, place=place):
            counter["count"] += 1
            if counter["count"] == place // 2 + 1 and place % 2 == 0:
                signal.raise_signal(signal.SIGINT)
            transaction = real(self)
            if counter["count"] == place // 2 + 1 and place % 2:
                signal.raise_signal(signal.SIGINT)
            return transaction

        path = tmp_path / f"{place}.db"
        with monkeypatch.context() as patch:
            patch.setattr(Store, name, interrupting)
            try:
                run_sweep(path, [PROBLEM], InProcessWorker(), configs=space)
                assert counter["count"] < place // 2 + 1
                break
            except KeyboardInterrupt:
                pass
        if read_statuses(path):
            assert read_statuses(path) == ["interrupted"], place
        run_sweep(path, [PROBLEM], InProcessWorker(), configs=space)
        assert read_statuses(path)[-1] == "finished"
    assert place > 10


def read_statuses(path) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        return [row[0] for row in connection.execute("SELECT status FROM sweep ORDER BY id")]
    finally:
        connection.close()


def test_the_command_line_says_that_it_was_interrupted(monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(db_commands, "get_database", interrupted)
    assert cli.run(["db", "init"]) == errors.EXIT_INTERRUPTED
    assert capsys.readouterr().err == "tuner: interrupted; everything committed so far is kept\n"


def test_an_interrupt_while_the_packages_are_imported(monkeypatch, capsys):
    class Interrupting:
        def find_spec(self, name, path=None, target=None):
            if name == "tuner.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "tuner.cli")
    monkeypatch.delattr(tuner, "cli")
    monkeypatch.setattr(sys, "argv", ["tuner", "db"])
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as caught:
        runpy.run_module("tuner", run_name="__main__")
    assert caught.value.code == errors.EXIT_INTERRUPTED
    assert "interrupted" in capsys.readouterr().err
