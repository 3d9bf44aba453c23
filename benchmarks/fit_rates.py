"""Fit the heuristic's rates to recorded times by CMA-ES, and score fits on families of weights that they did not see.

    python -m benchmarks.fit_rates                        # the recorded snapshot; no GPU, a few minutes
    python -m benchmarks.fit_rates --db tuning.db --folds 0 --write rates.json
    python -m benchmarks.fit_rates --device h100 --whole --folds 10 --problems 200 --generations 300 --record

What is minimised is the soft regret: the mean over problems of what is lost on the best measured config when a config
is drawn with a probability that falls with its estimate. It changes smoothly with the rates, unlike the regret of the
pick. Ranks alone would let a rate leave all that a GPU can do, so that estimates must be near the times, too. Rates
move as logarithms, near their present values; those that no problem tells apart stay there.

A fold leaves out whole families of weights, and what is near them (tuner/learn/families.py), of all op kinds at once,
since they share rates. The present rates know the problems of every fold. So each fit of a fold starts from rates that
were multiplied by random factors (`--blur`). A search of 24 rates that starts anywhere is itself poor, so the factors
are small.

--record stores the scores of the folds, from which targets S3 and S3_grouped follow (selector.py). Result: {"meta":
identity, options; "ops": {op kind: {"meta": of which rows; "problems", "present", "blurred", "refitted": mean, p95 and
max of regret}}; "folds": [{"held_out", "kept", "seen": problems; "blurred", "refitted": rates}]}. As in evaluation.json
a mean is geometric, and neither problems that lack part of the space nor masked ones of few groups count. With --keep
the scores of some op kinds in the present record stay, where their evaluation is of other rows than --db; fits see the
rows of --db all the same, and "kept" in meta names these op kinds.
"""

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from joblib import Parallel, delayed

from deep_gemm import _C
from deep_gemm.fields import OP_KINDS
from tuner.learn.dataset import UNMEASURED, Dataset, load_dataset
from tuner.learn.evaluate import find_few
from tuner.learn.families import Split, find_families, split_families
from tuner.learn.sources import find_device, find_ops, open_database

from .selector import RATES, read_kept_rates
from .speedup import rounded
from .stale import ESTIMATES
from .stamp import results_of, write_json

#: Slower configs count as this slow (log time): a fit must not spend itself on how slow a slow config is.
SLOWEST = 0.5
#: Two estimates that differ by this (log time) have probabilities that differ by a factor of e.
TEMPERATURE = 0.015
#: The mean square of the log of the estimate of a problem's best config over its time costs this much regret.
ABSOLUTE = 0.5
#: The mean square of the logs of the factors by which rates change costs this much regret.
STIFFNESS = 0.05
#: What no rate of an H200 exceeds: no kernel reads more than nine tenths of the memory's bandwidth, but a fit would
#: trade it for latency.
MOST = {"hbm_gbps": 0.9 * 4800}
#: Standard deviation of the first generation, in logs.
FIRST_STEP = 0.1


class Entry(NamedTuple):
    """One problem: its measured candidates, and log(time / best time) of each, F64[N], in the same order; the time of
    the best of them in microseconds, NaN where it is not known; whether a record counts it.
    """

    op: str
    problem: _C.Problem
    tiles: list[_C.Config]
    behind: np.ndarray
    best_us: float
    is_counted: bool = True


class Fold(NamedTuple):
    """One fold: which entries are held out and which are kept, the rates before and after the fit, how many problems
    the fit saw, and the regrets of the held-out entries by what chose.
    """

    split: Split
    blurred: dict[str, float]
    refitted: dict[str, float]
    seen: int
    regrets: dict[str, np.ndarray]


def list_entries(data: Dataset, is_whole: bool = False) -> list[Entry]:
    """Return the problems of a table with at least two measured candidates of the heuristic, or all (`is_whole`).

    The heuristic ranks tiles. A tile's time is that of the config which the heuristic makes of it, or of the tile
    without knobs of the main loop where a sweep knew none. Where neither was measured, nothing keeps a fit from
    choosing it.
    """
    columns = {config: column for column, config in enumerate(data.configs)}
    is_counted = data.full_space & ~find_few(data)
    entries = []
    for row, problem in enumerate(data.problems):
        tiles, found = [], []
        candidates = _C.get_candidates(problem, data.device)
        for tile in candidates:
            configs = (_C.with_loop_knobs(problem, tile, data.device), tile)
            known = (columns[config] for config in configs if config in columns)
            column = next((column for column in known if data.state[row, column] != UNMEASURED), None)
            if column is not None:
                tiles.append(tile)
                found.append(data.regret_log(np.array([row]), np.array([column]))[0])
        if len(tiles) > 1 and (len(tiles) == len(candidates) or not is_whole):
            behind = np.array(found)
            # The best tile's: the best of all configs may be none that the heuristic makes of a tile.
            best_us = float(data.heuristic_us[row] * np.exp(data.log_ratio[row, data.oracle[row]] + behind.min()))
            entries.append(Entry(data.identity.op, problem, tiles, behind, best_us, bool(is_counted[row])))
    return entries


class Scorer:
    """Scores rates on entries; every op kind weighs the same."""

    def __init__(self, entries: Sequence[Entry], device: _C.Device):
        self.entries, self.device = entries, device
        self.costs = [np.minimum(entry.behind, SLOWEST) for entry in entries]
        self.ops = sorted({entry.op for entry in entries})

    def estimate(self, entry: Entry, rates: dict[str, float]) -> np.ndarray:
        """Return the logs of the estimates of an entry's tiles, F64[N]."""
        return np.log(_C.estimate_times_us(entry.problem, entry.tiles, self.device, rates))

    def cost(self, rates: dict[str, float]) -> float:
        """Return the mean over op kinds of the expected log time behind the best, and of what wrong times cost."""
        found: dict[str, list[float]] = {op: [] for op in self.ops}
        for entry, costs in zip(self.entries, self.costs, strict=True):
            estimate = self.estimate(entry, rates)
            share = np.exp((estimate.min() - estimate) / TEMPERATURE)
            off = estimate[entry.behind.argmin()] - np.log(entry.best_us)
            lost = float(share @ costs / share.sum())
            found[entry.op].append(lost + ABSOLUTE * (0.0 if np.isnan(off) else float(off) ** 2))
        return float(np.mean([np.mean(values) for values in found.values()]))

    def error(self, rates: dict[str, float]) -> float:
        """Return the median factor by which the estimate of a problem's best config and its time differ, less one."""
        off = [self.estimate(entry, rates)[entry.behind.argmin()] - np.log(entry.best_us) for entry in self.entries]
        return float(np.expm1(np.nanmedian(np.abs(off))))

    def regrets(self, rates: dict[str, float]) -> np.ndarray:
        """Return how much slower than the best each entry's pick is, F64[N]: 0.02 is 2 %."""
        picks = [entry.behind[self.estimate(entry, rates).argmin()] for entry in self.entries]
        return np.expm1(np.array(picks))

    def regrets_by_op(self, rates: dict[str, float]) -> dict[str, np.ndarray]:
        """Return the same by op kind."""
        return group_by_op(self.entries, self.regrets(rates))


def group_by_op(entries: Sequence[Entry], values: np.ndarray) -> dict[str, np.ndarray]:
    """Return the values of entries by op kind."""
    of_entry = np.array([entry.op for entry in entries])
    return {op: values[of_entry == op] for op in sorted(set(of_entry.tolist()))}


def find_rates(scorer: Scorer, start: dict[str, float]) -> list[str]:
    """Return the rates that any estimate of the scorer's entries depends on: the others are left alone."""

    def total(rates: dict[str, float]) -> float:
        return sum(float(scorer.estimate(entry, rates).sum()) for entry in scorer.entries)

    known = total(start)
    return [name for name, value in start.items() if total(start | {name: 1.5 * value}) != known]


def apply(names: list[str], steps: np.ndarray, start: dict[str, float]) -> dict[str, float]:
    """Return the rates of `start` with those of `names` multiplied by exp(steps), as far as MOST allows."""
    moved = {name: start[name] * float(np.exp(step)) for name, step in zip(names, steps, strict=True)}
    return start | {name: min(value, MOST.get(name, value)) for name, value in moved.items()}


def fit(scorer: Scorer, start: dict[str, float], generations: int, seed: int) -> dict[str, float]:
    """Return the rates with the smallest cost that CMA-ES finds from `start`."""
    import cmaes  # here, because --help needs no more than the tuner

    names = find_rates(scorer, start)
    search = cmaes.CMA(mean=np.zeros(len(names)), sigma=FIRST_STEP, seed=seed)
    best, best_cost = np.zeros(len(names)), scorer.cost(start)
    for _ in range(generations):
        told = []
        for _ in range(search.population_size):
            steps = search.ask()
            cost = scorer.cost(apply(names, steps, start)) + STIFFNESS * float(np.mean(steps**2))
            told.append((steps, cost))
            if cost < best_cost:
                best, best_cost = steps, cost
        search.tell(told)
        if search.should_stop():
            break
    return apply(names, best, start)


def blur(rates: dict[str, float], deviation: float, seed: int) -> dict[str, float]:
    """Return rates that are each multiplied by a random factor, whose log has this standard deviation."""
    noise = np.random.default_rng(seed).normal(0.0, deviation, len(rates))
    return apply(list(rates), noise, rates)


def thin(entries: Sequence[Entry], most: int) -> list[Entry]:
    """Return at most `most` entries of each op kind, evenly over their order."""
    kept: list[Entry] = []
    for op in sorted({entry.op for entry in entries}):
        own = [entry for entry in entries if entry.op == op]
        places = np.unique(np.linspace(0, len(own) - 1, min(most, len(own))).round().astype(int))
        kept += [own[place] for place in places]
    return kept


def get_start(device: _C.Device, args: argparse.Namespace) -> dict[str, float]:
    """Return the rates that a fit starts from."""
    return _C.heuristic_constants(_C.Device.known(args.start).sku if args.start else device.sku)


def run_fold(entries: Sequence[Entry], device: _C.Device, split: Split, index: int, args: argparse.Namespace) -> Fold:
    """Fit without the held-out entries and score them."""
    present = get_start(device, args)
    start = blur(present, args.blur, args.seed + index)
    seen = thin([entry for entry, is_kept in zip(entries, split.kept, strict=True) if is_kept], args.problems)
    rates = fit(Scorer(seen, device), start, args.generations, args.seed + index)
    left_out = Scorer([entry for entry, is_held in zip(entries, split.held_out, strict=True) if is_held], device)
    tried = {"present": present, "blurred": start, "refitted": rates}
    regrets = {name: left_out.regrets(values) for name, values in tried.items()}
    return Fold(split, start, rates, len(seen), regrets)


def run_folds(entries: Sequence[Entry], device: _C.Device, args: argparse.Namespace) -> list[Fold]:
    """Run every fold, each in a process."""
    problems = [entry.problem for entry in entries]
    splits = split_families(problems, find_families(problems), args.folds)
    tasks = (delayed(run_fold)(entries, device, split, index, args) for index, split in enumerate(splits))
    return Parallel(n_jobs=args.jobs)(tasks)


def join_regrets(folds: list[Fold], count: int) -> dict[str, np.ndarray]:
    """Return, by name of what chose, the regrets of all `count` entries, in their order."""
    found = {name: np.empty(count) for name in folds[0].regrets}
    for fold in folds:
        for name, regrets in fold.regrets.items():
            found[name][fold.split.held_out] = regrets
    return found


def format_scores(scores: dict[str, dict[str, np.ndarray]]) -> str:
    """Return mean and 95 % quantile in percent, of regrets by what chose and op kind, as a table in Markdown."""
    lines = [f"| op kind | problems | {' | '.join(scores)} |", f"| --- | --- |{' --- |' * len(scores)}"]
    for op in sorted(next(iter(scores.values()))):
        cells = [f"{np.mean(by[op]):.2%} / {np.quantile(by[op], 0.95):.1%}" for by in scores.values()]
        lines.append(f"| {op} | {len(next(iter(scores.values()))[op])} | {' | '.join(cells)} |")
    means = [f"{np.mean([np.mean(values) for values in by.values()]):.2%}" for by in scores.values()]
    return "\n".join([*lines, f"| mean of op kinds | | {' | '.join(means)} |"])


def format_rates(rates: dict[str, float], present: dict[str, float]) -> str:
    """Return the rates that changed, each with its present value."""
    changed = [name for name in rates if abs(rates[name] / present[name] - 1.0) >= 5e-4]
    return "\n".join(f"{name:22s} {present[name]:10.4g} -> {rates[name]:10.4g}" for name in changed)


class Recording(NamedTuple):
    """What is fitted to: the problems, the device, and by op kind which rows of a database they are of."""

    entries: list[Entry]
    device: _C.Device
    sources: dict[str, dict]


def load_recording(args: argparse.Namespace) -> Recording:
    """Return the problems of the op kinds asked for. Logits have an estimate without rates."""
    with open_database(args.db) as store:
        device = find_device(store, args.device)
        wanted = args.ops.split(",") if args.ops else find_ops(store, device.sku, "")
        tables = [load_dataset(store, device.sku, op=op) for op in wanted if not OP_KINDS[op].is_logits]
    entries = [entry for table in tables for entry in list_entries(table, args.whole)]
    return Recording(entries, device, {table.identity.op: describe_source(table) for table in tables})


def describe_source(data: Dataset) -> dict:
    """Return of which rows a table is, in the words of evaluation.json."""
    identity = data.identity
    return {
        "kernel_hash": {identity.op: identity.kernel_hash},
        "compiler": identity.compiler,
        "regime": identity.regime,
        ESTIMATES: _C.estimate_revision(identity.op),
        "date": data.newest[:10],
        "data": {"problems": len(data.problems), "timed": int((data.state != UNMEASURED).sum())},
    }


def make_record(recording: Recording, folds: list[Fold], args: argparse.Namespace, kept: dict[str, dict]) -> dict:
    """Return the result of --record, in which some op kinds have the parts of the record before."""
    entries, device, sources = recording
    regrets = join_regrets(folds, len(entries))
    is_counted = group_by_op(entries, np.array([entry.is_counted for entry in entries]))
    by_op = {name: group_by_op(entries, values) for name, values in regrets.items()}
    ops = {
        op: {"meta": sources[op], "problems": int(counted.sum())}
        | {name: summarize(values[op][counted]) for name, values in by_op.items()}
        for op, counted in is_counted.items()
        if counted.any()
    } | kept
    sources = {op: part["meta"] for op, part in ops.items()}
    options = {name: getattr(args, name) for name in ("folds", "problems", "generations", "blur", "seed", "whole")}
    meta = {
        "sku": device.sku,
        "kernel_hash": {op: value for op in ops for value in sources[op]["kernel_hash"].values()},
        "heuristic_version": _C.heuristic_version(device.sku),
        ESTIMATES: {op: sources[op].get(ESTIMATES, 1) for op in ops},
        "date": max(sources[op]["date"] for op in ops),
        "kept": sorted(kept),
        "options": options,
        "complete": True,
    }
    return {"meta": meta, "ops": ops, "folds": [describe_fold(fold) for fold in folds]}


def summarize(regrets: np.ndarray) -> dict[str, float]:
    """Return geometric mean, 95 % quantile and maximum of regrets."""
    mean = np.expm1(np.log1p(regrets).mean())
    p95 = np.quantile(regrets, 0.95, method="inverted_cdf")
    return {name: rounded(float(value)) for name, value in (("mean", mean), ("p95", p95), ("max", regrets.max()))}


def describe_fold(fold: Fold) -> dict:
    """Return one fold's counts of problems and rates."""
    counts = {"held_out": int(fold.split.held_out.sum()), "kept": int(fold.split.kept.sum()), "seen": fold.seen}
    return counts | {"blurred": fold.blurred, "refitted": fold.refitted}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--db", default="", help="database; the recorded snapshot by default")
    parser.add_argument("--device", default="", help="GPU model of the rows; that of all rows by default")
    parser.add_argument("--ops", default="", help="op kinds, separated by commas; all with rates by default")
    parser.add_argument("--folds", type=int, default=5, help="parts of the families; 0 scores nothing")
    parser.add_argument("--problems", type=int, default=150, help="problems of each op kind that a fit sees")
    parser.add_argument("--generations", type=int, default=150, help="of CMA-ES")
    parser.add_argument("--blur", type=float, default=0.2, help="deviation of the logs of a fold's first rates")
    parser.add_argument("--whole", action="store_true", help="only problems with every candidate measured")
    parser.add_argument("--start", help="GPU model whose rates are the present ones; that of the rows by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=-1, help="processes; -1: one per core")
    parser.add_argument("--write", type=Path, help="fit to --problems of every op kind, and write the rates as JSON")
    parser.add_argument("--record", action="store_true", help="store the folds' scores among the GPU model's results")
    parser.add_argument("--out", type=Path, help="where --record stores them instead")
    parser.add_argument("--keep", nargs="+", default=[], metavar="OP", help="op kinds of the record there that stay")
    args = parser.parse_args(arguments)
    if args.record and not (args.folds and args.whole and args.start is None and not args.ops):
        parser.error("--record: needs folds, --whole, and the GPU model's own rates and every op kind")
    if args.keep and not args.record:
        parser.error("--keep: is of what --record stores; add --record, or leave --keep out")
    if args.record and not (args.blur > 0.0 and args.generations > 0):
        parser.error("--record: needs --blur and --generations above 0: the package's rates have seen every fold")
    if importlib.util.find_spec("cmaes") is None:
        parser.error("needs the package cmaes: run `pip install cmaes`")
    return args


def score_fit(recording: Recording, args: argparse.Namespace) -> None:
    """Fit to a sample of all families, write the rates, and print what they are worth on all problems."""
    entries, device, _ = recording
    present = get_start(device, args)
    rates = fit(Scorer(thin(entries, args.problems), device), present, args.generations, args.seed)
    args.write.write_text(json.dumps(rates, indent=1) + "\n", encoding="utf-8")
    print(format_rates(rates, present))
    whole, tried = Scorer(entries, device), {"present": present, "fitted to a sample of these": rates}
    print(format_scores({name: whole.regrets_by_op(values) for name, values in tried.items()}))
    print("estimates are off by", ", ".join(f"{whole.error(values):.1%} ({name})" for name, values in tried.items()))


def main(arguments: list[str] | None = None) -> int:
    """Score and fit as asked. Returns 0."""
    args = parse(arguments)
    recording = load_recording(args)
    out = args.out or results_of(recording.device.sku) / RATES
    kept = read_kept_rates(out, recording.device.sku, args.keep)  # fits take minutes: what is wrong is said before
    if args.folds:
        folds = run_folds(recording.entries, recording.device, args)
        joined = join_regrets(folds, len(recording.entries))
        print(format_scores({name: group_by_op(recording.entries, each) for name, each in joined.items()}), flush=True)
        if args.record:
            write_json(out, make_record(recording, folds, args, kept))
    if args.write:
        score_fit(recording, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
