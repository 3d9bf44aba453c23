"""Which configs of a problem to measure next: all of them, or batches that optuna proposes.

Optuna only proposes. A study lives in memory, one per problem; when a sweep resumes, the study is told its history
again from the rows of the database. A proposal that was measured before is answered from memory, and one that is no
candidate is answered as failed. Only one process asks.
"""

import math
import random
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tuner import errors

SAMPLERS = ("auto", "exhaustive", "tpe", "random", "qmc")
#: `auto` measures every config of a space that is not larger than this.
EXHAUSTIVE_LIMIT = 256
BATCH_SIZE = 24
#: TPE starts from this many configs: those with the best estimates, or random ones.
NUM_STARTING = 12
#: The parameters of a config, see `describe`. Those in ORDERED are ranks with similar neighbours, the others
#: categories.
PARAMETERS = ("rows", "columns", "sharing", "depth")
ORDERED = ("columns", "depth")
#: Asks per new config before the rest of a batch is drawn at random: in a small space TPE often repeats itself.
ASKS_PER_CONFIG = 3


class Outcome(NamedTuple):
    """What measuring one config gave: the log of its ratio to the reference, None after a failure.

    `status` is `ok`, `censored` (the ratio is a lower bound) or a failure's.
    """

    config: Any
    log_ratio: float | None
    status: str


class Budget(NamedTuple):
    """How long a search goes on: until it has measured `number` of the configs in `counted`."""

    counted: frozenset
    number: int


def choose_sampler(name: str, space_size: int) -> str:
    """Return the sampler that `auto` stands for on a space of this size. Raises: UsageError for an unknown name."""
    if name not in SAMPLERS:
        raise errors.UsageError(f"--sampler {name}: must be one of {', '.join(SAMPLERS)}")
    if name != "auto":
        return name
    return "exhaustive" if space_size <= EXHAUSTIVE_LIMIT else "tpe"


def default_trials(space_size: int) -> int:
    """Return how many configs a search measures by default: a third of the space, but at least two batches."""
    return min(space_size, max(2 * BATCH_SIZE, math.ceil(space_size / 3)))


class OptunaProposer:
    """Proposes batches of candidates from one optuna study, which lives in memory.

    `estimates` are predicted times by config: TPE begins with the best of these configs instead of random ones.
    """

    def __init__(self, candidates: Sequence, sampler: str, seed: int, estimates: dict | None = None):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.optuna, self.random = optuna, random.Random(seed)
        self.parameters = dict(zip(candidates, describe(candidates), strict=True))
        self.configs = {freeze(parameters): config for config, parameters in self.parameters.items()}
        occurring = {name: {parameters[name] for parameters in self.parameters.values()} for name in PARAMETERS}
        self.distributions = {name: make_distribution(optuna, name, values) for name, values in occurring.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self.study = optuna.create_study(direction="minimize", sampler=make_sampler(optuna, sampler, seed))
        known = estimates if estimates and sampler == "tpe" else {}
        self.first = sorted((config for config in candidates if config in known), key=known.__getitem__)[:NUM_STARTING]
        self.known: dict = {}
        self.pending: dict = {}

    def propose(self, count: int) -> list:
        """Return up to `count` candidates without a result, all different."""
        batch = [config for config in self.first if config not in self.known][:count]
        for _ in range(count * ASKS_PER_CONFIG):
            if len(batch) == count or len(batch) + len(self.known) == len(self.parameters):
                break
            trial = self.study.ask(self.distributions)
            config = self.configs.get(freeze(trial.params))
            if config in self.known:
                self.answer(trial, *self.known[config])
            elif config is None or config in batch:
                self.answer(trial, None, "skipped")
            else:
                self.pending[config] = trial
                batch.append(config)
        return batch + self.draw(count - len(batch), batch)

    def draw(self, count: int, batch: list) -> list:
        """Return up to `count` random candidates that are neither known nor in `batch`."""
        rest = [config for config in self.parameters if config not in self.known and config not in batch]
        return self.random.sample(rest, min(max(count, 0), len(rest)))

    def answer(self, trial, log_ratio: float | None, status: str) -> None:
        """Finish a trial that was asked for: with a value, as failed, or as pruned where the value is a lower bound."""
        states = self.optuna.trial.TrialState
        if log_ratio is None:
            self.study.tell(trial, state=states.FAIL)
        elif status == "ok":
            self.study.tell(trial, log_ratio)
        else:
            trial.report(log_ratio, 1)
            self.study.tell(trial, state=states.PRUNED)

    def tell(self, outcomes: Iterable[Outcome]) -> None:
        """Take outcomes, of proposals or of an earlier sweep."""
        for config, log_ratio, status in outcomes:
            if config not in self.parameters or config in self.known:
                continue
            self.known[config] = (log_ratio, status)
            if config in self.pending:
                self.answer(self.pending.pop(config), log_ratio, status)
            else:
                self.study.add_trial(self.make_trial(config, log_ratio, status))

    def make_trial(self, config, log_ratio: float | None, status: str):
        """Return a finished trial.

        A censored one has its lower bound as an intermediate value, by which TPE ranks it.
        """
        states = self.optuna.trial.TrialState
        state = states.FAIL if log_ratio is None else states.COMPLETE if status == "ok" else states.PRUNED
        return self.optuna.trial.create_trial(
            state=state,
            params=self.parameters[config],
            distributions=self.distributions,
            value=log_ratio if state == states.COMPLETE else None,
            intermediate_values={1: log_ratio} if state == states.PRUNED and log_ratio is not None else None,
        )


def make_sampler(optuna, name: str, seed: int):
    """Return optuna's sampler of that name."""
    samplers = optuna.samplers
    if name == "tpe":
        return samplers.TPESampler(seed=seed, n_startup_trials=NUM_STARTING, constant_liar=True, multivariate=True)
    return samplers.QMCSampler(seed=seed, scramble=True) if name == "qmc" else samplers.RandomSampler(seed=seed)


def make_distribution(optuna, name: str, values: set):
    """Return optuna's distribution of one parameter over the values that occur."""
    if name in ORDERED:
        return optuna.distributions.IntDistribution(min(values), max(values))
    return optuna.distributions.CategoricalDistribution(sorted(values))


def describe(candidates: Sequence) -> list[dict]:
    """Return the parameters of each candidate; different candidates have different parameters.

    The parameters are chosen so that most combinations are candidates:
        rows      the side of the tile along the MMA's rows
        columns   the rank of the side along its columns
        sharing   order of the operands, cluster, split of K
        depth     the rank of num_stages among candidates that differ in nothing else, 0 being the deepest: the number
                  of stages itself means little across tiles
    """
    depths: dict[tuple, list[int]] = {}
    for config in candidates:
        depths.setdefault(tile_of(config), []).append(config.num_stages)
    ranked = {tile: sorted(stages, reverse=True) for tile, stages in depths.items()}
    widths = {width: rank for rank, width in enumerate(sorted({sides_of(config)[1] for config in candidates}))}
    return [
        {
            "rows": sides_of(config)[0],
            "columns": widths[sides_of(config)[1]],
            "sharing": (
                f"{'swap' if config.swap_ab else 'plain'} {config.cluster_m}x{config.cluster_n} k{config.split_k}"
            ),
            "depth": ranked[tile_of(config)].index(config.num_stages),
        }
        for config in candidates
    ]


def sides_of(config) -> tuple[int, int]:
    """Return the sides of the tile along the MMA's rows and along its columns."""
    return (config.block_n, config.block_m) if config.swap_ab else (config.block_m, config.block_n)


def tile_of(config) -> tuple:
    """Return everything of a config but its stages."""
    return tuple(value for name, value in config.as_dict().items() if name != "num_stages")


def freeze(parameters: dict) -> tuple:
    """Return a hashable form of a trial's parameters."""
    return tuple(sorted(parameters.items()))
