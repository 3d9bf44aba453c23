"""python -m tuner simulate: replay a recorded database without a GPU."""

import json
import sys

import typer

from tuner import errors


def register(app) -> None:
    """Add `simulate` to the command line."""
    app.command("simulate")(simulate)


def simulate(
    database: str = typer.Option("", "--db", help="Database to replay; default: your own, else the recorded snapshot."),
    device: str = typer.Option("", help="SKU or short name such as h200; needed where the database has several."),
    problems: int = typer.Option(16, min=0, help="Problems to replay, evenly spread over the recorded ones; 0: all."),
    seeds: int = typer.Option(2, min=1, max=100, help="Repetitions per problem, each with a seed of its own."),
    seed: int = typer.Option(0, help="First seed."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Show how near TPE and random search come to measuring everything. Example: python -m tuner simulate --problems 8 --seeds 2"""
    from rich.progress import Progress

    from tuner import simulation
    from tuner.dataset import load_dataset
    from tuner.sources import open_database

    with open_database(database) as store:
        data = load_dataset(store, device)
    rows = simulation.choose_problems(data, problems)
    if not len(rows):
        raise errors.InconclusiveError("no problem was measured over its whole space: run `python -m tuner sweep --sampler exhaustive` first")
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("replaying", total=None)
        result = simulation.simulate(data, rows, range(seed, seed + seeds), on_done=lambda done, total: progress.update(task, completed=done, total=total))
    result["identity"] = vars(data.identity)
    print(json.dumps(result, indent=1, sort_keys=True)) if as_json else print_table(result)


def print_table(result: dict) -> None:
    """Print one row per searcher and share of the space."""
    from rich.console import Console
    from rich.table import Table

    table = Table("searcher", "share of the space", "mean regret", "95 %", "worst", title=f"{result['problems']} problems, {result['mean_space']:.0f} configs each")
    table.add_row("heuristic", "-", *percentages(result["heuristic"]))
    for name in ("random", "tpe"):
        for entry in result[name]:
            table.add_row(name, f"{entry['share']:.0%}", *percentages(entry))
    table.add_row("exhaustive", "100%", *percentages(result["exhaustive"]))
    Console().print(table)


def percentages(entry: dict) -> list[str]:
    """Return mean, 95 % quantile and maximum as text."""
    return [f"{100.0 * entry[name]:.2f} %" for name in ("mean", "p95", "max")]
