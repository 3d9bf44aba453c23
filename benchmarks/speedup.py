"""Figures of the dense FP8 benchmark, derived from its result file and the baselines.

Speed-up over upstream = (upstream / cuBLASLt of the baseline file) x (cuBLASLt / ours of this run), so that boards and days
cancel; the plain ratio upstream / ours stands beside it. The favourable end of a problem's speed-up is the upper end of a 95 %
interval of the median per-round ratio cuBLASLt / ours (order statistics; rounds are paired by the interleaving).
"""

import math
from dataclasses import dataclass

from tuner.statistics import median, median_interval, paired_ratios


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean of positive values."""
    return math.exp(sum(math.log(value) for value in values) / len(values))


@dataclass(frozen=True)
class Measured:
    """One problem with one role's times: microseconds of this run, the baseline's, and the ratios between them."""

    m: int
    n: int
    k: int
    us: float
    cublaslt_us: float
    floor_us: float | None
    speedup: float
    favourable: float
    plain: float

    @property
    def tflops(self) -> float:
        """Rate of this run in 10^12 operations a second."""
        return 2e-6 * self.m * self.n * self.k / self.us

    @property
    def cublaslt_tflops(self) -> float:
        """Rate of cuBLASLt in the same run."""
        return 2e-6 * self.m * self.n * self.k / self.cublaslt_us


def find_variant(row: dict, role: str, layout: str) -> list[float] | None:
    """Return the samples of a role in one layout of A's scales, None where it was not measured."""
    if role == "auto":
        return row["times"].get(f"auto {layout}")
    choice = row["choices"].get(role)
    return row["times"].get(f"{choice['config']} {layout}") if choice else None


def measure(row: dict, baseline: dict, role: str, layout: str) -> Measured | None:
    """Compare one problem with upstream: its GEMM alone for MN-major scales, all its kernels for row-major ones."""
    samples = find_variant(row, role, layout)
    if samples is None:
        return None
    cublaslt = row["times"]["cublaslt"]
    upstream_us = baseline["deepgemm_us"] if layout == "mn_major" else baseline["deepgemm_total_us"]
    relative, us, cublaslt_us = upstream_us / baseline["cublaslt_us"], median(samples), median(cublaslt)
    floor = row["times"].get("floor")
    return Measured(
        row["m"], row["n"], row["k"], us=us, cublaslt_us=cublaslt_us, floor_us=median(floor) if floor else None,
        speedup=relative * cublaslt_us / us, favourable=relative * median_interval(paired_ratios(cublaslt, samples))[1], plain=upstream_us / us,
    )  # fmt: skip


def measure_all(result: dict, baselines: dict, role: str, layout: str = "mn_major") -> list[Measured]:
    """Return every problem that `role` was measured on; empty unless it was on all of them."""
    by_problem = {(row["m"], row["n"], row["k"]): row for row in baselines["rows"]}
    measured = [measure(row, by_problem[row["m"], row["n"], row["k"]], role, layout) for row in result["rows"]]
    return [] if None in measured or len(measured) != len(by_problem) else measured


def is_near_floor(item: Measured) -> bool:
    """Return whether a decode problem lies within max(1.3x, +2.0 us) of the streaming floor of its run (P2)."""
    return item.floor_us is not None and item.us <= max(1.3 * item.floor_us, item.floor_us + 2.0)


def mean_regret(result: dict, role: str) -> float | None:
    """Return the geometric mean of time(role) / time(best) - 1, None unless both were measured everywhere."""
    ratios = []
    for row in result["rows"]:
        chosen, best = find_variant(row, role, "mn_major"), find_variant(row, "best", "mn_major")
        if chosen is None or best is None:
            return None
        ratios.append(median(paired_ratios(chosen, best)))
    return geometric_mean(ratios) - 1.0 if ratios else None
