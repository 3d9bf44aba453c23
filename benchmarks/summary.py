"""Write summary.json: every target of the project that has been measured, derived from the result files beside it, in
the folder of each GPU model.

Example: python -m benchmarks.summary

A target whose source file is missing or unfinished is absent. An entry names its script, result file and the kernel
hash that was measured; where that is not the tree's, `stale` says why and `met` is false. So it is where a target says
something of a selector's choices (OF_SELECTOR), and the tree has another selector; and where rows name their choices,
and the tree would choose otherwise (today.py). Targets of some op kinds (OF_OPS, selector.COUNTED) ask about those.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from deep_gemm.fields import OP_KINDS
from tuner.measure.stamp import name_model
from tuner.problems.fields import read_op_name

from . import dense_speedup, grouped_speedup, logits_speedup, selector, stale, today
from .compile_time import summarise
from .speedup import geometric_mean, is_beside_upstream, rounded
from .stamp import OPS, RECORDS, RESULTS, read_json, write_json

Entry = dict
#: Targets that follow from a second result file, too. Where it is there and finished, the target's function takes its
#: content after the first's.
BESIDE = dict.fromkeys(("S3", "S3_grouped"), selector.RATES)
#: Targets that say something of one selector's choices.
OF_SELECTOR = ("Q2",)
#: Targets of some op kinds of their result alone: {target: op kinds}.
OF_OPS = dict.fromkeys(("P11", "P13", "S4"), OPS)
#: Targets whose peer is DeepGEMM. Its recorded times are of the GPU model of RESULTS: other models have such an entry
#: only where it was timed in the same run.
OF_UPSTREAM = ("P1", "P2", "P3", "P6", "P7", "P8", "P9", "P10")


def is_grouped_call(name: str) -> bool:
    """Return whether a call of host_time.py is of a grouped op; its name is the function's, a comma and more words."""
    op, _ = read_op_name(name.partition(",")[0])
    return OP_KINDS[op].is_grouped


def make_p11(result: dict) -> Entry:
    """Host time of one call on a warm problem: the slowest of the dense ops, best of the blocks, beside torch.mm(out=)
    of the same run.
    """
    every = {name: times for name, times in result["host"]["cuda"].items() if "_gemm_" in name}
    calls = {name: times for name, times in every.items() if not is_grouped_call(name)}
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
    return make_share(record, ("portfolio_repeats", "op_repeats"), "portfolio")


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


def make_p15(result: dict) -> Entry:
    """Quantising and layout kernels at large sizes: the rate of bytes over that of a copy."""
    rows = {row["case"]: row for row in result["rows"]}
    worst = min(rows, key=lambda case: rows[case]["of_copy"])
    share = geometric_mean([row["of_copy"] for row in rows.values()])
    return {
        "value": rounded(share),
        "worst": rows[worst]["of_copy"],
        "worst_problem": worst,
        "cases": {case: row["of_copy"] for case, row in rows.items()},
        "problems": len(rows),
        "is_met": rows[worst]["of_copy"] >= 0.85,
    }


def make_p16(result: dict) -> Entry:
    """Host time of decode-size calls of attention logits, einsum, the product before a norm, casts and layouts."""
    calls = {row["op"]: row["best_us"] for row in result["rows"]}
    slowest = max(calls, key=lambda op: calls[op])
    return {
        "value": rounded(geometric_mean(list(calls.values()))),
        "worst": calls[slowest],
        "worst_problem": slowest,
        "unit": "us",
        "calls": calls,
        "missed": [row["op"] for row in result["rows"] if row["best_us"] > row["target_us"]],
        "problems": len(calls),
        "is_met": all(row["best_us"] <= row["target_us"] for row in result["rows"]),
    }


def make_q3(result: dict) -> Entry:
    """Programs in the spellings of callers that ran without an error."""
    failed = {row["case"]: row["error"] for row in result["rows"] if row["error"]}
    return make_passed(len(result["rows"]), failed)


def make_q4(result: dict) -> Entry:
    """Casts and layouts equal to the torch formula, to the bit."""
    return make_passed(len(result["rows"]), [row["case"] for row in result["rows"] if row["num_wrong"]])


def make_q5(result: dict) -> Entry:
    """Products of einsum and tf32_hc_prenorm_gemm within their bounds, with the same bits in repeated calls."""
    rows = [row for row in result["rows"] if "is_right" in row]
    return make_passed(len(rows), [row["case"] for row in rows if not (row["is_right"] and row.get("repeats", True))])


def make_passed(cases: int, failed: list | dict) -> Entry:
    """Return how many cases passed, and which failed."""
    share = rounded(1.0 - len(failed) / cases) if cases else None
    return {"value": share, "failed": failed, "problems": cases, "is_met": cases > 0 and not failed}


RECORD = ("gpu_record.json", "tests/gpu/run.py")
UPSTREAM = "upstream DeepGEMM main 54e2261 (benchmarks/data/dense_fp8.json), through cuBLASLt of both runs"
UPSTREAM_WGRAD = "upstream DeepGEMM main 54e2261 (benchmarks/data/wgrad_fp8.json), the plain ratio"
UPSTREAM_GROUPED = "upstream DeepGEMM main 54e2261 (benchmarks/data/{}), the plain ratio; cuBLASLt has no such product"
HEURISTIC = "upstream's heuristic, 10.6 % mean and 26 % worst over 11 problems of its own space"
OWN_HEURISTIC = "the analytic heuristic"
S1_LIMITS = "mean <= 0.015, p95 <= 0.06, answered >= 0.70, nested, 5 seeds"
S2_LIMITS = "removes >= 0.60 of its regret, worst against it <= 0.05"
S3_LIMITS = "mean <= 0.03 with rates fitted without these problems"
#: Result file and the script that writes it.
DENSE = ("dense_fp8.json", "benchmarks/dense_fp8.py")
RANDOM = ("random_fp8.json", "benchmarks/random_fp8.py")
DENSE_BF16 = ("dense_bf16.json", "benchmarks/dense_bf16.py")
WGRAD = ("wgrad_fp8.json", "benchmarks/wgrad_fp8.py")
CONTIGUOUS = ("m_grouped_contiguous.json", "benchmarks/m_grouped_contiguous.py")
MASKED = ("m_grouped_masked.json", "benchmarks/m_grouped_masked.py")
K_GROUPED = ("k_grouped.json", "benchmarks/k_grouped.py")
LOGITS = ("mqa_logits.json", "benchmarks/mqa_logits.py")
COMPILE = ("compile_time.json", "benchmarks/compile_time.py")
SELECTOR = ("evaluation.json", "benchmarks/selector.py")
HOST = ("host_time.json", "benchmarks/host_time.py")
PLAIN = ("plain_kernels.json", "benchmarks/plain_kernels.py")
PLAIN_BITS = ("plain_kernels_bits.json", "tests/gpu/plain_kernels.py")
HOST_OPS = ("host_ops.json", "benchmarks/host_ops.py")
EINSUM = ("einsum.json", "tests/gpu/einsum.py")
CALLERS = ("callers.json", "tests/callers/run.py")
#: name -> (result file, script, peer, target in words, function of the file's content)
TARGETS: dict[str, tuple[str, str, str, str, Callable]] = {
    "P1": (
        *DENSE,
        UPSTREAM,
        "mean >= 1.14, worst >= 0.98",
        lambda result: dense_speedup.make_p1(dense_speedup.Scaled(result, "dense_fp8")),
    ),
    "P2": (
        *DENSE,
        UPSTREAM,
        "mean >= 1.30, each within max(1.3x, +2.0 us) of the streaming floor",
        lambda result: dense_speedup.make_p2(dense_speedup.Scaled(result, "dense_fp8")),
    ),
    "P3": (
        *DENSE,
        UPSTREAM,
        "mean >= 1.03, peak >= 1.0x cuBLASLt's",
        lambda result: dense_speedup.make_p3(dense_speedup.Scaled(result, "dense_fp8")),
    ),
    "P4": (
        *DENSE,
        "unscaled cuBLASLt of the same run",
        "mean >= 1.02",
        lambda result: dense_speedup.make_p4(dense_speedup.Scaled(result, "dense_fp8")),
    ),
    "P5": (
        *DENSE_BF16,
        "cuBLASLt of the same run, through torch.mm",
        "mean >= 1.02, worst >= 0.95",
        dense_speedup.make_p5,
    ),
    "P6": (
        *WGRAD,
        UPSTREAM_WGRAD,
        "mean >= 1.12",
        lambda result: dense_speedup.make_p6(dense_speedup.Scaled(result, "wgrad_fp8")),
    ),
    "P7": (
        *CONTIGUOUS,
        UPSTREAM_GROUPED.format(CONTIGUOUS[0]),
        "fp8 >= 1.01, bf16 >= 1.02, row-major >= 0.99, worst >= 0.98",
        grouped_speedup.make_p7,
    ),
    "P8": (
        *MASKED,
        UPSTREAM_GROUPED.format(MASKED[0]),
        "decode >= 1.09, all sizes worst >= 0.98, read rate of 32 groups >= 0.90 of the floor kernel's",
        grouped_speedup.make_p8,
    ),
    "P9": (*K_GROUPED, UPSTREAM_GROUPED.format(K_GROUPED[0]), "nt >= 1.06, tn >= 0.92", grouped_speedup.make_p9),
    "P10": (
        *LOGITS,
        "upstream DeepGEMM main 54e2261 (benchmarks/data/mqa_logits.json), the plain ratio",
        "mean >= 1.10, worst >= 1.0",
        logits_speedup.make_p10,
    ),
    "P11": (*HOST, "torch.mm(out=) of the same run", "<= 5 us, at most 0.6x of the peer", make_p11),
    "P12": (
        *COMPILE,
        "upstream 3.5 s",
        "NVRTC median <= 0.2 s, p95 <= 0.5 s; NVCC median <= 1.2 s, p95 <= 1.8 s",
        make_p12,
    ),
    "P13": (*HOST, "upstream 3.5 s, which compiles", "no compile, selection <= 10 us", make_p13),
    "P15": (*PLAIN, "torch's copy of the same run", "each >= 0.85", make_p15),
    "P16": (*HOST_OPS, "none", "casts and layouts <= 5 us, others <= 6 us", make_p16),
    "S1": (*SELECTOR, HEURISTIC, S1_LIMITS, selector.make_s1),
    "S2": (*SELECTOR, OWN_HEURISTIC, S2_LIMITS, selector.make_s2),
    "S3": (*SELECTOR, HEURISTIC, S3_LIMITS, selector.make_s3),
    "S1_grouped": (*SELECTOR, "none", S1_LIMITS, partial(selector.make_s1, target="S1_grouped")),
    "S2_grouped": (*SELECTOR, OWN_HEURISTIC, S2_LIMITS, partial(selector.make_s2, target="S2_grouped")),
    "S3_grouped": (*SELECTOR, "none", S3_LIMITS, partial(selector.make_s3, target="S3_grouped")),
    "S4": (*HOST, "upstream recomputes on every call", "seen problem <= 0.3 us, new problem <= 10 us", make_s4),
    "R1": (
        *RANDOM,
        "unscaled cuBLASLt of the same run",
        "mean >= 0.98, worst >= 0.88",
        dense_speedup.make_r1,
    ),
    "Q1": (*RECORD, "none", "every config within the bounds, on every shape", make_q1),
    "Q2": (*RECORD, "none", "0 differences in 1,000 repeats of each config", make_q2),
    "Q3": (*CALLERS, "none", "every program runs", make_q3),
    "Q4": (*PLAIN_BITS, "the torch formula on the same GPU", "no bit differs", make_q4),
    "Q5": (*EINSUM, "none", "every result within its bound, the same bits when repeated", make_q5),
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
    entry = derive(result, *read_beside(name, folder))
    if entry is None:
        return None
    ops = list_ops(name, meta)
    reason = stale.get_reason(path, meta, ops) or (
        stale.get_selector_reason(meta) if name in OF_SELECTOR else today.get_reason(file, result)
    )
    is_met = bool(entry.pop("is_met")) and reason is None
    if name in OF_UPSTREAM and meta.get("deepgemm"):
        peer = f"DeepGEMM {meta['deepgemm']} of the same run, the plain ratio"
    return {
        **entry, "target": target, "met": is_met, "peer": peer, "script": script, "result": file,
        "kernel_hash": {op: hash for op, hash in meta["kernel_hash"].items() if not ops or op in ops},
        "date": meta["date"], "stale": reason,
    }  # fmt: skip


def list_ops(name: str, meta: dict) -> tuple[str, ...]:
    """Return the op kinds of a result that a target is of; () where it is of all."""
    if name not in selector.COUNTED:
        return OF_OPS.get(name, ())
    return tuple(op for op in meta["kernel_hash"] if selector.COUNTED[name](op))


def read_beside(name: str, folder: Path) -> list[dict]:
    """Return the content of the second result file of a target, none where it has none or that is unfinished."""
    path = folder / BESIDE.get(name, "")
    content = read_json(path) if path.is_file() else {}
    return [content] if content.get("meta", {}).get("complete") else []


def make_summary(folder: Path = RESULTS) -> dict[str, Entry]:
    """Return {target: entry} for every target that has a finished result in `folder`.

    The recorded times of DeepGEMM are of the GPU model of RESULTS; other models lack what needs them.
    """
    folder, entries = folder.resolve(), {}
    for name in TARGETS:
        path = folder / TARGETS[name][0]
        has_peer = path.exists() and has_upstream(read_json(path), folder)
        entry = None if name in OF_UPSTREAM and not has_peer else make_entry(name, folder)
        if entry is not None:
            entries[name] = {key: entry[key] for key in entry if has_peer or not key.startswith("over_upstream")}
    return entries


def has_upstream(result: dict, folder: Path) -> bool:
    """Return whether DeepGEMM's time is known for a result: of the same run, or recorded on its GPU model.

    A result that names no GPU is of the model of its folder.
    """
    sku = result.get("meta", result).get("sku")
    model = name_model(sku) if sku else folder.name if folder.parent == RECORDS else RESULTS.name
    return is_beside_upstream(result) or model == RESULTS.name


def main(arguments: list[str] | None = None) -> int:
    """Write the summary and print one line for each target."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, help="folder of the result files; summary.json is written there (default: every one)"
    )
    named = parser.parse_args(arguments).folder
    for folder in [named] if named else list_folders():
        summary = make_summary(folder)
        write_json(folder / "summary.json", summary)
        print(f"{folder.name}:")
        for name, entry in summary.items():
            state = "stale" if entry["stale"] else "met" if entry["met"] else "not met"
            print(f"{name:4} {entry['value']!s:8} {state:8} target: {entry['target']}")
    return 0


def list_folders() -> list[Path]:
    """Return the folders of results, one a GPU model."""
    return sorted(path for path in RECORDS.iterdir() if path.is_dir())


if __name__ == "__main__":
    sys.exit(main())
