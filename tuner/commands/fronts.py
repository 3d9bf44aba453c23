"""`simulate --samplers nsga2`: searches for time and energy on recorded energies."""

import json
import sys
from collections.abc import Sequence

from tuner import errors
from tuner.commands.tables import format_table

FRONT_SAMPLER = "nsga2"


def simulate_front(
    database: str, device: str, op: str, problems: int, least_configs: int, seeds: Sequence[int], form: str
) -> None:
    """Replay searches for time and energy, and print what they found; `form` is json, markdown or text.

    Raises: InconclusiveError without energies.
    """
    from rich.progress import Progress

    from tuner.learn import energy_replay
    from tuner.learn.sources import find_device, find_ops, open_database

    with open_database(database, device) as store:
        known = find_device(store, device)
        chosen = [
            one
            for kind in find_ops(store, known.sku, op)
            for one in energy_replay.load_recorded(store, known, kind, problems, least_configs)
        ]
    if not chosen:
        least = max(least_configs, energy_replay.LEAST_CONFIGS)
        raise errors.InconclusiveError(
            f"no problem has the energy of {least} configs or more: run `python -m tuner sweep --energy all` first"
        )
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("replaying", total=len(chosen))
        rows = energy_replay.compare(
            chosen, known, seeds, lambda done, total: progress.update(task, completed=done, total=total)
        )
    budgets, mean = energy_replay.BUDGETS, energy_replay.average(rows)
    if form == "json":
        found = [row | {"problem": row["problem"].as_dict()} for row in rows]
        print(json.dumps({"budgets": budgets, "problems": found, "mean": mean}, indent=1, sort_keys=True))
    elif form == "markdown":
        print_markdown(rows, mean, budgets)
    else:
        print_text(rows, mean, budgets)


def print_text(rows: list[dict], mean: dict[str, list[float]], budgets: Sequence[int]) -> None:
    """Print a table for each problem, and their mean."""
    for row in rows:
        print_problem(row, budgets)
    print_shares(f"mean of {len(rows)} problems", mean, budgets)
    print("  % of the area under the (time, energy) front of all recorded configs, after so many configs")
    print("  analytic: in the order of the heuristic's estimate; time: of the measured times, in hindsight")


def print_markdown(rows: list[dict], mean: dict[str, list[float]], budgets: Sequence[int]) -> None:
    """Print the mean shares, and the front of each problem, as two tables in Markdown."""
    shares = [[name, *(f"{100 * share:.1f}" for share in found)] for name, found in mean.items()]
    fronts = [
        [str(row["problem"]), f"{front['front']} of {front['configs']}"]
        + [format_percent(front[name]) for name in ("energy_saved", "time_added", "noise")]
        for row in rows
        for front in [row["front"]]
    ]
    tables = (
        (["searcher", *(f"{budget} configs" for budget in budgets)], shares),
        (["problem", "on the front", "energy saved at most", "time added by that", "noise of the energies"], fronts),
    )
    for heading, lines in tables:
        print("\n".join(f"| {' | '.join(line)} |" for line in [heading, ["---"] * len(heading), *lines]) + "\n")


def print_problem(row: dict, budgets: Sequence[int]) -> None:
    """Print the front of one problem, and the shares of it that the searches found."""
    front = row["front"]
    title = f"{row['problem']}: {front['front']} of {front['configs']} configs on the front"
    print_shares(title, row["shares"], budgets)
    saved, added, noise = (format_percent(front[name]) for name in ("energy_saved", "time_added", "noise"))
    print(f"  least energy: {front['least_energy']}, {saved} below the fastest config's, in {added} more time")
    print(f"  noise of the energies: {noise}")


def format_percent(share: float | None) -> str:
    """Return a share in percent, "unknown" for None."""
    return "unknown" if share is None else f"{100 * share:.1f} %"


def print_shares(title: str, shares: dict[str, list[float]], budgets: Sequence[int]) -> None:
    """Print the share of each search by the number of configs, in percent."""
    print(title)
    rows = [[name, *(f"{100 * share:.1f}" for share in found)] for name, found in shares.items()]
    print(format_table(["searcher", *map(str, budgets)], rows, indent="  "))
