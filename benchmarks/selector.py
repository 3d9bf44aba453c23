"""Keep the nested validation of a trained selector as a result file: what S1, S2 and S3 follow from.

Example: python -m benchmarks.selector --training ~/.deep_gemm/training/nvidia-h200-sm132

Reads `training.json` and `evaluation.json` of a training folder for each op kind (written by `python -m tuner train`
and `evaluate`); needs no GPU.
Result: {"meta": identity, date of the newest measurement; "ops": {op kind: {"meta": identity, counts; "splits": {split:
    {method: statistics}}, "worst", "unconfirmed"}}}.
"""

import argparse
import sys
from pathlib import Path

from .stamp import RESULTS, read_json, write_json


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
        "date": training["newest_row"][:10],
        "data": training["data"],
        "kind": training["kind"],
        "portfolio": len(training["portfolio"]),
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
        "date": max(meta["date"] for meta in metas),
        "complete": True,
    }
    return {"meta": meta, "ops": {next(iter(result["meta"]["kernel_hash"])): result for result in results}}


def main(arguments: list[str] | None = None) -> int:
    """Write the result and print the guarded model's figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--training", type=Path, required=True, nargs="+", help="training folders, one for each op kind"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "evaluation.json", help="where the result goes")
    args = parser.parse_args(arguments)
    result = join_results([make_result(folder) for folder in args.training])
    write_json(args.out, result)
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
