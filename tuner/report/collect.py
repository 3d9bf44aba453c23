"""What the page of `report` shows of a database: rows for the pictures and tables, one op kind after the other."""

from collections import defaultdict
from typing import NamedTuple

import deep_gemm
from deep_gemm import _C
from tuner.db.rows import MeasurementRow
from tuner.learn.inspection import inspect
from tuner.measure.statistics import quantile
from tuner.measured import TIMED
from tuner.problems import workload
from tuner.problems.fields import get_tokens, get_weight_shape, variant_of
from tuner.problems.regimes import is_own

#: A weight with fewer different m gives no curve; of the others, so many are drawn.
MIN_SIZES, MAX_WEIGHTS = 5, 4
MAX_CONFIGS = 14
#: FLOP a clock of one SM's tensor cores, of an H20's a quarter, and the bytes of an element of A and B, by op kind.
RATES = {"fp8_gemm": (8192, 1), "bf16_gemm": (4096, 2)}
D_BYTES = {"bf16": 2, "fp32": 4}


class Block(NamedTuple):
    """The newest finished block of a problem: {config: ratio to its reference config} and the reference's time."""

    problem: _C.Problem
    ratios: dict[_C.Config, float]
    reference_us: float

    @property
    def best(self) -> float:
        """Return the smallest ratio."""
        return min(self.ratios.values())

    def regret(self, config: _C.Config) -> float | None:
        """Return how much slower than the best a config is, in percent; None where it was not measured."""
        return None if config not in self.ratios else 100.0 * (self.ratios[config] / self.best - 1.0)


def collect_op(store, device, op: str) -> dict:
    """Return everything that the page shows of one op kind on one GPU model."""
    found = inspect(store, device.sku, op)
    newest = found["kernel_hash"]["newest"]
    rows = [
        row for row in store.load_measurements(sku=device.sku, op=op, kernel_hash=newest) if is_own(row.block.regime)
    ]
    blocks = take_blocks(rows)
    return {
        "op": op,
        "kernel_hash": newest,
        "is_current": found["kernel_hash"]["matches"],
        "rows": len(rows),
        "problems": len(blocks),
        "statuses": found["failures"]["statuses"],
        "newest": max((row.block.created for row in rows), default=""),
        "coverage": found["coverage"],
        "noise": found["noise"]["block"],
        "curves": collect_curves(blocks, device),
        "sweeps": collect_sweeps(blocks),
        "heat_map": collect_heat_map(blocks),
        "roofline": collect_roofline(op, blocks, device),
    }


def take_blocks(rows: list[MeasurementRow]) -> list[Block]:
    """Return the newest finished block of each problem, of the default group sizes."""
    found: dict[str, tuple] = {}
    for row in rows:
        block = row.block
        if block.status == "finished" and workload.is_default(block.workload):
            found[block.problem_key] = max(found.get(block.problem_key, ("", 0)), (block.created, block.block_id))
    of_problem: defaultdict[str, list[MeasurementRow]] = defaultdict(list)
    for row in rows:
        if (row.block.created, row.block.block_id) == found.get(row.block.problem_key):
            of_problem[row.block.problem_key].append(row)
    blocks = [make_block(group) for group in of_problem.values()]
    return [block for block in blocks if block is not None]


def make_block(rows: list[MeasurementRow]) -> Block | None:
    """Return a block with the ratio of each config, confirmed where that is known; None without its reference."""
    ratios = {}
    for row in sorted(rows, key=lambda row: row.role == "confirm"):
        if row.ratio is not None and row.status in TIMED:
            ratios[row.config] = row.ratio
    reference = [row.median_us for row in rows if row.is_reference and row.median_us]
    return Block(rows[0].block.problem, ratios, reference[0]) if reference and ratios else None


def collect_curves(blocks: list[Block], device) -> list[dict]:
    """Return the sorted regret of the heuristic's picks, and of the library's choices where these differ."""
    picks = {
        "the heuristic alone": [_C.get_analytic_config(block.problem, device) for block in blocks],
        "what the library chooses": [deep_gemm.get_best_config(block.problem, device) for block in blocks],
    }
    found = []
    for name, configs in picks.items():
        regrets = [block.regret(config) for block, config in zip(blocks, configs, strict=True)]
        known = sorted(regret for regret in regrets if regret is not None)
        if known:
            figures = {"mean": sum(known) / len(known), "p95": quantile(known, 0.95)}
            is_main = name != "the heuristic alone"
            found.append({"name": name, "is_main": is_main, "regrets": [round(one, 2) for one in known], **figures})
    return found


def group_by_weight(blocks: list[Block]) -> list[tuple[str, list[Block]]]:
    """Return (name of a weight, its blocks by m), those with most different m first."""
    groups: defaultdict[tuple, dict[int, Block]] = defaultdict(dict)
    for block in blocks:
        groups[get_weight_shape(block.problem), variant_of(block.problem)][get_tokens(block.problem)] = block
    named = []
    for found in groups.values():
        if len(found) >= MIN_SIZES:
            ordered = [found[size] for size in sorted(found)]
            named.append((describe_weight(ordered[0].problem), ordered))
    return sorted(named, key=lambda one: (-len(one[1]), one[0]))


def describe_weight(problem: _C.Problem) -> str:
    """Return a problem's fields apart from the number of tokens."""
    return " ".join(word for word in str(problem).split()[1:] if not word.startswith(("m=", "expected_m=")))


def collect_sweeps(blocks: list[Block]) -> list[dict]:
    """Return the M-sweeps of a few weights: the best time and that of the heuristic's pick."""
    return [
        {
            "weight": name,
            "rows": [
                {
                    "m": max(get_tokens(block.problem), 1),
                    "best_us": round(block.best * block.reference_us, 3),
                    "heuristic_us": round(block.reference_us, 3),
                }
                for block in found
            ],
        }
        for name, found in group_by_weight(blocks)[:MAX_WEIGHTS]
    ]


def collect_heat_map(blocks: list[Block]) -> dict | None:
    """Return the configs that matter for the weight with most m, None where there is no such weight."""
    groups = group_by_weight(blocks)
    if not groups:
        return None
    name, found = groups[0]
    lost: defaultdict[_C.Config, float] = defaultdict(float)
    for config in {config for block in found for config in block.ratios}:
        lost[config] = sum(min(default(block.regret(config), 100.0), 100.0) for block in found)
    shown = sorted(lost, key=lambda config: (lost[config], str(config)))[:MAX_CONFIGS]
    rows = [
        {
            "name": str(config),
            "slowdowns": {str(get_tokens(block.problem)): rounded(block.regret(config)) for block in found},
        }
        for config in shown
    ]
    return {"weight": name, "rows": rows}


def default(value: float | None, other: float) -> float:
    """Return a value, or another where there is none."""
    return other if value is None else value


def rounded(value: float | None) -> float | None:
    """Return a percentage with two digits."""
    return None if value is None else round(value, 2)


def collect_roofline(op: str, blocks: list[Block], device) -> dict | None:
    """Return the speeds of a dense op kind's best configs over their intensity, None for other op kinds."""
    if op not in RATES or not blocks:
        return None
    rate, size = RATES[op]
    points = []
    for block in blocks:
        problem = block.problem.as_dict()
        m, n, k = (problem[name] for name in "mnk")
        work, moved = 2.0 * m * n * k, size * k * (m + n) + D_BYTES[problem["d_dtype"]] * m * n
        points.append([round(work / moved, 3), round(work / (block.best * block.reference_us) * 1e-6, 3)])
    peak = rate * device.tensor_ratio * device.sm_count * device.clock_mhz * 1e-6
    return {"name": op, "peak_tflops": peak, "memory_gbps": device.memory_gbps, "points": points}


def collect_noise(ops: list[dict]) -> list[dict]:
    """Return the noise of blocks of all op kinds, in percent."""
    return [
        {"op": entry["op"], "median": 100.0 * entry["noise"]["median"], "p95": 100.0 * entry["noise"]["p95"]}
        for entry in ops
        if entry["noise"]
    ]
