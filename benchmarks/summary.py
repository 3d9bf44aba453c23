"""Write summary.json: every target of the project that has been measured, derived from the result files beside it.

Example: python -m benchmarks.summary

A target whose source file is missing or unfinished is absent. An entry names its script, result file and the kernel
hash that was measured; where that is not the tree's, `stale` says why and `met` is false.
"""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

from . import grouped_speedup, speedup, stale
from .compile_time import summarise
from .stamp import DATA, RESULTS, read_json, write_json

Entry = dict


def rounded(value: float | None, digits: int = 4) -> float | None:
    """Round for the file; None stays None."""
    return None if value is None else round(value, digits)


def geometric(items: list, attribute: str = "speedup") -> float | None:
    """Return the rounded geometric mean of one attribute, None for an empty list."""
    return rounded(speedup.geometric_mean([getattr(item, attribute) for item in items])) if items else None


class Scaled:
    """A result of FP8 products with scales in two layouts, cut into the groups that the targets speak of."""

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

    def over_upstream(self, is_member: Callable) -> Entry:
        """Return the speed-up over upstream of the problems that `is_member` keeps."""
        names = ("auto", "model", "best", "heuristic", "row_major", "model_row_major")
        cut = {name: [item for item in getattr(self, name) if is_member(item)] for name in names}
        worst = min(cut["auto"], key=lambda item: item.favourable)
        return {
            "value": geometric(cut["auto"]),
            "worst": rounded(worst.favourable),
            "worst_problem": [worst.m, worst.n, worst.k],
            "out_of_fold": geometric(cut["model"]),
            "plain": geometric(cut["auto"], "plain"),
            "best_measured": geometric(cut["best"]),
            "best_measured_worst": rounded(min((item.favourable for item in cut["best"]), default=None)),
            "heuristic": geometric(cut["heuristic"]),
            "row_major": geometric(cut["row_major"]),
            "row_major_out_of_fold": geometric(cut["model_row_major"]),
            "problems": len(cut["auto"]),
        }


def make_p1(dense: Scaled) -> Entry:
    """All problems against upstream."""
    entry = dense.over_upstream(lambda item: True)
    regrets = {
        f"{role}_regret": rounded(speedup.mean_regret(dense.result, role)) for role in ("auto", "model", "heuristic")
    }
    below = sum(item.favourable < 0.98 for item in dense.auto)
    return {**entry, **regrets, "below": below, "is_met": entry["value"] >= 1.18 and entry["worst"] >= 0.98}


def make_p2(dense: Scaled) -> Entry:
    """Decode: M <= 64, with the distance from the streaming floor."""
    entry = dense.over_upstream(lambda item: item.m <= 64)
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


def make_p3(dense: Scaled) -> Entry:
    """Prefill: M >= 2048, with the peak rate against cuBLASLt's."""
    entry = dense.over_upstream(lambda item: item.m >= 2048)
    items = [item for item in dense.auto if item.m >= 2048]
    peak, vendor = max(item.tflops for item in items), max(item.cublaslt_tflops for item in items)
    peaks = {
        "peak": rounded(peak / vendor),
        "peak_tflops": rounded(peak, 1),
        "cublaslt_peak_tflops": rounded(vendor, 1),
    }
    return {**entry, **peaks, "is_met": entry["value"] >= 1.06 and peak / vendor >= 1.02}


def make_p4(dense: Scaled) -> Entry:
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
        "is_met": value >= 1.08,
    }


def make_p5(result: dict) -> Entry:
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
        "is_met": value >= 1.03 and worst.vendor_favourable >= 0.95,
    }


def make_p6(wgrad: Scaled) -> Entry:
    """FP8 weight gradients (FP32 D added onto C) against upstream, with cuBLASLt and the BF16 D without C beside it."""
    entry = wgrad.over_upstream(lambda item: True)
    half = speedup.measure_all(wgrad.result, read_json(DATA / "wgrad_fp8.json"), "auto", "bf16", "cublaslt bf16")
    vendor = {"over_cublaslt": geometric(wgrad.auto, "vendor"), "bf16_over_cublaslt": geometric(half, "vendor")}
    return {**entry, **vendor, "is_met": entry["value"] >= 1.25}


def make_p11(result: dict) -> Entry:
    """Host time of one call on a warm problem: the slowest of the dense ops, best of the blocks, beside torch.mm(out=)
    of the same run.
    """
    every = {name: times for name, times in result["host"]["cuda"].items() if "_gemm_" in name}
    calls = {name: times for name, times in every.items() if "_grouped_" not in name}
    grouped = {name: times.get("best_us") for name, times in every.items() if name not in calls}
    slowest = max(calls, key=lambda name: calls[name]["best_us"])
    peer = result["host"]["cuda"]["torch.mm(out=)"]
    value, ratio = calls[slowest]["best_us"], calls[slowest]["best_us"] / peer["best_us"]
    return {
        "value": value,
        "slowest": slowest,
        "median": calls[slowest]["median_us"],
        "ratio": rounded(ratio),
        "torch_mm": peer["best_us"],
        "unit": "us",
        "calls": {name: times["best_us"] for name, times in calls.items()},
        **({"grouped": grouped} if grouped else {}),
        "problems": len(calls),
        "is_met": value <= 5.0 and ratio <= 0.6,
    }


def make_p13(result: dict) -> Entry | None:
    """A new shape while the portfolio is loaded: what is compiled, and how long choosing takes."""
    new = result.get("new_shapes")
    if new is None:
        return None
    choose_us, first_choice = result["selection"]["new_us"], max(entry["choose_us"] for entry in new.values())
    compiles, problems = (
        sum(entry["compiles"] for entry in new.values()),
        sum(entry["problems"] for entry in new.values()),
    )
    first_call = max(entry["first_call_us"] for entry in new.values())
    figures = {"compiles": compiles, "first_choice": first_choice, "first_call": first_call, "unit": "us"}
    return {"value": choose_us, **figures, "problems": problems, "is_met": compiles == 0 and choose_us <= 10.0}


def make_q1(record: dict) -> Entry:
    """Correctness of the configs on config-derived shapes."""
    return make_share(record, ("configs", "grouped_configs", "nvcc"), "kernels")


def make_q2(record: dict) -> Entry:
    """Bitwise stability of the shipped configs."""
    return make_share(record, ("portfolio_repeats",), "portfolio")


def make_share(record: dict, names: tuple[str, ...], note: str) -> Entry:
    """Return how many of the jobs of some sections passed, with the record's note on what they covered."""
    sections = [record["sections"][name] for name in names if name in record["sections"]]
    jobs, failed, cases = (sum(section[key] for section in sections) for key in ("jobs", "failed_jobs", "cases"))
    is_clean = jobs > 0 and failed == 0 and not any(failure.startswith(names) for failure in record["failures"])
    share = rounded(1.0 - failed / jobs) if jobs else None
    return {
        "value": share,
        "failed": failed,
        "cases": cases,
        note: record["notes"].get(note),
        "problems": jobs,
        "is_met": is_clean,
    }


def make_p12(result: dict) -> Entry:
    """Compile time on one core over the default space."""
    nvrtc, nvcc = (
        summarise([row for row in result["rows"] if row["compiler"] == compiler]) for compiler in ("nvrtc", "nvcc")
    )
    is_met = nvrtc["median_s"] <= 0.2 and nvrtc["p95_s"] <= 0.5 and nvcc["median_s"] <= 1.2 and nvcc["p95_s"] <= 1.8
    return {
        "value": nvrtc["median_s"],
        "p95": nvrtc["p95_s"],
        "nvcc": nvcc["median_s"],
        "nvcc_p95": nvcc["p95_s"],
        "unit": "s",
        "problems": nvrtc["count"],
        "is_met": is_met,
    }


def family_splits(result: dict, is_grouped: bool) -> dict[str, dict]:
    """Return, by grouped or by dense op kind, the statistics of leave-one-family-out; without the op kinds where
    nothing was held out.
    """
    parts = result.get("ops") or {
        next(iter(result["meta"]["kernel_hash"])): result
    }  # a file of one op kind is that op kind's part
    splits = {op: part["splits"].get("family", {}) for op, part in parts.items() if ("_grouped_" in op) == is_grouped}
    return {op: split for op, split in splits.items() if split.get("model") is not None}


def make_s1(result: dict, is_grouped: bool = False, max_mean: float = 0.02, max_p95: float = 0.08) -> Entry | None:
    """Regret of the guarded model on families that it never saw; of several op kinds the worst counts."""
    splits = family_splits(result, is_grouped)
    if not splits:
        return None
    models = [split["model"] for split in splits.values()]
    mean, p95, answered = (
        max(model["mean"] for model in models),
        max(model["p95"] for model in models),
        min(model["answered"] for model in models),
    )
    figures = {"p95": p95, "max": max(model["max"] for model in models), "answered": answered}
    figures |= {name: min(model[name] for model in models) for name in ("within_2_percent", "confirmed")}
    alone = max(split["model_alone"]["mean"] for split in splits.values())
    counts = {name: sum(model[name] for model in models) for name in ("problems", "families")}
    return {
        "value": rounded(mean),
        "model_alone": rounded(alone),
        **{name: rounded(value) for name, value in figures.items()},
        **counts,
        "by_op": {op: rounded(split["model"]["mean"]) for op, split in splits.items()},
        "is_met": mean <= max_mean and p95 <= max_p95 and answered >= 0.70,
    }


def make_s2(result: dict, is_grouped: bool = False) -> Entry | None:
    """Share of the heuristic's regret that the guarded model removes; of several op kinds the worst counts."""
    splits = {
        op: split["model"]
        for op, split in family_splits(result, is_grouped).items()
        if split["model"]["removed"] is not None
    }
    if not splits:
        return None
    removed = min(model["removed"] for model in splits.values())
    worst = max(model["worst_against_heuristic"] for model in splits.values())
    counts = {name: sum(model[name] for model in splits.values()) for name in ("wins", "losses", "problems")}
    by_op = {op: rounded(model["removed"]) for op, model in splits.items()}
    return {
        "value": rounded(removed),
        "worst": rounded(worst),
        **counts,
        "by_op": by_op,
        "is_met": removed >= 0.40 and worst <= 0.05,
    }


def make_s3(result: dict, is_grouped: bool = False) -> Entry | None:
    """Regret of the heuristic alone, on the problems that its rates were fitted to; of several op kinds the worst
    counts.
    """
    splits = {
        op: split["heuristic"] for op, split in family_splits(result, is_grouped).items() if split.get("heuristic")
    }
    if not splits:
        return None
    figures = {name: max(heuristic[name] for heuristic in splits.values()) for name in ("mean", "p95", "max")}
    mean = figures.pop("mean")
    by_op = {op: rounded(heuristic["mean"]) for op, heuristic in splits.items()}
    return {
        "value": rounded(mean), **{name: rounded(value) for name, value in figures.items()},
        "problems": sum(heuristic["problems"] for heuristic in splits.values()), "by_op": by_op, "is_met": mean <= 0.04,
    }  # fmt: skip


def make_s4(result: dict) -> Entry:
    """Selection time in process."""
    selection = result["selection"]
    seen, new = selection["seen_us"], selection["new_us"]
    return {
        "value": seen,
        "new": new,
        "unit": "us",
        "problems": selection["problems"],
        "is_met": seen <= 0.3 and new <= 10.0,
    }


RECORD = ("gpu_record.json", "tests/gpu/run.py")
UPSTREAM = "upstream DeepGEMM main 54e2261 (benchmarks/data/dense_fp8.json), through cuBLASLt of both runs"
UPSTREAM_WGRAD = "upstream DeepGEMM main 54e2261 (benchmarks/data/wgrad_fp8.json), through cuBLASLt of both runs"
UPSTREAM_GROUPED = "upstream DeepGEMM main 54e2261 (benchmarks/data/{}), the plain ratio; cuBLASLt has no such product"
HEURISTIC = "upstream's heuristic, 10.6 % mean and 26 % worst over 11 problems of its own space"
#: Result file and the script that writes it.
DENSE = ("dense_fp8.json", "benchmarks/dense_fp8.py")
DENSE_BF16 = ("dense_bf16.json", "benchmarks/dense_bf16.py")
WGRAD = ("wgrad_fp8.json", "benchmarks/wgrad_fp8.py")
CONTIGUOUS = ("m_grouped_contiguous.json", "benchmarks/m_grouped_contiguous.py")
MASKED = ("m_grouped_masked.json", "benchmarks/m_grouped_masked.py")
K_GROUPED = ("k_grouped.json", "benchmarks/k_grouped.py")
COMPILE = ("compile_time.json", "benchmarks/compile_time.py")
SELECTOR = ("evaluation.json", "benchmarks/selector.py")
HOST = ("host_time.json", "benchmarks/host_time.py")
#: name -> (result file, script, peer, target in words, function of the file's content)
TARGETS: dict[str, tuple[str, str, str, str, Callable]] = {
    "P1": (*DENSE, UPSTREAM, "mean >= 1.18, worst >= 0.98", lambda result: make_p1(Scaled(result, "dense_fp8"))),
    "P2": (
        *DENSE,
        UPSTREAM,
        "mean >= 1.30, each within max(1.3x, +2.0 us) of the streaming floor",
        lambda result: make_p2(Scaled(result, "dense_fp8")),
    ),
    "P3": (
        *DENSE,
        UPSTREAM,
        "mean >= 1.06, peak >= 1.02x cuBLASLt's",
        lambda result: make_p3(Scaled(result, "dense_fp8")),
    ),
    "P4": (
        *DENSE,
        "unscaled cuBLASLt of the same run",
        "mean >= 1.08",
        lambda result: make_p4(Scaled(result, "dense_fp8")),
    ),
    "P5": (*DENSE_BF16, "cuBLASLt of the same run, through torch.mm", "mean >= 1.03, worst >= 0.95", make_p5),
    "P6": (*WGRAD, UPSTREAM_WGRAD, "mean >= 1.25", lambda result: make_p6(Scaled(result, "wgrad_fp8"))),
    "P7": (*CONTIGUOUS, UPSTREAM_GROUPED.format(CONTIGUOUS[0]), "mean >= 1.03, worst >= 0.98", grouped_speedup.make_p7),
    "P8": (
        *MASKED,
        UPSTREAM_GROUPED.format(MASKED[0]),
        "mean >= 1.15, read rate of 32 groups >= 0.85 of the floor kernel's",
        grouped_speedup.make_p8,
    ),
    "P9": (*K_GROUPED, UPSTREAM_GROUPED.format(K_GROUPED[0]), "mean >= 1.15", grouped_speedup.make_p9),
    "P11": (*HOST, "torch.mm(out=) of the same run", "<= 5 us, at most 0.6x of the peer", make_p11),
    "P12": (
        *COMPILE,
        "upstream 3.5 s",
        "NVRTC median <= 0.2 s, p95 <= 0.5 s; NVCC median <= 1.2 s, p95 <= 1.8 s",
        make_p12,
    ),
    "P13": (*HOST, "upstream 3.5 s, which compiles", "no compile, selection <= 10 us", make_p13),
    "S1": (*SELECTOR, HEURISTIC, "mean <= 0.02, p95 <= 0.08, answered >= 0.70", make_s1),
    "S2": (*SELECTOR, "the analytic heuristic", "removes >= 0.40 of its regret, worst against it <= 0.05", make_s2),
    "S3": (*SELECTOR, HEURISTIC, "mean <= 0.04", make_s3),
    "S1_grouped": (
        *SELECTOR,
        "none",
        "mean <= 0.03, answered >= 0.70",
        lambda result: make_s1(result, True, 0.03, math.inf),
    ),
    "S2_grouped": (
        *SELECTOR,
        "the analytic heuristic",
        "removes >= 0.40 of its regret, worst against it <= 0.05",
        lambda result: make_s2(result, True),
    ),
    "S3_grouped": (*SELECTOR, "none", "mean <= 0.04", lambda result: make_s3(result, True)),
    "S4": (*HOST, "upstream recomputes on every call", "seen problem <= 0.3 us, new problem <= 10 us", make_s4),
    "Q1": (*RECORD, "none", "every config within the bounds, on every shape", make_q1),
    "Q2": (*RECORD, "none", "0 differences in 1,000 repeats of each config", make_q2),
}


def make_entry(name: str, folder: Path) -> Entry | None:
    """Return one target's entry, None where its result is missing or unfinished."""
    file, script, peer, target, derive = TARGETS[name]
    path = folder / file
    if not path.exists():
        return None
    result = read_json(path)
    meta = result.get("meta", result)  # the record of the GPU suite is its own
    if not meta.get("complete", True):
        return None
    entry = derive(result)
    if entry is None:
        return None
    reason = stale.get_reason(path, meta)
    is_met = bool(entry.pop("is_met")) and reason is None
    return {
        **entry, "target": target, "met": is_met, "peer": peer, "script": script, "result": file,
        "kernel_hash": meta["kernel_hash"], "date": meta["date"], "stale": reason,
    }  # fmt: skip


def make_summary(folder: Path = RESULTS) -> dict[str, Entry]:
    """Return {target: entry} for every target that has a finished result in `folder`."""
    entries = {name: make_entry(name, folder) for name in TARGETS}
    return {name: entry for name, entry in entries.items() if entry is not None}


def main(arguments: list[str] | None = None) -> int:
    """Write the summary and print one line for each target."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, default=RESULTS, help="folder of the result files; summary.json is written there"
    )
    folder = parser.parse_args(arguments).folder
    summary = make_summary(folder)
    write_json(folder / "summary.json", summary)
    for name, entry in summary.items():
        state = "stale" if entry["stale"] else "met" if entry["met"] else "not met"
        print(f"{name:4} {entry['value']!s:8} {state:8} target: {entry['target']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
