"""python -m tuner evaluate: nested validation of a trained selector, as a table, JSON and a plot."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import typer

from tuner import errors
from tuner.commands import options as shared_options
from tuner.commands.tables import format_table, print_gates
from tuner.problems.fields import OP_NAMES

HEADINGS = ("choice", "mean regret (95 %)", "p95", "max", "<= 2 %", "wins", "losses", "worst")
#: What the table's numbers mean; a model card says the same in words of its own.
LEGEND = (
    "regret: time of the choice over that of the best config, minus 1, in rounds that did not choose it;",
    "below 0, the choice was faster in them. wins, losses, worst: against the heuristic's pick.",
)


def register(app) -> None:
    """Add `evaluate` to the command line."""
    app.command("evaluate")(evaluate)


def evaluate(
    training: Path = shared_options.TRAINING,
    device: str = shared_options.TRAINED_SKU,
    op: str = typer.Option("", help=f"One of {OP_NAMES}. Default: every op kind that was trained."),
    database: str = shared_options.TRAINING_DB,
    plot: Path = typer.Option(
        None, help="Write a PNG with the regret of every method, one per op kind (needs matplotlib)."
    ),
    seeds: int = typer.Option(
        1, min=1, max=20, help="Seeds of the trees; the statistics are over all of them, and the time grows as well."
    ),
    nested: bool = typer.Option(
        False, help="Let every fold choose the settings of its trees by itself, too; takes as long as three more seeds."
    ),
    jobs: int = typer.Option(-1, min=-1, help="Processes; -1: one per core."),
    as_json: shared_options.AsJson = False,
) -> None:
    """Score the selector on problems that it did not see.

    Everything is fitted again for every family, model and set of m that is left out.

    Example: python -m tuner evaluate --plot regret.png
    """
    from tuner.learn.train import choose_folder, find_folders

    if not jobs:
        raise errors.UsageError("--jobs 0: must be -1, one per core, or a number of processes")
    folders = find_folders(choose_folder(training, device), op, device)
    drawn = {folder.name: name_plot(plot, folder.name, op) if plot else None for folder in folders}
    check_plots(drawn)
    found = {
        folder.name: (
            folder,
            *evaluate_one(folder, database, drawn[folder.name], jobs=jobs, seeds=seeds, nested=nested),
        )
        for folder in folders
    }
    if as_json:
        reports = {
            name: evaluation.to_json() | {"gates": [verdict.to_json() for verdict in verdicts], "training": str(folder)}
            for name, (folder, evaluation, verdicts) in found.items()
        }
        print(json.dumps(reports, indent=1, sort_keys=True))
        return
    for name, (folder, evaluation, verdicts) in found.items():
        print_report(name, folder, evaluation, verdicts)


def name_plot(plot: Path, name: str, op: str) -> Path:
    """Return the file of one op kind's plot: `plot` itself for fp8_gemm and for the only op kind."""
    return plot if name in (op, "fp8_gemm") else plot.with_stem(f"{plot.stem}-{name}")


def check_plots(drawn: dict[str, Path | None]) -> None:
    """Raise UsageError where a plot could not be written; evaluating takes minutes."""
    from tuner.learn.plots import check_plot

    for path in filter(None, drawn.values()):
        check_plot(path)


def evaluate_one(folder: Path, database: str, plot: Path | None, *, jobs: int, seeds: int, nested: bool) -> tuple:
    """Evaluate one op kind and write the documents into its folder; return the evaluation and the gates' verdicts."""
    from tuner.learn import evaluate as evaluation
    from tuner.learn.record import to_json
    from tuner.learn.train import load_with_data, write_file
    from tuner.ship import gates

    found, data = load_with_data(folder, database)
    results, report, documents = evaluation.run(data, found, jobs, show_progress, seeds, nested)
    for name, document in documents.items():
        write_file(folder / name, to_json(document))
    if plot:
        from tuner.learn.plots import plot_regret

        plot_regret(data, results, plot)
    return report, gates.check_gates(report.splits)


def show_progress(items, total: int):
    """Yield `items` beside a progress bar on standard error; silent where that is no terminal."""
    from rich.console import Console
    from rich.progress import track

    return track(items, "validating", total=total, console=Console(stderr=True), disable=not sys.stderr.isatty())


def print_report(op: str, folder: Path, report, verdicts: list) -> None:
    """Print one table per split, the worst problems and the gates."""
    from tuner.learn.validate import METHODS
    from tuner.ship import gates
    from tuner.ship.model_card import format_title

    for split, table in report.splits.items():
        if table:
            print(f"{op}. {format_title(split, table)}")
            print(
                format_table(HEADINGS, [describe_method(METHODS[name], table[name]) for name in METHODS], indent="  ")
            )
    print("\n".join(LEGEND))
    if report.worst:
        print("worst problems of left-out families:")
        print(
            format_table(
                ("problem", "regret", "chosen", "best", "heuristic"), map(describe_worst, report.worst[:5]), "  "
            )
        )
    print_gates(replace(verdict, op=op) for verdict in verdicts)
    force = "" if gates.is_passed(verdicts) else " --force (a gate is missed)"
    print(f"written: {folder}; next: python -m tuner export --training {folder.parent} --install{force}")


def describe_method(name: str, statistics) -> tuple:
    """Return the cells of one method."""
    low, high = statistics.mean_interval
    return (
        name,
        f"{statistics.mean:.2%} ({low * 100:.2f}..{high * 100:.2f})",
        f"{statistics.p95:.1%}",
        f"{statistics.max:.1%}",
        f"{statistics.within_2_percent:.0%}",
        statistics.wins,
        statistics.losses,
        f"{statistics.worst_against_heuristic:+.1%}",
    )


def describe_worst(worst) -> tuple:
    """Return the cells of one problem."""
    sizes = " ".join(filter(None, (f"{worst.m} {worst.n} {worst.k}", worst.groups, worst.variant)))
    return sizes, f"{worst.regret:.1%}", worst.chosen, worst.best, worst.heuristic
