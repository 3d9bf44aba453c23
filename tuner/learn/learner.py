"""Fitting one selector: portfolio, forest and guards, all from the given rows alone, so that validation can repeat it.

For each config of the portfolio the forest predicts log(time of the config / time of the heuristic's pick): zero means
"as fast as the heuristic". The guards (margin, spread, slack of the hull) are fitted on predictions for families that
the forest did not see.
"""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor

from deep_gemm import _C
from tuner.learn.dataset import LOG_TWO, UNMEASURED, Dataset
from tuner.learn.forest import Forest, flatten
from tuner.learn.portfolio import SIZES, Portfolio, choose_portfolio, split_families

KINDS = {"random-forest": RandomForestRegressor, "extra-trees": ExtraTreesRegressor}
#: Guards to try. Equal scores keep the earlier ones: those that silence the model least often, and that ask it for the
#: largest gain over the heuristic's pick.
SLACKS = (0.5, 0.25, 0.1, 0.0)
SPREAD_QUANTILES = (1.0, 0.95, 0.9, 0.8)
MARGINS = (0.03, 0.02, 0.015, 0.01, 0.005, 0.0)
#: Guards must let the model answer at least this share of left-out problems.
MIN_ANSWERED = 0.75
GUARD_FOLDS = 3
#: What a guard must gain (log time) over an earlier one.
GUARD_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Settings:
    """What is not fitted, but chosen once for all folds and SKUs.

    `kind` is one of KINDS, or `auto` for the better one on left-out families. Log ratios beyond `clip` count as equal:
    such configs are never chosen, and the trees should spend their splits on differences that matter. `boosted` is the
    number of trees of the residual.
    """

    kind: str = "extra-trees"
    trees: int = 32
    depth: int = 10
    min_leaf: int = 2
    max_features: float = 0.3
    clip: float = 0.25
    sizes: tuple = SIZES
    boosted: int = 100
    seed: int = 0


@dataclass(frozen=True)
class Guards:
    """When the heuristic's pick is kept.

    The model must predict a gain of at least `margin` (log time); its trees must differ by at most `max_spread`
    (standard deviation); and every feature must lie in the hull of the training data, widened by `slack` of its extent.
    """

    margin: float
    max_spread: float
    slack: float


@dataclass(frozen=True)
class Learned:
    """One fitted selector. `feature_min`, `feature_max` F64[F] already include the slack."""

    portfolio: Portfolio
    kind: str
    forest: Forest
    guards: Guards
    feature_min: np.ndarray
    feature_max: np.ndarray


@dataclass(frozen=True)
class Choices:
    """A selector's choice per row: the column with guards and without (`alone`), and whether the model answered."""

    column: np.ndarray
    alone: np.ndarray
    answered: np.ndarray


def fit(data: Dataset, rows: np.ndarray, settings: Settings, portfolio: Portfolio | None = None) -> Learned:
    """Fit portfolio, guards and forest on `rows` alone."""
    portfolio = portfolio or choose_portfolio(data, rows, settings.sizes)
    features = make_features(data, rows, portfolio.columns)
    targets = make_targets(data, rows, portfolio.columns, settings.clip)
    kinds = KINDS if settings.kind == "auto" else (settings.kind,)
    fitted = {
        kind: fit_guards(data, rows, portfolio.columns, features, targets, replace(settings, kind=kind))
        for kind in kinds
    }
    kind = min(fitted, key=lambda kind: fitted[kind][1])
    guards = fitted[kind][0]
    return Learned(
        portfolio,
        kind,
        fit_forest(features, targets, replace(settings, kind=kind)),
        guards,
        *widen(features, guards.slack),
    )


def make_features(data: Dataset, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the features that the run time computes, F64[len(rows), F]."""
    portfolio = [data.configs[column] for column in columns]
    return np.array([_C.get_features(data.problems[row], data.device, portfolio) for row in rows])


def make_targets(data: Dataset, rows: np.ndarray, columns: np.ndarray, clip: float = LOG_TWO) -> np.ndarray:
    """Return log ratios within [-LOG_TWO, clip], F64[len(rows), P].

    A config that is no candidate of a problem counts as `clip`. The few candidates without a time get the analytic
    estimate, so that a gap in the data is neither a win nor a loss.
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
    return np.clip(targets, -LOG_TWO, clip)


def fit_forest(features: np.ndarray, targets: np.ndarray, settings: Settings) -> Forest:
    """Fit the forest; the same input and seed give the same trees, whatever the number of threads."""
    return flatten(fit_ensemble(features, targets, settings))


def fit_ensemble(features: np.ndarray, targets: np.ndarray, settings: Settings):
    """Fit scikit-learn's ensemble."""
    return KINDS[settings.kind](
        n_estimators=settings.trees,
        max_depth=settings.depth,
        min_samples_leaf=settings.min_leaf,
        max_features=settings.max_features,
        random_state=settings.seed,
    ).fit(features.astype(np.float32), targets)


def predict(forest: Forest, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and the spread between trees, both F64[R,P]; trees are added in the order of the native walk."""
    trees = forest.predict(features.astype(np.float32))
    total = np.zeros(trees.shape[1:])
    for values in trees:
        total += values
    return total / len(trees), trees.std(axis=0)


def widen(features: np.ndarray, slack: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the hull of training features, widened on both sides by `slack` times its extent."""
    low, high = features.min(axis=0), features.max(axis=0)
    extent = slack * (high - low)
    return low - extent, high + extent


def is_inside(features: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return per row whether every feature lies in the hull (the run time's 1e-6 relative slack included)."""
    slack = 1e-6 * np.maximum(np.abs(low), np.abs(high))
    return ((features >= low - slack) & (features <= high + slack)).all(axis=1)


def choose(data: Dataset, rows: np.ndarray, learned: Learned) -> Choices:
    """Return what `learned` chooses for `rows`."""
    columns = learned.portfolio.columns
    features = make_features(data, rows, columns)
    scores, spreads = predict(learned.forest, features)
    inside = is_inside(features, learned.feature_min, learned.feature_max)
    scores = np.where(data.legal[np.ix_(rows, columns)], scores, np.inf)
    return apply_guards(columns, data.heuristic[rows], scores, spreads, inside, learned.guards)


def apply_guards(
    columns: np.ndarray,
    heuristic: np.ndarray,
    scores: np.ndarray,
    spreads: np.ndarray,
    inside: np.ndarray,
    guards: Guards,
) -> Choices:
    """Apply the rule: take the config with the lowest score if it beats the margin, else the heuristic's pick.

    The model does not answer where a guard objects, or where no config is legal. Illegal configs must have an infinite
    score.
    """
    every, best = np.arange(len(scores)), scores.argmin(axis=1)
    alone = np.where(scores[every, best] < -guards.margin, columns[best], heuristic)
    answered = inside & (spreads[every, best] <= guards.max_spread) & np.isfinite(scores[every, best])
    return Choices(np.where(answered, alone, heuristic), alone, answered)


def fit_guards(
    data: Dataset, rows: np.ndarray, columns: np.ndarray, features: np.ndarray, targets: np.ndarray, settings: Settings
) -> tuple[Guards, float]:
    """Return the guards with the lowest cost on families that the forest did not see, and that cost."""
    scores, spreads, hulls = predict_left_out(data.families[rows], features, targets, settings)
    scores = np.where(data.legal[np.ix_(rows, columns)], scores, np.inf)
    truth = np.clip(data.log_ratio[rows], -LOG_TWO, LOG_TWO)
    best_spread = spreads[np.arange(len(rows)), scores.argmin(axis=1)]
    chosen, lowest = Guards(MARGINS[0], float(best_spread.max()), SLACKS[0]), np.inf
    for slack, quantile, margin in product(SLACKS, SPREAD_QUANTILES, MARGINS):
        guards = Guards(margin, float(np.quantile(best_spread, quantile)), slack)
        choices = apply_guards(columns, data.heuristic[rows], scores, spreads, hulls[slack], guards)
        loss = cost_of(truth[np.arange(len(rows)), choices.column])
        if choices.answered.mean() >= MIN_ANSWERED and loss < lowest - GUARD_TOLERANCE:
            chosen, lowest = guards, loss
    return chosen, lowest


def cost_of(log_ratio: np.ndarray) -> float:
    """Return the mean log time against the heuristic, with losses counted twice."""
    return float((log_ratio + np.maximum(log_ratio, 0.0)).mean())


def predict_left_out(
    families: np.ndarray, features: np.ndarray, targets: np.ndarray, settings: Settings
) -> tuple[np.ndarray, np.ndarray, dict]:
    """Return scores and spreads of forests that never saw the row's family, and per slack whether it is in the hull."""
    scores, spreads = np.zeros(targets.shape), np.zeros(targets.shape)
    inside = {slack: np.zeros(len(features), bool) for slack in SLACKS}
    for fold in split_families(families, GUARD_FOLDS):
        kept = ~fold if not fold.all() else fold
        if not fold.any():
            continue
        scores[fold], spreads[fold] = predict(fit_forest(features[kept], targets[kept], settings), features[fold])
        for slack in SLACKS:
            inside[slack][fold] = is_inside(features[fold], *widen(features[kept], slack))
    return scores, spreads, inside
