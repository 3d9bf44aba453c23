"""Figures of the grouped benchmarks (P7, P8, P9), derived from their result files and the baselines.

cuBLASLt has no grouped product, so the plain ratio counts: upstream's microseconds / ours of this run. Upstream's are
of the same run where it was timed there (upstream.py), else of the baseline file. The favourable end is the upper end
of a 95 % interval of the median (order statistics of the rounds).
"""

from collections.abc import Callable
from dataclasses import dataclass

from tuner.measure.statistics import median

from . import speedup
from .group_sizes import count_masked_bytes
from .speedup import mean_ratio, rounded
from .stamp import DATA, read_json

#: The layout that is compared with upstream's GEMM alone, by grouping and dtype.
M_LAYOUTS, K_LAYOUTS = {"fp8": "mn_major", "bf16": "nt"}, {"fp8": "nt", "bf16": "tn"}
#: Rows of a decode-sized group (P8), and the groups that its read rate is taken of.
DECODE_MEAN_M, RATED_GROUPS = 20, 32


@dataclass(frozen=True)
class Compared:
    """One problem with one role's median: microseconds, and upstream's over it (speedup, favourable); None where
    upstream has no figure.
    """

    row: dict
    us: float
    speedup: float | None
    favourable: float | None

    @property
    def tflops(self) -> float:
        """Rate in 10^12 operations a second, of the rows that upstream counts: padding included."""
        m, k = self.row.get("sum_m") or self.row["m"], self.row.get("sum_k") or self.row["k"]
        return 2e-6 * m * self.row["n"] * k / self.us

    def over(self, variant: str) -> float | None:
        """Return another variant's median over ours, None where it was not measured."""
        times = self.row["times"].get(variant)
        return median(times) / self.us if times else None


class Grouped:
    """A result of grouped products beside its baselines. layouts: {dtype: layout that is compared}."""

    def __init__(self, result: dict, name: str, layouts: dict[str, str]):
        self.result, self.layouts = result, layouts
        self.baselines = read_json(DATA / f"{name}.json")["rows"]
        self.key = [field for field in self.baselines[0] if not field.startswith("deepgemm")]

    def list(self, is_member: Callable[[dict], bool], role: str = "auto", layout: str = "") -> list[Compared]:
        """Return the problems that `is_member` keeps, in one role; empty unless it was measured on all of them.

        layout: of ours, instead of the one that is compared; row-major scales against all of upstream's kernels, any
            other against upstream's GEMM of the compared one.
        """
        rows, found = {tuple(row[name] for name in self.key): row for row in self.result["rows"]}, []
        for baseline in filter(is_member, self.baselines):
            row = rows.get(tuple(baseline[name] for name in self.key))
            samples = row and speedup.find_variant(row, role, layout or self.layouts[row["dtype"]])
            if not samples:
                return []
            compared = layout if layout == "row_major" else self.layouts[row["dtype"]]
            upstream = speedup.find_upstream(row, baseline, compared, speedup.is_beside_upstream(self.result))
            ratio, favourable = speedup.compare_plain(upstream, samples)
            found.append(Compared(row, median(samples), ratio, favourable))
        return found

    def over_upstream(self, is_member: Callable[[dict], bool]) -> dict | None:
        """Return the speed-up over upstream of the problems that `is_member` keeps: each role, and the peers of the
        same run. None where upstream lacks one.
        """
        roles = {role: self.list(is_member, role) for role in ("auto", "model", "best", "heuristic")}
        if mean(roles["auto"]) is None:
            return None
        auto, worst = roles["auto"], min(roles["auto"], key=lambda item: item.favourable)
        return {
            "value": mean(auto),
            "worst": rounded(worst.favourable),
            "worst_problem": [worst.row[name] for name in self.key],
            "out_of_fold": mean(roles["model"]),
            "best_measured": mean(roles["best"]),
            "heuristic": mean(roles["heuristic"]),
            "over_cublaslt": mean_ratio([item.over("cublaslt") for item in auto]),
            "over_grouped_mm": mean_ratio([item.over("grouped_mm") for item in auto]),
            "peak_tflops": round(max(item.tflops for item in auto), 1),
            "problems": len(auto),
        }

    def regrets(self, is_member: Callable[[dict], bool]) -> dict:
        """Return the mean regret of each role against the best measured config."""
        part = {"rows": [row for row in self.result["rows"] if is_member(row)]}
        regrets = {
            role: speedup.mean_regret(part, role, lambda row: self.layouts[row["dtype"]])
            for role in ("auto", "model", "heuristic")
        }
        return {f"{role}_regret": rounded(regret) for role, regret in regrets.items()}


def mean(items: list[Compared]) -> float | None:
    """Return the geometric mean of the speed-ups over upstream."""
    return mean_ratio([item.speedup for item in items])


def is_uniform(row: dict) -> bool:
    """Return whether upstream was timed on a problem: no skewed load."""
    return row.get("load", "uniform") == "uniform"


def is_skewed(row: dict) -> bool:
    """Return whether one group has nearly all rows."""
    return not is_uniform(row)


def is_of(dtype: str) -> Callable[[dict], bool]:
    """Return a filter: problems of one dtype that upstream was timed on."""
    return lambda row: row["dtype"] == dtype and is_uniform(row)


def make_p7(result: dict) -> dict | None:
    """Contiguous, FP8 and BF16, against upstream."""
    grouped = Grouped(result, "m_grouped_contiguous", M_LAYOUTS)
    entry = grouped.over_upstream(lambda row: True)
    if entry is None:
        return None
    by_dtype = {dtype: mean(grouped.list(is_of(dtype))) for dtype in M_LAYOUTS}
    below = sum(item.favourable < 0.98 for item in grouped.list(lambda row: True))
    row_major = mean(grouped.list(is_of("fp8"), "auto", "row_major"))
    limits = {"fp8": 1.01, "bf16": 1.02}
    is_met = all(by_dtype[dtype] >= limit for dtype, limit in limits.items()) and entry["worst"] >= 0.98
    return {
        **entry,
        **by_dtype,
        "row_major": row_major,
        **grouped.regrets(lambda row: True),
        "below": below,
        "is_met": is_met and row_major is not None and row_major >= 0.99,
    }


def make_p8(result: dict) -> dict | None:
    """Masked, FP8 of decode sizes, against upstream and the floor's read rate; all sizes, BF16 and the skewed loads
    beside.
    """
    grouped = Grouped(result, "m_grouped_masked", M_LAYOUTS)

    def is_decode(row: dict) -> bool:
        return is_of("fp8")(row) and row["mean_m"] == DECODE_MEAN_M

    entry = grouped.over_upstream(is_decode)
    if entry is None or mean(grouped.list(is_uniform)) is None:
        return None
    shares = [
        get_read_share(item) for item in grouped.list(lambda row: is_decode(row) and row["num_groups"] == RATED_GROUPS)
    ]
    rates = {"read_share": rounded(min(shares)), "mean_read_share": mean_ratio(shares)}
    beside = {f"all_{dtype}": mean(grouped.list(is_of(dtype))) for dtype in M_LAYOUTS}
    row_major = mean(grouped.list(is_decode, "auto", "row_major"))
    every = [item.favourable for item in grouped.list(is_uniform)]
    is_met = entry["value"] >= 1.09 and rates["read_share"] >= 0.90 and min(every) >= 0.98
    figures = {
        **rates,
        **beside,
        "all_worst": rounded(min(every)),
        "all_below": sum(value < 0.98 for value in every),
        "row_major": row_major,
        "skewed_over_uniform": compare_skewed(grouped),
        **grouped.regrets(is_decode),
    }
    return {**entry, **figures, "is_met": is_met}


def get_read_share(item: Compared) -> float:
    """Return a masked product's rate of bytes (group_sizes.count_masked_bytes) over the rate at which the floor kernel
    reads B.
    """
    row = item.row
    floor_bytes = row["num_groups"] * row["n"] * row["k"] * (1 if row["dtype"] == "fp8" else 2)
    return count_masked_bytes(row) / item.us / (floor_bytes / median(row["times"]["floor"]))


def compare_skewed(grouped: Grouped) -> dict[str, float | None]:
    """Return, by dtype and mean rows, the geometric mean of a skewed load's time over that of the uniform load of the
    same problem.
    """
    names = [name for name in grouped.key if name != "load"]
    uniform, skewed = (
        {tuple(item.row[name] for name in names): item for item in grouped.list(is_load)}
        for is_load in (is_uniform, is_skewed)
    )
    found: dict[str, list[float]] = {}
    for key, item in skewed.items():
        if key in uniform:
            found.setdefault(f"{item.row['dtype']} {item.row['mean_m']}", []).append(item.us / uniform[key].us)
    return {name: mean_ratio(ratios) for name, ratios in found.items()}


def make_p9(result: dict) -> dict | None:
    """K-grouped FP8 (`nt`) against upstream; BF16, and the FP8 `tn` op with its transposed copies, beside."""
    grouped = Grouped(result, "k_grouped", K_LAYOUTS)
    entry = grouped.over_upstream(is_of("fp8"))
    if entry is None:
        return None
    joint = grouped.list(is_of("fp8"), "auto", "joint")
    beside = {
        "bf16": mean(grouped.list(is_of("bf16"))),
        "with_transposes": mean(joint),
        **grouped.regrets(is_of("fp8")),
    }
    is_met = entry["value"] >= 1.06 and (beside["with_transposes"] or 0.0) >= 0.92
    return {**entry, **beside, "is_met": is_met}
