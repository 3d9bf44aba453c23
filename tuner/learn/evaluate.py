"""Regret of every method from the folds' choices: geometric mean, p95 and maximum, with intervals over families.

Regret is time(chosen) / time(best) - 1, on problems that were measured over the whole space. The best config is chosen
on search rounds and both are scored on confirmation rounds. A regret can therefore be negative, and is kept so.
Intervals come from resampling whole families.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tuner.learn.dataset import CONFIRMED, Dataset
from tuner.learn.evaluation import Evaluation, FoldSummary, Statistics, Table, Unconfirmed, WorstProblem
from tuner.learn.train import EVALUATION, OUT_OF_FOLD, UNCONFIRMED, Training
from tuner.learn.validate import METHODS, SPLITS, FoldResult, out_of_fold, unconfirmed_picks, validate
from tuner.problems.fields import describe_groups, describe_variant, has_few_groups

RESAMPLES = 2000
#: A win or loss against the heuristic is a difference above 1 %: smaller ones are noise as often as not.
NOISE_LOG = np.log(1.01)
NEAR_LOG = np.log(1.02)
INTERVAL = (0.025, 0.975)
#: Problems of left-out families that are shown, those with the largest regret.
NUM_WORST = 10


class Validated(NamedTuple):
    """The folds' results, what follows from them, and the JSON documents for the training folder by file name."""

    results: list[FoldResult]
    evaluation: Evaluation
    documents: dict[str, dict]


def run(
    data: Dataset,
    training: Training,
    jobs: int = -1,
    progress: Callable | None = None,
    num_seeds: int = 1,
    is_nested: bool = False,
) -> Validated:
    """Validate the recipe of a trained selector, with `num_seeds` seeds; `is_nested`: see validate.run_seeds.

    Statistics are over all seeds; single folds, choices and worst problems are those of the selector's own.
    """
    record = training.record
    results = validate(data, record.settings, jobs, progress or (lambda items, total: items), num_seeds, is_nested)
    own = [result for result in results if result.seed == record.settings.seed]
    unconfirmed = unconfirmed_picks(data, results)
    evaluation = Evaluation(
        data.identity,
        record.fingerprint,
        record.estimator_sha256,
        num_seeds,
        is_nested,
        evaluate(data, results),
        worst_problems(data, own),
        [summarize_fold(data, result) for result in own],
        Unconfirmed(unconfirmed["pairs"], len(unconfirmed["problems"])),
    )
    documents = {
        EVALUATION: evaluation.to_json(),
        OUT_OF_FOLD: evaluation.describe_source() | {"rows": out_of_fold(data, own)},
        UNCONFIRMED: unconfirmed,
    }
    return Validated(results, evaluation, documents)


def summarize_fold(data: Dataset, result: FoldResult) -> FoldSummary:
    """Return one fold's sizes and mean regret."""
    full = data.full_space[result.rows]
    logs = data.regret_log(result.rows, result.columns["model"])[full]
    mean = float(np.expm1(logs.mean())) if full.any() else None
    fold = result.fold
    return FoldSummary(fold.split, fold.label, len(result.rows), int(full.sum()), len(result.portfolio), mean)


def evaluate(data: Dataset, results: list[FoldResult]) -> dict[str, Table]:
    """Return the table of every split that has folds, over full-space problems."""
    report, few = {}, find_few(data)
    for split in SPLITS:
        source, counted = ("family", few) if split == "few_groups" else (split, ~few)
        parts = [result for result in results if result.fold.split == source]
        if parts and counted.any():
            report[split] = evaluate_split(data, parts, counted)
    return report


def find_few(data: Dataset) -> np.ndarray:
    """Return bool[R]: which problems are scored apart because they have few groups; none where all have."""
    few = np.array([has_few_groups(problem) for problem in data.problems])
    return few if (data.full_space & ~few).any() else np.zeros_like(few)


def evaluate_split(data: Dataset, parts: list[FoldResult], counted: np.ndarray) -> Table:
    """Return the table of one split over the problems of the mask `counted`, empty where none of these was held out and
    measured over the whole space.
    """
    rows = np.concatenate([part.rows for part in parts])
    full = data.full_space[rows] & counted[rows]
    if not full.any():
        return {}
    rows, answered = rows[full], np.concatenate([part.answered for part in parts])[full]
    table = {}
    for method in (name for name in METHODS if all(name in part.columns for part in parts)):
        columns = np.concatenate([part.columns[method] for part in parts])[full]
        table[method] = summarize(data, rows, columns)
    table["model"] = replace(table["model"], answered=float(answered.mean()))
    base = table["heuristic"].mean
    return {
        method: replace(statistics, removed=1.0 - statistics.mean / base if base > 0 else None)
        for method, statistics in table.items()
    }


def summarize(data: Dataset, rows: np.ndarray, columns: np.ndarray) -> Statistics:
    """Return the statistics of one method that chose `columns` for the problems `rows`.

    With several seeds each problem is there several times; wins and losses are then those of one seed on average.
    """
    seeds = len(rows) / max(len(np.unique(rows)), 1)
    logs = data.regret_log(rows, columns)
    against = data.log_ratio[rows, columns]
    means, tails = resample(logs, data.families[rows])
    return Statistics(
        problems=len(np.unique(rows)),
        families=len(np.unique(data.families[rows])),
        mean=float(np.expm1(logs.mean())),
        mean_interval=np.expm1(np.quantile(means, INTERVAL)).tolist(),
        p95=float(np.expm1(np.quantile(logs, 0.95, method="inverted_cdf"))),
        p95_interval=np.expm1(np.quantile(tails, INTERVAL)).tolist(),
        max=float(np.expm1(logs.max())),
        within_2_percent=float((logs <= NEAR_LOG).mean()),
        wins=round((against < -NOISE_LOG).sum() / seeds),
        losses=round((against > NOISE_LOG).sum() / seeds),
        worst_against_heuristic=float(np.expm1(against.max())),
        confirmed=float((data.state[rows, columns] == CONFIRMED).mean()),
    )


def resample(logs: np.ndarray, families: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return RESAMPLES means and 95 % quantiles of `logs`, each over as many families drawn with replacement."""
    labels, member = np.unique(families, return_inverse=True)
    draws = np.random.default_rng(seed).multinomial(len(labels), np.full(len(labels), 1.0 / len(labels)), RESAMPLES)
    order = np.argsort(logs, kind="stable")
    weights = draws[:, member[order]]
    totals = weights.sum(axis=1)
    cumulative = weights.cumsum(axis=1)
    positions = (cumulative >= 0.95 * totals[:, None] - 1e-9).argmax(axis=1)
    return weights @ logs[order] / totals, logs[order][positions]


def worst_problems(data: Dataset, results: list[FoldResult]) -> list[WorstProblem]:
    """Return the held-out problems with the largest regret of the guarded model, worst first.

    They show where to measure or to learn next.
    """
    found = []
    for result in results:
        if result.fold.split == "family":
            logs = data.regret_log(result.rows, result.columns["model"])
            found += [
                (float(log), row, column)
                for log, row, column in zip(logs, result.rows, result.columns["model"], strict=True)
                if data.full_space[row]
            ]
    found.sort(key=lambda item: -item[0])
    return [describe_worst(data, *item) for item in found[:NUM_WORST]]


def describe_worst(data: Dataset, log: float, row: int, column: int) -> WorstProblem:
    """Return what is shown of one held-out problem."""
    problem = data.problems[row]
    fields = problem.as_dict()
    configs = (data.configs[index] for index in (column, data.oracle[row], data.heuristic[row]))
    shape = problem.m, problem.n, problem.k, describe_groups(fields), describe_variant(fields)
    return WorstProblem(*shape, float(np.expm1(log)), *map(str, configs))


def regret_curve(data: Dataset, results: list[FoldResult], method: str) -> np.ndarray:
    """Return the sorted regrets of one method over the family split's full-space problems."""
    logs = [
        data.regret_log(part.rows, part.columns[method])[data.full_space[part.rows]]
        for part in results
        if part.fold.split == "family"
    ]
    return np.sort(np.expm1(np.concatenate(logs))) if logs else np.array([])
