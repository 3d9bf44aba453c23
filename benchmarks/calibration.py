"""Replay `tune --quick` on recorded rows: regret of the problems that no round measured, against the seconds of sweep.

Example: python -m benchmarks.calibration --db all.db --op fp8_gemm bf16_gemm

The database holds rows of two kernel hashes, or of two GPU models (`--sku` names the one to calibrate for). The older
ones, or the other GPU's, are the prior. The pool are the problems that were measured over their whole space. Seconds
are those between the blocks of the recorded sweep, without compiling. Needs no GPU.
Result: {"rows": [{op kind, round, problems, seconds, regret of the others by the selector, by a whole sweep, and by the
    heuristic}]}. Round 0 is the prior alone, and the rounds end where `tune --quick` would end them ("done") and
    --seconds of sweep were measured, but at the latest after --rounds, or with half of the problems. A whole sweep's
    choices are those of trees that learned from all other families, as in `tuner evaluate`, and from no prior; the
    round `all` has them for all problems. A prior knows the families that it scores, and those trees do not.
"""

import argparse
import datetime
import itertools
import sys
from pathlib import Path

import numpy as np

from tuner.db import Store
from tuner.learn.dataset import Dataset, build_dataset, load_dataset
from tuner.learn.learner import Learned, Settings, choose
from tuner.learn.quick import PRIOR_WEIGHT, Calibration, find_prior, make_source
from tuner.learn.residual import make_config_rows
from tuner.learn.sources import find_device
from tuner.learn.validate import family_folds, run_fold
from tuner.problems.fields import OP_NAMES
from tuner.problems.regimes import is_sentinel, is_simulated

from .speedup import rounded
from .stamp import results_of, write_json

#: A longer pause between two blocks of a sweep was no measuring: seconds.
LONGEST = 10.0


def time_problems(blocks: list, kernel_hash: str) -> dict:
    """Return {problem: seconds of its blocks}, those after rests too: each since the block before on the same board, of
    whatever problem, as the rows were written. A sweep on two boards takes half as long.
    """
    found: dict = {}
    for board in dict.fromkeys(block.board for block in blocks):
        own = sorted((block for block in blocks if block.board == board), key=lambda block: block.created)
        for before, after in itertools.pairwise(own):
            if after.kernel_hash != kernel_hash or is_sentinel(after.regime):
                continue
            gap = datetime.datetime.fromisoformat(after.created) - datetime.datetime.fromisoformat(before.created)
            found[after.problem] = found.get(after.problem, 0.0) + min(gap.total_seconds(), LONGEST)
    return found


def score(data: Dataset, columns: np.ndarray, places: np.ndarray) -> float:
    """Return the geometric mean of the regrets of choices, I64[len(places)], for some problems of a table."""
    return rounded(float(np.expm1(data.regret_log(places, columns).mean())))


def replay(store: Store, sku: str, op: str, max_rounds: int, least_seconds: float) -> list[dict]:
    """Return the rows of one op kind; none without a prior."""
    data = load_dataset(store, sku, op=op)
    backend = "simulated" if is_simulated(data.identity.regime) else "cuda"
    prior = find_prior(store, sku, op, data.identity.kernel_hash, backend)
    if prior is None:
        return []
    rows = [
        row
        for row in store.load_measurements(sku=sku, op=op, kernel_hash=data.identity.kernel_hash)
        if row.block.identity == data.identity
    ]
    seconds = time_problems(store.load_blocks(sku=sku), data.identity.kernel_hash)
    full, whole = np.flatnonzero(data.full_space), choose_all(data)
    pool, config_rows = [data.problems[place] for place in full], make_config_rows(data)
    calibration = Calibration(op, data.device, make_source(prior, PRIOR_WEIGHT), pool)

    def describe(number: int | str, problems: list, learned: Learned | None) -> dict:
        left = np.array([place for place in full if learned is None or data.problems[place] not in problems])
        columns = whole[left] if learned is None else choose(data, left, learned, config_rows).column
        return {
            "op": op,
            "round": number,
            "problems": len(problems),
            "seconds": rounded(sum(seconds.get(problem, 0.0) for problem in problems), 1),
            "left": len(left),
            "regret": score(data, columns, left),
            "all": score(data, whole[left], left),
            "heuristic": score(data, data.heuristic[left], left),
            "done": learned is None or calibration.is_done,
        }

    found = []
    for number in range(max_rounds + 1):
        found.append(describe(number, list(calibration.measured), calibration.learned))
        is_enough = calibration.is_done and found[-1]["seconds"] >= least_seconds
        if number == max_rounds or is_enough or 2 * found[-1]["left"] <= len(pool):
            break
        batch = calibration.choose_batch()
        asked = {*batch, *calibration.measured}
        part = [row for row in rows if row.block.problem in asked]
        calibration.learn(batch, build_dataset(part, data.identity, data.device))
    return [*found, describe("all", data.problems, None)]


def choose_all(data: Dataset) -> np.ndarray:
    """Return the choice for each problem, I64[len(problems)], of trees that learned from all other families; -1 where
    the problem was not measured over its whole space.
    """
    folds, rows = [fold for fold in family_folds(data) if data.full_space[fold.held_out].any()], make_config_rows(data)
    found = np.full(len(data.problems), -1)
    for result in (run_fold(data, fold, Settings(), rows) for fold in folds):
        found[result.rows] = result.columns["model"]
    return np.where(data.full_space, found, -1)


def main(arguments: list[str] | None = None) -> int:
    """Replay, write the result and print a line for each row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--db", type=Path, required=True, help="database with rows of two kernel hashes or GPU models")
    parser.add_argument("--sku", default="", help="GPU model to calibrate for (default: the only one)")
    parser.add_argument("--op", nargs="+", default=["fp8_gemm", "bf16_gemm"], help=f"of {OP_NAMES}")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of 8 problems, at most (default 4)")
    parser.add_argument("--seconds", type=float, default=0.0, help="go on until so many of sweep (default: until done)")
    parser.add_argument("--out", type=Path, help="where the result goes (default: among those of the GPU model)")
    args = parser.parse_args(arguments)
    with Store.open(args.db, "ro") as store:
        sku = find_device(store, args.sku).sku
        rows = [row for op in args.op for row in replay(store, sku, op, args.rounds, args.seconds)]
        hashes = {op: store.newest_kernel_hash(op, sku) for op in args.op}
    meta = {"sku": sku, "kernel_hash": hashes, "complete": bool(rows)}
    write_json(args.out or results_of(sku) / "calibration.json", {"meta": meta, "rows": rows})
    for row in rows:
        print(
            f"{row['op']} round {row['round']}: {row['problems']} problems, {row['seconds']} s, regret"
            f" {row['regret']:.2%} of {row['left']} others (whole sweep {row['all']:.2%}, heuristic"
            f" {row['heuristic']:.2%})"
        )
    return 0 if rows else 3


if __name__ == "__main__":
    sys.exit(main())
