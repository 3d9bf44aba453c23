"""The analytic estimate times a learned residual: a predicted time for every config, not only for a portfolio.

There is one row per problem and config. Its target is log(measured time / estimate) less the problem's own mean, since
only differences between the configs of a problem decide. Rows near the problem's best count most. Boosted trees are
fitted to all rows of an op kind; the choice is the config with the smallest estimate x exp(residual) among those that
the estimate ranks best. Where a problem lies outside the training hull, the residual is 0 and the estimate stays.

Nothing at run time reads it: `evaluate` shows what the formulation gains over the portfolio's model.
"""

from typing import NamedTuple

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from deep_gemm import _C
from tuner.learn.dataset import UNMEASURED, Dataset
from tuner.learn.learner import SLACKS, Settings, is_inside, widen

#: The configs with the smallest estimates among which the residual chooses, and those that it learns from: with the
#: first eight, hindsight leaves at most 0.4 % of mean regret on any op kind of the recorded H200.
NUM_RANKED, NUM_LEARNED = 8, 12
#: Rows this near to the problem's best (log time) are learned from, whatever the estimate says of them.
NEAR = 0.1
#: Slower rows than this count as this slow (log time), and residuals are clipped to `CLIP`.
SLOWEST, CLIP = 0.25, 0.5
#: Weight of a row: exp(-log time behind the best / WEIGHT_SCALE), and never less than LEAST_WEIGHT more.
WEIGHT_SCALE, LEAST_WEIGHT = 0.05, 0.02
LEARNING_RATE, MAX_LEAVES, MIN_LEAF, FEATURE_SHARE = 0.1, 15, 20, 0.5


class ConfigRows(NamedTuple):
    """N rows, one for a config of a problem, both as row and column of a Dataset.

    `place` I64[N] is the config's place by the estimate, NUM_LEARNED for all behind the first that are learned from.
    """

    problem: np.ndarray
    column: np.ndarray
    features: np.ndarray
    place: np.ndarray

    @property
    def estimate(self) -> np.ndarray:
        """Return log(estimate / estimate of the heuristic's pick), F64[N]."""
        return self.features[:, -1]

    def of(self, problems: np.ndarray) -> "ConfigRows":
        """Return the rows of some problems."""
        mask = np.isin(self.problem, problems)
        return ConfigRows(*(array[mask] for array in self))


class Residual(NamedTuple):
    """A fitted model: the columns of the features that it reads, and the hull of the training rows, F64[F] each."""

    model: HistGradientBoostingRegressor
    columns: np.ndarray
    feature_min: np.ndarray
    feature_max: np.ndarray

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Return the residual of each row of `features` F64[N,F]: 0 outside the hull."""
        inside = is_inside(features, self.feature_min, self.feature_max)
        return np.where(inside, np.clip(self.model.predict(features[:, self.columns]), -CLIP, CLIP), 0.0)


def make_config_rows(data: Dataset) -> ConfigRows:
    """Return the rows of all problems: the legal ones of the best NUM_LEARNED by estimate, and those near the best."""
    column = {config: index for index, config in enumerate(data.configs)}
    parts = []
    for row, problem in enumerate(data.problems):
        tiles = _C.rank_candidates(problem, data.device, NUM_LEARNED)
        ranked = [find_column(data, column, row, tile) for tile in tiles]
        places = {index: place for place, index in enumerate(ranked) if index >= 0 and data.legal[row, index]}
        timed = np.where(data.state[row] != UNMEASURED, data.log_ratio[row], np.inf)
        for index in np.flatnonzero(data.candidate[row] & (timed < timed.min() + NEAR)).tolist():
            places.setdefault(index, NUM_LEARNED)
        configs = [data.configs[index] for index in places]
        features = _C.get_config_features(problem, data.device, configs)
        parts.append((np.full(len(places), row), list(places), features, list(places.values())))
    return ConfigRows(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def find_column(data: Dataset, column: dict, row: int, tile: _C.Config) -> int:
    """Return the column of a tile, with the heuristic's knobs where that was timed for the problem of `row`, else
    without; -1 for a tile that is not in the table.
    """
    knobbed = column.get(_C.with_loop_knobs(data.problems[row], tile, data.device), -1)
    return knobbed if knobbed >= 0 and data.state[row, knobbed] != UNMEASURED else column.get(tile, -1)


def fit_residual(data: Dataset, rows: ConfigRows, settings: Settings) -> Residual:
    """Fit to the measured ones of `rows`. The same input and settings give the same model."""
    kept = data.state[rows.problem, rows.column] != UNMEASURED
    rows = ConfigRows(*(array[kept] for array in rows))
    targets, weights = make_row_targets(data, rows)
    columns = np.flatnonzero(np.ptp(rows.features, axis=0) > 0)
    model = HistGradientBoostingRegressor(
        max_iter=settings.boosted,
        learning_rate=LEARNING_RATE,
        max_leaf_nodes=MAX_LEAVES,
        min_samples_leaf=MIN_LEAF,
        max_features=FEATURE_SHARE,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=settings.seed,
    ).fit(rows.features[:, columns], targets, sample_weight=weights)
    return Residual(model, columns, *widen(rows.features, SLACKS[0]))


def make_row_targets(data: Dataset, rows: ConfigRows) -> tuple[np.ndarray, np.ndarray]:
    """Return the centred log(time / estimate) and the weight of each row, both F64[N]."""
    times = data.log_ratio[rows.problem, rows.column]
    best = np.full(len(data.problems), np.inf)
    np.minimum.at(best, rows.problem, times)
    behind = times - best[rows.problem]
    weights = np.exp(-behind / WEIGHT_SCALE) + LEAST_WEIGHT
    raw = np.minimum(behind, SLOWEST) - rows.estimate
    sums = np.bincount(rows.problem, weights * raw, len(data.problems))
    means = sums / np.maximum(np.bincount(rows.problem, weights, len(data.problems)), LEAST_WEIGHT)
    return raw - means[rows.problem], weights


def choose_by_residual(data: Dataset, rows: ConfigRows, problems: np.ndarray, residual: Residual) -> np.ndarray:
    """Return the column of estimate x exp(residual)'s smallest value for each of `problems`."""
    ranked = rows.of(problems)
    ranked = ConfigRows(*(array[ranked.place < NUM_RANKED] for array in ranked))
    scores = np.full((len(data.problems), NUM_RANKED), np.inf)
    columns = np.tile(data.heuristic[:, None], NUM_RANKED)
    scores[ranked.problem, ranked.place] = ranked.estimate + residual.predict(ranked.features)
    columns[ranked.problem, ranked.place] = ranked.column
    return columns[problems, scores[problems].argmin(axis=1)]
