"""The pictures that a tuning database gives: regret, M-sweeps, config heat maps, roofline, noise."""

import math

from tuner.report.drawing import NARROW, add_legend, make_axes, marker

#: Regret above this is drawn at this: what matters is below.
MAX_REGRET = 30.0
#: Slowdown (percent) at which a heat map's colour ends.
MAX_SLOWDOWN = 50.0


def label_axes(axes, theme: dict[str, str], x: str, y: str) -> None:
    """Name both axes."""
    axes.set_xlabel(x, color=theme["text"], fontsize=9)
    axes.set_ylabel(y, color=theme["text"], fontsize=9)
    axes.tick_params(labelsize=8)


def draw_curves(rows: list[dict], theme: dict[str, str]):
    """Draw sorted regret, a line per method; a row: name, is_main, regrets in percent from small to large."""
    figure, (axes,) = make_axes(theme, (NARROW, 2.9), grid="both")
    handles = []
    for row in rows:
        color = theme["main" if row["is_main"] else "other"]
        shares = [100.0 * (index + 0.5) / len(row["regrets"]) for index in range(len(row["regrets"]))]
        axes.step(shares, [min(value, MAX_REGRET) for value in row["regrets"]], where="mid", color=color, linewidth=1.6)
        handles.append(marker(color, color, f"{row['name']}: mean {row['mean']:.1f} %, p95 {row['p95']:.1f} %"))
    axes.set(xlim=(0.0, 100.0), ylim=(min(-1.0, axes.get_ylim()[0]), None))
    label_axes(axes, theme, "problems, sorted (%)", "slower than the best (%)")
    add_legend(figure, theme, handles, 1)
    return figure


def draw_sweep(rows: list[dict], theme: dict[str, str]):
    """Draw the time of the best config and of the heuristic's pick over m; a row: m, best_us, heuristic_us."""
    figure, (axes,) = make_axes(theme, (NARROW, 2.7), grid="both")
    sizes = [row["m"] for row in rows]
    for name, key, width in (("other", "heuristic_us", 1.2), ("main", "best_us", 1.8)):
        axes.plot(sizes, [row[key] for row in rows], color=theme[name], linewidth=width, marker="o", markersize=3.5)
    axes.set(xscale="log", yscale="log")
    set_plain_ticks(axes.xaxis, sizes)
    set_plain_ticks(axes.yaxis, [row[key] for row in rows for key in ("best_us", "heuristic_us")])
    label_axes(axes, theme, "m", "time (us)")
    names = (("main", "best measured config"), ("other", "the heuristic's pick"))
    add_legend(figure, theme, [marker(theme[color], theme[color], name) for color, name in names], 2)
    return figure


def set_plain_ticks(axis, values: list[float]) -> None:
    """Put about six ticks with plain numbers on a logarithmic axis."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = math.log10(min(values)), math.log10(max(values))
    step = max((high - low) / 5.0, 0.05)
    ticks = sorted({float(f"{10 ** (low + step * index):.1g}") for index in range(7)})
    axis.set_major_locator(FixedLocator([tick for tick in ticks if 0.8 * min(values) <= tick <= 1.2 * max(values)]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def draw_heat_map(rows: list[dict], theme: dict[str, str]):
    """Draw how much slower than the best each config is; a row: name of the config, slowdowns {m: percent or None}."""
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    columns = list(rows[0]["slowdowns"])
    figure, (axes,) = make_axes(theme, (NARROW, 0.9 + 0.24 * len(rows)), grid="x")
    axes.grid(False)
    colors = LinearSegmentedColormap.from_list("slowdown", [theme["main"], theme["grid"], theme["other"]])
    for height, row in enumerate(reversed(rows)):
        for place, column in enumerate(columns):
            slowdown = row["slowdowns"][column]
            if slowdown is not None:
                share = min(slowdown / MAX_SLOWDOWN, 1.0) ** 0.5
                axes.add_patch(make_cell(place, height, colors(share)))
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(-0.5, len(rows) - 0.5))
    shown = range(0, len(columns), math.ceil(len(columns) / 8))
    axes.set_xticks(list(shown), [columns[index] for index in shown])
    axes.set_yticks(range(len(rows)), [row["name"] for row in reversed(rows)])
    label_axes(axes, theme, "m", "")
    axes.tick_params(axis="y", labelsize=7.5)
    marks = [(0.0, "best"), (0.32, "5 % slower"), (1.0, f"{MAX_SLOWDOWN:.0f} % or more")]
    add_legend(figure, theme, [marker("none", to_hex(colors(share)), name, "s") for share, name in marks], 3)
    return figure


def make_cell(place: int, height: int, color):
    """Return a heat map's cell."""
    from matplotlib.patches import Rectangle

    return Rectangle((place - 0.46, height - 0.44), 0.92, 0.88, facecolor=color, linewidth=0)


def draw_roofline(rows: list[dict], theme: dict[str, str]):
    """Draw speed over intensity under the GPU's two roofs.

    A row: name (op kind), peak_tflops and memory_gbps (the roofs), points [[FLOP a byte, TFLOP/s], ...].
    """
    from matplotlib.ticker import NullLocator

    figure, (axes,) = make_axes(theme, (NARROW, 3.3), grid="both")
    handles = []
    for row, name in zip(rows, ("main", "other"), strict=False):
        color, slope = theme[name], row["memory_gbps"] * 1e-3
        knee = row["peak_tflops"] / slope
        axes.plot([1.0, knee, 2e4], [slope, row["peak_tflops"], row["peak_tflops"]], color=color, linewidth=1.2)
        axes.scatter(*zip(*row["points"], strict=True), s=9, color=color, alpha=0.55, linewidths=0)
        handles.append(marker(color, color, f"{row['name']}: roof {row['peak_tflops']:.0f} TFLOP/s"))
    axes.set(xscale="log", yscale="log", xlim=(1.0, 2e4), ylim=(0.5, 3e3))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())
    label_axes(axes, theme, "FLOP per byte of A, B and D", "TFLOP/s")
    add_legend(figure, theme, handles, 1)
    return figure


def draw_noise(rows: list[dict], theme: dict[str, str]):
    """Draw the noise of blocks of each op kind: median and 95th percentile; a row: op, median, p95 (percent)."""
    figure, (axes,) = make_axes(theme, (NARROW, 1.2 + 0.24 * len(rows)))
    heights = range(len(rows))
    medians, tails = ([row[key] for row in reversed(rows)] for key in ("median", "p95"))
    axes.hlines(heights, medians, tails, color=theme["grid"], linewidth=3)
    axes.scatter(tails, heights, s=26, facecolors=theme["page"], edgecolors=theme["other"], linewidths=1.4, zorder=3)
    axes.scatter(medians, heights, s=26, color=theme["main"], zorder=3)
    axes.set_yticks(heights, [row["op"] for row in reversed(rows)])
    axes.set_xlim(left=0.0)
    label_axes(axes, theme, "how far a config is from itself in a block (%)", "")
    names = (("main", "main", "median"), ("other", "page", "95th percentile"))
    add_legend(figure, theme, [marker(theme[edge], theme[face], name) for edge, face, name in names], 2)
    return figure
