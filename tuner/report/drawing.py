"""What all pictures share: themes, axes, legends, and SVG whose description holds the plotted rows.

matplotlib is needed only here and in the two modules that draw, and imported when something is drawn.
"""

import html
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tuner import errors

#: Colours of one theme: page, text, grid, then those of the series.
THEMES = {
    "light": {"page": "#ffffff", "text": "#1f2328", "grid": "#d1d9e0", "main": "#0969da", "other": "#bc4c00"},
    "dark": {"page": "#0d1117", "text": "#e6edf3", "grid": "#3d444d", "main": "#58a6ff", "other": "#f0883e"},
}
#: Of a wide picture, and of one that is readable on a phone, in inches.
WIDE, NARROW = 9.0, 4.8
Draw = Callable[[list[dict], dict[str, str]], object]


def make_figure(theme: dict[str, str], size: tuple[float, float]):
    """Return an empty figure in a theme's colours, without a window system. Raises: UsageError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise errors.UsageError('matplotlib is not installed: run pip install "deep_gemm[demo]"') from error
    return Figure(figsize=size, layout="constrained", facecolor=theme["page"])


def make_axes(theme: dict[str, str], size: tuple[float, float], columns: int = 1, rows: int = 1, grid: str = "x"):
    """Return (figure, list of axes) in a theme's colours; the axes are beside each other, or one above the other."""
    figure = make_figure(theme, size)
    all_axes = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for axes in all_axes:
        axes.set_facecolor(theme["page"])
        axes.tick_params(colors=theme["text"], length=0)
        axes.grid(axis=grid, color=theme["grid"], linewidth=0.6)
        axes.set_axisbelow(True)
        for spine in axes.spines.values():
            spine.set_visible(False)
    return figure, all_axes


def marker(color: str, face: str, label: str, shape: str = "o"):
    """Return a legend's handle for a marker."""
    from matplotlib.lines import Line2D

    size = 8 if shape == "D" else 6
    return Line2D([], [], linestyle="", marker=shape, color=color, markerfacecolor=face, markersize=size, label=label)


def add_legend(figure, theme: dict[str, str], handles: list, columns: int) -> None:
    """Put a legend below a figure's axes."""
    figure.legend(
        handles=handles, frameon=False, labelcolor=theme["text"], fontsize=9, loc="outside lower center", ncols=columns
    )


def to_svg(draw: Draw, rows: list[dict], theme: dict[str, str], text: str = "path", salt: str = "deep_gemm") -> str:
    """Return a picture as SVG; equal rows give equal text with the same matplotlib.

    Args:
        text: "path" draws letters as shapes, so that they look the same everywhere; "none" keeps them as text.
        salt: of the ids of its parts, which must differ between the pictures of one page.
    """
    import_matplotlib()
    import matplotlib

    settings: dict[Any, object] = {
        "svg.hashsalt": salt,
        "svg.fonttype": text,
        "font.family": "DejaVu Sans",
        "font.size": 10,
    }
    metadata = {"Date": None, "Creator": None, "Description": json.dumps(rows, ensure_ascii=False)}
    with matplotlib.rc_context(settings):
        buffer = io.StringIO()
        draw(rows, theme).savefig(buffer, format="svg", metadata=metadata)  # type: ignore[attr-defined]
    return buffer.getvalue()


def import_matplotlib() -> None:
    """Raise UsageError without matplotlib."""
    make_figure(THEMES["light"], (1.0, 1.0))


def read_plotted(path: Path) -> list[dict]:
    """Return the rows that a picture was drawn from, out of its description. Raises: ValueError."""
    text = re.search(r"<dc:description>(.*?)</dc:description>", path.read_text(encoding="utf-8"), re.DOTALL)
    if text is None:
        raise ValueError(f"{path}: no description; draw it with `python -m benchmarks.plots`")
    return json.loads(html.unescape(text[1]))
