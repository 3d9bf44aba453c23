"""Tables as commands print them: plain text of at most 100 columns, the same on a terminal and in a file."""

import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

from deep_gemm.text import printable

#: Columns that a line may have.
WIDTH = 100
GAP = "  "
NUMBER = re.compile(r"[-+<>]?\d[\d.,/]*( ?(%|x|us|s|ms|min|h|MB|kB))?|-|")


def format_table(headings: Sequence[str], rows: Iterable[Sequence[object]], indent: str = "") -> str:
    """Return a table as lines: columns of numbers aligned to the right, None as nothing.

    The widest column of words is cut where a line would be longer than 100 columns.
    """
    cells = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    columns = list(zip(headings, *cells, strict=True))
    is_number = [all(NUMBER.fullmatch(cell) for cell in column[1:]) for column in columns]
    widths = fit([max(map(len, column)) for column in columns], is_number, WIDTH - len(indent))
    lines = []
    for row in zip(*columns, strict=True):
        parts = [
            cell.rjust(width) if number else cut(cell, width).ljust(width)
            for cell, width, number in zip(row, widths, is_number, strict=True)
        ]
        lines.append((indent + GAP.join(parts)).rstrip())
    return "\n".join(lines)


def wrap(text: str, indent: str = "  ") -> str:
    """Return a sentence on lines of at most 100 columns, each but the first one indented; paths stay whole."""
    return textwrap.fill(
        printable(text), WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def fit(widths: list[int], is_number: list[bool], room: int) -> list[int]:
    """Return the widths of columns with the widest column of words narrowed until a line fits."""
    fitted = list(widths)
    excess = sum(fitted) + len(GAP) * (len(fitted) - 1) - room
    words = [index for index, number in enumerate(is_number) if not number]
    while excess > 0 and words:
        widest = max(words, key=lambda index: fitted[index])
        fitted[widest] -= 1
        excess -= 1
    return fitted


def cut(text: str, width: int) -> str:
    """Return `text`, shortened to `width` characters where it is longer."""
    return text if len(text) <= width else text[: max(width - 3, 0)] + "..."[:width]


def print_left_out(reasons: Mapping[str, str]) -> None:
    """Say on standard error, a line each, which op kinds a command did not work on, and why."""
    for op, reason in reasons.items():
        print(printable(f"tuner: left out {op}: {reason.removeprefix(f'{op}: ')}"), file=sys.stderr)


def print_gates(verdicts: Iterable, file: TextIO | None = None) -> None:
    """Print the gates of `export`, a line per op kind with each value, its limit, and a mark where it is missed."""
    found = list(verdicts)
    names = list(dict.fromkeys(verdict.gate for verdict in found))
    rules = {verdict.gate: f"{verdict.rule} {verdict.limit:.0%}" for verdict in found}
    rows = []
    for op in dict.fromkeys(verdict.op for verdict in found):
        mine = {verdict.gate: verdict for verdict in found if verdict.op == op}
        missed = sum(not verdict.met for verdict in mine.values())
        rows.append((op, *(describe_verdict(mine[name]) for name in names), f"{missed} missed" if missed else "met"))
    headings = ["left-out families", *(f"{name} {rules[name]}" for name in names), ""]
    print(format_table(headings, rows), file=file or sys.stdout)


def describe_verdict(verdict) -> str:
    """Return a gate's value, with a mark where it is missed."""
    value = "not measured" if verdict.value is None else f"{verdict.value:.1%}"
    return value if verdict.met else f"{value} !"
