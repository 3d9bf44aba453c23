"""Pictures of benchmarks and validation: the README's, and those of the page of `report`.

Rows are made by benchmarks/plots.py from the committed records; a picture's description holds them.
"""

from functools import partial

from tuner.report.drawing import NARROW, WIDE, add_legend, make_axes, marker
from tuner.ship import gates

UPSTREAM, VENDOR = "DeepGEMM", "cuBLASLt"
TICKS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0)  # of the speed plot's logarithmic axis
#: Fewer, where there is little room.
NARROW_TICKS = (0.6, 0.8, 1.0, 1.3, 1.7)
#: `export` refuses a selector beyond these, in percent.
GATES = {"mean": 100.0 * gates.MAX_MEAN, "p95": 100.0 * gates.MAX_P95}


def draw_speed(rows: list[dict], theme: dict[str, str], width: float = WIDE):
    """Draw a point for each problem and, with its number, the mean of each row; right of 1 is faster than the peer."""
    figure, (axes,) = make_axes(theme, (width, 5.2))
    colors = {UPSTREAM: theme["main"], VENDOR: theme["other"]}
    for height, row in enumerate(reversed(rows)):
        color, ratios = colors[row["peer"]], row["speedups"]
        offsets = [height + 0.22 * ((index * 0.618034) % 1.0 - 0.5) for index in range(len(ratios))]
        face = color if row["is_out_of_fold"] else theme["page"]
        axes.scatter(ratios, offsets, s=16, facecolors=face, edgecolors=color, linewidths=0.8, alpha=0.55)
        axes.scatter(row["mean"], height, s=80, marker="D", facecolors=face, edgecolors=theme["text"], zorder=3)
        label = f"{row['mean']:.2f}x"
        axes.text(1.02, height, label, transform=axes.get_yaxis_transform(), color=theme["text"], va="center")
    axes.axvline(1.0, color=theme["text"], linewidth=1.0)
    names = [f"{row['name']}  ({len(row['speedups'])})\nagainst {row['peer']}" for row in reversed(rows)]
    axes.set_yticks(range(len(rows)), names, fontsize=9)
    axes.set(xscale="log", xlim=(0.57, 2.15), ylim=(-0.6, len(rows) - 0.4))
    ticks = TICKS if width == WIDE else NARROW_TICKS
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.set_xticks([], minor=True)
    label = "speed-up: peer's time / ours" + (" (right of 1.0: ours is faster)" if width == WIDE else "")
    axes.set_xlabel(label, color=theme["text"])
    title = "Speed on one H200: each point is a problem, the mean is geometric"
    axes.set_title(title if width == WIDE else "Speed on one H200", color=theme["text"])
    text, page = theme["text"], theme["page"]
    filled = marker(text, text, "shape family not trained on (out of fold)")
    hollow = marker(text, page, "shape was tuned on")
    handles = [filled, hollow, marker(text, page, "geometric mean", "D")]
    add_legend(figure, theme, handles, len(handles) if width == WIDE else 1)
    return figure


def draw_regret(rows: list[dict], theme: dict[str, str], width: float = WIDE):
    """Draw mean and p95 of the regret of selector and heuristic, an op kind a row, with the gates of `export`."""
    is_wide = width == WIDE
    figure, panels = make_axes(theme, (width, 4.4 if is_wide else 7.2), columns=1 + is_wide, rows=2 - is_wide)
    titles = {"mean": "mean regret (%)", "p95": "95th percentile of regret (%)"}
    heights = range(len(rows))
    for axes, (statistic, title) in zip(panels, titles.items(), strict=True):
        model, heuristic = ([row[method][statistic] for row in reversed(rows)] for method in ("model", "heuristic"))
        axes.hlines(heights, model, heuristic, color=theme["grid"], linewidth=3)
        axes.scatter(heuristic, heights, s=110, facecolors=theme["page"], edgecolors=theme["other"], linewidths=1.6)
        axes.scatter(model, heights, s=44, color=theme["main"], zorder=3)
        axes.axvline(GATES[statistic], color=theme["text"], linewidth=1.0, linestyle="--")
        axes.set_xlim(left=0.0)
        axes.set_xlabel(title, color=theme["text"])
    names = [f"{row['op']}  ({row['problems']})" for row in reversed(rows)]
    for axes in panels[: 1 if is_wide else 2]:
        axes.set_yticks(heights, names, fontsize=9 if is_wide else 8)
    title = "Regret on shape families left out of the training" + (", one H200" if width == WIDE else "")
    figure.suptitle(title, color=theme["text"], fontsize=12 if width == WIDE else 10)
    gate = marker(theme["text"], theme["text"], "limit of tuner export", "")
    gate.set(linestyle="--", linewidth=1.0)
    handles = [
        marker(theme["main"], theme["main"], "learned selector"),
        marker(theme["other"], theme["page"], "analytic heuristic alone"),
        gate,
    ]
    add_legend(figure, theme, handles, 3 if width == WIDE else 1)
    return figure


#: The same for the page of `report`.
draw_narrow_speed, draw_narrow_regret = partial(draw_speed, width=NARROW), partial(draw_regret, width=NARROW)
