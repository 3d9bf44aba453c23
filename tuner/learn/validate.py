"""Nested validation: every fold refits everything without the held-out problems, then chooses for them.

Everything means trees, guards and portfolio, and on request the settings of the trees. There are five splits: whole
families of weights (nothing is trained on a weight near one of the family's), all shapes of one public model, unseen
numbers of tokens (of m, of the rows of a group, or of the K of a group), and a range of tokens or of weight sizes.
Masked problems of few groups are scored apart: their time hangs on the draw of the sizes, which no choice knows. The
heuristic's rate constants are not refitted: they are part of the package, and `heuristic_version` names them.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from joblib import Parallel, delayed

from deep_gemm.fields import OP_KINDS
from tuner.learn.baselines import choose_baselines
from tuner.learn.dataset import CONFIRMED, Dataset
from tuner.learn.families import hold_out
from tuner.learn.learner import Settings, choose, choose_settings, fit
from tuner.learn.residual import ConfigRows, make_config_rows
from tuner.problems.fields import FEW_GROUPS, get_tokens, get_weight_shape
from tuner.problems.shapes import list_public

#: What is compared, with the names that people read.
METHODS = {
    "model": "model with guards",
    "model_alone": "model without margin",
    "heuristic": "analytic heuristic",
    "best_single": "best single config",
    "nearest": "nearest neighbour",
    "portfolio_best": "portfolio, with hindsight",
    "shortlist_best": "shortlist, with hindsight",
}
#: What is held out, with the names that people read.
SPLITS = {
    "family": "Leave one (n, k) family out",
    "model": "Leave one model's shapes out",
    "unseen_m": "Unseen m",
    "m_range": "Leave a range of m out",
    "weight_size": "Leave a range of weight sizes out",
    "few_groups": f"Leave one (n, k) family out, masked problems of at most {FEW_GROUPS} groups alone",
    "rounds": "Each round's problems, before they were learned from",
}
M_FOLDS = 5
RANGES = 4
#: With fewer problems than this to train on, a fold is answered by the heuristic.
MIN_TRAINING = 4


@dataclass(frozen=True)
class Fold:
    """One held-out set: the split it belongs to, a label for people, and a mask over problems."""

    split: str
    label: str
    held_out: np.ndarray


@dataclass(frozen=True)
class FoldResult:
    """The choices of every method for the held-out rows of one fold, with the trees of one seed."""

    fold: Fold
    rows: np.ndarray
    columns: dict
    answered: np.ndarray
    portfolio: list
    seed: int = 0


def make_folds(data: Dataset) -> list[Fold]:
    """Return the folds of all splits."""
    return [*family_folds(data), *model_folds(data), *size_folds(data), *range_folds(data)]


def family_folds(data: Dataset) -> Iterator[Fold]:
    """Yield one fold per family of weights."""
    for family in np.unique(data.families):
        mask = data.families == family
        first = data.problems[int(np.flatnonzero(mask)[0])]
        yield Fold("family", name_weight(first), mask)


def name_weight(problem) -> str:
    """Return what people call the weight of a problem, see fields.get_weight_shape."""
    kind = OP_KINDS[problem.op]
    names = ("heads", "k") if kind.is_logits else ("m", "n") if kind.k_is_divided else ("n", "k")
    return "-".join(f"{name}{size}" for name, size in zip(names, get_weight_shape(problem), strict=True))


def model_folds(data: Dataset) -> Iterator[Fold]:
    """Yield one fold per public model: all problems with one of its weights, whatever model they were swept for."""
    for name in list_public(data.models):
        shapes = {
            get_weight_shape(problem)
            for problem, model in zip(data.problems, data.models, strict=True)
            if model == name
        }
        mask = np.array([get_weight_shape(problem) in shapes for problem in data.problems])
        if not mask.all():
            yield Fold("model", name, mask)


def size_folds(data: Dataset) -> Iterator[Fold]:
    """Yield M_FOLDS folds of unseen m; each holds every M_FOLDS-th number of tokens, over all families."""
    values = np.array([get_tokens(problem) for problem in data.problems])
    distinct = np.unique(values)
    for index in range(min(M_FOLDS, len(distinct))):
        mask = np.isin(values, distinct[index::M_FOLDS])
        if not mask.all():
            yield Fold("unseen_m", f"m{index}", mask)


def range_folds(data: Dataset) -> Iterator[Fold]:
    """Yield RANGES folds of neighbouring numbers of tokens, and as many of neighbouring sizes of a weight."""
    tokens = np.array([get_tokens(problem) for problem in data.problems])
    weights = np.array([math.prod(get_weight_shape(problem)) for problem in data.problems])
    for split, values in (("m_range", tokens), ("weight_size", weights)):
        for part in np.array_split(np.unique(values), RANGES):
            mask = np.isin(values, part)
            if mask.any() and not mask.all():
                yield Fold(split, f"{part[0]}..{part[-1]}", mask)


def find_training(data: Dataset, fold: Fold) -> np.ndarray:
    """Return bool[R]: the problems that a fold may learn from."""
    return hold_out(data.problems, fold.held_out).kept if fold.split == "family" else ~fold.held_out


def run_fold(data: Dataset, fold: Fold, settings: Settings, rows: ConfigRows | None = None) -> FoldResult:
    """Fit without the held-out problems and choose for them; `rows` are the data's make_config_rows."""
    train, test = np.flatnonzero(find_training(data, fold)), np.flatnonzero(fold.held_out)
    if len(train) < MIN_TRAINING:
        chosen = dict.fromkeys(METHODS, data.heuristic[test])
        return FoldResult(fold, test, chosen, np.zeros(len(test), bool), [], settings.seed)
    rows = make_config_rows(data) if rows is None else rows
    learned = fit(data, train, settings, rows)
    choices = choose(data, test, learned, rows)
    columns = {
        "model": choices.column,
        "model_alone": choices.alone,
        **choose_baselines(data, train, test, learned.portfolio.columns, rows),
    }
    return FoldResult(fold, test, columns, choices.answered, learned.portfolio.columns.tolist(), settings.seed)


def run_seeds(
    data: Dataset, fold: Fold, settings: Settings, num_seeds: int, rows: ConfigRows, is_nested: bool = False
) -> list[FoldResult]:
    """Run a fold with `num_seeds` seeds, from the settings' own on.

    `is_nested`: the problems that are not held out choose the settings of the trees, too. They do so once, with trees
    of the first seed: to choose takes as long as three seeds of everything else.
    """
    train = np.flatnonzero(find_training(data, fold))
    if is_nested and len(train) >= MIN_TRAINING:
        settings = choose_settings(data, train, settings, rows)
    seeds = range(settings.seed, settings.seed + num_seeds)
    return [run_fold(data, fold, replace(settings, seed=seed), rows) for seed in seeds]


def validate(
    data: Dataset,
    settings: Settings,
    jobs: int = -1,
    progress: Callable = lambda items, total: items,
    num_seeds: int = 1,
    is_nested: bool = False,
) -> list[FoldResult]:
    """Run every fold with `num_seeds` seeds from the settings' own on; the results are ordered by seed, then by fold.

    A fold runs in a process of its own: fits of a few thousand rows hold the interpreter lock most of the time. Folds
    without a problem that was measured over its whole space have one seed: no statistic needs more. `is_nested`: see
    run_seeds.
    """
    folds, rows = make_folds(data), make_config_rows(data)
    results = Parallel(n_jobs=jobs, return_as="generator")(
        delayed(run_seeds)(
            data, fold, settings, num_seeds if data.full_space[fold.held_out].any() else 1, rows, is_nested
        )
        for fold in folds
    )
    found = [result for part in progress(results, len(folds)) for result in part]
    return sorted(found, key=lambda result: result.seed)


def out_of_fold(data: Dataset, results: list[FoldResult]) -> list[dict]:
    """Return for each problem the choice of the selector that never saw its family: the rows of `out_of_fold.json`."""
    rows = []
    for result in results:
        if result.fold.split != "family":
            continue
        for index, row in enumerate(result.rows.tolist()):
            problem, column = data.problems[row], int(result.columns["model"][index])
            rows.append(
                problem.as_dict()
                | {
                    "problem": problem.key,
                    "config": data.configs[column].as_dict(),
                    "source": "learned" if result.answered[index] else "analytic",
                }
            )
    return sorted(rows, key=lambda row: (row["n"], row["k"], row["m"], row["problem"]))


def unconfirmed_picks(data: Dataset, results: list[FoldResult]) -> dict:
    """Return the picks of folds and baselines, on full-space problems, that have no confirmation rounds yet.

    {"pairs": count, "problems": [...], "configs": [...]} is what `unconfirmed.json` holds.
    """
    missing = set()
    for result in results:
        for columns in result.columns.values():
            pairs = zip(result.rows.tolist(), columns.tolist(), strict=True)
            missing |= {
                (row, column) for row, column in pairs if data.full_space[row] and data.state[row, column] != CONFIRMED
            }
    return {
        "pairs": len(missing),
        "problems": [data.problems[row].as_dict() for row in sorted({row for row, _ in missing})],
        "configs": [data.configs[column].as_dict() for column in sorted({column for _, column in missing})],
    }
