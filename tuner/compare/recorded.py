"""Two recorded sweeps of one op kind beside each other: A against B on the problems and configs that both measured.

Blocks (a block is one problem, measured in one go) of the same kernels differ by several percent from session to
session, all configs of a block alike: 37 problems of the H200 snapshot were measured twice, with quartiles of -2.9 and
+0.8 %. Configs of a block keep their ratios (quartiles of -0.3 and +0.3 %). So with y = the logarithm of B's time over
A's, of a config of a problem,

    shift of a block    the median of its y: board, clocks, and what changed for all configs
    ratio of a config   y minus the shift of its block: what changed for this config and not for the others

A config is slower where a sign test over its problems says that its ratio is above 1 + MIN_DIFFERENCE, adjusted for the
number of configs. The shift of all blocks together is shown, but no kernel is blamed for it: two sweeps cannot tell
slower kernels from slower clocks, `ab` can. A shift above MAX_SHIFT makes the comparison inconclusive.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from tuner import errors
from tuner.compare.duel import FALSE_SHARE, MIN_DIFFERENCE
from tuner.db.rows import MeasurementRow
from tuner.measure import statistics
from tuner.problems import workload

#: Blocks with fewer common configs say nothing about one of them beside the others.
MIN_CONFIGS = 3
#: Fewer common problems are not enough for an answer: six are the fewest whose median has a 95 % interval.
MIN_PROBLEMS = 6
MAX_SHIFT = 0.01
#: Statuses of configs that cannot be used.
BROKEN = ("incorrect", "compile_error", "crash", "timeout", "spill")


class Pair(NamedTuple):
    """What both sweeps have of a config of a problem: the last confirmed row of each."""

    a: MeasurementRow
    b: MeasurementRow

    @property
    def log_ratio(self) -> float:
        """Return the logarithm of B's time over A's."""
        assert self.a.median_us is not None and self.b.median_us is not None
        return math.log(self.b.median_us / self.a.median_us)


def compare_rows(op: str, of_a: Iterable[MeasurementRow], of_b: Iterable[MeasurementRow]) -> dict:
    """Return the report on one op kind that `--json` prints."""
    of_a, of_b = list(of_a), list(of_b)
    found_a, found_b = take_confirmed(of_a), take_confirmed(of_b)
    blocks = pair_blocks(found_a, found_b)
    shifts = {problem: statistics.median([pair.log_ratio for pair in pairs]) for problem, pairs in blocks.items()}
    report = {
        "op": op,
        "problems": len(blocks),
        "pairs": sum(map(len, blocks.values())),
        "lost": len(set(found_a) - set(found_b)),
        "shift": describe_ratios([math.exp(shift) for shift in shifts.values()]),
        "configs": describe_configs(blocks, shifts),
        "failing": find_failing(found_a, found_b, of_b),
    }
    return report | {"verdict": judge(report)}


def take_confirmed(rows: list[MeasurementRow]) -> dict[str, dict[str, MeasurementRow]]:
    """Return {problem: {config: row}} of the newest block of each problem with confirmed times."""
    newest: dict[str, int] = {}
    confirmed = [
        row
        for row in rows
        if row.role == "confirm" and row.status == "ok" and row.median_us and workload.is_default(row.block.workload)
    ]
    for row in confirmed:
        newest[row.block.problem_key] = max(row.block.block_id, newest.get(row.block.problem_key, 0))
    found: defaultdict[str, dict] = defaultdict(dict)
    for row in confirmed:
        if row.block.block_id == newest[row.block.problem_key]:
            found[row.block.problem_key][row.config_key] = row
    return dict(found)


def pair_blocks(found_a: dict, found_b: dict) -> dict[str, list[Pair]]:
    """Return {problem: pairs} of the blocks that have enough configs in common."""
    blocks = {
        problem: [Pair(row, found_b[problem][config]) for config, row in configs.items() if config in found_b[problem]]
        for problem, configs in found_a.items()
        if problem in found_b
    }
    return {problem: pairs for problem, pairs in blocks.items() if len(pairs) >= MIN_CONFIGS}


def describe_ratios(ratios: list[float]) -> dict | None:
    """Return the median of some ratios with its 95 % interval, None without any."""
    if not ratios:
        return None
    low, high = statistics.median_interval(ratios)
    return {"ratio": statistics.median(ratios), "ratio_low": low, "ratio_high": high, "problems": len(ratios)}


def describe_configs(blocks: dict[str, list[Pair]], shifts: dict[str, float]) -> list[dict]:
    """Return the ratio of every config to the others of its blocks, with its verdict; the slowest first."""
    ratios: defaultdict[object, list[float]] = defaultdict(list)
    for problem, pairs in blocks.items():
        for pair in pairs:
            ratios[pair.a.config].append(math.exp(pair.log_ratio - shifts[problem]))
    names, values = list(ratios), list(ratios.values())
    found = [describe_ratios(mine) or {} for mine in values]
    for verdict, sign in (("slower", 1), ("faster", -1)):
        chances = [statistics.sign_test([ratio**sign for ratio in mine], 1.0 + MIN_DIFFERENCE) for mine in values]
        for entry, chance in zip(found, statistics.adjust_for_many(chances), strict=True):
            if chance <= FALSE_SHARE:
                entry["verdict"] = verdict
    rows = [{"config": str(name), "verdict": "same"} | entry for name, entry in zip(names, found, strict=True)]
    return sorted(rows, key=lambda row: -row["ratio"])


def find_failing(found_a: dict, found_b: dict, of_b: list[MeasurementRow]) -> list[dict]:
    """Return what A confirmed and B could not use; what failed before B's newest block of a problem counts no more."""
    newest = {problem: next(iter(rows.values())).block.block_id for problem, rows in found_b.items()}
    return [
        {
            "problem": str(row.block.problem),
            "config": str(row.config),
            "status": row.status,
            "error": " ".join((row.error or "").split())[-200:],
        }
        for row in of_b
        if row.status in BROKEN
        and row.config_key in found_a.get(row.block.problem_key, {})
        and row.block.block_id >= newest.get(row.block.problem_key, 0)
    ]


def judge(report: dict) -> str:
    """Return the verdict on an op kind: slower, shifted, same, or few (too little in common)."""
    if report["failing"] or any(row["verdict"] == "slower" for row in report["configs"]):
        return "slower"
    if report["problems"] < MIN_PROBLEMS:
        return "few"
    return "shifted" if report["shift"]["ratio_low"] > 1.0 + MAX_SHIFT else "same"


def choose_exit_code(reports: list[dict]) -> int:
    """Return 1 where a config of B is slower or fails, else 3 where an op kind has no answer, else 0."""
    verdicts = {report["verdict"] for report in reports}
    if "slower" in verdicts:
        return errors.EXIT_FAILURE
    return errors.EXIT_INCONCLUSIVE if verdicts & {"few", "shifted"} or not verdicts else errors.EXIT_OK
