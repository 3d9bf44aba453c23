"""The table of `db show`: the configs of one problem, fastest first."""

from deep_gemm.text import printable
from tuner.commands.tables import format_table


def print_ranking(database: str, ranking, top: int) -> None:
    """Print the configs of one problem with their times, and what was measured with what."""
    block = ranking.block
    print(f"{block.problem} on {block.sku}")
    shown = ranking.rows[: top or None]
    energy = ("mJ",) if ranking.energies else ()
    rows = [
        (
            ranking.place(index),
            row.config,
            *describe_time(row),
            *(describe_energy(ranking, row) for _ in energy),
            row.num_samples or "-",
            row.role,
            row.status,
            describe_role(ranking, row),
        )
        for index, row in enumerate(shown)
    ]
    print(format_table(("", "config", "us", "ratio", *energy, "count", "rounds", "status", ""), rows))
    if len(shown) < len(ranking.rows):
        print(f"... and {len(ranking.rows) - len(shown)} more; --top 0 shows all")
    print("ratio: to the reference, the heuristic's pick of that time; confirm: rounds that did not choose")
    if len(ranking.ties) > 1:
        print("tied: the rounds cannot tell it from the fastest; the best is the first of these by a fixed order")
    if ranking.num_rested:
        print(f"{ranking.num_rested} configs were timed after rests, too, and the best was chosen by both times")
    if energy:
        count = len(ranking.energies)
        print(f"mJ: energy of a launch, measured for {count} configs; front: none is better in time and energy")
    others = f"; measured {ranking.others} more times" if ranking.others else ""
    print(
        printable(
            f"{block.created[:10]}, kernel {block.kernel_hash[:16]}, {block.compiler}, {block.regime}{others}; from"
        )
    )
    print(printable(database))


def describe_time(row) -> tuple[str, ...]:
    """Return time and ratio of a measured config; of one that was dropped early they are lower bounds."""
    sign = ">" if row.status == "censored" else ""
    return tuple(
        "-" if value is None else f"{sign}{value:.{digits}f}" for value, digits in ((row.median_us, 2), (row.ratio, 3))
    )


def describe_energy(ranking, row) -> str:
    """Return the energy of one launch in millijoules, "-" where it was not measured."""
    energy = ranking.energies.get(row.config)
    return "-" if energy is None else f"{1e3 * energy.energy_j:.2f}"


def describe_role(ranking, row) -> str:
    """Return whether a config is the winner, cannot be told from it, is the reference, or on the front of energy."""
    is_best = row.config == ranking.winner
    is_tied = row.config in ranking.ties and not is_best
    roles = {"best": is_best, "tied": is_tied, "reference": row.is_reference, "front": row.config in ranking.front}
    return ", ".join(name for name, holds in roles.items() if holds)
