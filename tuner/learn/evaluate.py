"""Regret of every method from the folds' choices: geometric mean, p95 and maximum, with intervals that resample
families.

Regret is time(chosen) / time(best) - 1 on problems measured over the whole space. The best config was chosen on search
rounds and both are scored on confirmation rounds, so a regret can be negative, and it is kept so.
"""

from collections.abc import Callable
from dataclasses import asdict

import numpy as np

from tuner.learn.dataset import CONFIRMED, Dataset
from tuner.learn.train import EVALUATION, OUT_OF_FOLD, UNCONFIRMED, Training
from tuner.learn.validate import METHODS, FoldResult, out_of_fold, unconfirmed_picks, validate
from tuner.problems.fields import describe_groups, describe_variant

SPLITS = ("family", "model", "unseen_m")
RESAMPLES = 2000
#: A win or loss against the heuristic is a difference beyond 1 %: smaller ones are noise as often as not.
NOISE_LOG = np.log(1.01)
NEAR_LOG = np.log(1.02)
INTERVAL = (0.025, 0.975)


def run(
    data: Dataset, training: Training, jobs: int = -1, progress: Callable | None = None
) -> tuple[list[FoldResult], dict]:
    """Validate a trained selector's recipe; return the folds' results and the documents for the training folder, by
    file name.
    """
    results = validate(data, training.settings, jobs, progress or (lambda items, total: items))
    unconfirmed = unconfirmed_picks(data, results)
    identity = {
        "format": 1,
        "identity": asdict(data.identity),
        "fingerprint": training.record["fingerprint"],
        "estimator_sha256": training.record["estimator_sha256"],
    }
    report = {
        "splits": evaluate(data, results),
        "worst": worst_problems(data, results),
        "folds": [describe_fold(data, result) for result in results],
        "unconfirmed": {"pairs": unconfirmed["pairs"], "problems": len(unconfirmed["problems"])},
    }
    return results, {
        EVALUATION: identity | report,
        OUT_OF_FOLD: identity | {"rows": out_of_fold(data, results)},
        UNCONFIRMED: unconfirmed,
    }


def describe_fold(data: Dataset, result: FoldResult) -> dict:
    """Return one fold's label, size and the guarded model's mean regret on its full-space problems (None without any)."""
    full = data.full_space[result.rows]
    logs = data.regret_log(result.rows, result.columns["model"])[full]
    mean = float(np.expm1(logs.mean())) if full.any() else None
    return {
        "split": result.fold.split,
        "label": result.fold.label,
        "problems": len(result.rows),
        "full_space": int(full.sum()),
        "portfolio": len(result.portfolio),
        "mean": mean,
    }


def evaluate(data: Dataset, results: list[FoldResult]) -> dict:
    """Return {split: {method: statistics}} over full-space problems; a split without folds is absent."""
    report = {}
    for split in SPLITS:
        parts = [result for result in results if result.fold.split == split]
        if parts:
            report[split] = evaluate_split(data, parts)
    return report


def evaluate_split(data: Dataset, parts: list[FoldResult]) -> dict:
    """Return {method: statistics} of one split (empty where no held-out problem was measured over the whole space)."""
    rows = np.concatenate([part.rows for part in parts])
    full = data.full_space[rows]
    if not full.any():
        return {}
    rows, answered = rows[full], np.concatenate([part.answered for part in parts])[full]
    table = {}
    for method in METHODS:
        columns = np.concatenate([part.columns[method] for part in parts])[full]
        table[method] = summarize(data, rows, columns)
    table["model"]["answered"] = float(answered.mean())
    base = table["heuristic"]["mean"]
    for statistics in table.values():
        statistics["removed"] = 1.0 - statistics["mean"] / base if base > 0 else None
    return table


def summarize(data: Dataset, rows: np.ndarray, columns: np.ndarray) -> dict:
    """Return the statistics of one method's choices `columns` for problems `rows`."""
    logs = data.regret_log(rows, columns)
    against = data.log_ratio[rows, columns]
    means, tails = resample(logs, data.families[rows])
    return {
        "problems": len(rows),
        "families": len(np.unique(data.families[rows])),
        "mean": float(np.expm1(logs.mean())),
        "mean_interval": np.expm1(np.quantile(means, INTERVAL)).tolist(),
        "p95": float(np.expm1(np.quantile(logs, 0.95, method="inverted_cdf"))),
        "p95_interval": np.expm1(np.quantile(tails, INTERVAL)).tolist(),
        "max": float(np.expm1(logs.max())),
        "within_2_percent": float((logs <= NEAR_LOG).mean()),
        "wins": int((against < -NOISE_LOG).sum()),
        "losses": int((against > NOISE_LOG).sum()),
        "worst_against_heuristic": float(np.expm1(against.max())),
        "confirmed": float((data.state[rows, columns] == CONFIRMED).mean()),
    }


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


def worst_problems(data: Dataset, results: list[FoldResult], count: int = 10) -> list[dict]:
    """Return the held-out problems with the largest regret of the guarded model, worst first: where to measure or learn
    next.
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
    return [
        {
            "m": data.problems[row].m,
            "n": data.problems[row].n,
            "k": data.problems[row].k,
            "groups": describe_groups(data.problems[row].as_dict()),
            "variant": describe_variant(data.problems[row].as_dict()),
            "regret": float(np.expm1(log)),
            "chosen": str(data.configs[column]),
            "best": str(data.configs[data.oracle[row]]),
            "heuristic": str(data.configs[data.heuristic[row]]),
        }
        for log, row, column in found[:count]
    ]


def regret_curve(data: Dataset, results: list[FoldResult], method: str) -> np.ndarray:
    """Return the sorted regrets of one method over the family split's full-space problems."""
    logs = [
        data.regret_log(part.rows, part.columns[method])[data.full_space[part.rows]]
        for part in results
        if part.fold.split == "family"
    ]
    return np.sort(np.expm1(np.concatenate(logs))) if logs else np.array([])
