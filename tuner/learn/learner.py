"""Fitting one selector: trees, guards and portfolio, all from the given rows alone, so that validation can repeat it.

The predicted time of a config is its analytic estimate x exp(residual), and the trees predict the residual. The choice
is the config of the shortlist with the smallest product, if that is smaller than the heuristic's pick's by a margin.
The margin is fitted on predictions for families that the trees did not see. The portfolio is the few configs that the
exact table names.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from deep_gemm import _C
from tuner.learn.dataset import LOG_TWO, UNMEASURED, Dataset
from tuner.learn.families import split_families
from tuner.learn.forest import Forest
from tuner.learn.portfolio import SIZES, Portfolio, choose_portfolio
from tuner.learn.residual import UNRANKED, ConfigRows, Examples, TreeSettings, fit_trees, make_config_rows
from tuner.learn.settings import LEAVES, RATE, TREES

#: The hull of the training rows is widened on both sides by this share of its extent. Trees do not extrapolate, so that
#: little is lost; what no row has, such as a variant or a knob, has no extent and stays outside.
SLACK = _C.TRAINED_SLACK
#: And by at least this much of features of divisibility, of which a few training shapes have only some values: presets
#: have contiguous groups whose m is a multiple of every tile, say. What no row showed, no tree asks about.
LEAST_SLACKS = {"log2_m_alignment": 8.0, "log2_n_alignment": 8.0, "log2_k_alignment": 8.0, "n_mod_256": 256.0}
LEAST_SLACKS |= dict.fromkeys(("m_fill", "n_fill", "useful_share", "last_wave_fill"), 1.0)
LEAST = np.array([LEAST_SLACKS.get(name, 0.0) for name in _C.config_feature_names()])
#: Margins to try (log time). Those that cost about the least count as equal, and the largest of them is taken: rare
#: large losses are few in the data, but a margin avoids most of them.
MARGINS = (0.005, 0.0025)
MARGIN_TOLERANCE = 1e-4
#: As many that a fold still learns from two thirds of the problems: nothing near the held-out families is kept.
GUARD_FOLDS = 8
#: Trees, leaves, rate and min_leaf to try where the data choose them.
CANDIDATES = ((TREES, LEAVES, RATE, 0), (TREES, LEAVES, RATE, 20), (TREES, 8, RATE, 0), (64, LEAVES, 0.15, 0))
#: A loss against the heuristic counts twice, and what it has beyond LARGE_LOSS (log time) LARGE_WEIGHT times more.
LARGE_LOSS, LARGE_WEIGHT = 0.05, 4.0


@dataclass(frozen=True)
class Settings:
    """What is not fitted, but chosen once for all folds and SKUs.

    `trees`, `leaves` and `rate` are of the boosted trees: their number, the leaves of each, and the share that each
    adds. `min_leaf` is the least number of rows of a leaf, 0: by the number of all rows. `sizes` are those of the
    portfolio.
    """

    trees: int = TREES
    leaves: int = LEAVES
    rate: float = RATE
    min_leaf: int = 0
    sizes: tuple = SIZES
    seed: int = 0

    def of_trees(self) -> TreeSettings:
        """Return what concerns the trees."""
        return TreeSettings(self.trees, self.leaves, self.rate, self.min_leaf, self.seed)


@dataclass(frozen=True)
class Guards:
    """When the heuristic's pick is kept: unless the model predicts a gain of more than `margin` (log time).

    `slack` is the share of its extent by which the hull of the training rows was widened on both sides.
    """

    margin: float
    slack: float = SLACK


@dataclass(frozen=True)
class Learned:
    """One fitted selector. `feature_min`, `feature_max` F64[F] already include the slack."""

    portfolio: Portfolio
    forest: Forest
    guards: Guards
    feature_min: np.ndarray
    feature_max: np.ndarray


@dataclass(frozen=True)
class Choices:
    """A selector's choice per problem: the column with guards and without a margin (`alone`), and whether the model
    answered.
    """

    column: np.ndarray
    alone: np.ndarray
    answered: np.ndarray


def fit(
    data: Dataset,
    problems: np.ndarray,
    settings: Settings,
    rows: ConfigRows | None = None,
    prior: Examples | None = None,
) -> Learned:
    """Fit portfolio, guards and trees on `problems` alone; `rows` are the data's make_config_rows.

    `prior` are examples of other kernels or another GPU, which the trees learn from as well.
    """
    own = (make_config_rows(data) if rows is None else rows).of(problems)
    guards = fit_guards(data, own, settings, prior)
    forest = fit_trees(data, own, settings.of_trees(), prior)
    hull = widen(join_features(own, prior), guards.slack)
    return Learned(choose_portfolio(data, problems, settings.sizes), forest, guards, *hull)


def join_features(rows: ConfigRows, prior: Examples | None) -> np.ndarray:
    """Return the features of rows and of examples from elsewhere."""
    return rows.features if prior is None else np.concatenate([rows.features, prior.features])


def widen(features: np.ndarray, slack: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the hull of training rows F32[N,F], widened on both sides by `slack` times its extent, or by LEAST."""
    low, high = features.min(axis=0).astype(np.float64), features.max(axis=0).astype(np.float64)
    extent = np.maximum(slack * (high - low), LEAST)
    return low - extent, high + extent


def is_inside(features: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return per row whether every feature lies in the hull (the run time's relative slack included)."""
    slack = _C.HULL_SLACK * np.maximum(np.abs(low), np.abs(high))
    return ((features >= low - slack) & (features <= high + slack)).all(axis=1)


def predict(rows: ConfigRows, residuals: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return the log of estimate x exp(residual) of each row, infinite outside the hull: what the run time compares."""
    return adjust(rows.estimate, residuals, inside)


def adjust(estimates: np.ndarray, residuals: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return `predict` of estimates, which are logs of times."""
    return np.where(inside, estimates + np.clip(residuals, -_C.MAX_RESIDUAL, _C.MAX_RESIDUAL), np.inf)


def choose(data: Dataset, problems: np.ndarray, learned: Learned, rows: ConfigRows) -> Choices:
    """Return what `learned` chooses for `problems`; `rows` are the data's make_config_rows."""
    own = rows.where((rows.place != UNRANKED) & np.isin(rows.problem, problems))
    inside = is_inside(own.features, learned.feature_min, learned.feature_max)
    predicted = predict(own, learned.forest.predict(own.features), inside)
    columns, scores = lay_out(data, own, predicted)
    return apply_guards(columns[problems], scores[problems], learned.guards.margin)


def lay_out(data: Dataset, rows: ConfigRows, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns I64[R,S] and the scores F64[R,S] of each problem's shortlist by place, for all problems.

    A score is the prediction less that of the heuristic's pick, which is first and has 0. Where that lies outside the
    hull, or has no row, all scores are infinite; so is that of a place without a row.
    """
    width = 1 + max(rows.place, default=0)
    columns = np.tile(data.heuristic[:, None], width)
    scores = np.full(columns.shape, np.inf)
    columns[rows.problem, rows.place], scores[rows.problem, rows.place] = rows.column, predicted
    return columns, np.where(
        np.isfinite(scores[:, :1]), scores - np.where(np.isfinite(scores), scores, 0)[:, :1], np.inf
    )


def apply_guards(columns: np.ndarray, scores: np.ndarray, margin: float) -> Choices:
    """Apply the rule: take the config with the lowest score if it beats the margin, else the heuristic's pick, which is
    first. The model does not answer where even that has no finite score.
    """
    every, best = np.arange(len(scores)), scores.argmin(axis=1)
    is_better = scores[every, best] < -margin
    return Choices(
        columns[every, np.where(is_better, best, 0)],
        columns[every, np.where(np.isfinite(scores[:, 0]), best, 0)],
        np.isfinite(scores[:, 0]),
    )


def list_ranked(problem, device: _C.Device, hull: tuple[np.ndarray, np.ndarray]) -> list:
    """Return the configs that the run time asks trees of this widened hull about: none of a late kind of which the
    training rows had none, as op_model.cpp has it.
    """
    low, high = (dict(zip(_C.config_feature_names(), side.tolist(), strict=True)) for side in hull)
    kinds = {name: _C.has_seen(low[feature], high[feature], least) for name, feature, least in _C.LATE_KINDS}
    return _C.get_shortlist(problem, device, _C.NUM_RANKED, **kinds)


def choose_row(features: np.ndarray, residuals: np.ndarray, hull: tuple[np.ndarray, np.ndarray], margin: float) -> int:
    """Return which row of one problem's shortlist F32[S,F] is chosen, where no config is quarantined: as the run time
    does.
    """
    places = np.arange(len(features))
    rows = ConfigRows(np.zeros(len(features), int), places, features, places)
    predicted = predict(rows, residuals, is_inside(features, *hull))
    relative = predicted - predicted[0] if np.isfinite(predicted[0]) else np.full(len(predicted), np.inf)
    return int(apply_guards(places[None], relative[None], margin).column[0])


def choose_settings(data: Dataset, problems: np.ndarray, settings: Settings, rows: ConfigRows) -> Settings:
    """Return the one of CANDIDATES with the lowest cost on families of `problems` that its trees did not see.

    Any other than the first must cost less by more than a standard error, in the manner of Breiman et al.
    (Classification and Regression Trees, 1984, section 3.4.3): the lowest of four on a hundred problems is often so by
    chance.
    """
    own = rows.of(problems)
    families = data.families[np.unique(own.problem)]
    candidates = [
        replace(settings, trees=trees, leaves=leaves, rate=rate, min_leaf=min_leaf)
        for trees, leaves, rate, min_leaf in CANDIDATES
    ]
    costs = [min(find_costs(data, own, candidate).values(), key=np.mean) for candidate in candidates]
    better = [index for index, cost in enumerate(costs) if is_clearly_lower(cost - costs[0], families)]
    return candidates[min(better, key=lambda index: costs[index].mean(), default=0)]


def is_clearly_lower(differences: np.ndarray, families: np.ndarray) -> bool:
    """Return whether the sum of F64[P] lies below 0 by more than its standard error over families I64[P]."""
    _, member = np.unique(families, return_inverse=True)
    sums = np.bincount(member, differences)
    return len(sums) > 1 and sums.sum() < -math.sqrt(len(sums)) * sums.std(ddof=1)


def fit_guards(data: Dataset, rows: ConfigRows, settings: Settings, prior: Examples | None = None) -> Guards:
    """Return the guards with about the lowest cost on families that the trees did not see, see MARGINS."""
    costs = {margin: cost.mean() for margin, cost in find_costs(data, rows, settings, prior).items()}
    lowest = min(costs.values())
    return Guards(next(margin for margin in MARGINS if costs[margin] <= lowest + MARGIN_TOLERANCE))


def find_costs(
    data: Dataset, rows: ConfigRows, settings: Settings, prior: Examples | None = None
) -> dict[float, np.ndarray]:
    """Return {margin: cost of each problem's choice, F64[P]} on families that the trees did not see; the problems are
    those of `rows` in ascending order.

    A config that was not timed cannot be chosen here: nothing says what it would have cost.
    """
    is_timed = data.state[rows.problem, rows.column] != UNMEASURED
    ranked = rows.where(is_timed & (rows.place != UNRANKED))
    columns, scores = lay_out(data, ranked, predict_left_out(data, rows, ranked, settings, prior))
    problems, costs = np.unique(rows.problem), {}
    for margin in MARGINS:
        chosen = apply_guards(columns[problems], scores[problems], margin).column
        costs[margin] = cost_of(np.clip(data.log_ratio[problems, chosen], -LOG_TWO, LOG_TWO))
    return costs


def cost_of(log_ratio: np.ndarray) -> np.ndarray:
    """Return the log times against the heuristic, with losses counted twice and large ones more."""
    large = LARGE_WEIGHT * np.maximum(log_ratio - LARGE_LOSS, 0.0)
    return log_ratio + np.maximum(log_ratio, 0.0) + large


def predict_left_out(
    data: Dataset, rows: ConfigRows, wanted: ConfigRows, settings: Settings, prior: Examples | None = None
) -> np.ndarray:
    """Return the predictions (see `predict`) for the rows `wanted` of trees that never saw the row's family, nor a
    weight near it, unless it is among the examples from elsewhere.

    They are infinite where nothing is left to learn from, so that the heuristic's pick stays: a margin that no fold can
    judge is the largest.
    """
    predicted, problems = np.full(len(wanted.problem), np.inf), np.unique(rows.problem)
    for split in split_families([data.problems[row] for row in problems], data.families[problems], GUARD_FOLDS):
        asked, kept = np.isin(wanted.problem, problems[split.held_out]), rows.of(problems[split.kept])
        if asked.any() and (split.kept.any() or prior is not None):
            forest, own = fit_trees(data, kept, settings.of_trees(), prior), wanted.where(asked)
            inside = is_inside(own.features, *widen(join_features(kept, prior), SLACK))
            predicted[asked] = predict(own, forest.predict(own.features), inside)
    return predicted
