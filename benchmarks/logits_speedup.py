"""The figure of attention index logits (P10), derived from their result file and the baselines: the plain ratio,
upstream's microseconds / ours of this run. Upstream's are of the same run where it was timed there (upstream.py), else
of the baseline file. The favourable end is that of a 95 % interval.
"""

from .speedup import compare_plain, find_upstream, find_variant, is_beside_upstream, mean_ratio, rounded
from .stamp import DATA, read_json

NAME = "mqa_logits"


def make_p10(result: dict) -> dict | None:
    """Speed-up over upstream of prefill and paged logits, and of each of both; None unless all were measured."""
    baselines = read_json(DATA / f"{NAME}.json")["rows"]
    key = [name for name in baselines[0] if name != "deepgemm_us"]
    rows = {tuple(row[name] for name in key): row for row in result["rows"]}
    is_beside = is_beside_upstream(result)
    found = {role: compare(baselines, rows, key, role, is_beside) for role in ("auto", "model", "best", "heuristic")}
    auto = found["auto"]
    if not auto:
        return None
    worst = min(auto, key=lambda item: item["favourable"])
    value = mean_ratio([item["speedup"] for item in auto])
    forms = {
        form: mean_ratio([item["speedup"] for item in auto if item["key"][0] == form]) for form in ("prefill", "paged")
    }
    return {
        "value": value,
        "worst": rounded(worst["favourable"]),
        "worst_problem": worst["key"],
        "out_of_fold": mean_ratio([item["speedup"] for item in found["model"]]),
        "best_measured": mean_ratio([item["speedup"] for item in found["best"]]),
        "heuristic": mean_ratio([item["speedup"] for item in found["heuristic"]]),
        **forms,
        "problems": len(auto),
        "is_met": value is not None and value >= 1.10 and worst["favourable"] >= 1.0,
    }


def compare(baselines: list[dict], rows: dict, key: list[str], role: str, is_beside: bool) -> list[dict]:
    """Return the speed-up of each problem in one role; empty unless it was measured on all of them.

    is_beside: upstream was timed in the same run.
    """
    found = []
    for baseline in baselines:
        identity = tuple(baseline[name] for name in key)
        row = rows.get(identity)
        samples = row and find_variant(row, role, baseline["form"])
        if not samples:
            return []
        speedup, favourable = compare_plain(find_upstream(row, baseline, baseline["form"], is_beside), samples)
        if speedup is None:
            return []
        found.append({"key": list(identity), "speedup": speedup, "favourable": favourable})
    return found
