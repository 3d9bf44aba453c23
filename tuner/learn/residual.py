"""The rows that the trees learn from, and the trees: log(measured time / analytic estimate) of single configs.

There is one row per problem and config. Its target is log(measured time / estimate) less the problem's own mean, since
only differences between the configs of a problem decide. Rows near the problem's best count most. Boosted trees are
fitted to all rows of an op kind. At run time the estimate ranks all candidates, and the trees are asked about the first
few of them: `_C.get_shortlist` names these, here as there.
"""

from typing import NamedTuple

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from deep_gemm import _C
from tuner.learn.dataset import UNMEASURED, Dataset
from tuner.learn.forest import Forest, flatten

#: Values of a feature that a fit tells apart, as many as the histograms of scikit-learn have bins.
MAX_LEVELS = 255

#: The configs with the smallest estimates that are learned from. The run time chooses among the first `_C.NUM_RANKED`:
#: with these, hindsight leaves at most 0.6 % of mean regret on any op kind of the recorded H200.
NUM_LEARNED = 16
#: Rows this near to the problem's best (log time) are learned from, whatever the estimate says of them.
NEAR = 0.1
#: Slower rows than this count as this slow (log time).
SLOWEST = 0.25
#: Weight of a row: exp(-log time behind the best / WEIGHT_SCALE) + LEAST_WEIGHT. Slow rows need weight, too: they are
#: what a choice must not fall for.
WEIGHT_SCALE, LEAST_WEIGHT = 0.05, 0.5
#: A tree of this depth has at most the 32 leaves that the run time takes.
MAX_DEPTH, FEATURE_SHARE = 5, 0.5
#: The least rows of a leaf: one of ROWS_PER_LEAF, within these bounds. Op kinds with a tenth of the rows of the largest
#: ones need smaller leaves to tell their few shapes apart.
ROWS_PER_LEAF, MIN_LEAF = 600, (4, 20)
#: Rows of average weight that each leaf has besides its own, with 0 as their target: of the smallest leaves, and of
#: others. Few shapes decide a small leaf: with 1 row, choices for masked problems that no preset has were up to 17 %
#: slower than the heuristic's, depending on the seed; with 11 they were not (on the problems by which 11 was chosen).
#: Dense BF16 is 0.1 % better with 1.
ROWS_OF_ZERO = (11.0, 1.0)
#: The place of rows that only training sees.
UNRANKED = 1 << 16


class ConfigRows(NamedTuple):
    """N rows, one for a config of a problem, both as row and column of a Dataset.

    `features` F32[N,F] are what the run time sees. `place` I64[N] is the config's place in the run time's shortlist,
    the heuristic's pick first; UNRANKED for a config that is only learned from.
    """

    problem: np.ndarray
    column: np.ndarray
    features: np.ndarray
    place: np.ndarray

    @property
    def estimate(self) -> np.ndarray:
        """Return log(estimate / estimate of the tile that features are relative to), F64[N]."""
        return self.features[:, -1].astype(np.float64)

    def of(self, problems: np.ndarray) -> "ConfigRows":
        """Return the rows of some problems."""
        return self.where(np.isin(self.problem, problems))

    def where(self, mask: np.ndarray) -> "ConfigRows":
        """Return the rows that a mask names."""
        return ConfigRows(*(array[mask] for array in self))


class TreeSettings(NamedTuple):
    """The size of the trees: their number, the leaves of each, the share that each adds, the least rows of a leaf (0:
    by the number of all rows), and the seed.
    """

    trees: int
    leaves: int
    rate: float
    min_leaf: int
    seed: int


def make_config_rows(data: Dataset, problems: np.ndarray | None = None) -> ConfigRows:
    """Return the rows of all problems, or of some I64[P]: the shortlist of NUM_LEARNED tiles as far as it is in the
    table, and the configs near the best.
    """
    column = {config: index for index, config in enumerate(data.configs)}
    parts = []
    for row in range(len(data.problems)) if problems is None else problems.tolist():
        problem = data.problems[row]
        places = find_places(data, column, row)
        timed = np.where(data.state[row] != UNMEASURED, data.log_ratio[row], np.inf)
        for index in np.flatnonzero(data.candidate[row] & (timed < timed.min() + NEAR)).tolist():
            places.setdefault(index, UNRANKED)
        configs = [data.configs[index] for index in places]
        features = _C.get_config_features(problem, data.device, configs).astype(np.float32)
        parts.append((np.full(len(places), row), list(places), features, list(places.values())))
    return ConfigRows(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def find_places(data: Dataset, column: dict, row: int) -> dict[int, int]:
    """Return {column: place} of what the run time would ask the trees about for the problem of `row`, and of the tiles
    behind that, which are UNRANKED.

    A tile counts with the knobs of the main loop and without them where both were timed, else as it was timed: an
    artefact of data without knobs chooses none, because they are outside its hull.
    """
    problem, banned = data.problems[row], data.find_banned(data.problems[row])
    shortlist = _C.get_shortlist(problem, data.device, NUM_LEARNED, **data.late_kinds)
    num_ranked = len(_C.get_shortlist(problem, data.device, _C.NUM_RANKED, **data.late_kinds))
    tiles = [_C.without_loop_knobs(config) for config in shortlist]
    known = [column.get(config, -1) for config in shortlist]
    timed = [index >= 0 and data.state[row, index] != UNMEASURED for index in known]
    is_tile_timed = {tile for tile, is_timed in zip(tiles, timed, strict=True) if is_timed}
    places = {}
    for place, (config, index) in enumerate(zip(shortlist, known, strict=True)):
        is_shown = timed[place] or (config == tiles[place] and config not in is_tile_timed)
        if index >= 0 and is_shown and data.legal[row, index] and config not in banned:
            places[index] = place if place < num_ranked else UNRANKED
    pick = int(data.heuristic[row])
    if data.configs[pick] != shortlist[0]:  # it stands in for the first, see entries.find_pick
        places = {index: place for index, place in places.items() if place != 0} | {pick: 0}
    return places


class Examples(NamedTuple):
    """What trees are fitted to: features F32[N,F], and the centred residual and the weight of each row, F64[N]."""

    features: np.ndarray
    targets: np.ndarray
    weights: np.ndarray


def make_examples(data: Dataset, rows: ConfigRows) -> Examples:
    """Return the measured ones of `rows` as examples."""
    rows = rows.where(data.state[rows.problem, rows.column] != UNMEASURED)
    return Examples(rows.features, *make_row_targets(data, rows))


def fit_trees(data: Dataset, rows: ConfigRows, settings: TreeSettings, prior: Examples | None = None) -> Forest:
    """Fit to the measured ones of `rows`, and to examples from elsewhere. The same input and settings give the same
    trees.
    """
    examples = make_examples(data, rows)
    if prior is not None:
        examples = Examples(*(np.concatenate(pair) for pair in zip(examples, prior, strict=True)))
    return fit_examples(examples, settings)


def choose_min_leaf(settings: TreeSettings, count: int) -> int:
    """Return the least rows of a leaf of trees that are fitted to `count` rows."""
    return settings.min_leaf or min(max(count // ROWS_PER_LEAF, MIN_LEAF[0]), MIN_LEAF[1])


def fit_examples(examples: Examples, settings: TreeSettings) -> Forest:
    """Fit boosted trees to examples."""
    features, targets, weights = examples
    columns = np.flatnonzero(np.ptp(features, axis=0) > 0)
    min_leaf = choose_min_leaf(settings, len(targets))
    model = HistGradientBoostingRegressor(
        max_iter=settings.trees,
        learning_rate=settings.rate,
        max_leaf_nodes=settings.leaves,
        max_depth=MAX_DEPTH,
        min_samples_leaf=min_leaf,
        max_features=FEATURE_SHARE,
        l2_regularization=ROWS_OF_ZERO[min_leaf > MIN_LEAF[0]] * float(weights.mean()),
        early_stopping=False,
        random_state=settings.seed,
    )
    with threadpool_limits(1, user_api="openmp"):  # a few thousand rows: threads would wait for each other
        model.fit(round_features(features[:, columns]), targets, sample_weight=weights)
    return flatten(model, columns)


def round_features(features: np.ndarray) -> np.ndarray:
    """Return F32[N,F] with at most MAX_LEVELS values in a column, each of them one of the column's own.

    The trees tell no more values apart anyhow. Finding which, with weights, took 90 % of the time of a fit.
    """
    rounded = features.copy()
    for column in rounded.T:
        levels = np.unique(column)
        if len(levels) > MAX_LEVELS:
            levels = np.unique(np.quantile(column, np.linspace(0.0, 1.0, MAX_LEVELS), method="nearest"))
            column[:] = levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, column)]
    return rounded


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
