"""Replay a recorded database without a GPU: how near does a search come to measuring everything, and at what cost?

A searcher sees what the recorded search rounds saw, one config at a time as it asks for them, and is scored on the
confirmation rounds. The heuristic's pick is always known, because every race measures it, and counts in the share that
was measured. TPE starts from the heuristic's estimates, as in a sweep; random search knows nothing.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from deep_gemm import _C
from tuner.learn.dataset import CENSORED, UNMEASURED, Dataset
from tuner.search import propose
from tuner.search.propose import Outcome

SHARES = (0.05, 0.1, 0.2, 0.3, 0.5)
SAMPLERS = ("tpe", "random")


def choose_problems(data: Dataset, limit: int) -> np.ndarray:
    """Return up to `limit` full-space rows of `data`, evenly spread; 0 means all of them."""
    rows = np.flatnonzero(data.full_space)
    return rows if limit <= 0 or limit >= len(rows) else rows[np.linspace(0, len(rows) - 1, limit).round().astype(int)]


def recorded_outcome(data: Dataset, row: int, column: int) -> Outcome:
    """Return the outcome that a searcher would have been told."""
    if data.state[row, column] == CENSORED or math.isnan(data.search[row, column]):
        return Outcome(data.configs[column], float(data.log_ratio[row, column]), "censored")
    return Outcome(data.configs[column], float(data.search[row, column]), "ok")


def replay(data: Dataset, row: int, sampler: str, seed: int, shares: Sequence[float]) -> list[float]:
    """Search one problem; return the log regret of the best config known at each share of the space."""
    columns = {
        data.configs[column]: int(column)
        for column in np.flatnonzero(data.candidate[row] & (data.state[row] != UNMEASURED))
    }
    heuristic = int(data.heuristic[row])
    columns[data.configs[heuristic]] = heuristic
    estimates = {config: _C.estimate_time_us(data.problems[row], config, data.device) for config in columns}
    proposer = propose.OptunaProposer(list(columns), sampler, seed, estimates)
    outcomes = [recorded_outcome(data, row, heuristic)]
    proposer.tell(outcomes)
    regrets = []
    for share in shares:
        target = max(round(share * len(columns)), 1)
        while len(outcomes) < target and (batch := proposer.propose(min(target - len(outcomes), propose.BATCH_SIZE))):
            told = [recorded_outcome(data, row, columns[config]) for config in batch]
            proposer.tell(told)
            outcomes += told
        exact = {
            outcome.config: outcome.log_ratio
            for outcome in outcomes
            if outcome.status == "ok" and outcome.log_ratio is not None
        }
        best = min(exact, key=exact.__getitem__, default=outcomes[0].config)
        regrets.append(float(data.regret_log(np.array([row]), np.array([columns[best]]))[0]))
    return regrets


def describe(logs: Sequence[float] | np.ndarray) -> dict:
    """Return the geometric mean, the 95 % quantile and the maximum of log regrets, as regrets."""
    values = np.asarray(logs)
    return {
        "mean": math.expm1(values.mean()),
        "p95": math.expm1(np.quantile(values, 0.95)),
        "max": math.expm1(values.max()),
    }


def simulate(
    data: Dataset,
    rows: np.ndarray,
    seeds: Sequence[int],
    samplers: Sequence[str] = SAMPLERS,
    shares: Sequence[float] = SHARES,
    on_done: Callable[[int, int], None] = lambda done, total: None,
) -> dict:
    """Replay every sampler on every problem and seed.

    Return {"exhaustive": ..., "heuristic": ..., sampler: [one entry per share]}, all as regrets against the recorded
    oracle. "exhaustive" is the config that all search rounds together would choose.
    """
    searched = np.where(np.isnan(data.search), np.inf, data.search)[rows].argmin(axis=1)
    result: dict = {
        "problems": len(rows),
        "seeds": list(seeds),
        "mean_space": float((data.state[rows] != UNMEASURED).sum(axis=1).mean()),
        "exhaustive": describe(data.regret_log(rows, searched)),
        "heuristic": describe(data.regret_log(rows, data.heuristic[rows])),
    }
    total, done = len(samplers) * len(rows) * len(seeds), 0
    for sampler in samplers:
        table = []
        for row in rows:
            for seed in seeds:
                table.append(replay(data, int(row), sampler, seed, shares))
                done += 1
                on_done(done, total)
        result[sampler] = [
            {"share": share} | describe(column) for share, column in zip(shares, np.array(table).T, strict=True)
        ]
    return result
