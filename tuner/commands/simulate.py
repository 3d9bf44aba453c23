"""python -m tuner simulate: replay a recorded database without a GPU."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict

import typer

from tuner import errors
from tuner.commands.fronts import FRONT_SAMPLER, simulate_front
from tuner.commands.options import MAX_SEED, RECORDED_OP, SKU, AsJson
from tuner.commands.tables import format_table, print_left_out

#: The budget whose worst problems the tables show.
SHOWN_BUDGET = 16
#: The searchers that are no samplers, with the number of configs they stand for.
FIXED = ("heuristic", "exhaustive")


def register(app) -> None:
    """Add `simulate` to the command line."""
    app.command("simulate")(simulate)


def simulate(
    database: str = typer.Option("", "--db", help="Database to replay. Default: your own, else the recorded snapshot."),
    device: str = SKU,
    op: str = RECORDED_OP,
    problems: int = typer.Option(
        16, min=0, help="Number of problems per op kind, evenly spread over the recorded ones; 0: all."
    ),
    least_configs: int = typer.Option(
        0, min=0, help="Only problems of which at least this many configs were measured."
    ),
    samplers: str = typer.Option(
        "forest,analytic,tpe,random",
        help=(
            "Samplers to compare, separated by commas; besides these: gp, cmaes and qmc. nsga2, by itself, is compared"
            " in time and energy, with chance and two orders."
        ),
    ),
    seeds: int = typer.Option(2, min=1, max=100, help="Repetitions per problem, each with another seed."),
    seed: int = typer.Option(0, min=0, max=MAX_SEED, help="First seed."),
    as_json: AsJson = False,
    as_markdown: bool = typer.Option(False, "--markdown", help="Print one table over all op kinds as Markdown."),
) -> None:
    """Show how near searches of a space come to measuring everything, at equal budget.

    Example: python -m tuner simulate --problems 8 --seeds 2
    """
    from rich.progress import Progress

    from tuner.learn import simulation
    from tuner.learn.dataset import load_dataset
    from tuner.learn.each_op import try_each
    from tuner.learn.sources import find_device, find_ops, open_database

    if as_json and as_markdown:
        raise errors.UsageError("--json and --markdown: give one of them")
    drawn = make_seeds(seed, seeds)
    if samplers == FRONT_SAMPLER:
        form = "json" if as_json else "markdown" if as_markdown else "text"
        simulate_front(database, device, op, problems, least_configs, drawn, form)
        return
    names = read_samplers(samplers)
    with open_database(database, device) as store:
        sku = find_device(store, device).sku
        loaded, left_out = try_each(find_ops(store, sku, op), lambda kind: load_dataset(store, sku, op=kind))
    print_left_out(left_out)
    tables = list(loaded.values())
    chosen = [(data, rows) for data in tables if len(rows := simulation.choose_problems(data, problems, least_configs))]
    if not chosen:
        raise errors.InconclusiveError(explain_absence(least_configs, max(map(simulation.find_most, tables))))
    found = []
    with Progress(disable=not sys.stderr.isatty()) as progress:
        for data, rows in chosen:
            on_done = add_bar(progress, f"replaying {data.identity.op}")
            found.append(simulation.simulate(data, rows, drawn, names, on_done=on_done))
    if as_markdown:
        print(format_markdown(simulation.describe(simulation.join(found))))
        return
    results = {
        data.identity.op: simulation.describe(one) | {"identity": asdict(data.identity)}
        for (data, _), one in zip(chosen, found, strict=True)
    }
    if as_json:
        print(json.dumps(results, indent=1, sort_keys=True))
        return
    for kind, result in results.items():
        print_table(kind, result)
    if len(found) > 1:
        print_table("all op kinds", simulation.describe(simulation.join(found)))


def make_seeds(first: int, count: int) -> range:
    """Return the seeds of the repetitions. Raises: UsageError for one that the samplers do not take."""
    if first + count - 1 > MAX_SEED:
        raise errors.UsageError(
            f"--seed {first}: the last of {count} seeds must be at most {MAX_SEED}; name a smaller first one"
        )
    return range(first, first + count)


def explain_absence(least: int, most: int) -> str:
    """Return why there is no problem of `least` configs and more, where one has `most` at most, 0 for none at all."""
    if most:
        return f"--least-configs {least}: no problem has so many, at most {most} were measured; name a smaller number"
    return "no problem was measured over its whole space: run `python -m tuner sweep --sampler exhaustive` first"


def read_samplers(text: str) -> list[str]:
    """Return the samplers of a list. Raises: UsageError."""
    from tuner.search.propose import SAMPLERS, choose_sampler

    names = list(dict.fromkeys(filter(None, text.split(","))))
    known = [name for name in SAMPLERS if name not in ("auto", "exhaustive")]
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise errors.UsageError(
            f"--samplers {text}: must be some of {', '.join(known)}; or {FRONT_SAMPLER} alone, which searches for"
            " energy, too"
        )
    for name in names:
        choose_sampler(name, 1)
    return names


def add_bar(progress, label: str) -> Callable[[int, int], None]:
    """Add a progress bar; return what moves it, given how much is done of what total."""
    task = progress.add_task(label, total=None)
    return lambda done, total: progress.update(task, completed=done, total=total)


def make_rows(result: dict) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a table, a row per searcher, the exhaustive one last."""
    searchers = result["searchers"]
    budgets = [entry["configs"] for entry in next(iter(searchers.values()))]
    shown = budgets.index(SHOWN_BUDGET)
    header = ["searcher", *(f"{budget} configs" for budget in budgets), f"95 % at {SHOWN_BUDGET}", "worst"]
    order = sorted(searchers, key=lambda name: (name == "exhaustive", name != "heuristic"))
    rows = []
    for name in order:
        entries = searchers[name]
        means = [describe_mean(entry) for entry in (entries[:1] if name in FIXED else entries)]
        means += ["-"] * (len(budgets) - len(means))
        rows.append([name, *means, percent(entries[shown]["p95"]), percent(entries[shown]["max"])])
    return header, rows


def describe_mean(entry: dict) -> str:
    """Return a mean regret with its interval, in percent."""
    return f"{100 * entry['mean']:.2f} ({100 * entry['low']:.2f}..{100 * entry['high']:.2f})"


def percent(value: float) -> str:
    """Return a regret in percent."""
    return f"{100 * value:.2f}"


def print_table(op: str, result: dict) -> None:
    """Print the mean regret of each searcher by its budget."""
    header, rows = make_rows(result)
    print(
        f"{op}: {result['problems']} problems of {result['families']} families, {result['mean_space']:.0f} configs each"
    )
    header = [header[0], *(name.removesuffix(" configs") for name in header[1:])]
    print(format_table(header, [[row[0], *(cell.partition(" ")[0] for cell in row[1:])] for row in rows], indent="  "))
    print("  mean regret in % after so many configs, then at 16 configs its 95 % quantile and the worst problem")


def format_markdown(result: dict) -> str:
    """Return the table of print_table with intervals, as Markdown."""
    header, rows = make_rows(result)
    lines = [header, ["---"] * len(header), *rows]
    about = f"{result['problems']} problems of {result['families']} families, {result['mean_space']:.0f} configs each"
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", about])
