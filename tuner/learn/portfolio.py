"""Choosing the portfolio: the few configs that the exact table names, and that a short sweep measures.

Greedy forward selection, followed by swaps, minimises the mean log time of the best portfolio config over the problems
that were measured over the whole space. The number of configs is chosen on families that the selection did not see.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tuner.db import Store
from tuner.learn.dataset import UNMEASURED, Dataset, load_dataset
from tuner.learn.families import Split, hold_out, split_families

#: The sizes to try. The exact table needs room for some of its own.
SIZES = (8, 12, 16, 20, 24, 28)
#: The smallest size within 0.1 % of the best held-out score wins: every further config must be compiled and learned.
SIZE_TOLERANCE = 0.001
SWAP_PASSES = 3
#: As many that a fold still learns from three quarters of the problems: nothing near the held-out families is kept.
INNER_FOLDS = 10


@dataclass(frozen=True)
class Portfolio:
    """The chosen columns, best first, and the held-out mean log ratio to the oracle of every size that was tried."""

    columns: np.ndarray
    curve: dict


def choose_portfolio(data: Dataset, rows: np.ndarray, sizes: tuple = SIZES) -> Portfolio:
    """Choose the portfolio from the full-space problems among `rows`, or from all rows where there are none.

    Other problems have no say: they were measured with a portfolio that all families had chosen together.
    """
    full = rows[data.full_space[rows]] if data.full_space[rows].any() else rows
    columns = np.flatnonzero((data.state[full] != UNMEASURED).any(axis=0))
    regret = data.log_ratio[np.ix_(full, columns)] - data.log_ratio[full, data.oracle[full]][:, None]
    sizes = tuple(sorted({min(size, len(columns)) for size in sizes}))
    splits = split_families([data.problems[row] for row in full.tolist()], data.families[full], INNER_FOLDS)
    curve = score_sizes(regret, splits, sizes)
    size = choose_size(curve)
    return Portfolio(columns[swap(regret, greedy(regret, size))], curve)


def choose_configs(source: str | Path, size: int, sku: str, problems: list) -> list:
    """Return, for every op kind of `problems`, the `size` configs that together serve its recorded problems best; they
    come from the database `source`.
    """
    with Store.open(source, mode="ro") as store:
        tables = [load_dataset(store, sku, op=op) for op in dict.fromkeys(problem.op for problem in problems)]
    return [
        data.configs[column]
        for data in tables
        for column in choose_portfolio(data, np.arange(len(data.problems)), sizes=(size,)).columns
    ]


def greedy(regret: np.ndarray, size: int) -> list[int]:
    """Return `size` columns of `regret` F64[R,C], each the one that lowers the mean of the row minima most."""
    best = np.full(len(regret), np.inf)
    chosen: list[int] = []
    for _ in range(size):
        means = np.minimum(best[:, None], regret).mean(axis=0)
        means[chosen] = np.inf
        chosen.append(int(means.argmin()))
        best = np.minimum(best, regret[:, chosen[-1]])
    return chosen


def swap(regret: np.ndarray, chosen: list[int]) -> list[int]:
    """Exchange single columns as long as that lowers the mean of the row minima: greedy steps may need correction."""
    chosen = list(chosen)
    for _ in range(SWAP_PASSES if len(chosen) > 1 else 0):
        before = list(chosen)
        for position in range(len(chosen)):
            others = regret[:, chosen[:position] + chosen[position + 1 :]].min(axis=1)
            means = np.minimum(others[:, None], regret).mean(axis=0)
            if means.min() < means[chosen[position]] - 1e-12 and int(means.argmin()) not in chosen:
                chosen[position] = int(means.argmin())
        if chosen == before:
            break
    return chosen


def score_sizes(regret: np.ndarray, splits: list[Split], sizes: tuple) -> dict:
    """Return {size: mean row minimum on held-out families}; each split's columns are chosen by what it keeps.

    Where it keeps nothing, it has no say; where none keeps anything, the largest size is all that can be said.
    """
    splits = [split for split in splits if split.kept.any()]
    if not splits:
        return {sizes[-1]: 0.0}
    scores = np.full((len(regret), len(sizes)), np.nan)
    for held_out, kept in splits:
        chosen = greedy(regret[kept], sizes[-1])
        for index, size in enumerate(sizes):
            scores[held_out, index] = regret[held_out][:, chosen[:size]].min(axis=1)
    return dict(zip(sizes, np.nanmean(scores, axis=0).tolist(), strict=True))


def choose_size(curve: dict) -> int:
    """Return the smallest size whose held-out score is within SIZE_TOLERANCE of the best."""
    best = min(curve.values())
    return min(size for size, score in curve.items() if score <= best + SIZE_TOLERANCE)


def describe_portfolios(data: Dataset, sizes: tuple = SIZES) -> dict:
    """Return {"portfolio": configs chosen from all problems, "configs": these and what any family's fold chooses}.

    A sweep of the portfolio should measure the second list. Of a config that it leaves out, a fold knows only the
    full-space problems and the estimate.
    """
    rows = np.arange(len(data.problems))
    chosen = choose_portfolio(data, rows, sizes).columns.tolist()
    union = dict.fromkeys(chosen)
    for family in np.unique(data.families[data.full_space]):
        kept = rows[hold_out(data.problems, data.families == family).kept]
        if len(kept):
            union.update(dict.fromkeys(choose_portfolio(data, kept, sizes).columns.tolist()))
    return {
        name: [data.configs[column].as_dict() for column in columns]
        for name, columns in (("portfolio", chosen), ("configs", list(union)))
    }
