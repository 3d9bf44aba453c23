"""The page of `report`: one HTML file without any other file, for light and dark, wide and narrow windows."""

import html
import re
from collections.abc import Iterable, Sequence

from tuner.compare.sweep_formats import HEADINGS, list_cells
from tuner.measured import FAILURES
from tuner.pages import make_document
from tuner.report import charts, collect, measured_speed
from tuner.report.drawing import THEMES, Draw, to_svg

#: Pictures are drawn in the light theme; its colours then become those of page.css, which follow the reader's theme.
LIGHT = THEMES["light"]
#: Ids of a picture's parts that nothing refers to, and that repeat in every picture.
PART_ID = re.compile(r'(?<=<g) id="[^"]*"')
NUMBER = re.compile(r"-?\d[\d.,]*( ?%)?|-")
SECTIONS = {
    "speed": "Speed",
    "regret": "Regret",
    "roofline": "Roofline",
    "noise": "Noise",
    "coverage": "Coverage",
    "regressions": "Regressions",
    "ops": "Op kinds",
}


class Page:
    """Collects the parts of one page; every picture has ids of its own."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.count = 0

    def add(self, text: str) -> None:
        """Add HTML."""
        self.parts.append(text)

    def heading(self, name: str, remark: str = "") -> None:
        """Begin a section."""
        self.add(f'<h2 id="{name}">{SECTIONS[name]}</h2>' + (f"<p>{remark}</p>" if remark else ""))

    def picture(self, draw: Draw, rows: list[dict], caption: str) -> str:
        """Return a picture with its caption, nothing without rows."""
        if not rows:
            return ""
        self.count += 1
        svg = to_svg(draw, rows, LIGHT, text="none", salt=f"picture {self.count}")
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
        svg = re.sub(r'(?<= )(width|height)="[\d.]+pt" ?', "", svg, count=2)
        svg = PART_ID.sub("", svg)
        for name, color in LIGHT.items():
            svg = svg.replace(color, f"var(--{name})")
        label = html.escape(caption, quote=True)
        svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
        return f"<figure><figcaption>{html.escape(caption)}</figcaption>{svg}</figure>"

    def pictures(self, made: Iterable[str]) -> None:
        """Add pictures beside each other, as many as there is room for."""
        found = [one for one in made if one]
        if found:
            self.add(f'<div class="grid">{"".join(found)}</div>')

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Add a table; columns of numbers are aligned to the right."""
        cells = [[str(cell) for cell in row] for row in rows]
        kinds = [
            ' class="number"' if all(NUMBER.fullmatch(cell) for cell in column) else ""
            for column in zip(*cells, strict=True)
        ] or [""] * len(headings)
        head = "".join(f"<th{kind}>{html.escape(text)}</th>" for kind, text in zip(kinds, headings, strict=True))
        body = "".join(
            "<tr>"
            + "".join(f"<td{kind}>{html.escape(text)}</td>" for kind, text in zip(kinds, row, strict=True))
            + "</tr>"
            for row in cells
        )
        self.add(f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>')


def make_page(facts: dict) -> str:
    """Return the page.

    Args:
        facts: sku, name (of the GPU), database, version, ops (see collect.collect_op), speed and regret (rows of the
            pictures of measured_speed, [] without benchmarks), regressions (the report of `compare`, or None).
    """
    page = Page()
    ops = facts["ops"]
    title = f"{facts['name']}: measured kernels"
    add_head(page, facts, title)
    add_speed(page, facts)
    add_regret(page, facts)
    rooflines = [entry["roofline"] for entry in ops if entry["roofline"]]
    if rooflines:
        page.heading(
            "roofline", "The best measured config of every problem, under the roofs of tensor cores and memory."
        )
        page.pictures([page.picture(charts.draw_roofline, rooflines, "Speed over intensity, at the highest clock")])
    page.heading(
        "noise",
        "Every block runs one config twice in each round. What the two differ by is its noise, or what configs differ"
        " by between the parts of their confirmation, if that is more.",
    )
    page.pictures([page.picture(charts.draw_noise, collect.collect_noise(ops), "noise of the newest kernels' blocks")])
    add_coverage(page, ops)
    add_regressions(page, facts["regressions"])
    add_ops(page, ops)
    return make_document(title, "\n".join(page.parts))


def add_head(page: Page, facts: dict, title: str) -> None:
    """Add the title, where the data come from, and links to the sections."""
    page.add(f"<h1>{html.escape(title)}</h1>")
    newest = max((entry["newest"] for entry in facts["ops"]), default="")[:10]
    source = f"{facts['sku']}, {facts['database']}, newest block {newest}, deep_gemm {facts['version']}"
    page.add(f"<p>{html.escape(source)}</p>")
    page.add("<nav>" + " ".join(f'<a href="#{name}">{text}</a>' for name, text in SECTIONS.items()) + "</nav>")


def add_speed(page: Page, facts: dict) -> None:
    """Add the speed against other libraries, of the committed benchmarks."""
    page.heading(
        "speed", "Against DeepGEMM and cuBLASLt, from the committed benchmarks; out of fold where that was measured."
    )
    if facts["speed"]:
        page.pictures([page.picture(measured_speed.draw_narrow_speed, facts["speed"], "Speed-up, a point a problem")])
        headings = ("product", "against", "problems", "mean speed-up")
        page.table(
            headings, [(row["name"], row["peer"], len(row["speedups"]), f"{row['mean']:.2f}") for row in facts["speed"]]
        )
    else:
        page.add("<p>There are no committed benchmarks of this GPU here.</p>")


def add_regret(page: Page, facts: dict) -> None:
    """Add the regret: on left-out families, and on the database's own problems."""
    page.heading(
        "regret",
        "How much slower than the best measured config a choice is. The selector was trained on most of these problems:"
        " its curves flatter it. What it loses on shape families left out of its training is in the first picture."
        " Negative regret is noise: the best was chosen by other rounds than those that score it.",
    )
    made = [page.picture(measured_speed.draw_narrow_regret, facts["regret"], "On left-out families")]
    made += [page.picture(charts.draw_curves, entry["curves"], entry["op"]) for entry in facts["ops"]]
    page.pictures(made)


def add_coverage(page: Page, ops: list[dict]) -> None:
    """Add what was measured."""
    page.heading("coverage", "Rows of the newest kernels, and how many problems of each preset were measured.")
    headings = ("op kind", "kernel", "current", "problems", "rows", "ok", "dropped early", "failed", "skipped")
    page.table(headings, [describe_rows(entry) for entry in ops])
    rows = [
        (entry["op"], name, part["problems"], part["measured"], f"{100.0 * part['measured'] / part['problems']:.0f} %")
        for entry in ops
        for name, part in entry["coverage"].items()
    ]
    if rows:
        page.add("<details><summary>By preset</summary>")
        page.table(("op kind", "preset", "problems", "measured", "share"), rows)
        page.add("</details>")


def describe_rows(entry: dict) -> tuple:
    """Return the cells of an op kind."""
    statuses = entry["statuses"]
    failed = sum(count for status, count in statuses.items() if status in FAILURES)
    hashes = ((entry["kernel_hash"] or "")[:8], "yes" if entry["is_current"] else "no")
    counts = (entry["problems"], entry["rows"], statuses.get("ok", 0), statuses.get("censored", 0), failed)
    return (entry["op"], *hashes, *counts, statuses.get("skipped", 0))


def add_regressions(page: Page, report: dict | None) -> None:
    """Add what `compare` says."""
    page.heading("regressions")
    if report is None:
        page.add("<p>There is nothing to compare with: one kernel hash, and no baseline (`baseline set`).</p>")
        return
    verdicts = ", ".join(f"{part['op']}: {part['verdict']}" for part in report["ops"])
    page.add(f"<p>{html.escape(report['a'])} against {html.escape(report['b'])}. {html.escape(verdicts)}.</p>")
    page.table(HEADINGS, list_cells(report, is_whole=False))


def add_ops(page: Page, ops: list[dict]) -> None:
    """Add the M-sweeps and the heat map of every op kind, folded but for the first."""
    page.heading(
        "ops", "Time over m for the weights with most measured m, and how much slower than the best configs are."
    )
    for number, entry in enumerate(ops):
        made = [
            page.picture(charts.draw_sweep, sweep["rows"], f"{entry['op']}, {sweep['weight']}")
            for sweep in entry["sweeps"]
        ]
        if entry["heat_map"]:
            caption = f"{entry['op']}, {entry['heat_map']['weight']}: configs over m"
            made.append(page.picture(charts.draw_heat_map, entry["heat_map"]["rows"], caption))
        page.add(f"<details{' open' if number == 0 else ''}><summary>{html.escape(entry['op'])}</summary>")
        page.pictures(made)
        page.add("" if made else "<p>No weight was measured with five m.</p>")
        page.add("</details>")
