"""The report of `ab` (comparison.describe): text, Markdown, JSON, JUnit XML; and parts that `compare` uses, too."""

import json
import textwrap
from collections.abc import Callable, Sequence
from typing import NamedTuple
from xml.etree import ElementTree

from deep_gemm import _C
from tuner.compare import duel
from tuner.problems.fields import describe_groups, describe_variant

#: Columns of a problem and of a config in text tables.
WIDTH, CONFIG_WIDTH = 20, 27
#: Characters of an error that text shows; the remedy is at its end, a compiler's log may be pages long.
ERROR_CHARACTERS = 480
#: Verdicts that a report in JUnit's format lists as failures.
FAILURES = ("slower", *duel.BROKEN)


def format_counts(report: dict) -> str:
    """Return how many problems have each verdict."""
    return ", ".join(f"{count} {name}" for name, count in report["summary"]["verdicts"].items())


def format_text(report: dict) -> str:
    """Return the report as text of at most 100 columns."""
    lines = [f"{side.upper()}: {report[side]['name']} ({report[side]['label'][:80]})" for side in ("old", "new")]
    lines.append(f"device: {report['device']['name']}")
    for op in dict.fromkeys(row["problem"]["op"] for row in report["pairs"]):
        lines += ["", *format_table(op, [row for row in report["pairs"] if row["problem"]["op"] == op])]
    return "\n".join([*lines, "", format_summary(report)])


def format_table(op: str, rows: list[dict]) -> list[str]:
    """Return the table of one op kind."""
    heads = f"{'OLD us':>9}{'NEW us':>9}{'NEW/OLD':>9}  {'95 % interval':<15}{'verdict'}"
    lines = [op, f"{'':<{WIDTH}}{'config':<{CONFIG_WIDTH}}{heads}"]
    for row in rows:
        lines.append(
            f"{describe_problem(row['problem']):<{WIDTH}}{row['old']['name'] or '-':<{CONFIG_WIDTH}}{format_times(row)}"
        )
        if row["new"]["name"] not in (row["old"]["name"], None):
            lines.append(f"{'':<{WIDTH - 4}}NEW {row['new']['name']}")
        if row["error"]:
            error = textwrap.shorten(row["error"], ERROR_CHARACTERS, placeholder=" ...")
            lines.append(textwrap.fill(error, 100, initial_indent="  ", subsequent_indent="  "))
    return lines


def describe_problem(fields: dict) -> str:
    """Return a problem as tables show it."""
    whole = _C.Problem(**fields).as_dict()
    extras = " ".join(filter(None, (describe_groups(whole), describe_variant(whole))))
    sizes = f"{fields['m']}x{fields['n']}x{fields['k']}"
    return f"{sizes} {extras}\n{'':<{WIDTH}}" if extras else sizes


def format_times(row: dict) -> str:
    """Return the figures of a row: times, or resources of kernels that were not measured."""
    if "ratio" not in row:
        old, new = row["old"], row["new"]
        parts = [
            f"{name} {old[name]} -> {new[name]}"
            for name in ("registers", "spill_bytes")
            if None not in (old[name], new[name]) and old[name] != new[name]
        ]
        parts += ["same code"] if row["is_same_code"] and row["verdict"] == "compiled" else []
        return f"{row['verdict']}{': ' if parts else ''}{', '.join(parts)}"
    interval = f"{row['ratio_low']:.4f}-{row['ratio_high']:.4f}"
    times = f"{row['old']['median_us']:>9.2f}{row['new']['median_us']:>9.2f}"
    return f"{times}{row['ratio']:>9.4f}  {interval:<15}{row['verdict']}"


def format_summary(report: dict) -> str:
    """Return the last lines: counts, the mean ratio, and what the exit code says."""
    summary = report["summary"]
    counts = format_counts(report)
    if not summary["measured"]:
        return counts
    mean, noise, count = summary["mean_ratio"], summary["median_noise"], summary["measured"]
    return (
        f"{counts}\nNEW takes {mean:.4f} of OLD's time (geometric mean of {count}); equal kernels differ by"
        f" {noise:.2%} (median)"
    )


def format_markdown(report: dict) -> str:
    """Return the report as a table for a pull request."""
    title = f"`{report['old']['label']}` against `{report['new']['label']}` on {report['device']['name']}"
    heads = ("op kind", "problem", "config", "OLD us", "NEW us", "NEW/OLD", "95 % interval", "verdict")
    rows = []
    for row in report["pairs"]:
        times = [f"{row[side]['median_us']:.2f}" for side in ("old", "new")] if "ratio" in row else ["", ""]
        figures = [*times, *format_ratio(row)]
        rows.append([row["problem"]["op"], name_problem(row), describe_configs(row), *figures, row["verdict"]])
    return f"{make_markdown(title, heads, rows)}\n\n{format_summary(report)}"


def make_markdown(title: str, heads: Sequence[str], rows: list[list[str]]) -> str:
    """Return a table under its title."""
    lines = [title, "", f"| {' | '.join(heads)} |", f"| {' | '.join(['---'] * len(heads))} |"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def format_ratio(row: dict) -> list[str]:
    """Return the ratio of a row and its interval, empty where there is none."""
    if "ratio" not in row:
        return ["", ""]
    return [f"{row['ratio']:.4f}", f"{row['ratio_low']:.4f}-{row['ratio_high']:.4f}"]


def name_problem(row: dict) -> str:
    """Return a row's problem in one line."""
    return " ".join(describe_problem(row["problem"]).split())


def describe_configs(row: dict) -> str:
    """Return the config of a row, both where they differ."""
    names = [name for name in dict.fromkeys((row["old"]["name"], row["new"]["name"])) if name]
    return " -> ".join(names)


class Case(NamedTuple):
    """A test case of a JUnit report; `kind`: failure, skipped or "" (passed)."""

    group: str
    name: str
    seconds: float = 0.0
    kind: str = ""
    message: str = ""


def make_junit(name: str, cases: list[Case]) -> str:
    """Return JUnit XML."""
    suite = ElementTree.Element("testsuite", name=name, tests=str(len(cases)))
    for attribute, kind in (("failures", "failure"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(case.kind == kind for case in cases)))
    for case in cases:
        entry = ElementTree.SubElement(
            suite, "testcase", classname=case.group, name=case.name, time=f"{case.seconds:.9f}"
        )
        if case.kind:
            ElementTree.SubElement(entry, case.kind, message=case.message)
    return ElementTree.tostring(suite, encoding="unicode")


def format_junit(report: dict) -> str:
    """Return the report as JUnit XML: a test case for each problem, whose time is NEW's in seconds."""
    return make_junit(
        f"ab {report['old']['name']} {report['new']['name']}", [make_case(row) for row in report["pairs"]]
    )


def make_case(row: dict) -> Case:
    """Return the test case of a problem."""
    case = Case(
        row["problem"]["op"], f"{name_problem(row)} {describe_configs(row)}", row["new"].get("median_us", 0.0) * 1e-6
    )
    if row["verdict"] not in (*FAILURES, *duel.SILENT):
        return case
    message = row["error"] or f"NEW takes {row['ratio']:.4f} of OLD's time"
    kind = "failure" if row["verdict"] in FAILURES else "skipped"
    return case._replace(kind=kind, message=f"{row['verdict']}: {message}")


def format_json(report: dict) -> str:
    """Return any report as JSON."""
    return json.dumps(report, indent=1, sort_keys=True)


#: What --format of `ab` names.
FORMATS: dict[str, Callable[[dict], str]] = {
    "table": format_text,
    "markdown": format_markdown,
    "json": format_json,
    "junit": format_junit,
}
