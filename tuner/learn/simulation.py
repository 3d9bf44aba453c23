"""Replay a recorded database without a GPU: how near does a search come to measuring everything, and at what cost?

A searcher sees what the recorded search rounds saw, a batch of configs at a time as it asks for them, and is scored on
the confirmation rounds. All searchers have the same budget, in configs, and are told the heuristic's pick first, as
every race measures it. None knows more than that: the trees of `forest` never saw the problem's family, nor a weight
near it.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from deep_gemm import _C
from tuner.learn.dataset import CENSORED, UNMEASURED, Dataset
from tuner.learn.families import split_families
from tuner.learn.learner import SLACK, Settings, is_inside, widen
from tuner.learn.residual import fit_trees, make_config_rows
from tuner.search.propose import BATCH_SIZE, ORDERS, Outcome
from tuner.search.study import ProblemStudy

BUDGETS = (8, 16, 24, 32, 48)
SAMPLERS = ("forest", "analytic", "tpe", "random")
#: Parts of the families; the trees for one are fitted to the others, as far as they are not near it.
FOLDS = 10
RESAMPLES = 1000


class Replays(NamedTuple):
    """Log regrets by searcher, F64[problem, seed, budget]; `families` has a label for each problem, `spaces` the number
    of configs that the searchers could ask for.
    """

    regrets: dict[str, np.ndarray]
    families: list
    spaces: list[int]


def choose_problems(data: Dataset, limit: int, least: int = 0) -> np.ndarray:
    """Return up to `limit` full-space rows of `data` with at least `least` configs, evenly spread; 0: all of them."""
    rows = np.flatnonzero(data.full_space & (find_measured(data).sum(axis=1) >= least))
    return rows if limit <= 0 or limit >= len(rows) else rows[np.linspace(0, len(rows) - 1, limit).round().astype(int)]


def find_most(data: Dataset) -> int:
    """Return the most configs that a searcher may ask for of a full-space problem, 0 where there is none."""
    return int(find_measured(data)[data.full_space].sum(axis=1).max(initial=0))


def find_measured(data: Dataset) -> np.ndarray:
    """Return bool[R,C]: the configs that a searcher may ask for, and be answered."""
    return data.candidate & (data.state != UNMEASURED)


def recorded_outcome(data: Dataset, row: int, column: int) -> Outcome:
    """Return the outcome that a searcher would have been told."""
    if data.state[row, column] == CENSORED or math.isnan(data.search[row, column]):
        return Outcome(data.configs[column], float(data.log_ratio[row, column]), "censored")
    return Outcome(data.configs[column], float(data.search[row, column]), "ok")


def find_columns(data: Dataset, row: int) -> dict:
    """Return {config: column} of what was measured of a problem, and of the heuristic's pick."""
    columns = {data.configs[column]: column for column in np.flatnonzero(find_measured(data)[row]).tolist()}
    heuristic = int(data.heuristic[row])
    return columns | {data.configs[heuristic]: heuristic}


def replay(
    data: Dataset, row: int, sampler: str, seed: int, predicted: dict, budgets: Sequence[int] = BUDGETS
) -> list[float]:
    """Search one problem; return the log regret of the best config known at each budget.

    `predicted` are the log times that are expected of the configs.
    """
    columns = find_columns(data, row)
    study = ProblemStudy(list(columns), sampler, seed, predicted)
    best = recorded_outcome(data, row, int(data.heuristic[row]))
    study.tell([best])
    regrets = []
    for budget in budgets:
        while (left := budget - len(study.known)) > 0 and (batch := study.ask(min(left, BATCH_SIZE))):
            told = [recorded_outcome(data, row, columns[config]) for config in batch]
            study.tell(told)
            best = min(filter(is_exact, [best, *told]), key=lambda outcome: outcome.log_ratio or 0.0, default=best)
        regrets.append(float(data.regret_log(np.array([row]), np.array([columns[best.config]]))[0]))
    return regrets


def is_exact(outcome: Outcome) -> bool:
    """Return whether a searcher may choose by this outcome."""
    return outcome.status == "ok" and outcome.log_ratio is not None


def predict_by_estimate(data: Dataset, row: int) -> dict:
    """Return {config: log of the estimate}."""
    problem = data.problems[row]
    return {config: math.log(_C.estimate_time_us(problem, config, data.device)) for config in find_columns(data, row)}


def predict_by_trees(data: Dataset, rows: np.ndarray) -> dict[int, dict]:
    """Return {row: {config: log of estimate x residual}}, by trees that never saw the row's family, nor a weight near
    it.

    Outside the hull of what those learned from, and where nothing was left to learn from, the estimate stands alone, as
    in a sweep.
    """
    settings, every = Settings(), make_config_rows(data)
    predicted: dict[int, dict] = {}
    for held_out, kept in split_families(data.problems, data.families, FOLDS):
        asked = [row for row in rows.tolist() if held_out[row]]
        train = every.of(np.flatnonzero(kept))
        if not asked or not len(train.problem):
            predicted |= {row: predict_by_estimate(data, row) for row in asked}
            continue
        forest, hull = fit_trees(data, train, settings.of_trees()), widen(train.features, SLACK)
        for row in asked:
            configs = list(find_columns(data, row))
            features = _C.get_config_features(data.problems[row], data.device, configs).astype(np.float32)
            found = forest.predict(features).clip(-_C.MAX_RESIDUAL, _C.MAX_RESIDUAL)
            logs = features[:, -1] + np.where(is_inside(features, *hull), found, 0.0)
            predicted[row] = dict(zip(configs, logs.tolist(), strict=True))
    return predicted


def simulate(
    data: Dataset,
    rows: np.ndarray,
    seeds: Sequence[int],
    samplers: Sequence[str] = SAMPLERS,
    budgets: Sequence[int] = BUDGETS,
    on_done: Callable[[int, int], None] = lambda done, total: None,
) -> Replays:
    """Replay every sampler on every problem and seed; orders have no seed and are replayed once.

    Beside them are `heuristic`, its pick alone, and `exhaustive`, what all search rounds together would choose.
    """
    searched = np.where(np.isnan(data.search), np.inf, data.search)[rows].argmin(axis=1)
    fixed = {"heuristic": data.heuristic[rows], "exhaustive": searched}
    regrets = {
        name: np.repeat(data.regret_log(rows, columns)[:, None, None], len(budgets), axis=2)
        for name, columns in fixed.items()
    }
    estimated = {row: predict_by_estimate(data, row) for row in rows.tolist()}
    known = estimated | (predict_by_trees(data, rows) if "forest" in samplers else {})
    for number, sampler in enumerate(samplers):
        predicted = known if sampler == "forest" else estimated
        own_seeds = seeds[:1] if sampler in ORDERS else seeds
        found = []
        for place, row in enumerate(rows.tolist()):
            found.append([replay(data, row, sampler, seed, predicted[row], budgets) for seed in own_seeds])
            on_done(number * len(rows) + place + 1, len(samplers) * len(rows))
        regrets[sampler] = np.array(found)
    labels = [(data.identity.op, family) for family in data.families[rows].tolist()]
    return Replays(regrets, labels, [len(find_columns(data, row)) for row in rows.tolist()])


def join(replays: Sequence[Replays]) -> Replays:
    """Return the replays of several op kinds as one."""
    regrets = {name: np.concatenate([one.regrets[name] for one in replays]) for name in replays[0].regrets}
    families = [family for one in replays for family in one.families]
    return Replays(regrets, families, [space for one in replays for space in one.spaces])


def describe(replays: Replays, budgets: Sequence[int] = BUDGETS) -> dict:
    """Return {searcher: [one entry per budget]}, as regrets; and of how many problems.

    An entry has the geometric mean over problems and seeds with its 95 % interval, which resamples families, the 95 %
    quantile, and the maximum.
    """
    counts = resample(replays.families)
    table = {}
    for name, logs in replays.regrets.items():
        means = logs.mean(axis=1)
        drawn = counts @ means / counts.sum(axis=1, keepdims=True)
        low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
        table[name] = [
            {
                "configs": budget,
                "mean": math.expm1(means[:, place].mean()),
                "low": math.expm1(low[place]),
                "high": math.expm1(high[place]),
                "p95": math.expm1(np.quantile(logs[:, :, place], 0.95)),
                "max": math.expm1(logs[:, :, place].max()),
            }
            for place, budget in enumerate(budgets)
        ]
    return {
        "problems": len(replays.families),
        "families": len(set(replays.families)),
        "mean_space": float(np.mean(replays.spaces)),
        "searchers": table,
    }


def resample(families: list) -> np.ndarray:
    """Return how often each problem counts in each of RESAMPLES draws of families, F64[draw, problem]."""
    labels = {label: index for index, label in enumerate(dict.fromkeys(families))}
    which = np.array([labels[label] for label in families])
    drawn = np.random.default_rng(0).integers(len(labels), size=(RESAMPLES, len(labels)))
    return np.stack([np.bincount(draw, minlength=len(labels))[which] for draw in drawn]).astype(np.float64)
