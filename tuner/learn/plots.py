"""Plots of an evaluation; matplotlib is needed only here."""

from pathlib import Path

import numpy as np

from tuner import errors
from tuner.files import check_replaceable
from tuner.learn.dataset import Dataset
from tuner.learn.evaluate import regret_curve
from tuner.learn.validate import METHODS, FoldResult

SHOWN = ("heuristic", "nearest", "model_alone", "model", "portfolio_best", "shortlist_best")


def check_plot(path: Path) -> None:
    """Check, before the work of an evaluation, that a plot can be drawn and written to `path`.

    Raises: UsageError without matplotlib, or where the file cannot be written.
    """
    import_figure()
    check_replaceable("--plot", path)
    existed = path.exists()
    try:
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise errors.UsageError(
            f"--plot {path}: cannot be written ({error.strerror}); name a file in a folder that exists and is yours"
        ) from error


def import_figure() -> type:
    """Return matplotlib's figure. Raises: UsageError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise errors.UsageError(
            "--plot: matplotlib is not installed; `pip install matplotlib`, or leave --plot out"
        ) from error
    return Figure


def plot_regret(data: Dataset, results: list[FoldResult], path: Path) -> None:
    """Write a PNG: the sorted regret of each method over problems of left-out families.

    Raises: UsageError without matplotlib; TunerError.
    """
    figure = import_figure()(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for method in SHOWN:
        regret = 100.0 * regret_curve(data, results, method)
        if len(regret):
            axes.step(np.linspace(0.0, 100.0, len(regret)), regret, where="mid", label=METHODS[method])
    axes.axhline(2.0, color="grey", linewidth=0.8, linestyle=":")
    axes.set(xlabel="problems, sorted by regret (%)", ylabel="regret against the measured best (%)", ylim=(-2.0, 30.0))
    axes.set_title(f"{data.identity.op} on {data.identity.sku}: families left out")
    axes.legend()
    try:
        figure.savefig(path, dpi=120, format="png")
    except OSError as error:
        raise errors.TunerError(f"--plot {path}: {error.strerror or error}") from error
