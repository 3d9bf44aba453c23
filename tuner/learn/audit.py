"""What in the recorded data should be measured again: rows that contradict others, and blocks that were disturbed.

A config that the race dropped has a time that nothing confirmed. It is doubtful where the same config was near the best
of a problem of nearly the same m; after one or two samples also where the estimate says that it is: a single disturbed
launch can hide a good config for ever. The list is of what may have been overlooked, not of what is wrong: neighbours
differ and estimates err, too.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from deep_gemm import _C
from tuner.db.rows import BlockRow, MeasurementRow
from tuner.learn.dataset import CENSORED, SEARCHED, Dataset, load_dataset
from tuner.measure.statistics import LEAST_SAMPLES, MAX_NOISE
from tuner.problems.fields import get_tokens, get_weight_shape, variant_of

#: A row is contradicted where it should be within NEAR of the best and is slower than that by CONTRADICTION (log time).
NEAR, CONTRADICTION = math.log(1.1), math.log(1.25)
#: Neighbours differ in their tokens by at most this factor, and in nothing else.
NEIGHBOUR_FACTOR = 2.0
NEIGHBOUR, ESTIMATE = "neighbour", "estimate"
#: NVML's reasons for a lower clock that disturb a measurement: hardware slowdown, heat by software and by hardware, and
#: the brake of the power supply (nvml.h, nvmlClocksEventReason...). The power limit is none: long products reach it.
DISTURBING = 0x8 | 0x20 | 0x40 | 0x80
POWER_LIMIT = 0x4


@dataclass(frozen=True, slots=True)
class Doubt:
    """A censored row that something contradicts; `behind` and `expected` are times over the problem's best, minus 1."""

    problem: _C.Problem
    config: _C.Config
    source: str
    samples: int
    behind: float
    expected: float

    def to_json(self) -> dict:
        """Return the doubt as JSON values."""
        return {name: getattr(self, name) for name in ("source", "samples", "behind", "expected")} | {
            "problem": self.problem.as_dict(),
            "config": self.config.as_dict(),
        }


@dataclass(frozen=True)
class Audit:
    """What an audit found. `censored` counts all censored pairs, `thin` those with fewer than LEAST_SAMPLES samples,
    `limited` the blocks that ran at the power limit.
    """

    censored: int
    thin: int
    blocks: int
    limited: int
    doubts: list[Doubt]
    noisy: list[BlockRow]
    throttled: list[BlockRow]

    def problems(self) -> list[_C.Problem]:
        """Return the problems to measure again, in the order of their keys."""
        problems = [doubt.problem for doubt in self.doubts]
        problems += [block.problem for block in (*self.noisy, *self.throttled)]
        found = {problem.key: problem for problem in problems}
        return [found[key] for key in sorted(found)]

    def to_json(self) -> dict:
        """Return the audit as JSON values, with what `sweep --shapes` and `sweep --configs` read."""
        configs = {str(doubt.config): doubt.config for doubt in self.doubts}
        return {
            **{name: getattr(self, name) for name in ("censored", "thin", "blocks", "limited")},
            "doubts": [doubt.to_json() for doubt in self.doubts],
            "noisy": [{"problem": block.problem.as_dict(), "noise": block.noise} for block in self.noisy],
            "throttled": [{"problem": block.problem.as_dict(), "reasons": block.throttle} for block in self.throttled],
            "problems": [problem.as_dict() for problem in self.problems()],
            "configs": [configs[name].as_dict() for name in sorted(configs)],
        }


def audit_op(store, sku: str, op: str) -> Audit:
    """Return what to measure again of one SKU and op kind, of the rows that `train` learns from by default, but for
    those of older kernels.

    Raises: InconclusiveError without usable rows.
    """
    data = load_dataset(store, sku, op=op, with_older=False)
    rows = store.load_measurements(sku=data.identity.sku, op=op, kernel_hash=data.identity.kernel_hash)
    return audit(data, [row for row in rows if row.block.identity == data.identity])


def audit(data: Dataset, rows: list[MeasurementRow]) -> Audit:
    """Return what to measure again of `data`, whose rows are `rows`."""
    samples = count_samples(rows)
    blocks = {row.block.block_id: row.block for row in rows}
    censored = np.argwhere(data.state == CENSORED)
    pairs = [(int(row), int(column)) for row, column in censored]
    noisy = [block for block in blocks.values() if block.noise is not None and block.noise > MAX_NOISE]
    return Audit(
        len(pairs),
        sum(is_thin(data, pair, samples) for pair in pairs),
        len(blocks),
        sum(bool((block.throttle or 0) & POWER_LIMIT) for block in blocks.values()),
        find_doubts(data, pairs, samples),
        sorted(noisy, key=noise_order),
        [block for _, block in sorted(blocks.items()) if (block.throttle or 0) & DISTURBING],
    )


def is_thin(data: Dataset, pair: tuple[int, int], samples: dict) -> bool:
    """Return whether a pair (row, column) was dropped on fewer than LEAST_SAMPLES samples."""
    return samples[data.problems[pair[0]], data.configs[pair[1]]] < LEAST_SAMPLES


def noise_order(block: BlockRow) -> tuple:
    """Return the sort key of noisy blocks, the noisiest first."""
    return -(block.noise or 0.0), block.block_id


def count_samples(rows: list[MeasurementRow]) -> dict:
    """Return {(problem, config): the most samples that one row has}, 0 where there is no row."""
    found: defaultdict[tuple, int] = defaultdict(int)
    for row in rows:
        pair = row.block.problem, row.config
        found[pair] = max(found[pair], row.num_samples or 0)
    return found


def find_doubts(data: Dataset, dropped: list[tuple[int, int]], samples: dict) -> list[Doubt]:
    """Return a doubt for each of the `dropped` pairs that a neighbour contradicts, or the estimate a thin one.

    Those of neighbours, which were measured, come first, and among them those that should be fastest.
    """
    neighbours = find_neighbours(data)
    behind = data.log_ratio - data.log_ratio[np.arange(len(data.problems)), data.oracle][:, None]
    found = []
    for row, column in dropped:
        timed = [other for other in neighbours[row] if data.state[other, column] >= SEARCHED]
        sources = {
            NEIGHBOUR: min((float(behind[other, column]) for other in timed), default=math.inf),
            ESTIMATE: estimate_behind(data, row, column) if is_thin(data, (row, column), samples) else math.inf,
        }
        for source, expected in sources.items():
            if expected <= NEAR and behind[row, column] - expected > CONTRADICTION:
                problem, config = data.problems[row], data.configs[column]
                times = float(np.expm1(behind[row, column])), math.expm1(expected)
                found.append(Doubt(problem, config, source, samples[problem, config], *times))
                break
    return sorted(found, key=lambda doubt: (doubt.source == ESTIMATE, doubt.expected, doubt.problem.key))


def find_neighbours(data: Dataset) -> list[list[int]]:
    """Return for each problem the rows of its neighbours, which differ from it in their tokens alone."""
    alike: defaultdict[tuple, list[int]] = defaultdict(list)
    for row, problem in enumerate(data.problems):
        alike[variant_of(problem), get_weight_shape(problem), problem.num_groups, problem.num_sms].append(row)
    tokens = [get_tokens(problem) for problem in data.problems]
    found: list[list[int]] = [[] for _ in data.problems]
    for rows in alike.values():
        for row, other in permutations(rows, 2):
            if max(tokens[row], tokens[other]) <= NEIGHBOUR_FACTOR * min(tokens[row], tokens[other]):
                found[row].append(other)
    return found


def estimate_behind(data: Dataset, row: int, column: int) -> float:
    """Return log(estimate / estimate of the measured best); infinite for a config that is no candidate."""
    if not data.candidate[row, column]:
        return math.inf
    mine, best = (
        _C.estimate_time_us(data.problems[row], data.configs[index], data.device)
        for index in (column, data.oracle[row])
    )
    return math.log(mine / best)
