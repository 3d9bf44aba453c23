"""Draw the README's plots from the committed records: measured speed against peers, and the selector's regret.

Example: python -m benchmarks.plots

Each plot is written twice to docs/images, for light and for dark pages. The plotted numbers are stored in the file's
description as JSON, so that a test can compare them with the records without drawing anything.
"""

import argparse
import html
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from tuner.ship import gates

from . import speedup
from .grouped_speedup import DECODE_MEAN_M, K_LAYOUTS, M_LAYOUTS, Grouped, is_of
from .stamp import DATA, RESULTS, ROOT, read_json

IMAGES = ROOT / "docs" / "images"
UPSTREAM, VENDOR = "DeepGEMM", "cuBLASLt"
#: Colours of one theme: page, text, grid, then the colours of the two series.
THEMES = {
    "light": {"page": "#ffffff", "text": "#1f2328", "grid": "#d1d9e0", "main": "#0969da", "other": "#bc4c00"},
    "dark": {"page": "#0d1117", "text": "#e6edf3", "grid": "#3d444d", "main": "#58a6ff", "other": "#f0883e"},
}
TICKS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0)  # of the speed plot's logarithmic axis
#: `export` refuses a selector beyond these, in percent.
GATES = {"mean": 100.0 * gates.MAX_MEAN, "p95": 100.0 * gates.MAX_P95}


def scaled_rows(file: str, family: str, cuts: dict[str, Callable], attribute: str = "speedup") -> list[dict]:
    """Return the plot's rows of a result of dense products: {cut: filter of its problems}."""
    result, baselines = read_json(RESULTS / file), read_json(DATA / f"{family}.json")
    auto, model = (speedup.measure_all(result, baselines, role) for role in ("auto", "model"))

    def ratios(items: list, is_member: Callable) -> list[float]:
        return [getattr(item, attribute) for item in items if is_member(item)]

    peer = VENDOR if attribute == "vendor" else UPSTREAM
    return [make_row(name, peer, ratios(auto, cut), ratios(model, cut)) for name, cut in cuts.items()]


def grouped_row(name: str, file: str, layouts: dict[str, str], is_member: Callable) -> dict:
    """Return the plot's row of the problems of a grouped result that `is_member` keeps."""
    grouped = Grouped(read_json(RESULTS / f"{file}.json"), file, layouts)
    auto, model = ([item.speedup for item in grouped.list(is_member, role)] for role in ("auto", "model"))
    return make_row(name, UPSTREAM, auto, model)


def make_row(name: str, peer: str, tuned: list[float], held_out: list[float]) -> dict:
    """Return one row of the speed plot: a speed-up for each problem, out of fold where that was measured."""
    ratios = held_out or tuned
    return {
        "name": name,
        "peer": peer,
        "is_out_of_fold": bool(held_out),
        "speedups": [round(ratio, 4) for ratio in ratios],
        "mean": round(speedup.geometric_mean(ratios), 4),
        "tuned_mean": round(speedup.geometric_mean(tuned), 4),
    }


def collect_speed() -> list[dict]:
    """Return the rows of the speed plot, from top to bottom."""
    cuts = {
        "Dense FP8, all": lambda item: True,
        "Dense FP8, M ≤ 64": lambda item: item.m <= 64,
        "Dense FP8, M ≥ 2048": lambda item: item.m >= 2048,
    }

    def is_decode(row: dict) -> bool:
        return is_of("fp8")(row) and row["mean_m"] == DECODE_MEAN_M

    return [
        *scaled_rows("dense_fp8.json", "dense_fp8", cuts),
        grouped_row("Masked FP8, decode", "m_grouped_masked", M_LAYOUTS, is_decode),
        grouped_row("Contiguous FP8", "m_grouped_contiguous", M_LAYOUTS, is_of("fp8")),
        grouped_row("Contiguous BF16", "m_grouped_contiguous", M_LAYOUTS, is_of("bf16")),
        grouped_row("k-grouped FP8 nt", "k_grouped", K_LAYOUTS, is_of("fp8")),
        *scaled_rows("wgrad_fp8.json", "wgrad_fp8", {"Weight gradients FP8": lambda item: True}),
        *scaled_rows("dense_fp8.json", "dense_fp8", {"Dense FP8, all": lambda item: True}, "vendor"),
        *scaled_rows("dense_bf16.json", "dense_bf16", {"Dense BF16, all": lambda item: True}, "vendor"),
    ]


def collect_regret() -> list[dict]:
    """Return the rows of the regret plot, one an op kind: percent on shape families that were left out."""
    rows = []
    for op, part in read_json(RESULTS / "evaluation.json")["ops"].items():
        family = part["splits"]["family"]
        figures = {
            method: {name: round(100.0 * family[method][name], 2) for name in ("mean", "p95")}
            for method in ("model", "heuristic")
        }
        rows.append({"op": op, "problems": family["model"]["problems"], **figures})
    return rows


COLLECTORS: dict[str, Callable[[], list[dict]]] = {"speed": collect_speed, "regret": collect_regret}


def make_axes(theme: dict[str, str], size: tuple[float, float], columns: int = 1):
    """Return (figure, list of axes) in a theme's colours, without a window system."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained", facecolor=theme["page"])
    all_axes = [figure.subplots()] if columns == 1 else list(figure.subplots(1, columns, sharey=True))
    for axes in all_axes:
        axes.set_facecolor(theme["page"])
        axes.tick_params(colors=theme["text"], length=0)
        axes.grid(axis="x", color=theme["grid"], linewidth=0.6)
        axes.set_axisbelow(True)
        for spine in axes.spines.values():
            spine.set_visible(False)
    return figure, all_axes


def marker(color: str, face: str, label: str, shape: str = "o"):
    """Return a legend's handle for a marker."""
    from matplotlib.lines import Line2D

    size = 8 if shape == "D" else 6
    return Line2D([], [], linestyle="", marker=shape, color=color, markerfacecolor=face, markersize=size, label=label)


def draw_speed(rows: list[dict], theme: dict[str, str]):
    """Draw a point for each problem and, with its number, the mean of each row; right of 1 is faster than the peer."""
    figure, (axes,) = make_axes(theme, (9.0, 5.2))
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
    axes.set_xticks(TICKS, [f"{tick:g}x" for tick in TICKS])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("speed-up: peer's time / ours (right of 1.0: ours is faster)", color=theme["text"])
    axes.set_title("Speed on one H200: each point is a problem, the mean is geometric", color=theme["text"])
    text, page = theme["text"], theme["page"]
    filled = marker(text, text, "shape family not trained on (out of fold)")
    hollow = marker(text, page, "shape was tuned on")
    handles = [filled, hollow, marker(text, page, "geometric mean", "D")]
    figure.legend(
        handles=handles, frameon=False, labelcolor=text, fontsize=9, loc="outside lower center", ncols=len(handles)
    )
    return figure


def draw_regret(rows: list[dict], theme: dict[str, str]):
    """Draw mean and p95 of the regret of selector and heuristic, an op kind a row, with the gates of `export`."""
    figure, panels = make_axes(theme, (9.0, 4.4), columns=2)
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
    panels[0].set_yticks(heights, names, fontsize=9)
    figure.suptitle("Regret on shape families left out of the training, one H200", color=theme["text"])
    gate = marker(theme["text"], theme["text"], "limit of tuner export", "")
    gate.set(linestyle="--", linewidth=1.0)
    handles = [
        marker(theme["main"], theme["main"], "learned selector"),
        marker(theme["other"], theme["page"], "analytic heuristic alone"),
        gate,
    ]
    figure.legend(
        handles=handles, frameon=False, labelcolor=theme["text"], fontsize=9, loc="outside lower center", ncols=3
    )
    return figure


DRAWERS: dict[str, Callable] = {"speed": draw_speed, "regret": draw_regret}


def image_path(name: str, theme: str, folder: Path = IMAGES) -> Path:
    """Return the file of a plot: the light one is called by the plot's name alone."""
    return folder / (f"{name}.svg" if theme == "light" else f"{name}-{theme}.svg")


def read_plotted(path: Path) -> list[dict]:
    """Return the rows that a plot was drawn from, out of its description."""
    text = re.search(r"<dc:description>(.*?)</dc:description>", path.read_text(encoding="utf-8"), re.DOTALL)
    if text is None:
        raise ValueError(f"{path}: no description; draw it with `python -m benchmarks.plots`")
    return json.loads(html.unescape(text[1]))


def write_plot(name: str, folder: Path) -> None:
    """Draw one plot in every theme; equal rows give equal files with the same matplotlib."""
    import matplotlib

    rows = COLLECTORS[name]()
    settings = {"svg.hashsalt": "deep_gemm", "svg.fonttype": "path", "font.family": "DejaVu Sans", "font.size": 10}
    metadata = {"Date": None, "Creator": None, "Description": json.dumps(rows, ensure_ascii=False)}
    for theme, colors in THEMES.items():
        with matplotlib.rc_context(settings):
            figure = DRAWERS[name](rows, colors)
            figure.savefig(image_path(name, theme, folder), format="svg", metadata=metadata)


def main(arguments: list[str] | None = None) -> int:
    """Write every plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=IMAGES, help="folder to write the SVG files into")
    folder = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in COLLECTORS:
        write_plot(name, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
