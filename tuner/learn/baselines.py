"""What the model has to beat on problems that it did not see.

Those that learn do so from the same problems, and choose from the portfolio that was chosen on these.
"""

import numpy as np

from deep_gemm import _C
from tuner.learn.dataset import LOG_TWO, SEARCHED, UNMEASURED, Dataset
from tuner.learn.residual import UNRANKED, ConfigRows
from tuner.problems.fields import get_group_rows, variant_of

#: Added to a squared distance between different variants: more than any difference in size.
OTHER_VARIANT = 1e6


def choose_baselines(
    data: Dataset, train: np.ndarray, test: np.ndarray, columns: np.ndarray, rows: ConfigRows
) -> dict[str, np.ndarray]:
    """Return {baseline: dataset columns for `test`}; `columns` are the portfolio's, `rows` the data's
    make_config_rows.
    """
    targets = make_targets(data, train, columns)
    return {
        "heuristic": data.heuristic[test],
        "best_single": choose_lowest(data, test, columns, np.tile(score_mean(data, train, targets), (len(test), 1))),
        "nearest": choose_lowest(data, test, columns, targets[find_nearest(data, train, test)]),
        "portfolio_best": choose_with_hindsight(data, test, np.tile(columns, (len(test), 1))),
        "shortlist_best": choose_with_hindsight(data, test, list_ranked(data, test, rows)),
    }


def choose_lowest(data: Dataset, test: np.ndarray, columns: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the legal column with the lowest of `scores`, F64[len(test), len(columns)], per problem.

    Where no column is legal, it is the heuristic's pick.
    """
    legal = data.legal[np.ix_(test, columns)]
    return np.where(legal.any(axis=1), columns[np.where(legal, scores, np.inf).argmin(axis=1)], data.heuristic[test])


def score_mean(data: Dataset, train: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return each column's mean over the full-space problems."""
    full = data.full_space[train]
    return targets[full if full.any() else slice(None)].mean(axis=0)


def find_nearest(data: Dataset, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return the positions in `train` of the nearest problems, by the logs of their sizes.

    The same variant comes first.
    """
    distance = ((log_shape(data, test)[:, None] - log_shape(data, train)[None]) ** 2).sum(axis=2)
    numbers: dict = {}
    kinds = np.array([numbers.setdefault(variant_of(problem), len(numbers)) for problem in data.problems])
    return (distance + OTHER_VARIANT * (kinds[test][:, None] != kinds[train][None])).argmin(axis=1)


def log_shape(data: Dataset, rows: np.ndarray) -> np.ndarray:
    """Return F64[len(rows), 4]: log2 of the rows of a group (or m), n, k and the number of groups (or 1)."""
    problems = [data.problems[row] for row in rows]
    return np.log2(
        np.array(
            [(get_group_rows(problem), problem.n, problem.k, max(problem.num_groups, 1)) for problem in problems],
            dtype=float,
        )
    )


def make_targets(data: Dataset, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return log ratios to the heuristic's pick within [-LOG_TWO, LOG_TWO], F64[len(rows), P].

    A config that is no candidate of a problem counts as twice as slow. The few candidates without a time get the
    analytic estimate, so that a gap in the data is neither a win nor a loss.
    """
    picture = np.ix_(rows, columns)
    suited = data.candidate[picture]
    targets = np.where(suited, data.log_ratio[picture], LOG_TWO)
    for row, column in np.argwhere(suited & (data.state[picture] == UNMEASURED)):
        problem, heuristic = data.problems[rows[row]], data.configs[data.heuristic[rows[row]]]
        times = [
            _C.estimate_time_us(problem, config, data.device) for config in (data.configs[columns[column]], heuristic)
        ]
        targets[row, column] = np.log(times[0] / times[1])
    return np.clip(targets, -LOG_TWO, LOG_TWO)


def list_ranked(data: Dataset, test: np.ndarray, rows: ConfigRows) -> np.ndarray:
    """Return the columns of the run time's shortlists, I64[len(test), S]; the heuristic's pick fills the gaps."""
    ranked = rows.where(rows.place != UNRANKED)
    columns = np.tile(data.heuristic[:, None], 1 + max(ranked.place, default=0))
    columns[ranked.problem, ranked.place] = ranked.column
    return columns[test]


def choose_with_hindsight(data: Dataset, test: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the best of `columns` I64[len(test), P] by the search rounds: no choice among these does better.

    Where none of them was timed, it is the heuristic's pick.
    """
    picture, every = (test[:, None], columns), np.arange(len(test))
    searched = np.where(np.isnan(data.search[picture]), data.log_ratio[picture], data.search[picture])
    is_timed = data.state[picture] >= SEARCHED
    best = columns[every, np.where(is_timed, searched, np.inf).argmin(axis=1)]
    return np.where(is_timed.any(axis=1), best, data.heuristic[test])
