"""Store what the selector chooses for the benchmarks' problems when it has not seen the problem's family of weights.

Example: python -m benchmarks.out_of_fold --training trained/*

Reads `training.json` and `out_of_fold.json` of a training folder for each op kind (written by `python -m tuner train`
and `evaluate`), and keeps the problems that a benchmark times, so that each run on a GPU can time these choices beside
the calls' own (choices.py, role "model"). Op kinds that are not given stay as they are in --out. Needs no GPU.
Result: {"meta": identity; "estimator_sha256" of each op kind's trees; "rows": [{problem fields, "config": fields,
    "source": "learned", or "analytic" where these trees refuse}]}. Fields that have their default are left out.
"""

import argparse
import sys
from pathlib import Path

from deep_gemm import _C
from tuner.problems.fields import PROBLEM_DEFAULTS, to_problem

from .stale import ESTIMATES, OUT_OF_FOLD
from .stamp import read_json, results_of, write_json
from .today import FAMILIES

#: What `meta` says of each op kind.
OF_OPS = ("kernel_hash", ESTIMATES, "estimator_sha256", "dates")


def list_problems() -> set[str]:
    """Return the keys of all problems that benchmarks time."""
    return {
        problem.key
        for family in FAMILIES.values()
        for key in family.read_keys()
        for problem in family.make_problems(key).values()
    }


def read_part(folder: Path, wanted: set[str]) -> tuple[dict, list[dict]]:
    """Return what a training folder says of its op kind, and its rows of the problems `wanted`.

    Raises: ValueError where the evaluation is of another selector, or is of none of these problems.
    """
    training, found = read_json(folder / "training.json"), read_json(folder / OUT_OF_FOLD)
    if found["estimator_sha256"] != training["estimator_sha256"]:
        raise ValueError(f"{folder}: evaluated another selector; run python -m tuner evaluate again")
    rows = [row for row in found["rows"] if row["problem"] in wanted]
    if not rows:
        raise ValueError(f"{folder}: evaluated no problem that a benchmark times; leave it out")
    identity = found["identity"]
    op = identity["op"]
    values = (identity["kernel_hash"], _C.estimate_revision(op), found["estimator_sha256"], training["newest_row"][:10])
    meta = {"sku": identity["sku"]} | {name: {op: value} for name, value in zip(OF_OPS, values, strict=True)}
    return meta, [shorten(row) for row in rows]


def shorten(row: dict) -> dict:
    """Return a row without the fields that have their default, and without its key, which follows from the others."""
    fields = {name: value for name, value in row.items() if name not in ("problem", "config", "source")}
    kept = {name: value for name, value in fields.items() if value != PROBLEM_DEFAULTS.get(name)}
    return kept | {"op": row["op"], "config": row["config"], "source": row["source"]}


def join(parts: list[tuple[dict, list[dict]]], before: dict | None) -> dict:
    """Return the result of several op kinds; `before`: the result whose other op kinds stay.

    Raises: ValueError where they are of different GPU models, that of `before` included, or one op kind twice.
    """
    sku, given = parts[0][0]["sku"], [op for meta, _ in parts for op in meta["kernel_hash"]]
    if any(meta["sku"] != sku for meta, _ in parts) or len(set(given)) < len(given):
        raise ValueError("the training folders must be of different op kinds and one GPU model")
    if before and before["meta"]["sku"] != sku:
        raise ValueError(f"the result there is of {before['meta']['sku']}, not of {sku}; name another --out")
    kept = before or {"meta": {}, "rows": []}
    metas = [kept["meta"], *(meta for meta, _ in parts)]
    of_ops = {name: {op: value for meta in metas for op, value in meta.get(name, {}).items()} for name in OF_OPS}
    rows = [row for row in kept["rows"] if row["op"] not in given] + [row for _, own in parts for row in own]
    rows.sort(key=lambda row: order(PROBLEM_DEFAULTS | row))
    return {"meta": {"sku": sku, **of_ops, "date": max(of_ops["dates"].values()), "complete": True}, "rows": rows}


def order(fields: dict) -> tuple:
    """Return the sort key of a problem's fields, with what they leave out."""
    return fields["op"], fields["n"], fields["k"], fields["m"], to_problem(fields).key


def main(arguments: list[str] | None = None) -> int:
    """Write the result and print how many problems of each op kind it has."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--training", type=Path, required=True, nargs="+", help="evaluated folders, one per op kind")
    parser.add_argument("--out", type=Path, help="where the result goes (default: among those of the GPU model)")
    args = parser.parse_args(arguments)
    wanted = list_problems()
    parts = [read_part(folder, wanted) for folder in args.training]
    out = args.out or results_of(parts[0][0]["sku"]) / OUT_OF_FOLD
    result = join(parts, read_json(out) if out.exists() else None)
    write_json(out, result)
    for op in result["meta"]["kernel_hash"]:
        print(f"{op}: {sum(row['op'] == op for row in result['rows'])} problems")
    return 0


if __name__ == "__main__":
    sys.exit(main())
