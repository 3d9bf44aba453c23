"""python -m tuner simulate: replay a recorded database without a GPU."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict

import typer

from tuner import errors
from tuner.problems.fields import OP_NAMES


def register(app) -> None:
    """Add `simulate` to the command line."""
    app.command("simulate")(simulate)


def simulate(
    database: str = typer.Option("", "--db", help="Database to replay. Default: your own, else the recorded snapshot."),
    device: str = typer.Option("", help="SKU or short name (h200). Default: the only one in the database."),
    op: str = typer.Option("", help=f"One of {OP_NAMES}. Default: every op kind with rows."),
    problems: int = typer.Option(
        16, min=0, help="Number of problems per op kind, evenly spread over the recorded ones; 0: all."
    ),
    seeds: int = typer.Option(2, min=1, max=100, help="Repetitions per problem, each with another seed."),
    seed: int = typer.Option(0, help="First seed."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Show how near TPE and random search come to measuring everything.

    Example: python -m tuner simulate --problems 8 --seeds 2
    """
    from rich.progress import Progress

    from tuner.learn import simulation
    from tuner.learn.dataset import load_dataset
    from tuner.learn.sources import find_device, find_ops, open_database

    with open_database(database) as store:
        sku = find_device(store, device).sku
        tables = [load_dataset(store, sku, op=kind) for kind in find_ops(store, sku, op)]
    chosen = {
        data.identity.op: (data, rows) for data in tables if len(rows := simulation.choose_problems(data, problems))
    }
    if not chosen:
        raise errors.InconclusiveError(
            "no problem was measured over its whole space: run `python -m tuner sweep --sampler exhaustive` first"
        )
    results = {}
    with Progress(disable=not sys.stderr.isatty()) as progress:
        for kind, (data, rows) in chosen.items():
            on_done = add_bar(progress, f"replaying {kind}")
            found = simulation.simulate(data, rows, range(seed, seed + seeds), on_done=on_done)
            results[kind] = found | {"identity": asdict(data.identity)}
    if as_json:
        print(json.dumps(results, indent=1, sort_keys=True))
        return
    for kind, result in results.items():
        print_table(kind, result)


def add_bar(progress, label: str) -> Callable[[int, int], None]:
    """Add a progress bar; return what moves it, given how much is done of what total."""
    task = progress.add_task(label, total=None)
    return lambda done, total: progress.update(task, completed=done, total=total)


def print_table(op: str, result: dict) -> None:
    """Print one row per searcher and share of the space."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "searcher",
        "share of the space",
        "mean regret",
        "95 %",
        "worst",
        title=f"{op}: {result['problems']} problems, {result['mean_space']:.0f} configs each",
    )
    table.add_row("heuristic", "-", *percentages(result["heuristic"]))
    for name in ("random", "tpe"):
        for entry in result[name]:
            table.add_row(name, f"{entry['share']:.0%}", *percentages(entry))
    table.add_row("exhaustive", "100%", *percentages(result["exhaustive"]))
    Console().print(table)


def percentages(entry: dict) -> list[str]:
    """Return mean, 95 % quantile and maximum as text."""
    return [f"{100.0 * entry[name]:.2f} %" for name in ("mean", "p95", "max")]
