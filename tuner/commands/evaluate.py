"""python -m tuner evaluate: nested validation of a trained selector, as a table, JSON and a plot."""

import json
import sys
from pathlib import Path

import typer

from tuner.problems.fields import OP_NAMES

#: Columns of the table where the output is no terminal.
TABLE_WIDTH = 140


def register(app) -> None:
    """Add `evaluate` to the command line."""
    app.command("evaluate")(evaluate)


def evaluate(
    training: Path = typer.Option(None, help="Training folder; default: ~/.deep_gemm/training/<sku>."),
    device: str = typer.Option(
        "", help="SKU or short name, for the default training folder; default: the only GPU model that was trained."
    ),
    op: str = typer.Option("", help=f"One of {OP_NAMES}; default: every op kind that was trained."),
    database: str = typer.Option("", "--db", help="Database; default: the one that was trained on."),
    plot: Path = typer.Option(
        None, help="Write a PNG with the regret of every method, per op kind (needs matplotlib)."
    ),
    jobs: int = typer.Option(-1, help="Threads; -1: one per core."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Refit everything once per left-out family, model and set of m, and score what was left out.

    Example: python -m tuner evaluate --plot regret.png
    """
    from tuner.learn.train import choose_folder, find_folders

    reports = {}
    for folder in find_folders(choose_folder(training, device), op):
        reports[folder.name] = evaluate_one(folder, database, jobs, name_plot(plot, folder.name, op) if plot else None)
    if as_json:
        return print(json.dumps(reports, indent=1, sort_keys=True))
    for name, report in reports.items():
        print_report(name, report)


def name_plot(plot: Path, name: str, op: str) -> Path:
    """Return the file of one op kind's plot: FP8's, or the only one's, is the file asked for."""
    return plot if name in (op, "fp8_gemm") else plot.with_stem(f"{plot.stem}-{name}")


def evaluate_one(folder: Path, database: str, jobs: int, plot: Path | None) -> dict:
    """Evaluate one op kind, write the documents into its folder and return the report with the gates' verdicts."""
    from tuner.learn import evaluate as evaluation
    from tuner.learn.train import EVALUATION, OUT_OF_FOLD, UNCONFIRMED, load_with_data, to_json, write_file
    from tuner.ship import gates

    found, data = load_with_data(folder, database)
    results, documents = evaluation.run(data, found, jobs, show_progress)
    for name in (EVALUATION, OUT_OF_FOLD, UNCONFIRMED):
        write_file(folder / name, to_json(documents[name]))
    if plot:
        from tuner.learn.plots import plot_regret

        plot_regret(data, results, plot)
    return documents[EVALUATION] | {
        "gates": gates.check_gates(documents[EVALUATION]["splits"]),
        "training": str(folder),
    }


def show_progress(items, total: int):
    """Yield `items` beside a progress bar on standard error; silent where that is no terminal."""
    from rich.console import Console
    from rich.progress import track

    return track(items, "validating", total=total, console=Console(stderr=True), disable=not sys.stderr.isatty())


def print_report(op: str, report: dict) -> None:
    """Print one table per split, the worst problems and the gates."""
    from rich.console import Console
    from rich.table import Table

    from tuner.ship import gates
    from tuner.ship.model_card import HEADINGS, METHOD_NAMES, format_row, format_title

    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH)
    for split, table in report["splits"].items():
        if not table:
            continue
        shown = Table(*HEADINGS, title=f"{op}. {format_title(split, table)}", title_justify="left")
        for method in METHOD_NAMES:
            shown.add_row(*format_row(method, table[method]))
        console.print(shown)
    for worst in report["worst"][:5]:
        print(
            f"m={worst['m']} n={worst['n']} k={worst['k']}"
            f" {' '.join(filter(None, (worst['groups'], worst['variant'])))}: {worst['regret']:.1%} with"
            f" {worst['chosen']}; best {worst['best']}, heuristic {worst['heuristic']}"
        )
    print("; ".join(gates.format_verdict(verdict) for verdict in report["gates"]))
    force = "" if gates.is_passed(report["gates"]) else " --force (a gate is missed)"
    print(
        f"written: {report['training']}; next: python -m tuner export --training {Path(report['training']).parent}"
        f" --install{force}"
    )
