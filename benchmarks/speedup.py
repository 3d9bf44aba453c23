"""Figures of the benchmarks of products, derived from their result files and the baselines.

Where upstream was timed in the same run (upstream.py), the speed-up over it is the plain ratio of both times. Else it
is (upstream / cuBLASLt of the baseline file) x (cuBLASLt / ours of this run), so that boards and days cancel; the plain
ratio upstream / ours stands beside it (and counts for grouped products: grouped_speedup.py). The favourable end of a
problem's speed-up is the upper end of a 95 % interval of the median per-round ratio of the times that are compared
(order statistics; rounds are paired by the interleaving).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from tuner.measure.statistics import median, median_interval, paired_ratios

#: How variants of DeepGEMM itself are called in a result.
UPSTREAM = "deepgemm"


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean of positive values."""
    return math.exp(sum(math.log(value) for value in values) / len(values))


def mean_ratio(values: list[float | None]) -> float | None:
    """Return the rounded geometric mean, None where there is nothing or a value is missing."""
    return rounded(geometric_mean(values)) if values and None not in values else None


def rounded(value: float | None, digits: int = 4) -> float | None:
    """Round for the file; None stays None."""
    return None if value is None else round(value, digits)


@dataclass(frozen=True)
class Measured:
    """One problem with one role's times: microseconds of this run, the baseline's, and the ratios between them.

    speedup, favourable: over upstream, through cuBLASLt of both runs unless upstream was timed in this one; plain,
        plain_favourable: without cuBLASLt; all four None where upstream has no time;
    vendor, vendor_favourable: over cuBLASLt of the same run.
    """

    m: int
    n: int
    k: int
    us: float
    cublaslt_us: float
    floor_us: float | None
    speedup: float | None
    favourable: float | None
    plain: float | None
    plain_favourable: float | None = 1.0
    vendor: float = 1.0
    vendor_favourable: float = 1.0
    name: tuple = ()

    @property
    def tflops(self) -> float:
        """Rate of this run in 10^12 operations a second."""
        return 2e-6 * self.m * self.n * self.k / self.us

    @property
    def cublaslt_tflops(self) -> float:
        """Rate of cuBLASLt in the same run."""
        return 2e-6 * self.m * self.n * self.k / self.cublaslt_us


def find_variant(row: dict, role: str, layout: str) -> list[float] | None:
    """Return the samples of a role in one layout, None where it was not measured."""
    if role == "auto":
        return row["times"].get(f"auto {layout}")
    choice = row["choices"].get(role)
    return row["times"].get(f"{choice.get(layout, choice['config'])} {layout}") if choice else None


def measure(
    row: dict, baseline: dict, role: str, layout: str, peer: str = "cublaslt", *, is_beside: bool = False
) -> Measured | None:
    """Compare one problem with upstream: its GEMM alone, but all its kernels where the scales are row-major.

    is_beside: upstream was timed in the same run, all its kernels. Its ratios are None where this layout lacks it.
    """
    samples, cublaslt = find_variant(row, role, layout), row["times"].get(peer)
    if samples is None or cublaslt is None:
        return None
    us, cublaslt_us, floor = median(samples), median(cublaslt), row["times"].get("floor")
    vendor_favourable = median_interval(paired_ratios(cublaslt, samples))[1]
    upstream = find_upstream(row, baseline, layout, is_beside)
    plain, plain_favourable = speedup, favourable = compare_plain(upstream, samples)
    if not is_beside:
        relative = upstream / baseline["cublaslt_us"]
        speedup, favourable = relative * cublaslt_us / us, relative * vendor_favourable
    return Measured(
        row["m"], row["n"], row["k"], us=us, cublaslt_us=cublaslt_us, floor_us=median(floor) if floor else None,
        speedup=speedup, favourable=favourable, plain=plain, plain_favourable=plain_favourable,
        vendor=cublaslt_us / us, vendor_favourable=vendor_favourable, name=identify(row),
    )  # fmt: skip


def find_upstream(row: dict, baseline: dict, layout: str, is_beside: bool) -> list[float] | float | None:
    """Return upstream's samples of the same run, or its recorded microseconds; None where it has none.

    Recorded times are of the GEMM alone, but of all kernels where the scales are row-major.
    """
    if is_beside:
        return row["times"].get(f"{UPSTREAM} {layout}")
    return baseline.get("deepgemm_total_us" if layout == "row_major" else "deepgemm_us")


def compare_plain(upstream: list[float] | float | None, samples: list[float]) -> tuple[float | None, float | None]:
    """Return upstream's time over ours and its favourable end. `upstream`: samples of the same run, or a recorded time;
    None of none.
    """
    if not upstream:
        return None, None
    peers = upstream if isinstance(upstream, list) else [upstream] * len(samples)
    return median(peers) / median(samples), median_interval(paired_ratios(peers, samples))[1]


def identify(row: dict) -> tuple:
    """Return what tells the rows of one file apart: sizes, and layout and dtype of D where it names them."""
    return tuple(row[name] for name in ("m", "n", "k", "layout", "out") if name in row)


def measure_all(
    result: dict, baselines: dict, role: str, layout: str = "mn_major", peer: str = "cublaslt"
) -> list[Measured]:
    """Return every problem that `role` was measured on; empty unless it was on all of them.

    A row that names its layout is taken in it.
    """
    known, is_beside = {identify(row): row for row in baselines["rows"]}, is_beside_upstream(result)
    measured = [
        measure(row, known[identify(row)], role, row.get("layout", layout), peer, is_beside=is_beside)
        for row in result["rows"]
    ]
    return [] if None in measured or len(measured) != len(known) else measured


def is_beside_upstream(result: dict) -> bool:
    """Return whether DeepGEMM was a peer of a result's run: its recorded times, of another one, do not count then."""
    return bool(result.get("meta", {}).get("deepgemm"))


def is_near_floor(item: Measured) -> bool:
    """Return whether a decode problem lies within max(1.3x, +2.0 us) of the streaming floor of its run (P2)."""
    return item.floor_us is not None and item.us <= max(1.3 * item.floor_us, item.floor_us + 2.0)


def mean_regret(
    result: dict, role: str, get_layout: Callable[[dict], str] = lambda row: row.get("layout", "mn_major")
) -> float | None:
    """Return the geometric mean of time(role) / time(best) - 1, None unless both were measured everywhere."""
    ratios = []
    for row in result["rows"]:
        layout = get_layout(row)
        chosen, best = find_variant(row, role, layout), find_variant(row, "best", layout)
        if chosen is None or best is None:
            return None
        ratios.append(median(paired_ratios(chosen, best)))
    return geometric_mean(ratios) - 1.0 if ratios else None
