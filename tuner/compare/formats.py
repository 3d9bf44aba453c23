"""The report of a comparison (comparison.describe) as text, Markdown, JSON or JUnit XML."""

import json
from collections.abc import Callable
from xml.etree import ElementTree

from deep_gemm import _C
from tuner.compare import duel
from tuner.problems.fields import describe_groups, describe_variant

#: Columns of a problem and of a config in text tables.
WIDTH, CONFIG_WIDTH = 20, 27
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
            lines.append(f"  {' '.join(row['error'].split())[:96]}")
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
    lines = [
        f"`{report['old']['label']}` against `{report['new']['label']}` on {report['device']['name']}",
        "",
        "| op kind | problem | config | OLD us | NEW us | NEW/OLD | 95 % interval | verdict |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in report["pairs"]:
        cells = [row["problem"]["op"], " ".join(describe_problem(row["problem"]).split()), describe_configs(row)]
        cells += (
            [
                f"{row['old']['median_us']:.2f}",
                f"{row['new']['median_us']:.2f}",
                f"{row['ratio']:.4f}",
                f"{row['ratio_low']:.4f}-{row['ratio_high']:.4f}",
            ]
            if "ratio" in row
            else [""] * 4
        )
        lines.append(f"| {' | '.join([*cells, row['verdict']])} |")
    return "\n".join([*lines, "", format_summary(report)])


def describe_configs(row: dict) -> str:
    """Return the config of a row, both where they differ."""
    names = [name for name in dict.fromkeys((row["old"]["name"], row["new"]["name"])) if name]
    return " -> ".join(names)


def format_junit(report: dict) -> str:
    """Return the report as JUnit XML: a test case for each problem, whose time is NEW's in seconds."""
    suite = ElementTree.Element("testsuite", name=f"ab {report['old']['name']} {report['new']['name']}")
    counts = report["summary"]["verdicts"]
    suite.set("tests", str(len(report["pairs"])))
    suite.set("failures", str(sum(counts.get(verdict, 0) for verdict in FAILURES)))
    suite.set("skipped", str(sum(counts.get(verdict, 0) for verdict in duel.SILENT)))
    for row in report["pairs"]:
        name = f"{' '.join(describe_problem(row['problem']).split())} {describe_configs(row)}"
        seconds = row["new"].get("median_us", 0.0) * 1e-6
        case = ElementTree.SubElement(
            suite, "testcase", classname=row["problem"]["op"], name=name, time=f"{seconds:.9f}"
        )
        if row["verdict"] in (*FAILURES, *duel.SILENT):
            kind = "failure" if row["verdict"] in FAILURES else "skipped"
            message = row["error"] or f"NEW takes {row['ratio']:.4f} of OLD's time"
            ElementTree.SubElement(case, kind, message=f"{row['verdict']}: {message}")
    return ElementTree.tostring(suite, encoding="unicode")


#: What --format names.
FORMATS: dict[str, Callable[[dict], str]] = {
    "table": format_text,
    "markdown": format_markdown,
    "json": lambda report: json.dumps(report, indent=1, sort_keys=True),
    "junit": format_junit,
}
