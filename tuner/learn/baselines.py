"""What the model has to beat on problems that it did not see.

Every baseline is fitted on the same rows and chooses from the same portfolio.
"""

import numpy as np
from sklearn.tree import DecisionTreeRegressor

from tuner.learn.dataset import SEARCHED, Dataset
from tuner.learn.learner import Learned, make_features, make_targets
from tuner.problems.fields import get_group_rows, variant_of

TREE_DEPTH = 6
#: Added to a squared distance between different variants: more than any difference in size.
OTHER_VARIANT = 1e6


def choose_baselines(data: Dataset, train: np.ndarray, test: np.ndarray, learned: Learned, seed: int = 0) -> dict:
    """Return {baseline: dataset columns for `test`}."""
    columns = learned.portfolio.columns
    targets = make_targets(data, train, columns)
    return {
        "heuristic": data.heuristic[test],
        "best_single": choose_lowest(data, test, columns, np.tile(score_mean(data, train, targets), (len(test), 1))),
        "nearest": choose_lowest(data, test, columns, targets[find_nearest(data, train, test)]),
        "tree": choose_lowest(data, test, columns, score_by_tree(data, train, test, columns, targets, seed)),
        "portfolio_best": choose_with_hindsight(data, test, columns),
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


def score_by_tree(
    data: Dataset, train: np.ndarray, test: np.ndarray, columns: np.ndarray, targets: np.ndarray, seed: int
) -> np.ndarray:
    """Return the scores that one small tree predicts: the gap to the forest shows what more trees are good for."""
    tree = DecisionTreeRegressor(max_depth=TREE_DEPTH, min_samples_leaf=2, random_state=seed).fit(
        make_features(data, train, columns), targets
    )
    return tree.predict(make_features(data, test, columns)).reshape(len(test), -1)


def choose_with_hindsight(data: Dataset, test: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the portfolio's best column by the search rounds: no choice from this portfolio has a smaller regret."""
    picture = np.ix_(test, columns)
    searched = np.where(np.isnan(data.search[picture]), data.log_ratio[picture], data.search[picture])
    return columns[np.where(data.state[picture] >= SEARCHED, searched, np.inf).argmin(axis=1)]
