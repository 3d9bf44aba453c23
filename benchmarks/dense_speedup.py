"""Figures of the dense benchmarks (P1 to P6), derived from their result files and the baselines; method: speedup.py."""

from collections.abc import Callable

from tuner.measure.statistics import median, median_interval, paired_ratios

from . import speedup
from .speedup import rounded
from .stamp import DATA, read_json


def geometric(items: list, attribute: str = "speedup") -> float | None:
    """Return the rounded geometric mean of one attribute, None for an empty list or where a value is missing."""
    return speedup.mean_ratio([getattr(item, attribute) for item in items])


class Scaled:
    """A result of FP8 products with scales in two layouts, divided into the groups that the targets refer to."""

    def __init__(self, result: dict, family: str):
        baselines = read_json(DATA / f"{family}.json")
        self.result = result
        self.auto, self.model, self.best, self.heuristic = (
            speedup.measure_all(result, baselines, role) for role in ("auto", "model", "best", "heuristic")
        )
        self.invariant = speedup.measure_all(result, baselines, "invariant")
        self.row_major, self.model_row_major = (
            speedup.measure_all(result, baselines, role, "row_major") for role in ("auto", "model")
        )

    def over_upstream(self, is_member: Callable, attribute: str = "speedup", end: str = "favourable") -> dict | None:
        """Return the speed-up over upstream of the problems that `is_member` keeps, None where upstream lacks one.

        end: the attribute of its favourable end.
        """
        names = ("auto", "model", "best", "heuristic", "row_major", "model_row_major")
        cut = {name: [item for item in getattr(self, name) if is_member(item)] for name in names}
        if geometric(cut["auto"], attribute) is None:
            return None
        worst = min(cut["auto"], key=lambda item: getattr(item, end))
        return {
            "value": geometric(cut["auto"], attribute),
            "worst": rounded(getattr(worst, end)),
            "worst_problem": [worst.m, worst.n, worst.k],
            "out_of_fold": geometric(cut["model"], attribute),
            "plain": geometric(cut["auto"], "plain"),
            "best_measured": geometric(cut["best"], attribute),
            "best_measured_worst": rounded(min((getattr(item, end) for item in cut["best"]), default=None)),
            "heuristic": geometric(cut["heuristic"], attribute),
            "row_major": geometric(cut["row_major"], attribute),
            "row_major_out_of_fold": geometric(cut["model_row_major"], attribute),
            "problems": len(cut["auto"]),
        }


def make_p1(dense: Scaled) -> dict | None:
    """All problems against upstream."""
    entry = dense.over_upstream(lambda item: True)
    if entry is None:
        return None
    regrets = {
        f"{role}_regret": rounded(speedup.mean_regret(dense.result, role)) for role in ("auto", "model", "heuristic")
    }
    below = sum(item.favourable < 0.98 for item in dense.auto)
    return {**entry, **regrets, "below": below, "is_met": entry["value"] >= 1.14 and entry["worst"] >= 0.98}


def make_p2(dense: Scaled) -> dict | None:
    """Decode: M <= 64, with the distance from the streaming floor."""
    entry = dense.over_upstream(lambda item: item.m <= 64)
    if entry is None:
        return None
    items = [item for item in dense.auto if item.m <= 64]
    near = sum(speedup.is_near_floor(item) for item in items)
    over = [item.us / item.floor_us for item in items]
    floor = {
        "near_floor": near,
        "worst_over_floor": rounded(max(over)),
        "mean_over_floor": rounded(speedup.geometric_mean(over)),
    }
    floor["batch_invariant"] = geometric([item for item in dense.invariant if item.m <= 64])
    return {**entry, **floor, "is_met": entry["value"] >= 1.30 and near == len(items)}


def make_p3(dense: Scaled) -> dict | None:
    """Prefill: M >= 2048, with the peak rate against cuBLASLt's."""
    entry = dense.over_upstream(lambda item: item.m >= 2048)
    if entry is None:
        return None
    items = [item for item in dense.auto if item.m >= 2048]
    peak, vendor = max(item.tflops for item in items), max(item.cublaslt_tflops for item in items)
    peaks = {
        "peak": rounded(peak / vendor),
        "peak_tflops": rounded(peak, 1),
        "cublaslt_peak_tflops": rounded(vendor, 1),
    }
    return {**entry, **peaks, "is_met": entry["value"] >= 1.03 and peak / vendor >= 1.0}


def make_p4(dense: Scaled) -> dict:
    """All problems against unscaled cuBLASLt of the same run."""

    def ratio(items: list) -> float | None:
        return rounded(speedup.geometric_mean([item.cublaslt_us / item.us for item in items])) if items else None

    value = ratio(dense.auto)
    return {
        "value": value,
        "worst": rounded(min(item.cublaslt_us / item.us for item in dense.auto)),
        "out_of_fold": ratio(dense.model),
        "best_measured": ratio(dense.best),
        "row_major": ratio(dense.row_major),
        "problems": len(dense.auto),
        "is_met": value >= 1.02,
    }


def make_r1(result: dict) -> dict:
    """Problems drawn at random, which no sweep has measured, against unscaled cuBLASLt of the same run."""
    ratios: dict[str, list[tuple[float, float, list[int]]]] = {}
    for role in ("auto", "heuristic"):
        for row in result["rows"]:
            ours, peer = speedup.find_variant(row, role, "mn_major"), row["times"].get("cublaslt")
            if ours and peer:
                favourable = median_interval(paired_ratios(peer, ours))[1]
                found = (median(peer) / median(ours), favourable, [row[name] for name in ("m", "n", "k")])
                ratios.setdefault(role, []).append(found)
    auto = ratios["auto"]
    worst = min(auto, key=lambda item: item[1])
    means = {role: rounded(speedup.geometric_mean([item[0] for item in items])) for role, items in ratios.items()}
    return {
        "value": means["auto"],
        "worst": rounded(worst[1]),
        "worst_problem": worst[2],
        "heuristic": means.get("heuristic"),
        "below": sum(item[1] < 0.88 for item in auto),
        "problems": len(auto),
        "is_met": means["auto"] >= 0.98 and worst[1] >= 0.88 and len(auto) == len(result["rows"]),
    }


def make_p5(result: dict) -> dict:
    """Dense BF16 against cuBLASLt of the same run, with upstream beside it."""
    baselines = read_json(DATA / "dense_bf16.json")
    auto, model, best, heuristic = (
        speedup.measure_all(result, baselines, role) for role in ("auto", "model", "best", "heuristic")
    )
    worst = min(auto, key=lambda item: item.vendor_favourable)
    layouts = {
        f"layout_{name}": geometric([item for item in auto if item.name[3] == name], "vendor")
        for name in ("nt", "nn", "tn", "tt")
    }
    regrets = {f"{role}_regret": rounded(speedup.mean_regret(result, role)) for role in ("auto", "model", "heuristic")}
    value = geometric(auto, "vendor")
    return {
        "value": value,
        "worst": rounded(worst.vendor_favourable),
        "worst_problem": list(worst.name),
        "out_of_fold": geometric(model, "vendor"),
        "best_measured": geometric(best, "vendor"),
        "heuristic": geometric(heuristic, "vendor"),
        **layouts,
        **regrets,
        "below": sum(item.vendor_favourable < 0.95 for item in auto),
        "over_upstream": geometric(auto),
        "over_upstream_plain": geometric(auto, "plain"),
        "problems": len(auto),
        "is_met": value >= 1.02 and worst.vendor_favourable >= 0.95,
    }


def make_p6(wgrad: Scaled) -> dict | None:
    """FP8 weight gradients (FP32 D added onto C) against upstream, the plain ratio, with cuBLASLt itself and the BF16 D
    without C beside it, and by recorded times the ratio through cuBLASLt of both runs.
    """
    entry = wgrad.over_upstream(lambda item: True, "plain", "plain_favourable")
    if entry is None:
        return None
    half = speedup.measure_all(wgrad.result, read_json(DATA / "wgrad_fp8.json"), "auto", "bf16", "cublaslt bf16")
    if not speedup.is_beside_upstream(wgrad.result):
        entry["through_cublaslt"] = geometric(wgrad.auto)
    vendor = {"over_cublaslt": geometric(wgrad.auto, "vendor"), "bf16_over_cublaslt": geometric(half, "vendor")}
    return {**entry, **vendor, "is_met": entry["value"] >= 1.12}
