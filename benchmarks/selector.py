"""Store the nested validation of a trained selector as a result file, and derive the targets S1, S2 and S3 from it.

Example: python -m benchmarks.selector --training ~/.deep_gemm/training/nvidia-h200-sm132/*
Example: python -m benchmarks.selector --training trained/fp8_gemm --keep

Reads `training.json` and `evaluation.json` of a training folder for each op kind (written by `python -m tuner train`
and `evaluate`); needs no GPU. With --keep the other op kinds of the present result stay, as `export --keep` leaves them
in the artefact.
Result: {"meta": identity, date of the newest measurement; "ops": {op kind: {"meta": identity, counts; "splits": {split:
    {method: statistics}}, "worst", "unconfirmed"}}}.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from deep_gemm import _C
from deep_gemm.fields import OP_KINDS

from .speedup import rounded
from .stale import ESTIMATES
from .stamp import read_json, results_of, write_json

#: Seeds of a validation that S1 asks for.
SEEDS = 5
#: The result of fit_rates.py --record, one a GPU model.
RATES = "fit_rates.json"
#: What says of which rows an evaluation or a fit of rates is.
SOURCE = ("kernel_hash", "compiler", "regime", "date")
#: How far the mean regret of the package's rates may be apart in both: figures of the same rows differ by rounding.
SAME_MEAN = 1e-4


def make_result(folder: Path) -> dict:
    """Return the result of one training folder. Raises: ValueError where the evaluation is of another selector."""
    training, evaluation = read_json(folder / "training.json"), read_json(folder / "evaluation.json")
    if evaluation["estimator_sha256"] != training["estimator_sha256"]:
        raise ValueError(f"{folder}: evaluated another selector; run python -m tuner evaluate again")
    identity = evaluation["identity"]
    meta = {
        "sku": identity["sku"],
        "kernel_hash": {identity["op"]: identity["kernel_hash"]},
        "compiler": identity["compiler"],
        "regime": identity["regime"],
        ESTIMATES: _C.estimate_revision(identity["op"]),
        "date": training["newest_row"][:10],
        "data": training["data"],
        "settings": training["settings"],
        **{name: evaluation[name] for name in ("seeds", "nested")},
        "complete": True,
    }
    return {"meta": meta, **{name: evaluation[name] for name in ("splits", "worst", "unconfirmed")}}


def join_results(results: list[dict]) -> dict:
    """Return the results of several op kinds as one.

    Raises: ValueError where they are of different machines or one op kind twice.
    """
    metas = [result["meta"] for result in results]
    hashes = {op: value for meta in metas for op, value in meta["kernel_hash"].items()}
    if len(hashes) != len(results) or len({meta["sku"] for meta in metas}) > 1:
        raise ValueError("the training folders must be of different op kinds and one GPU model")
    meta = {
        "sku": metas[0]["sku"],
        "kernel_hash": hashes,
        ESTIMATES: {op: meta.get(ESTIMATES, 1) for meta in metas for op in meta["kernel_hash"]},
        "date": max(meta["date"] for meta in metas),
        "complete": True,
    }
    return {"meta": meta, "ops": {next(iter(result["meta"]["kernel_hash"])): result for result in results}}


def read_kept(path: Path, given: list[dict]) -> list[dict]:
    """Return the results in a file of op kinds that are not among those given."""
    made = {op for result in given for op in result["meta"]["kernel_hash"]}
    return [part for op, part in read_json(path)["ops"].items() if op not in made]


def get_parts(result: dict) -> dict[str, dict]:
    """Return the parts of a result by op kind; a file of one op kind is that op kind's part."""
    return result.get("ops") or {next(iter(result["meta"]["kernel_hash"])): result}


def is_dense(op: str) -> bool:
    """Return whether an op kind is of dense products."""
    return not OP_KINDS[op].is_grouped and not OP_KINDS[op].is_logits


def is_grouped(op: str) -> bool:
    """Return whether an op kind is of groups."""
    return OP_KINDS[op].is_grouped


#: Which op kinds count in a target. S2 asks about dense products, so logits count with groups there.
COUNTED: dict[str, Callable[[str], bool]] = {
    **dict.fromkeys(("S1", "S3"), lambda op: not is_grouped(op)),
    **dict.fromkeys(("S1_grouped", "S3_grouped"), is_grouped),
    "S2": is_dense,
    "S2_grouped": lambda op: not is_dense(op),
}


def family_splits(result: dict, target: str) -> dict[str, dict]:
    """Return, by op kind that counts in a target, the statistics of leave-one-family-out; without the op kinds where
    nothing was held out.
    """
    splits = {op: part["splits"].get("family", {}) for op, part in get_parts(result).items() if COUNTED[target](op)}
    return {op: split for op, split in splits.items() if split.get("model") is not None}


def make_s1(result: dict, target: str = "S1", max_mean: float = 0.015, max_p95: float = 0.06) -> dict | None:
    """Regret of the guarded model on families that it never saw; of several op kinds the worst counts.

    The target asks for five seeds, and that each fold chooses the settings of its trees by itself.
    """
    splits = family_splits(result, target)
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
    metas = [part["meta"] for op, part in get_parts(result).items() if op in splits]
    seeds, nested = min(meta["seeds"] for meta in metas), all(meta["nested"] for meta in metas)
    return {
        "value": rounded(mean),
        "model_alone": rounded(alone),
        **{name: rounded(value) for name, value in figures.items()},
        **counts,
        "by_op": {op: rounded(split["model"]["mean"]) for op, split in splits.items()},
        "seeds": seeds,
        "nested": nested,
        "is_met": mean <= max_mean and p95 <= max_p95 and answered >= 0.70 and seeds >= SEEDS and nested,
    }


def make_s2(result: dict, target: str = "S2") -> dict | None:
    """Share of the heuristic's regret that the guarded model removes; of several op kinds the worst counts."""
    splits = {
        op: split["model"]
        for op, split in family_splits(result, target).items()
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
        "is_met": removed >= 0.60 and worst <= 0.05,
    }


def make_s3(result: dict, rates: dict | None = None, target: str = "S3", max_mean: float = 0.03) -> dict | None:
    """Regret of the heuristic alone, with rates that were refitted without the scored weights and what is near them; of
    several op kinds the worst counts.

    `rates` is the result of fit_rates.py --record, None where there is none. An op kind that it does not have of the
    evaluation's rows counts with the package's rates, which have seen its problems, and the target is then not met.
    The estimate of logits has no rates that could be refitted: the heuristic counts as it is. A fit to a snapshot,
    which lacks search rows, shows more than one to the database of the evaluation: its best configs are luckier.
    """
    splits = {op: split["heuristic"] for op, split in family_splits(result, target).items() if split.get("heuristic")}
    if not splits:
        return None
    refitted = find_refitted(result, rates) if rates else {}
    counted = {op: refitted.get(op, heuristic) for op, heuristic in splits.items()}
    in_sample = sorted(op for op in splits if op not in refitted and not OP_KINDS[op].is_logits)
    figures = {name: max(each[name] for each in counted.values()) for name in ("mean", "p95", "max")}
    mean = figures.pop("mean")
    return {
        "value": rounded(mean),
        **{name: rounded(value) for name, value in figures.items()},
        "problems": sum(each["problems"] for each in counted.values()),
        "by_op": {op: rounded(each["mean"]) for op, each in counted.items()},
        "packaged": {op: rounded(heuristic["mean"]) for op, heuristic in splits.items()},
        "in_sample": in_sample,
        "is_met": mean <= max_mean and not in_sample,
    }


def find_refitted(result: dict, rates: dict) -> dict[str, dict]:
    """Return, by op kind, the figures of refitted rates, where the rows are those of the evaluation; none where the
    heuristic is another one since.
    """
    parts, meta = get_parts(result), rates["meta"]
    if meta["heuristic_version"] != _C.heuristic_version(meta["sku"]):
        return {}
    return {
        op: part["refitted"] | {"problems": part["problems"]}
        for op, part in rates["ops"].items()
        if op in parts and is_of_same_rows(parts[op], part)
    }


def read_kept_rates(path: Path, sku: str, kept: list[str]) -> dict[str, dict]:
    """Return op kinds of the record of fit_rates.py at `path`.

    Raises: ValueError where there is none, or it lacks one or is of another heuristic, estimate or GPU model.
    """
    if not kept:
        return {}
    if not path.exists():
        raise ValueError(f"--keep: {path}: no such file; leave --keep out")
    present = read_json(path)
    for name, own in (("sku", sku), ("heuristic_version", _C.heuristic_version(sku))):
        if present["meta"][name] != own:
            raise ValueError(f"--keep: {path} is of another {name}; score every op kind again")
    for op in kept:
        if op not in present["ops"]:
            raise ValueError(f"--keep {op}: not in {path}")
        if present["ops"][op]["meta"].get(ESTIMATES, 1) != _C.estimate_revision(op):
            raise ValueError(f"--keep {op}: {path} is of another estimate of it; score it again")
    return {op: present["ops"][op] for op in kept}


def is_of_same_rows(evaluated: dict, fitted: dict) -> bool:
    """Return whether an evaluation and a fit of rates are of the same rows of one op kind: by what both say of them,
    and by the package's rates, which must have the same figures in both. A snapshot lacks search rows, so that other
    configs count as the best.
    """
    one, other = evaluated["meta"], fitted["meta"]
    is_same_estimate = one.get(ESTIMATES, 1) == other.get(ESTIMATES, 1)
    is_same_source = is_same_estimate and all(one[name] == other[name] for name in SOURCE)
    has_same_counts = all(one["data"].get(name) == count for name, count in other["data"].items())
    heuristic = evaluated["splits"]["family"]["heuristic"]
    is_same_regret = abs(heuristic["mean"] - fitted["present"]["mean"]) <= SAME_MEAN
    return is_same_source and has_same_counts and is_same_regret and heuristic["problems"] == fitted["problems"]


def main(arguments: list[str] | None = None) -> int:
    """Write the result and print the guarded model's figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--training", type=Path, required=True, nargs="+", help="training folders, one for each op kind"
    )
    parser.add_argument("--out", type=Path, help="where the result goes (default: among those of the GPU model)")
    parser.add_argument("--keep", action="store_true", help="keep the op kinds of --out that are not given")
    args = parser.parse_args(arguments)
    given = [make_result(folder) for folder in args.training]
    out = args.out or results_of(given[0]["meta"]["sku"]) / "evaluation.json"
    if args.keep and not out.exists():
        parser.error(f"--keep: {out}: no such file; leave --keep out")
    result = join_results(given + (read_kept(out, given) if args.keep else []))
    write_json(out, result)
    for op, part in result["ops"].items():
        for split, table in part["splits"].items():
            if table:
                print(
                    f"{op} {split}: model {table['model']['mean']:.2%} (answers {table['model']['answered']:.0%}),"
                    f" heuristic {table['heuristic']['mean']:.2%}"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
