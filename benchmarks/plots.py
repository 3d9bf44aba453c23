"""Draw the README's plots from the committed records: measured speed against peers, and the selector's regret.

Example: python -m benchmarks.plots

Each plot is written twice to docs/images, for light and for dark pages, by the code that draws the page of `report`
(tuner/report). The plotted numbers are stored in the file's description as JSON, so that a test can compare them with
the records without drawing anything.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tuner.report.drawing import THEMES, Draw, to_svg
from tuner.report.measured_speed import UPSTREAM, VENDOR, draw_regret, draw_speed

from . import speedup
from .grouped_speedup import DECODE_MEAN_M, K_LAYOUTS, M_LAYOUTS, Grouped, is_of
from .stamp import DATA, RESULTS, ROOT, read_json

IMAGES = ROOT / "docs" / "images"


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
        *scaled_rows("wgrad_fp8.json", "wgrad_fp8", {"Weight gradients FP8": lambda item: True}, "plain"),
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


DRAWERS: dict[str, Draw] = {"speed": draw_speed, "regret": draw_regret}


def image_path(name: str, theme: str, folder: Path = IMAGES) -> Path:
    """Return the file of a plot: the light one is called by the plot's name alone."""
    return folder / (f"{name}.svg" if theme == "light" else f"{name}-{theme}.svg")


def write_plot(name: str, folder: Path) -> None:
    """Draw one plot in every theme; equal rows give equal files with the same matplotlib."""
    rows = COLLECTORS[name]()
    for theme, colors in THEMES.items():
        image_path(name, theme, folder).write_text(to_svg(DRAWERS[name], rows, colors), encoding="utf-8")


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
