"""Two recorded sweeps beside each other: A against B on the problems and configs that both measured.

Blocks (a block is one problem, measured in one go) of the same kernels differ by several percent, all configs of a
block alike; beside each other, configs of a block differ by less. noise.py has the model and how its scales are
estimated. With y = the logarithm of B's time over A's, of a config of a problem:

    whole     the mean over the problems of their medians: sweep, board, clocks, and what changed for all kernels
    problem   the median of a problem's y: its two blocks, and what changed for all its configs
    config    the mean over a config's problems of y beside the other configs of the same blocks, far values bounded
    pair      a config on one problem, y beside the other configs of the block
    chosen    the winners: time of B's in B over time of A's in A, beside the configs that both measured

Of each kind, the chance of such a value between equal kernels is known from the noise, and is adjusted for the number
of values of that kind over all op kinds (Benjamini and Hochberg), at the share of FALSE_SHARES.

A config or the winners lost against others in the same blocks: they are slower. The other three are suspects, which a
second measurement must settle, because one block of a problem may differ from another by its place in memory, and one
sweep from another by its board or clocks. Where some op kinds have the same kernels on both sides, their median is what
sweep and board did, and is taken off the others'.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from deep_gemm import _C
from tuner import errors
from tuner.compare.blocks import (
    Pair,
    age,
    choose_loads,
    is_confirmed,
    load_of,
    pair_blocks,
    take_confirmed,
    take_repeated,
)
from tuner.compare.duel import MIN_DIFFERENCE
from tuner.compare.noise import Noise, estimate_noise, mean_chance, mean_interval, median_chance, narrow_own
from tuner.db.rows import MeasurementRow, WinnerRow
from tuner.measure import statistics
from tuner.measure.records import QUARANTINED
from tuner.measured import FAILURES
from tuner.problems.regimes import is_sentinel

#: Fewer common problems are not enough for an answer, nor fewer problems of a config.
MIN_PROBLEMS = 6
#: Share of comparisons of equal kernels in which something of a kind is called slower: together 5 %.
FALSE_SHARES = {"whole": 0.03, "problem": 0.003, "config": 0.01, "pair": 0.005, "chosen": 0.002}
#: Kinds whose values are of many problems, and judged by their bounded mean; the others are judged by their median.
BY_MEAN = ("whole", "config")
#: A problem may be slower by this share for its place in memory, and a sweep of the same kernels for board and clocks.
MAX_SHIFT = 0.01
#: Pairs are judged where A's time is within this share of the problem's best: the others nobody runs.
NEAR = 0.05


class Side(NamedTuple):
    """What one sweep has of an op kind: its measured rows, sentinels among them, and its winners."""

    rows: list[MeasurementRow]
    winners: list[WinnerRow] = []  # noqa: RUF012 (never changed)

    @property
    def kernel_hashes(self) -> set[str]:
        """Return the kernel hashes of the rows."""
        return {row.block.kernel_hash for row in self.rows}


class Value(NamedTuple):
    """One difference of logarithms and its scale between equal kernels."""

    difference: float
    scale: float


@dataclass
class Finding:
    """Values of one kind and what they say together; problem and config are None where it is not of a single one."""

    kind: str
    values: list[Value]
    problem: _C.Problem | None = None
    config: _C.Config | None = None
    bound: float = MIN_DIFFERENCE
    verdict: str = "same"

    def chance(self, sign: int) -> float:
        """Return the chance of such values where B is not slower (sign 1) or not faster (-1) than the bound."""
        bound = math.log1p(self.bound)
        get_chance = mean_chance if self.kind in BY_MEAN else median_chance
        return get_chance([(sign * value.difference - bound) / value.scale for value in self.values])

    def to_json(self) -> dict:
        """Return the ratio of B's time to A's with its interval, and the verdict."""
        return {
            "problem": None if self.problem is None else str(self.problem),
            "config": None if self.config is None else str(self.config),
            "verdict": self.verdict,
            "chance": self.chance(1),
            **self.describe_ratio(),
        }

    def describe_ratio(self) -> dict:
        """Return the mean of the values, or their median if that is judged, as a ratio with its 95 % interval."""
        if not self.values:
            return {}
        if self.kind in BY_MEAN:
            middle, low, high = map(math.exp, mean_interval(*zip(*self.values, strict=True)))
        else:
            ratios = [math.exp(value.difference) for value in self.values]
            middle, (low, high) = statistics.median(ratios), statistics.median_interval(ratios)
        return {"ratio": middle, "ratio_low": low, "ratio_high": high, "problems": len(self.values)}


@dataclass
class Part:
    """The comparison of one op kind."""

    op: str
    a: Side
    b: Side
    noise: Noise
    found_a: dict[str, dict[str, MeasurementRow]]
    found_b: dict[str, dict[str, MeasurementRow]]
    findings: list[Finding] = field(default_factory=list)

    @property
    def has_same_kernels(self) -> bool:
        """Return whether both sides have one and the same kernel hash."""
        return self.a.kernel_hashes == self.b.kernel_hashes and len(self.a.kernel_hashes) == 1

    def of_kind(self, kind: str) -> list[Finding]:
        """Return the findings of a kind."""
        return [finding for finding in self.findings if finding.kind == kind]


def compare_rows(op: str, of_a: Iterable[MeasurementRow], of_b: Iterable[MeasurementRow]) -> dict:
    """Return the report on one op kind, from rows alone."""
    return describe(compare_sides({op: (Side(list(of_a)), Side(list(of_b)))}))[0]


def compare_sides(sides: dict[str, tuple[Side, Side]]) -> list[Part]:
    """Compare two sweeps; `sides` has those of each op kind."""
    parts = [make_part(op, a, b) for op, (a, b) in sides.items()]
    shift = find_control([part for part in parts if part.has_same_kernels]) if len(parts) > 1 else 0.0
    for part in parts:
        find_all(part, 0.0 if part.has_same_kernels else shift)
    judge_findings([finding for part in parts for finding in part.findings])
    return parts


def make_part(op: str, a: Side, b: Side) -> Part:
    """Return the comparison of one op kind, without findings."""
    noise = estimate_noise([take_repeated(side.rows) for side in (a, b)])
    loads = choose_loads(a.rows, b.rows)
    found_a, found_b = (take_confirmed(side.rows, loads) for side in (a, b))
    ratios = [[pair.log_ratio for pair in pairs] for pairs in pair_blocks(found_a, found_b).values()]
    return Part(op, a, b, narrow_own(noise, ratios), found_a, found_b)


def find_control(parts: list[Part]) -> float:
    """Return the median y of op kinds whose kernels are the same on both sides, 0.0 where too few problems are."""
    shifts = [
        statistics.median([pair.log_ratio for pair in pairs])
        for part in parts
        for pairs in pair_blocks(part.found_a, part.found_b).values()
    ]
    return statistics.median(shifts) if len(shifts) >= MIN_PROBLEMS else 0.0


def find_all(part: Part, control: float) -> None:
    """Fill a comparison with every finding, without verdicts; `control`: what sweep and board did to all kernels."""
    blocks = pair_blocks(part.found_a, part.found_b)
    whole, of_config = compare_sentinels(part, control), defaultdict(list)
    for pairs in blocks.values():
        problem, scale = pairs[0].a.block.problem, part.noise.own_beside(len(pairs) - 1)
        values = [pair.log_ratio for pair in pairs]
        shift = Value(statistics.median(values) - control, part.noise.block)
        whole.append(shift)
        part.findings.append(Finding("problem", [shift], problem, bound=MAX_SHIFT))
        limit_us = (1.0 + NEAR) * min(
            row.median_us or math.inf for row in part.found_a[pairs[0].a.block.problem_key].values()
        )
        for pair, middle in zip(pairs, statistics.medians_of_others(values), strict=True):
            value = Value(pair.log_ratio - middle, scale)
            of_config[pair.a.config].append(value)
            if (pair.a.median_us or 0.0) <= limit_us:
                part.findings.append(Finding("pair", [value], problem, pair.a.config))
    part.findings += [Finding("config", values, None, config) for config, values in of_config.items()]
    if whole:
        part.findings.append(Finding("whole", whole, bound=MAX_SHIFT if part.has_same_kernels else MIN_DIFFERENCE))
    chosen = compare_chosen(part, blocks)
    if chosen:
        part.findings.append(Finding("chosen", chosen))


def compare_sentinels(part: Part, control: float) -> list[Value]:
    """Return the difference of every sentinel that both sweeps have, with one load: of its mean over its blocks."""
    means = [average_sentinels(side.rows) for side in (part.a, part.b)]
    found = []
    for key in means[0].keys() & means[1].keys():
        configs = [{config: mean for config, (mean, _) in side[key].items()} for side in means]
        counts = [max(count for _, count in side[key].values()) for side in means]
        common = [configs[1][config] - configs[0][config] for config in configs[0].keys() & configs[1].keys()]
        if common:
            scale = part.noise.block * math.sqrt(sum(1.0 / count for count in counts) / 2.0)
            found.append(Value(statistics.median(common) - control, scale))
    return found


def average_sentinels(rows: list[MeasurementRow]) -> dict[tuple, dict[str, tuple[float, int]]]:
    """Return {(problem, load): {config: (mean logarithm of its times, number of blocks)}} of the sentinels."""
    times: defaultdict[tuple, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if is_confirmed(row) and is_sentinel(row.block.regime):
            times[row.block.problem_key, load_of(row)][row.config_key].append(math.log(row.median_us or 1.0))
    return {
        key: {config: (sum(found) / len(found), len(found)) for config, found in configs.items()}
        for key, configs in times.items()
    }


def compare_chosen(part: Part, blocks: dict[str, list[Pair]]) -> list[Value]:
    """Return, for each common problem, B's winner in B over A's winner in A, beside all configs of both blocks.

    A winner counts where its own block is the one that is compared: one of another load was chosen by other times.
    """
    of_a, of_b = (
        {(row.problem_key, row.block_id): row.config_key for row in side.winners} for side in (part.a, part.b)
    )
    found = []
    for problem, pairs in blocks.items():
        ids = pairs[0].a.block.block_id, pairs[0].b.block.block_id
        first = part.found_a[problem].get(of_a.get((problem, ids[0]), ""))
        second = part.found_b[problem].get(of_b.get((problem, ids[1]), ""))
        if first and second:
            shift = statistics.median([pair.log_ratio for pair in pairs])
            found.append(Value(Pair(first, second).log_ratio - shift, part.noise.own_beside(len(pairs))))
    return found


def judge_findings(findings: list[Finding]) -> None:
    """Give every finding its verdict, adjusted for all findings of its kind."""
    for kind, share in FALSE_SHARES.items():
        mine = [finding for finding in findings if finding.kind == kind and has_enough(finding)]
        for sign, verdict in ((1, "slower"), (-1, "faster")):
            chances = statistics.adjust_for_many([finding.chance(sign) for finding in mine])
            for finding, chance in zip(mine, chances, strict=True):
                if chance <= share:
                    is_certain = kind in ("config", "chosen") or verdict == "faster"
                    finding.verdict = verdict if is_certain else "suspect"


def has_enough(finding: Finding) -> bool:
    """Return whether a finding may be judged: what is certain needs several problems, for the noise has far values."""
    return finding.kind not in ("config", "chosen") or len(finding.values) >= MIN_PROBLEMS


def describe(parts: list[Part]) -> list[dict]:
    """Return the reports that `--json` prints, one an op kind."""
    return [describe_part(part) for part in parts]


def describe_part(part: Part) -> dict:
    """Return the report on one op kind: of problems and pairs, those that are not the same."""
    blocks = pair_blocks(part.found_a, part.found_b)
    configs = [finding.to_json() for finding in part.of_kind("config")]
    report = {
        "op": part.op,
        "problems": len(blocks),
        "pairs": sum(map(len, blocks.values())),
        "lost": len(set(part.found_a) - set(part.found_b)),
        "noise": part.noise.to_json(),
        "shift": next((finding.to_json() for finding in part.of_kind("whole")), None),
        "chosen": next((finding.to_json() for finding in part.of_kind("chosen")), None),
        "configs": sorted(configs, key=lambda row: -row["ratio"]),
        "single": [
            finding.to_json()
            for kind in ("problem", "pair")
            for finding in part.of_kind(kind)
            if finding.verdict != "same"
        ],
        "failing": find_failing(part.a.rows, part.b.rows),
    }
    return report | {"verdict": judge(report)}


def find_failing(of_a: list[MeasurementRow], of_b: list[MeasurementRow]) -> list[dict]:
    """Return what A confirmed and B could not use; what failed before B's newest block of a problem counts no more.

    A failure is one under any load: the newest blocks count here, whichever are compared. What a block skipped, because
    it had crashed or hung before, failed there, too: it was not tried again.
    """
    found_a, found_b = take_confirmed(of_a), take_confirmed(of_b)
    newest = {problem: age(next(iter(rows.values()))) for problem, rows in found_b.items()}
    return [
        {
            "problem": str(row.block.problem),
            "config": str(row.config),
            "status": row.status,
            "error": " ".join((row.error or "").split())[-200:],
        }
        for row in of_b
        if (row.status in FAILURES or is_quarantined(row))
        and row.config_key in found_a.get(row.block.problem_key, {})
        and age(row) >= newest.get(row.block.problem_key, ("", 0))
    ]


def is_quarantined(row: MeasurementRow) -> bool:
    """Return whether a sweep left a config out because it had crashed or hung before."""
    return row.status == "skipped" and (row.error or "").startswith(QUARANTINED)


def judge(report: dict) -> str:
    """Return the verdict on an op kind: slower, suspect, same, or few (too little in common)."""
    findings = [report["shift"], report["chosen"], *report["configs"], *report["single"]]
    verdicts = {finding["verdict"] for finding in findings if finding}
    if report["failing"] or "slower" in verdicts:
        return "slower"
    if report["problems"] < MIN_PROBLEMS:
        return "few"
    return "suspect" if "suspect" in verdicts else "same"


def choose_exit_code(reports: list[dict]) -> int:
    """Return 1 where something of B is slower or fails, else 3 where an op kind has no answer, else 0."""
    verdicts = {report["verdict"] for report in reports}
    if "slower" in verdicts:
        return errors.EXIT_FAILURE
    return errors.EXIT_INCONCLUSIVE if verdicts & {"few", "suspect"} or not verdicts else errors.EXIT_OK
