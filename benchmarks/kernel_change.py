"""Time what a selector's trees choose, and what the heuristic would, with kernels before a change and those after it.

Example: python -m benchmarks.kernel_change 4d596e9 e899202

Each argument is one set of older kernels, as `python -m tuner ab` names it: a git revision or a clone. The selector is
that of the GPU at hand, whatever kernels it is of. Problems of every op kind are drawn from the presets. Of each the
trees' choice and the heuristic's pick are timed with both kernels in turns, in one process (tuner/compare). Choices of
a set hold for an op kind where the selector is of that set's kernels, all results are right, and the choices take, as
geometric means, at most MAX_RATIO of their time with the older kernels, and with the new ones no more than the picks.
That is what an entry of deep_gemm/older_kernels.py, by which they choose for the new ones, should rest on.
Result: {"meta": {..., "selector": {op kind: hash}}, "sets": [{"name", "older": {op kind: hash}, "ops": {op kind:
    {"problems", "ratio": new over old of the choices, "fastest", "slowest": of all configs, "gain": the heuristic's
    pick over the choice with the new kernels, "holds"}}}], "rows": [{"set": its name, "problem", "role": "choice" or
    "pick", "config", "verdict" of the comparison, "old_us", "new_us": medians in microseconds, "ratio", "ratio_low",
    "ratio_high": 95 % interval}]}. Where both are one config, there is no pick; where the trees do not choose, no
    choice; a row that was not timed, or whose result is wrong, has "error" instead of times.
"""

import argparse
import random
import sys
from pathlib import Path

from deep_gemm.fields import OP_KINDS
from deep_gemm.selection import current_device, find_recorded, get_analytic_config, get_selector
from deep_gemm.selector import Selector
from tuner import errors
from tuner.compare.comparison import Options, ask_hashes, compare_sets
from tuner.compare.duel import BROKEN, SILENT
from tuner.compare.kernel_sets import Clone
from tuner.compare.revisions import make_set
from tuner.problems.shapes import load_preset

from .speedup import geometric_mean
from .stamp import find_results, make_stamp, write_json

PRESETS = ("default", "bf16", "wgrad", "drawn_log", "grouped", "batched", "attention")
SEED = 16
#: Problems of an op kind; dense ones are most of what runs.
COUNT, COUNT_DENSE = 3, 10
#: Choices may take this much longer than with the older kernels: the noise of a few problems.
MAX_RATIO = 1.005


def draw(seed: int = SEED) -> list:
    """Return the problems of a seed, op kind by op kind. Op kinds that are swept as another one are left out."""
    source = random.Random(seed)
    pool = list(dict.fromkeys(problem for name in PRESETS for problem in load_preset(name)))
    found = []
    for op, kind in OP_KINDS.items():
        own = [problem for problem in pool if problem.op == op]
        count = COUNT if kind.is_grouped or kind.is_logits else COUNT_DENSE
        found += source.sample(own, min(count, len(own)))
    return found


def list_configs(problem, device, selector: Selector) -> dict[str, object]:
    """Return the config of each role."""
    pick = get_analytic_config(problem, device)
    choice = selector.choose(find_recorded(problem, selector), device, "model")
    if choice.source != "learned":
        return {"pick": pick}
    return {"choice": choice.config} | ({"pick": pick} if pick != choice.config else {})


def describe_row(name: str, role: str, pair: dict) -> dict:
    """Return a row of the result from a pair of the comparison's report."""
    config = pair["old"]["name"]
    row = {"set": name, "problem": pair["problem"], "role": role, "config": config, "verdict": pair["verdict"]}
    if "ratio" not in pair or pair["verdict"] in (*BROKEN, *SILENT):  # a later turn may fail behind times of the first
        return row | {"error": pair["error"]}
    times = {"old_us": pair["old"]["median_us"], "new_us": pair["new"]["median_us"]}
    return row | times | {figure: pair[figure] for figure in ("ratio", "ratio_low", "ratio_high")}


def summarize(rows: list[dict], is_own: bool = True) -> dict:
    """Return what the rows of one op kind and set say; one that was not timed counts against it. `is_own`: the selector
    is of the set's kernels.
    """
    timed = [row for row in rows if "ratio" in row]
    choices = {str(row["problem"]): row for row in timed if row["role"] == "choice"}
    picks = {str(row["problem"]): row for row in timed if row["role"] == "pick"}
    if not choices:
        return {"problems": 0, "holds": False}
    ratio = geometric_mean([row["ratio"] for row in choices.values()])
    gain = geometric_mean([picks.get(key, row)["new_us"] / row["new_us"] for key, row in choices.items()])
    ratios = [row["ratio"] for row in timed]
    return {
        "problems": len(choices),
        "ratio": ratio,
        "fastest": min(ratios),
        "slowest": max(ratios),
        "gain": gain,
        "holds": is_own and len(timed) == len(rows) and ratio <= MAX_RATIO and gain >= 1,
    }


def get_op(row: dict) -> str:
    """Return the op kind of a row's problem."""
    return row["problem"].get("op", "fp8_gemm")


def measure(names: list[str]) -> dict:
    """Return the result for the sets of older kernels.

    Raises: UsageError without a selector of this GPU model; UsageError, TunerError for a set that cannot be made.
    """
    clone, device = Clone.here(), current_device()
    selector = get_selector(device)
    if selector is None:
        raise errors.UsageError(f"no selector of {device.sku}: there are no choices to measure; unset DG_SELECTOR")
    asked = [(one, role, config) for one in draw() for role, config in list_configs(one, device, selector).items()]
    problems, configs = [problem for problem, *_ in asked], [config.as_dict() for *_, config in asked]
    ops = list(dict.fromkeys(problem.op for problem in problems))
    own = {op: selector.metadata["ops"].get(op, {}).get("kernel_hash") for op in ops}
    meta = {**make_stamp(device, tuple(ops)), "seed": SEED, "complete": True, "selector": own}
    result: dict = {"meta": meta, "sets": [], "rows": []}
    # Kernels of the same code, too: their choices are as good as before, and their times say what noise is.
    options, new = Options(problems=problems, configs=configs, identical_too=True), make_set(clone, ".")
    for name in names:
        old, label = make_set(clone, name), Path(name).name
        report = compare_sets(old, new, options, print_progress)
        rows = [describe_row(label, role, pair) for (_, role, _), pair in zip(asked, report["pairs"], strict=True)]
        older = {op: value for op, value in ask_hashes(old, ops).items() if op in ops}
        found = {op: summarize([row for row in rows if get_op(row) == op], own[op] == older[op]) for op in ops}
        result["sets"].append({"name": label, "older": older, "ops": found})
        result["rows"] += rows
        meta["complete"] = meta["complete"] and all("ratio" in row for row in rows)
    return result


def is_held(result: dict) -> bool:
    """Return whether the choices of every op kind that the selector knows hold: those of the set that it is of."""
    known = [op for op, kernel_hash in result["meta"]["selector"].items() if kernel_hash is not None]
    return bool(known) and all(any(one["ops"][op]["holds"] for one in result["sets"]) for op in known)


def print_progress(done: int, total: int) -> None:
    """Print a line every hundred measurements."""
    if done % 100 == 0:
        print(f"{done} of {total}", flush=True)


def print_result(result: dict) -> None:
    """Print a line for each set and op kind."""
    for one in result["sets"]:
        for op, found in one["ops"].items():
            figures = ", ".join(f"{name} {value:.3f}" for name, value in found.items() if isinstance(value, float))
            print(f"{one['name']} {op}: {found['problems']} problems, {figures}, holds: {found['holds']}")


def main(arguments: list[str] | None = None) -> int:
    """Measure, write and print the result."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="Exit codes: 0 choices hold for every op kind of the selector, 1 not, 3 not every pair was timed.",
    )
    parser.add_argument("older", nargs="+", help="older kernels: a git revision or a clone")
    parser.add_argument("--out", type=Path, default=find_results() / "kernel_change.json", help="where the result goes")
    args = parser.parse_args(arguments)
    try:
        result = measure(args.older)
    except errors.TunerError as error:
        print(error, file=sys.stderr)
        return 3
    write_json(args.out, result)
    print_result(result)
    if not result["meta"]["complete"]:
        return 3
    return 0 if is_held(result) else 1


if __name__ == "__main__":
    sys.exit(main())
