"""Two artefacts: for which recorded problems they choose otherwise, and what the recorded times expect of that.

Times are compared within one block only, as everywhere. Where a block has not measured both choices to the end, nothing
is expected. An artefact that was trained on these very rows has seen them.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from deep_gemm import _C
from deep_gemm.selector import Selector
from tuner import errors
from tuner.compare.formats import Case, format_json, make_junit, make_markdown
from tuner.db import Store
from tuner.db.rows import MeasurementRow
from tuner.problems import workload
from tuner.problems.regimes import is_own
from tuner.ship.models import Model, get_selector

#: A mean over the changed problems of an op kind within this counts as even: what equal kernels differ by from one
#: session to the next.
EVEN = 0.01
VERDICTS = ("same", "even", "faster", "slower", "unknown")
HEADINGS = ("op kind", "problem", "A", "B", "B/A")
#: Problems of one op kind in a text table; --format json has all.
MAX_ROWS = 12


@dataclass(frozen=True)
class Change:
    """A problem for which the choices differ; `ratio`: recorded time of B's over that of A's, None where not both have
    one.
    """

    problem: _C.Problem
    old: _C.Choice
    new: _C.Choice
    ratio: float | None

    def to_json(self) -> dict:
        """Return the change as JSON values."""
        sides = {
            name: {"name": str(choice.config), "config": choice.config.as_dict(), "source": choice.source}
            for name, choice in (("a", self.old), ("b", self.new))
        }
        return {"problem": str(self.problem), "fields": self.problem.as_dict(), "ratio": self.ratio} | sides


def compare(first: Model, second: Model, store: Store, device: _C.Device, op: str = "") -> list[dict]:
    """Return a report per op kind of the artefacts, over the problems that the database has measured.

    Nothing is known of an op kind that one of them lacks or that has no times. Raises: InconclusiveError where that
    holds for all; IntegrityError where an artefact cannot be read.
    """
    old, new = get_selector(first), get_selector(second)
    first_ops, second_ops = old.metadata["ops"], new.metadata["ops"]
    reports = []
    for name in dict.fromkeys([*first_ops, *second_ops]):
        if op not in ("", name):
            continue
        if name not in first_ops or name not in second_ops:
            reports.append(make_unknown(name, f"{'B' if name in first_ops else 'A'} has no such op kind"))
            continue
        times = load_times(store, device.sku, name, second_ops[name]["kernel_hash"])
        reports.append(compare_op(name, old, new, times, device) if times else make_unknown(name, "no recorded times"))
    if not any(part["problems"] for part in reports):
        raise errors.InconclusiveError(
            f"{store.target}: has measured no problem of an op kind that both artefacts have; name another --db or --op"
        )
    return reports


def load_times(store: Store, sku: str, op: str, kernel_hash: str) -> dict:
    """Return {problem: the times of each of its blocks, the newest first}, of these kernels, else of the newest ones.

    The times are {config: ratio to the block's reference}.
    """
    rows = store.load_measurements(sku=sku, op=op, kernel_hash=kernel_hash)
    if not rows:
        newest = store.newest_kernel_hash(op, sku)
        rows = store.load_measurements(sku=sku, op=op, kernel_hash=newest) if newest else []
    return group_times(rows)


def group_times(rows: Iterable[MeasurementRow]) -> dict:
    """Return what load_times returns; of a config that was searched and confirmed it is the confirmed time."""
    blocks: defaultdict[tuple, list[MeasurementRow]] = defaultdict(list)
    for row in rows:
        block = row.block
        if is_own(block.regime) and workload.is_default(block.workload):
            blocks[block.problem, block.created, block.block_id].append(row)
    found: defaultdict[_C.Problem, list[dict]] = defaultdict(list)
    for key in sorted(blocks, key=lambda key: key[1:], reverse=True):
        timed = [row for row in blocks[key] if row.status == "ok" and row.ratio is not None]
        timed.sort(key=lambda row: row.role == "confirm")  # the last one of a config stays
        found[key[0]].append({row.config: row.ratio for row in timed})
    return found


def compare_op(op: str, old: Selector, new: Selector, times: dict, device: _C.Device) -> dict:
    """Return the report of one op kind."""
    changes = []
    for problem, blocks in times.items():
        first, second = old.choose(problem, device), new.choose(problem, device)
        if first.config != second.config:
            changes.append(Change(problem, first, second, find_ratio(blocks, first.config, second.config)))
    changes.sort(key=lambda change: (change.ratio is None, -(change.ratio or 0.0), str(change.problem)))
    ratios = [change.ratio for change in changes if change.ratio is not None]
    logarithms = [math.log(ratio) for ratio in ratios]
    mean = math.exp(sum(logarithms) / len(ratios)) if ratios else None
    return {
        "op": op,
        "problems": len(times),
        "changed": len(changes),
        "measured": len(ratios),
        "faster": sum(ratio < 1.0 for ratio in ratios),
        "slower": sum(ratio > 1.0 for ratio in ratios),
        "ratio": mean,
        "whole": math.exp(sum(logarithms) / len(times)),
        "verdict": judge(len(changes), mean),
        "reason": None,
        "changes": [change.to_json() for change in changes],
    }


def make_unknown(op: str, reason: str) -> dict:
    """Return the report of an op kind whose choices could not be compared."""
    counts = dict.fromkeys(("problems", "changed", "measured", "faster", "slower"), 0)
    means = {"ratio": None, "whole": None}
    return {"op": op} | counts | means | {"verdict": "unknown", "reason": reason, "changes": []}


def describe_verdict(part: dict) -> str:
    """Return the verdict on an op kind with what it rests on."""
    return part["verdict"] + (
        f" ({part['reason']})" if part["reason"] else f" ({part['changed']} of {part['problems']} changed)"
    )


def find_ratio(blocks: list[dict], old: _C.Config, new: _C.Config) -> float | None:
    """Return the time of `new` over that of `old` in the newest block that has both."""
    return next((block[new] / block[old] for block in blocks if old in block and new in block), None)


def judge(num_changes: int, mean: float | None) -> str:
    """Return one of VERDICTS."""
    if not num_changes or mean is None:
        return "unknown" if num_changes else "same"
    return "slower" if mean > 1.0 + EVEN else "faster" if mean < 1.0 - EVEN else "even"


def choose_exit_code(reports: list[dict]) -> int:
    """Return that of `compare`: slower, not known, or neither."""
    verdicts = {part["verdict"] for part in reports}
    if "slower" in verdicts:
        return errors.EXIT_FAILURE
    return errors.EXIT_INCONCLUSIVE if "unknown" in verdicts else errors.EXIT_OK


def list_cells(part: dict, limit: int | None = None) -> list[list[str]]:
    """Return the cells of an op kind's changes under HEADINGS."""
    return [
        [part["op"], row["problem"].removeprefix(f"{part['op']} "), row["a"]["name"], row["b"]["name"],
         f"{row['ratio']:.3f}" if row["ratio"] else "-"]
        for row in part["changes"][:limit]
    ]  # fmt: skip


def format_text(report: dict) -> str:
    """Return the report as text: a line per op kind, then the changed problems, those that become slower first."""
    lines = [f"A: {report['a']}", f"B: {report['b']}", f"on {report['sku']}, times of {report['database']}", ""]
    lines.append(
        f"{'op kind':<33}{'problems':>9}{'changed':>8}{'timed':>6}{'slower':>7}{'B/A':>7}{'whole':>7}  verdict"
    )
    for part in report["ops"]:
        counts = f"{part['problems']:>9}{part['changed']:>8}{part['measured']:>6}{part['slower']:>7}"
        mean, whole = (f"{part[name]:.3f}" if part[name] else "-" for name in ("ratio", "whole"))
        reason = f": {part['reason']}" if part["reason"] else ""
        lines.append(f"{part['op']:<33}{counts}{mean:>7}{whole:>7}  {part['verdict']}{reason}")
    for part in report["ops"]:
        lines += ["", part["op"]] if part["changes"] else []
        for _, problem, first, second, ratio in list_cells(part, MAX_ROWS):
            lines += [f"  {ratio:>6}  {problem}"[:100], f"          {first} -> {second}"[:100]]
        left = part["changed"] - MAX_ROWS
        lines += [f"  ... and {left} more, see --json"] if left > 0 else []
    return "\n".join(
        [
            *lines,
            "",
            "timed: changed problems with both configs measured in one block; B/A: their mean; whole: over all",
            "problems, an unchanged one as 1. A selector has seen the problems that it was trained on.",
        ]
    )


def format_markdown(report: dict) -> str:
    """Return the report as a table for a pull request."""
    verdicts = ", ".join(f"{part['op']}: {describe_verdict(part)}" for part in report["ops"])
    cells = [row for part in report["ops"] for row in list_cells(part)]
    return make_markdown(f"`{report['a']}` against `{report['b']}` on {report['sku']}\n\n{verdicts}", HEADINGS, cells)


def format_junit(report: dict) -> str:
    """Return the report as JUnit XML, a test case per op kind."""
    kinds = {"slower": "failure", "unknown": "skipped"}
    cases = [
        Case(
            part["op"],
            "choices",
            kind=kinds.get(part["verdict"], ""),
            message=f"{describe_verdict(part)}, B/A {part['ratio']}",
        )
        for part in report["ops"]
    ]
    return make_junit(f"compare {report['a']} {report['b']}", cases)


#: What --format of `compare` names for artefacts.
FORMATS = {"table": format_text, "markdown": format_markdown, "json": format_json, "junit": format_junit}
