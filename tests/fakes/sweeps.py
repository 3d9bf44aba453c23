"""Sweeps on simulated times in this process, and readers of the databases that they write."""

from tests.fakes.in_process_worker import InProcessWorker
from tuner import cli
from tuner.db import Store
from tuner.db.rows import MeasurementRow, WinnerRow
from tuner.search.candidates import SweepOptions
from tuner.search.sweep import Sweep


def run_sweep(path, problems: list, worker=None, store_class=None, **options) -> dict:
    """Run a sweep on simulated times; return its summary."""
    with Store.open(path) as store:
        made = SweepOptions(problems, path, backend="simulated", **options)
        return Sweep(made, store_class(store) if store_class else store, worker or InProcessWorker()).run()


def read_all(path, op: str | None = None) -> tuple[list[MeasurementRow], list[WinnerRow]]:
    """Return all rows and all winners of a sound database."""
    with Store.open(path, mode="ro") as store:
        assert store.check() == []
        return store.load_measurements(op=op), store.load_best(op=op)


def train_and_export(database, folder, trees: int, portfolio_size: int) -> None:
    """Train, evaluate and export every op kind of a database by the commands; artefact and card go to folder/models."""
    shared = ["--training", str(folder), "--db", str(database)]
    size = ["--trees", str(trees), "--portfolio-size", str(portfolio_size)]
    for arguments in (
        ["train", "--db", str(database), "--out", str(folder), *size],
        ["evaluate", *shared, "--jobs", "1"],  # starting processes takes longer than so few folds
        ["export", *shared, "--out", str(folder / "models"), "--force"],
    ):
        assert cli.run(arguments) == 0
