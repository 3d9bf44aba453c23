"""The report of `compare`: text of at most 100 columns, Markdown, JSON, JUnit XML, and one HTML page."""

import html
from collections.abc import Callable, Iterator

from tuner.compare.formats import Case, format_json, format_ratio, make_junit, make_markdown
from tuner.pages import make_document

HEADINGS = ("op kind", "of", "problem", "config", "problems", "B/A", "95 % interval", "verdict")
#: What `of` says of each kind of value.
SUBJECTS = {
    "shift": "the whole sweep",
    "chosen": "the winners beside all configs",
    "configs": "a config beside the others",
    "single": "one problem",
}
VERDICTS = {
    "slower": "slower",
    "suspect": "suspect: one sweep cannot tell it from board, clocks or memory",
    "few": "too little in common",
    "same": "same",
}
#: Rows of one op kind in a text table; --format json has all.
MAX_ROWS = 12


def list_rows(part: dict) -> Iterator[tuple[str, dict]]:
    """Yield (kind, value) of everything that one op kind's report says."""
    for kind in ("shift", "chosen"):
        if part[kind]:
            yield kind, part[kind]
    for kind in ("configs", "single"):
        for row in part[kind]:
            yield kind, row


def make_cells(part: dict, kind: str, row: dict) -> list[str]:
    """Return the cells of a value under HEADINGS."""
    names = [row["problem"] or "", row["config"] or ""]
    return [part["op"], SUBJECTS[kind], *names, str(row["problems"]), *format_ratio(row), row["verdict"]]


def list_cells(report: dict, is_whole: bool) -> list[list[str]]:
    """Return the cells of what is not the same, with `is_whole` of every value; failures last."""
    cells = [
        make_cells(part, kind, row)
        for part in report["ops"]
        for kind, row in list_rows(part)
        if is_whole or row["verdict"] != "same" or kind == "shift"
    ]
    failing = [
        [part["op"], "failure in B", row["problem"], row["config"], "1", "", "", row["status"]]
        for part in report["ops"]
        for row in part["failing"]
    ]
    return cells + failing


def format_text(report: dict) -> str:
    """Return the report as text: a line per op kind, then what differs."""
    lines = [f"A: {report['a']}", f"B: {report['b']}", f"on {report['sku']}", ""]
    lines.append(f"{'op kind':<33}{'problems':>9}{'pairs':>7}{'lost':>6}{'whole B/A':>11}{'noise':>8}  verdict")
    for part in report["ops"]:
        shift = f"{part['shift']['ratio']:.3f}" if part["shift"] else "-"
        counts = f"{part['problems']:>9}{part['pairs']:>7}{part['lost']:>6}"
        lines.append(f"{part['op']:<33}{counts}{shift:>11}{part['noise']['own']:>8.2%}  {part['verdict']}")
    for part in report["ops"]:
        lines += format_part(part)
    lines += [f"{op}: {text}"[:100] for op, text in report["again"].items()]
    lines += [
        "",
        "lost: problems of A that B lacks; whole B/A: all configs alike (kernels, board and clocks)",
        f"noise: what equal kernels differ by from block to block; few: {VERDICTS['few']}",
    ]
    if any(part["verdict"] == "suspect" for part in report["ops"]):
        lines.append(VERDICTS["suspect"])
    return "\n".join(lines)


def format_part(part: dict) -> list[str]:
    """Return the lines about what differs in one op kind."""
    rows = [(kind, row) for kind, row in list_rows(part) if row["verdict"] != "same"]
    rows.sort(key=lambda one: (one[1]["verdict"] == "faster", -one[1]["ratio"]))
    lines = ["", part["op"]] if rows or part["failing"] else []
    for kind, row in rows[:MAX_ROWS]:
        name = " ".join(filter(None, (row["config"], row["problem"] and f"on {row['problem']}"))) or SUBJECTS[kind]
        ratio, interval = format_ratio(row)
        interval = f" ({interval}, {row['problems']} problems)" if row["problems"] > 1 else ""
        lines.append(f"  {row['verdict']:<8}{ratio}{interval}  {name}"[:100])
    lines += [
        f"  {row['status']} in B: {row['config']} on {row['problem']}"[:100] for row in part["failing"][:MAX_ROWS]
    ]
    left = max(len(rows) - MAX_ROWS, 0) + max(len(part["failing"]) - MAX_ROWS, 0)
    return [*lines, f"  ... and {left} more, see --json"] if left else lines


def format_markdown(report: dict) -> str:
    """Return the report as a table for a pull request: what differs, and the whole of each op kind."""
    title = f"`{report['a']}` against `{report['b']}` on {report['sku']}"
    verdicts = ", ".join(f"{part['op']}: {part['verdict']}" for part in report["ops"])
    return make_markdown(f"{title}\n\n{verdicts}", HEADINGS, list_cells(report, is_whole=False))


def format_junit(report: dict) -> str:
    """Return the report as JUnit XML: a test case for each value, one more for each failure; suspects are skipped."""
    cases = []
    for part in report["ops"]:
        for kind, row in list_rows(part):
            name = " ".join(filter(None, (SUBJECTS[kind], row["config"], row["problem"])))
            outcome = {"slower": "failure", "suspect": "skipped"}.get(row["verdict"], "")
            message = f"{row['verdict']}: B takes {row['ratio']:.4f} of A's time"
            cases.append(Case(part["op"], name, kind=outcome, message=message))
        for row in part["failing"]:
            name = f"{row['config']} on {row['problem']}"
            cases.append(Case(part["op"], name, kind="failure", message=f"{row['status']}: {row['error']}"))
    return make_junit(f"compare {report['a']} {report['b']}", cases)


def format_html(report: dict) -> str:
    """Return the report as an HTML page of its own."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in HEADINGS)
    rows = "".join(
        f'<tr class="{cells[-1]}">' + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>\n"
        for cells in list_cells(report, is_whole=False)
    )
    items = "".join(f"<li>{html.escape(part['op'])}: <b>{part['verdict']}</b></li>" for part in report["ops"])
    title = f"{report['a']} against {report['b']} on {report['sku']}"
    table = f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    return make_document(title, f"<h1>{html.escape(title)}</h1><ul>{items}</ul>{table}")


#: What --format of `compare` names.
FORMATS: dict[str, Callable[[dict], str]] = {
    "table": format_text,
    "markdown": format_markdown,
    "json": format_json,
    "junit": format_junit,
    "html": format_html,
}
