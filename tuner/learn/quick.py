"""Calibrating the selector of one op kind by a few problems, on top of what other kernels or another GPU taught.

The trees start from the prior alone. A round measures the problems on which they are least sure, scores the choices
that they made before they learned of them, and fits again, with the prior at low weight. Where the first round shows
that the prior's choices are good, its trees stay as they are. Rounds end when the score does not get better.

Everything here is arithmetic on tables; who measures is up to the caller.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from deep_gemm import _C
from tuner import errors
from tuner.db.rows import Identity
from tuner.learn.dataset import Dataset, build_dataset
from tuner.learn.families import find_families
from tuner.learn.learner import Choices, Learned, Settings, adjust, choose, fit, is_inside, list_ranked
from tuner.learn.portfolio import choose_portfolio
from tuner.learn.residual import ConfigRows, Examples, fit_examples, make_config_rows, make_examples
from tuner.learn.sources import recorded_boards
from tuner.learn.validate import Fold, FoldResult
from tuner.problems.regimes import is_own, is_sentinel, is_simulated, name_rested
from tuner.problems.shapes import load_preset, preset_names

#: Weight of the prior's rows beside a new row's 1: a few problems must be able to say otherwise.
PRIOR_WEIGHT = 0.1
#: Problems of a round.
ROUND = 8
#: The prior's trees stay as they are where the mean regret of the first round is at most this.
KEPT_MEAN = 0.015
#: Rounds end where the mean regret is below the first limit, or not by the second better than a round before.
GOOD, BETTER = 0.005, 0.002
#: Forests whose disagreement says how unsure the trees are; each sees a share of the problems.
MEMBERS, SEEN_SHARE = 4, 0.6
#: Uncertainty (log time) where the trees would not answer.
UNANSWERED = 0.5
#: Presets whose problems may be measured: not those that need a search, nor a demonstration.
SKIPPED = ("demo", "wide")


def list_priors(store, sku: str, op: str, kernel_hash: str, backend: str = "cuda") -> Iterator[Dataset]:
    """Yield the tables that a calibration may start from, the best first: of other kernels on `sku`, the newest first;
    then, where that names a lower power limit, of the model at its default limit; then of other GPU models. Of these
    two, those with most rows come first. One of fewer than two usable problems is left out.

    Simulated times are a prior of simulated ones alone.
    """
    rows = [
        row
        for row in store.load_measurements(op=op)
        if not is_sentinel(row.block.regime) and (backend == "simulated" or not is_simulated(row.block.regime))
    ]
    boards = recorded_boards(store)
    steady = [row for row in rows if is_own(row.block.regime) and row.block.sku in boards]
    for identity in order_priors(steady, sku, kernel_hash):
        both = identity, replace(identity, regime=name_rested(identity.regime))
        try:
            data = build_dataset([row for row in rows if row.block.identity in both], identity, boards[identity.sku])
        except errors.InconclusiveError:
            continue
        yield data


def order_priors(rows: list, sku: str, kernel_hash: str) -> list[Identity]:
    """Return the identities of rows that a calibration may start from, see list_priors."""
    counts = Counter(row.block.identity for row in rows)
    newest: dict[Identity, str] = {}
    for row in rows:
        newest[row.block.identity] = max(newest.get(row.block.identity, ""), row.block.created)
    own = [one for one in counts if one.sku == sku and one.kernel_hash != kernel_hash]
    others = [one for one in counts if one.sku != sku]
    own.sort(key=lambda one: newest[one], reverse=True)
    others.sort(key=lambda one: (one.sku == _C.base_sku(sku), counts[one]), reverse=True)
    return own + others


def find_prior(store, sku: str, op: str, kernel_hash: str, backend: str = "cuda") -> Dataset | None:
    """Return the best table that a calibration may start from, see list_priors, None where there is none."""
    return next(list_priors(store, sku, op, kernel_hash, backend), None)


def list_pool(op: str) -> list:
    """Return the problems of one op kind in the presets, in a fixed order."""
    found = [problem for name in preset_names() if name not in SKIPPED for problem in load_preset(name)]
    return list(dict.fromkeys(problem for problem in found if problem.op == op))


@dataclass
class Source:
    """A table, its rows, and the weight of an example of it."""

    data: Dataset
    rows: ConfigRows
    weight: float

    def make_examples(self, problems: np.ndarray) -> Examples:
        """Return the examples of some of the table's problems."""
        examples = make_examples(self.data, self.rows.of(problems))
        return examples._replace(weights=self.weight * examples.weights)

    def draw(self, seed: int) -> Examples:
        """Return the examples of a random SEEN_SHARE of the problems."""
        is_seen = np.random.default_rng(seed).random(len(self.data.problems)) < SEEN_SHARE
        return self.make_examples(np.flatnonzero(is_seen) if is_seen.any() else np.arange(len(is_seen)))


def make_source(data: Dataset, weight: float) -> Source:
    """Return a table as a source of examples."""
    return Source(data, make_config_rows(data), weight)


@dataclass(frozen=True)
class Round:
    """What a round measured: its problems, and the choices that the trees made for them before."""

    problems: list
    configs: dict
    answered: dict
    mean: float
    heuristic: float


@dataclass
class Calibration:
    """The state of one op kind: `learned` chooses so far; `is_kept`: these are still the prior's trees; `is_given_up`:
    a round found nothing that it could measure.
    """

    op: str
    device: _C.Device
    prior: Source
    pool: list
    settings: Settings = field(default_factory=Settings)
    rounds: list[Round] = field(default_factory=list)
    is_kept: bool = True
    is_given_up: bool = False

    def __post_init__(self) -> None:
        data = self.prior.data
        self.learned: Learned = fit(data, np.arange(len(data.problems)), self.settings, self.prior.rows)
        self.own: Source | None = None

    @property
    def measured(self) -> set:
        """Return the problems of all rounds."""
        return {problem for each in self.rounds for problem in each.problems}

    @property
    def is_done(self) -> bool:
        """Return whether a further round is not worth it."""
        if self.is_given_up or not self.rounds:
            return self.is_given_up
        means = [each.mean for each in self.rounds]
        is_flat = len(means) > 1 and means[-1] > min(means[:-1]) - BETTER
        return self.is_kept or is_flat or means[-1] <= GOOD or len(self.measured) == len(self.pool)

    def choose_batch(self) -> list:
        """Return the problems of the next round: those that the trees are least sure of, each of another family."""
        known = self.measured
        pool = [problem for problem in self.pool if problem not in known]
        doubts, families = self.measure_doubt(pool), find_families(pool)
        order = sorted(range(len(pool)), key=lambda place: (-doubts[place], pool[place].key))
        first: dict[int, int] = {}
        for place in order:
            first.setdefault(int(families[place]), place)
        chosen = list(first.values())[:ROUND]
        return [pool[place] for place in (*chosen, *(each for each in order if each not in chosen))][:ROUND]

    def measure_doubt(self, problems: list) -> np.ndarray:
        """Return per problem what the forests of a committee expect that its common choice loses (log time)."""
        sources = [source for source in (self.prior, self.own) if source is not None]
        forests = [
            fit_examples(join([source.draw(seed) for source in sources]), self.settings.of_trees()._replace(seed=seed))
            for seed in range(MEMBERS)
        ]
        low, high = self.learned.feature_min, self.learned.feature_max
        doubts = np.empty(len(problems))
        for place, problem in enumerate(problems):
            shortlist = list_ranked(problem, self.device, (low, high))
            features = _C.get_config_features(problem, self.device, shortlist).astype(np.float32)
            inside = is_inside(features, low, high)
            if not inside[0]:  # the heuristic's pick: the run time then keeps it
                doubts[place] = UNANSWERED
                continue
            times = np.array([adjust(features[:, -1], forest.predict(features), inside) for forest in forests])
            chosen = int(times.mean(axis=0).argmin())
            doubts[place] = (times[:, chosen] - times.min(axis=1)).mean()
        return doubts

    def learn(self, batch: list, data: Dataset) -> Round:
        """Score the choices for a batch that was measured into `data`, the table of all rounds, and fit again.

        Problems that could not be measured are left out of the round. What the table has of problems that no round
        measured is not learned from: a later round may score them.
        """
        rows, source = make_config_rows(data), make_source(data, 1.0)
        places = np.array([place for place, problem in enumerate(data.problems) if problem in batch], int)
        found = self.score(data, places, choose(data, places, self.learned, rows))
        self.rounds.append(replace(found, problems=batch))
        self.own = source
        self.is_kept = len(self.rounds) == 1 and found.mean <= min(KEPT_MEAN, found.heuristic)
        if not self.is_kept:
            prior = self.prior.make_examples(np.arange(len(self.prior.data.problems)))
            known = self.measured
            seen = np.array([place for place, problem in enumerate(data.problems) if problem in known], int)
            self.learned = fit(data, seen, self.settings, rows, prior)
        return self.rounds[-1]

    def score(self, data: Dataset, places: np.ndarray, choices: Choices) -> Round:
        """Return the round of the problems at `places` of a table, for which the choices were made."""
        configs = {
            data.problems[place]: {
                "model": data.configs[column],
                "model_alone": data.configs[alone],
                "heuristic": data.configs[data.heuristic[place]],
            }
            for place, column, alone in zip(places, choices.column, choices.alone, strict=True)
        }
        means = [
            float(np.expm1(data.regret_log(places, columns).mean())) if len(places) else 0.0
            for columns in (choices.column, data.heuristic[places])
        ]
        answered = dict(zip(configs, choices.answered.tolist(), strict=True))
        return Round(list(configs), configs, answered, *means)

    def finish(self) -> Learned:
        """Return the fitted selector with the portfolio of the measured problems."""
        assert self.own is not None
        data = self.own.data
        portfolio = choose_portfolio(data, np.arange(len(data.problems)), self.settings.sizes)
        return replace(self.learned, portfolio=portfolio)

    def make_results(self) -> list[FoldResult]:
        """Return the rounds as folds of the split "rounds", from which the statistics follow."""
        assert self.own is not None
        data = self.own.data
        column = {config: index for index, config in enumerate(data.configs)}
        found = []
        for number, each in enumerate(self.rounds, 1):
            places = np.array([place for place, problem in enumerate(data.problems) if problem in each.configs], int)
            chosen = [each.configs[data.problems[place]] for place in places]
            columns = {
                method: np.array([column[one[method]] for one in chosen], int)
                for method in ("model", "model_alone", "heuristic")
            }
            fold = Fold("rounds", f"round {number}", np.isin(np.arange(len(data.problems)), places))
            answered = np.array([each.answered[data.problems[place]] for place in places], bool)
            found.append(FoldResult(fold, places, columns, answered, [], self.settings.seed))
        return found


def join(parts: list[Examples]) -> Examples:
    """Return the examples of several sources as one."""
    return Examples(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
