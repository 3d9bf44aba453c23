"""Fit the heuristic's rates to recorded times by CMA-ES, and score fits on families of weights that they did not see.

    python -m benchmarks.fit_rates                        # the recorded snapshot; no GPU, about ten minutes
    python -m benchmarks.fit_rates --db tuning.db --folds 0 --write rates.json

What is minimised is the soft regret: the mean over problems of what is lost on the best measured config when a config
is drawn with a probability that falls with its estimate. It changes smoothly with the rates, unlike the regret of the
pick. Ranks alone would let a rate leave all that a GPU can do, so that estimates must be near the times, too. Rates
move as logarithms, near their present values; those that no problem tells apart stay there.

The present rates know the problems of every fold. So each fit of a fold starts from rates that were multiplied by
random factors (`--blur`). A search of 24 rates that starts anywhere is itself poor, so the factors are small.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import cmaes
import numpy as np

from deep_gemm import _C
from deep_gemm.fields import OP_KINDS
from tuner.learn.dataset import UNMEASURED, Dataset, load_dataset
from tuner.learn.sources import find_device, find_ops, open_database

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
    the best of them in microseconds, NaN where it is not known.
    """

    op: str
    family: int
    problem: _C.Problem
    tiles: list[_C.Config]
    behind: np.ndarray
    best_us: float


def list_entries(data: Dataset, is_whole: bool = False) -> list[Entry]:
    """Return the problems of a table with at least two measured candidates of the heuristic, or all (`is_whole`).

    The heuristic ranks tiles. A tile's time is that of the config which the heuristic makes of it, or of the tile
    without knobs of the main loop where a sweep knew none. Where neither was measured, nothing keeps a fit from
    choosing it.
    """
    columns = {config: column for column, config in enumerate(data.configs)}
    entries = []
    for row, problem in enumerate(data.problems):
        tiles, behind = [], []
        candidates = _C.get_candidates(problem, data.device)
        for tile in candidates:
            configs = (_C.with_loop_knobs(problem, tile, data.device), tile)
            known = (columns[config] for config in configs if config in columns)
            column = next((column for column in known if data.state[row, column] != UNMEASURED), None)
            if column is not None:
                tiles.append(tile)
                behind.append(data.regret_log(np.array([row]), np.array([column]))[0])
        if len(tiles) > 1 and (len(tiles) == len(candidates) or not is_whole):
            slow = np.minimum(np.array(behind), SLOWEST)
            # The best tile's: the best of all configs may be none that the heuristic makes of a tile.
            best_us = float(data.heuristic_us[row] * np.exp(data.log_ratio[row, data.oracle[row]] + min(behind)))
            entries.append(Entry(data.identity.op, int(data.families[row]), problem, tiles, slow, best_us))
    return entries


class Scorer:
    """Scores rates on entries; every op kind weighs the same."""

    def __init__(self, entries: Sequence[Entry], device: _C.Device):
        self.entries, self.device = entries, device
        self.ops = sorted({entry.op for entry in entries})

    def estimate(self, entry: Entry, rates: dict[str, float]) -> np.ndarray:
        """Return the logs of the estimates of an entry's tiles, F64[N]."""
        return np.log(_C.estimate_times_us(entry.problem, entry.tiles, self.device, rates))

    def cost(self, rates: dict[str, float]) -> float:
        """Return the mean over op kinds of the expected log time behind the best, and of what wrong times cost."""
        found: dict[str, list[float]] = {op: [] for op in self.ops}
        for entry in self.entries:
            estimate = self.estimate(entry, rates)
            share = np.exp((estimate.min() - estimate) / TEMPERATURE)
            off = estimate[entry.behind.argmin()] - np.log(entry.best_us)
            lost = float(share @ entry.behind / share.sum())
            found[entry.op].append(lost + ABSOLUTE * (0.0 if np.isnan(off) else float(off) ** 2))
        return float(np.mean([np.mean(values) for values in found.values()]))

    def error(self, rates: dict[str, float]) -> float:
        """Return the median factor by which the estimate of a problem's best config and its time differ, less one."""
        off = [self.estimate(entry, rates)[entry.behind.argmin()] - np.log(entry.best_us) for entry in self.entries]
        return float(np.expm1(np.nanmedian(np.abs(off))))

    def regrets(self, rates: dict[str, float]) -> dict[str, list[float]]:
        """Return, by op kind, how much slower than the best each problem's pick is: 0.02 is 2 %."""
        found: dict[str, list[float]] = {op: [] for op in self.ops}
        for entry in self.entries:
            found[entry.op].append(float(np.expm1(entry.behind[self.estimate(entry, rates).argmin()])))
        return found


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


def split_families(entries: Sequence[Entry], folds: int) -> list[int]:
    """Return the fold of every entry. A family of weights of an op kind is in one fold; the largest are dealt first."""
    sizes: dict[tuple[str, int], int] = {}
    for entry in entries:
        sizes[entry.op, entry.family] = sizes.get((entry.op, entry.family), 0) + 1
    loads, of_family = [0] * folds, {}
    for key in sorted(sizes, key=lambda one: (-sizes[one], one)):
        of_family[key] = loads.index(min(loads))
        loads[of_family[key]] += sizes[key]
    return [of_family[entry.op, entry.family] for entry in entries]


def get_start(device: _C.Device, args: argparse.Namespace) -> dict[str, float]:
    """Return the rates that a fit starts from."""
    return _C.heuristic_constants(_C.Device.known(args.start).sku if args.start else device.sku)


def score_folds(entries: Sequence[Entry], device: _C.Device, args: argparse.Namespace) -> dict[str, dict]:
    """Return, by name of what chose, the regrets by op kind over all folds: `present`, `blurred` and `refitted`."""
    present, fold_of = get_start(device, args), split_families(entries, args.folds)
    scores: dict[str, dict[str, list[float]]] = {"present": {}, "blurred": {}, "refitted": {}}
    for fold in range(args.folds):
        seen = [entry for entry, own in zip(entries, fold_of, strict=True) if own != fold]
        left_out = Scorer([entry for entry, own in zip(entries, fold_of, strict=True) if own == fold], device)
        start = blur(present, args.blur, args.seed + fold)
        rates = fit(Scorer(thin(seen, args.problems), device), start, args.generations, args.seed + fold)
        for name, tried in (("present", present), ("blurred", start), ("refitted", rates)):
            for op, values in left_out.regrets(tried).items():
                scores[name].setdefault(op, []).extend(values)
    return scores


def format_scores(scores: dict[str, dict[str, list[float]]]) -> str:
    """Return mean and 95 % quantile of regrets in percent as a table in Markdown."""
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


def load_entries(args: argparse.Namespace) -> tuple[list[Entry], _C.Device]:
    """Return the problems of the op kinds asked for, and the device. Logits have an estimate without rates."""
    with open_database(args.db) as store:
        device = find_device(store, args.device)
        wanted = args.ops.split(",") if args.ops else find_ops(store, device.sku, "")
        tables = [load_dataset(store, device.sku, op=op) for op in wanted if not OP_KINDS[op].is_logits]
    return [entry for table in tables for entry in list_entries(table, args.whole)], device


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
    parser.add_argument("--write", type=Path, help="fit to --problems of every op kind, and write the rates as JSON")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Score and fit as asked. Returns 0."""
    args = parse(arguments)
    entries, device = load_entries(args)
    if args.folds:
        print(format_scores(score_folds(entries, device, args)), flush=True)
    if args.write:
        scorer = Scorer(thin(entries, args.problems), device)
        present = get_start(device, args)
        rates = fit(scorer, present, args.generations, args.seed)
        args.write.write_text(json.dumps(rates, indent=1) + "\n", encoding="utf-8")
        print(format_rates(rates, present))
        whole = Scorer(entries, device)
        tried = {"present": present, "fitted to a sample of these": rates}
        print(format_scores({name: whole.regrets(values) for name, values in tried.items()}))
        print(
            "estimates are off by", ", ".join(f"{whole.error(values):.1%} ({name})" for name, values in tried.items())
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
