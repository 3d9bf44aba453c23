"""What the model has to beat on problems it never saw, each fitted on the same rows and choosing from the same portfolio."""

import numpy as np
from sklearn.tree import DecisionTreeRegressor

from tuner.dataset import SEARCHED, Dataset
from tuner.learner import Learned, make_features, make_targets

TREE_DEPTH = 6


def choose_baselines(data: Dataset, train: np.ndarray, test: np.ndarray, learned: Learned, seed: int = 0) -> dict:
    """Return {baseline: dataset columns for `test`}."""
    columns = learned.portfolio.columns
    targets = make_targets(data, train, columns)
    return {
        "heuristic": data.heuristic[test],
        "best_single": np.full(len(test), choose_single(data, train, columns, targets)),
        "nearest": choose_nearest(data, train, test, columns, targets),
        "tree": choose_by_tree(data, train, test, columns, targets, seed),
        "portfolio_best": choose_with_hindsight(data, test, columns),
    }


def choose_single(data: Dataset, train: np.ndarray, columns: np.ndarray, targets: np.ndarray) -> int:
    """Return the one column with the lowest mean over the full-space problems."""
    full = data.full_space[train]
    return int(columns[targets[full if full.any() else slice(None)].mean(axis=0).argmin()])


def choose_nearest(data: Dataset, train: np.ndarray, test: np.ndarray, columns: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the best column of the nearest training problem in log m, log n, log k."""
    distance = ((log_shape(data, test)[:, None] - log_shape(data, train)[None]) ** 2).sum(axis=2)
    return columns[targets[distance.argmin(axis=1)].argmin(axis=1)]


def log_shape(data: Dataset, rows: np.ndarray) -> np.ndarray:
    """Return F64[len(rows), 3]: log2 of m, n, k."""
    return np.log2(np.array([(data.problems[row].m, data.problems[row].n, data.problems[row].k) for row in rows], dtype=float))


def choose_by_tree(data: Dataset, train: np.ndarray, test: np.ndarray, columns: np.ndarray, targets: np.ndarray, seed: int) -> np.ndarray:
    """Return the column that one small tree predicts best: what the forest's other trees are for."""
    tree = DecisionTreeRegressor(max_depth=TREE_DEPTH, min_samples_leaf=2, random_state=seed).fit(make_features(data, train, columns), targets)
    scores = tree.predict(make_features(data, test, columns)).reshape(len(test), -1)
    return columns[scores.argmin(axis=1)]


def choose_with_hindsight(data: Dataset, test: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the portfolio's best column by the search rounds: the least regret that any choice from this portfolio can have."""
    picture = np.ix_(test, columns)
    searched = np.where(np.isnan(data.search[picture]), data.log_ratio[picture], data.search[picture])
    return columns[np.where(data.state[picture] >= SEARCHED, searched, np.inf).argmin(axis=1)]
