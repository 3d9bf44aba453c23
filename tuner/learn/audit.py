"""What in the recorded data should be measured again: rows that contradict others, and blocks that were disturbed.

A config that the race dropped has a time that nothing confirmed. It is doubtful where the same config was near the best
of a problem that differs in its tokens alone, and by little; after one or two samples also where the estimate says that
it is: a single disturbed launch can hide a good config for ever. The list is of what may have been overlooked, not of
what is wrong: neighbours differ and estimates err, too.

By design the estimate speaks of no drop on LEAST_SAMPLES samples or more: so many are worth more than it is. New sweeps
drop nothing on fewer, so that only rows of older sweeps are contradicted by it.

What is audited is what `train` learns from by default: the newest kernels' rows, those of older kernels that serve
them, and times after rests. A sweep measures with the kernels of this package. Where the rows of a problem are of other
kernels, its new ones take the place of them all, so that it has to be swept whole.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain, permutations

import numpy as np

from deep_gemm import _C
from deep_gemm.fields import OP_KINDS
from deep_gemm.jit import hashing
from deep_gemm.older_kernels import list_serving
from tuner.db.rows import BlockRow, MeasurementRow
from tuner.learn.dataset import CENSORED, SEARCHED, Dataset, load_dataset, load_parts
from tuner.measure.statistics import LEAST_SAMPLES, MAX_NOISE
from tuner.problems.fields import get_tokens
from tuner.problems.regimes import is_rested

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
    """A censored row that something contradicts; `behind` and `expected` are times over the problem's best, minus 1.
    `kernel_hash` is that of the problem's rows.
    """

    problem: _C.Problem
    config: _C.Config
    source: str
    samples: int
    behind: float
    expected: float
    kernel_hash: str

    def to_json(self) -> dict:
        """Return the doubt as JSON values."""
        names = "source", "samples", "behind", "expected", "kernel_hash"
        return {name: getattr(self, name) for name in names} | {
            "problem": self.problem.as_dict(),
            "config": self.config.as_dict(),
        }


@dataclass(frozen=True)
class Audit:
    """What an audit found. `current` is the hash of the kernels with which a sweep would measure.

    `censored` counts all censored pairs, `thin` those with fewer than LEAST_SAMPLES samples. Of the `blocks`, `older`
    are of older kernels than the newest recorded ones, `rested` were timed after rests, `limited` ran at the power
    limit.
    """

    current: str
    censored: int
    thin: int
    blocks: int
    older: int
    rested: int
    limited: int
    doubts: list[Doubt]
    noisy: list[BlockRow]
    throttled: list[BlockRow]

    def doubted(self) -> list[Doubt]:
        """Return the doubts that a sweep of the doubted configs alone settles: those about rows of its own kernels."""
        return [doubt for doubt in self.doubts if doubt.kernel_hash == self.current]

    def problems(self) -> list[_C.Problem]:
        """Return the problems to sweep with the doubted configs alone, in the order of their keys."""
        return sort_problems(doubt.problem for doubt in self.doubted())

    def configs(self) -> list[_C.Config]:
        """Return the doubted configs of these problems, in the order of their names."""
        return sorted({doubt.config for doubt in self.doubted()}, key=str)

    def whole(self) -> list[_C.Problem]:
        """Return the problems to sweep whole, in the order of their keys: those of disturbed blocks, and the doubtful
        ones whose rows are of other kernels.
        """
        disturbed = [block.problem for block in (*self.noisy, *self.throttled)]
        return sort_problems([*disturbed, *(one.problem for one in self.doubts if one.kernel_hash != self.current)])

    def to_json(self) -> dict:
        """Return the audit as JSON values: `problems` and `configs` as `sweep` reads them, and the problems of `whole`.

        `configs` is None where there are none.
        """
        counts = "censored", "thin", "blocks", "older", "rested", "limited"
        return {
            **{name: getattr(self, name) for name in counts},
            "doubts": [doubt.to_json() for doubt in self.doubts],
            "noisy": [describe_block(block) | {"noise": block.noise} for block in self.noisy],
            "throttled": [describe_block(block) | {"reasons": block.throttle} for block in self.throttled],
            "problems": [problem.as_dict() for problem in self.problems()],
            "configs": [config.as_dict() for config in self.configs()] or None,
            "whole": [problem.as_dict() for problem in self.whole()],
        }


def sort_problems(problems: Iterable[_C.Problem]) -> list[_C.Problem]:
    """Return problems in the order of their keys, each once."""
    return sorted(set(problems), key=lambda problem: problem.key)


def describe_block(block: BlockRow) -> dict:
    """Return which block this is, as JSON values."""
    return {"problem": block.problem.as_dict(), "kernel_hash": block.kernel_hash, "regime": block.regime}


def audit_op(store, sku: str, op: str) -> Audit:
    """Return what to measure again of one SKU and op kind, of the rows that `train` learns from by default.

    Raises: InconclusiveError without usable rows.
    """
    data = load_dataset(store, sku, op=op)
    hashes = list_serving(op, data.identity.kernel_hash)
    parts = load_parts(store, [replace(data.identity, kernel_hash=one) for one in hashes], ())
    return audit(data, chain.from_iterable(parts), hashing.kernel_hash(op))


def audit(data: Dataset, rows: Iterable[MeasurementRow], current: str) -> Audit:
    """Return what to measure again of `data`, whose rows are `rows`; sweeps measure with the kernels `current`."""
    samples, known = summarize(rows)
    blocks = list(known.values())
    pairs = [(int(row), int(column)) for row, column in np.argwhere(data.state == CENSORED)]
    hashes = {block.problem: block.kernel_hash for block in blocks}
    return Audit(
        current,
        len(pairs),
        sum(is_thin(data, pair, samples) for pair in pairs),
        len(blocks),
        sum(block.kernel_hash != data.identity.kernel_hash for block in blocks),
        sum(is_rested(block.regime) for block in blocks),
        sum(bool((block.throttle or 0) & POWER_LIMIT) for block in blocks),
        find_doubts(data, pairs, samples, hashes),
        sorted((block for block in blocks if (block.noise or 0.0) > MAX_NOISE), key=noise_order),
        [block for block in blocks if (block.throttle or 0) & DISTURBING],
    )


def is_thin(data: Dataset, pair: tuple[int, int], samples: dict) -> bool:
    """Return whether a pair (row, column) was dropped on fewer than LEAST_SAMPLES samples."""
    return samples[data.problems[pair[0]], data.configs[pair[1]]] < LEAST_SAMPLES


def noise_order(block: BlockRow) -> tuple:
    """Return the sort key of noisy blocks, the noisiest first."""
    return -(block.noise or 0.0), block.block_id


def summarize(rows: Iterable[MeasurementRow]) -> tuple[dict, dict[int, BlockRow]]:
    """Return {(problem, config): the most samples that one row has}, 0 where there is no row, and the blocks by id.

    Times after rests are no samples of a drop: only who was not dropped has them.
    """
    samples: defaultdict[tuple, int] = defaultdict(int)
    blocks = {}
    for row in rows:
        blocks[row.block.block_id] = row.block
        if not is_rested(row.block.regime):
            pair = row.block.problem, row.config
            samples[pair] = max(samples[pair], row.num_samples or 0)
    return samples, dict(sorted(blocks.items()))


def find_doubts(data: Dataset, dropped: list[tuple[int, int]], samples: dict, hashes: dict) -> list[Doubt]:
    """Return a doubt for each of the `dropped` pairs that a neighbour contradicts, or the estimate a thin one.

    Those of neighbours, which were measured, come first, and among them those that should be fastest. `hashes` are the
    kernels of each problem's rows.
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
                found.append(Doubt(problem, config, source, samples[problem, config], *times, hashes[problem]))
                break
    return sorted(found, key=lambda doubt: (doubt.source == ESTIMATE, doubt.expected, doubt.problem.key))


def find_neighbours(data: Dataset) -> list[list[int]]:
    """Return for each problem the rows of its neighbours, which differ from it in their tokens alone."""
    alike: defaultdict[tuple, list[int]] = defaultdict(list)
    for row, problem in enumerate(data.problems):
        alike[describe_rest(problem)].append(row)
    tokens = [get_tokens(problem) for problem in data.problems]
    found: list[list[int]] = [[] for _ in data.problems]
    for rows in alike.values():
        for row, other in permutations(rows, 2):
            if max(tokens[row], tokens[other]) <= NEIGHBOUR_FACTOR * min(tokens[row], tokens[other]):
                found[row].append(other)
    return found


def describe_rest(problem: _C.Problem) -> tuple:
    """Return all fields of a problem but its tokens: neighbours have the same."""
    own = name_tokens(problem)
    return own, *((name, value) for name, value in problem.as_dict().items() if name != own)


def name_tokens(problem: _C.Problem) -> str:
    """Return the field that fields.get_tokens reads, beside the number of groups."""
    kind = OP_KINDS[problem.op]
    if kind.k_is_divided:
        return "k"
    return "expected_m" if kind.has_room and problem.expected_m else "m"


def estimate_behind(data: Dataset, row: int, column: int) -> float:
    """Return log(estimate / estimate of the measured best); infinite for a config that is no candidate."""
    if not data.candidate[row, column]:
        return math.inf
    mine, best = (
        _C.estimate_time_us(data.problems[row], data.configs[index], data.device)
        for index in (column, data.oracle[row])
    )
    return math.log(mine / best)
