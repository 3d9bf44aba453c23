"""Write the generated tables: of the ops in README.md, and of the measured figures in docs/performance.md.

Example: python -m benchmarks.tables

A table stands between `<!-- name: begin -->` and `<!-- name: end -->`.
"""

import sys
from collections.abc import Callable

from deep_gemm import ops

from .stamp import RESULTS, ROOT, read_json

TITLES = {
    "P1": "dense FP8, 80 problems, speed-up over DeepGEMM",
    "P2": "of these, M <= 64",
    "P3": "of these, M >= 2048",
    "P4": "dense FP8 against unscaled cuBLASLt",
    "P5": "dense BF16, 71 problems in every layout, against cuBLASLt",
    "P6": "FP8 weight gradients (FP32 accumulate), speed-up over DeepGEMM",
    "P7": "grouped contiguous FP8 (MN-major scales) and BF16, 16 problems, speed-up over DeepGEMM",
    "P8": "grouped masked FP8 (MN-major scales) of decode sizes, 8 problems, speed-up over DeepGEMM",
    "P9": "k-grouped FP8 `nt`, 6 problems, speed-up over DeepGEMM",
    "P10": "attention index logits, 48 problems, speed-up over DeepGEMM",
    "P11": "host time of one call on a warm problem, microseconds",
    "P12": "compiling one kernel on one core with NVRTC, median seconds",
    "P13": "choosing for a new shape with the portfolio loaded, microseconds",
    "P15": "casts and layouts at large sizes, bytes a second over those of a copy",
    "P16": "host time of decode-size calls of logits, einsum, casts and layouts, geometric mean of microseconds",
    "S1": "selector, mean regret on left-out shape families",
    "S2": "share of the heuristic's regret that the selector removes there",
    "S3": "heuristic alone, mean regret",
    "S1_grouped": "selector for grouped products, mean regret on left-out shape families",
    "S2_grouped": "share of the heuristic's regret that it removes there",
    "S3_grouped": "heuristic alone on grouped products, mean regret",
    "S4": "selection of a seen problem, microseconds",
    "R1": "dense FP8 on 60 problems drawn at random, which no one swept, against unscaled cuBLASLt",
    "Q1": "configs within the bounds on config-derived shapes, share",
    "Q2": "configs of the portfolios with the same bits in 1,000 repeats, share",
    "Q3": "programs in the spellings of callers that run, share",
    "Q4": "casts and layouts equal to torch's formula to the bit, share",
    "Q5": "products of einsum and hyper-connections that are right and repeat, share",
}


def make_measured_table(summary: dict) -> list[str]:
    """Return the table of measured figures as lines of Markdown: one row a target.

    The worst problem and the out-of-fold value are left empty where there are none.
    """
    lines = [
        "| figure | what | value | worst | out of fold | target | met |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, title in TITLES.items():
        if name in summary:
            entry = summary[name]
            cells = [
                f"{entry[key]:.4g}" if isinstance(entry.get(key), (int, float)) else ""
                for key in ("value", "worst", "out_of_fold")
            ]
            lines.append(
                f"| {name} | {title} | {' | '.join(cells)} | {entry['target']} | {'yes' if entry['met'] else 'no'} |"
            )
    return lines


#: Name of a table -> its page and what makes its lines.
TABLES: dict[str, tuple[str, Callable[[], list[str]]]] = {
    "ops": ("README.md", ops.make_table),
    "measured": ("docs/performance.md", lambda: make_measured_table(read_json(RESULTS / "summary.json"))),
}


def replace_table(page: str, name: str, lines: list[str]) -> str:
    """Return a page's text with `lines` between the markers of a table."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, rest = page.split(begin, 1)
    return "\n".join([f"{head}{begin}", *lines, end]) + rest.split(end, 1)[1]


def main() -> int:
    """Write every table."""
    for name, (page, make_lines) in TABLES.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        (ROOT / page).write_text(replace_table(text, name, make_lines()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
