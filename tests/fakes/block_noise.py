"""Pairs of sweeps with the noise that was recorded: what A measured, and a B that differs from it as blocks differ.

tests/data/block_noise.json holds, of 45 problems that one session on an H200 measured in two blocks, the logarithms of
the ratios of their configs' times (`differences`, a list per problem).
"""

import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from deep_gemm import _C
from tuner.compare.blocks import take_confirmed
from tuner.compare.recorded import Side
from tuner.db import Store, snapshot_path
from tuner.db.rows import MeasurementRow
from tuner.measure import statistics
from tuner.problems import regimes, sentinels, shapes

NOISE = json.loads((Path(__file__).parents[1] / "data" / "block_noise.json").read_text(encoding="utf-8"))
SKU = "nvidia-h200-sm132"
VISITS = 5
#: Rows that are slower than the best of their problem by more than this factor are left out: it saves time.
NEAR = 1.1
OTHER_HASH = "cd" * 32
#: What two sessions of equal kernels differ by beyond their blocks was not recorded: drawn blocks have no common shift.
CENTER = statistics.median([statistics.median(differences) for differences in NOISE["differences"]])


def load_sweep(op: str = "fp8_gemm", preset: str = "dense") -> list[MeasurementRow]:
    """Return the fast ones of the confirmed rows that the recorded snapshot has of a preset's problems, of the kernels
    that most of them are of; of each problem the newest of the blocks with most, since another board measured the
    fastest alone again.
    """
    wanted = {problem.key for problem in shapes.load_preset(preset)}
    with Store.open(snapshot_path(SKU), mode="immutable") as store:
        rows = store.load_measurements(sku=SKU, op=op, role="confirm")
    kernels = Counter(row.block.kernel_hash for row in rows).most_common(1)[0][0]
    known = [row for row in rows if row.block.problem_key in wanted and row.block.kernel_hash == kernels]
    sizes = Counter((row.block.problem_key, row.block.block_id) for row in known)
    largest: Counter = Counter()
    for (problem_key, _), size in sizes.items():
        largest[problem_key] = max(largest[problem_key], size)
    whole = [row for row in known if sizes[row.block.problem_key, row.block.block_id] == largest[row.block.problem_key]]
    found = []
    for of_problem in take_confirmed(whole).values():
        best_us = min(row.median_us for row in of_problem.values())
        found += [row for row in of_problem.values() if row.median_us <= NEAR * best_us]
    return found


class Sessions:
    """Draws sweeps of the same kernels as `rows`; one seed gives one pair of sweeps."""

    def __init__(self, rows: list[MeasurementRow], seed: int):
        self.random = random.Random(seed)
        blocks: defaultdict[int, list[MeasurementRow]] = defaultdict(list)
        for row in rows:
            blocks[row.block.block_id].append(row)
        self.blocks = list(blocks.values())

    def draw(self, count: int) -> list[float]:
        """Return how `count` configs of a block differ from another block of theirs."""
        differences = self.random.choice(NOISE["differences"])
        middle, sign = statistics.median(differences), self.random.choice((-1.0, 1.0))
        own = [difference - middle for difference in differences]
        return [sign * (middle - CENTER + self.random.choice(own)) for _ in range(count)]

    def measure(self, slow_down: Callable[[MeasurementRow], float] = lambda row: 1.0) -> list[MeasurementRow]:
        """Return the rows of another sweep, each `slow_down` times as long."""
        found = []
        for rows in self.blocks:
            differences = self.draw(len(rows))
            for row, difference in zip(rows, differences, strict=True):
                found.append(replace(row, median_us=row.median_us * math.exp(difference) * slow_down(row)))
        return found

    def measure_sentinels(self, op: str, slow_down: float = 1.0) -> list[MeasurementRow]:
        """Return the rows of the sentinels of one sweep. Two draws are a difference, so each counts by its root."""
        model, found = self.blocks[0][0], []
        for number, (problem, configs) in enumerate(sentinels.get_sentinels([op], _C.Device.known(SKU))):
            for visit in range(VISITS):
                block = replace(
                    model.block, problem=problem, problem_key=problem.key, status="open",
                    regime=regimes.name_sentinel(model.block.regime), block_id=10**6 + number * VISITS + visit,
                )  # fmt: skip
                for config, difference in zip(configs, self.draw(len(configs)), strict=True):
                    time_us = 20.0 * slow_down * math.exp(difference / math.sqrt(2.0))
                    found.append(
                        replace(
                            model, block=block, config=config, config_key=config.key(op), median_us=time_us,
                        )
                    )  # fmt: skip
        return found


def make_sides(sessions: Sessions, op: str, slow_down: Callable[[MeasurementRow], float], whole: float = 1.0) -> dict:
    """Return the sides of a comparison in which B is slowed; `whole`: all of it."""
    first = [row for rows in sessions.blocks for row in rows] + sessions.measure_sentinels(op)
    second = sessions.measure(lambda row: slow_down(row) * whole) + sessions.measure_sentinels(op, whole)
    blocks = {row.block: replace(row.block, kernel_hash=OTHER_HASH) for row in second}
    return {op: (Side(first), Side([replace(row, block=blocks[row.block]) for row in second]))}


def calm(rows: list[MeasurementRow]) -> list[MeasurementRow]:
    """Return rows whose times differ from each other by a tenth of what they did."""
    return [replace(row, median_us=20.0 * (row.median_us / 20.0) ** 0.1) for row in rows]


def take_near(rows: list[MeasurementRow]) -> list[MeasurementRow]:
    """Return the rows within 5 % of the best of their block."""
    best: dict[int, float] = {}
    for row in rows:
        best[row.block.block_id] = min(best.get(row.block.block_id, math.inf), row.median_us)
    return [row for row in rows if row.median_us <= 1.05 * best[row.block.block_id]]


def measure_naive(rows: list[MeasurementRow], seeds: Iterable[int]) -> float:
    """Return the share of equal pairs that look slower by more than max(1 %, twice the A/A noise of the block)."""
    slower, count = 0, 0
    for seed in seeds:
        sessions = Sessions(rows, seed)
        before = {(row.block.block_id, row.config_key): row for row in rows}
        for row in sessions.measure():
            old = before[row.block.block_id, row.config_key]
            ratio = row.median_us / old.median_us
            slower += ratio > 1.0 + max(0.01, 2.0 * (row.block.noise or 0.0))
            count += 1
    return slower / count
