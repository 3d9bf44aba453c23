"""How much of a space is measured, and what measuring a config tells a search."""

import importlib.util
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from tuner import errors
from tuner.measured import TIMED

#: What orders or proposes the configs of a search. `forest` and `analytic` are fixed orders: the predicted time, with
#: the trees of the installed selector or the heuristic's estimate alone. docs/search.md compares them.
ORDERS = ("forest", "analytic")
SAMPLERS = ("auto", "exhaustive", *ORDERS, "tpe", "gp", "cmaes", "random", "qmc")
#: `auto` measures every config of a space that is not larger than this, and searches a larger one by the sampler that
#: found the best configs at equal budget.
EXHAUSTIVE_LIMIT = 256
SEARCH_SAMPLER = "forest"
#: Configs that are raced together, and told to the study together.
BATCH_SIZE = 8
LEAST_TRIALS = 48


class Outcome(NamedTuple):
    """What measuring one config gave: the log of its ratio to the reference, None after a failure.

    `status` is `ok`, `censored` (the ratio is a lower bound) or a failure's. `ratio_low` and `ratio_high`: the interval
    of the ratio, from `num_samples` rounds.
    """

    config: Any
    log_ratio: float | None
    status: str
    num_samples: int | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None


class Budget(NamedTuple):
    """How long a search goes on: until it has measured `number` of the configs in `counted`."""

    counted: frozenset
    number: int


def choose_sampler(name: str, space_size: int) -> str:
    """Return the sampler that `auto` stands for on a space of this size. Raises: UsageError for an unknown name, or one
    whose package is missing.
    """
    if name not in SAMPLERS:
        raise errors.UsageError(f"--sampler {name}: must be one of {', '.join(SAMPLERS)}")
    if name == "cmaes" and importlib.util.find_spec("cmaes") is None:
        raise errors.UsageError(
            "--sampler cmaes: needs the package cmaes; run `pip install cmaes`, or name another one"
        )
    if name != "auto":
        return name
    return "exhaustive" if space_size <= EXHAUSTIVE_LIMIT else SEARCH_SAMPLER


def default_trials(space_size: int) -> int:
    """Return how many configs a search measures by default: a third of the space, but at least LEAST_TRIALS."""
    return min(space_size, max(LEAST_TRIALS, math.ceil(space_size / 3)))


def to_outcome(measured, config) -> Outcome:
    """Return a measured row, of a race or of the database, as a study is told it; `measured` is a Measured."""
    is_timed = measured.status in TIMED and measured.ratio
    interval = (measured.num_samples, measured.ratio_low, measured.ratio_high) if is_timed else ()
    return Outcome(config, math.log(measured.ratio) if is_timed else None, measured.status, *interval)


def to_outcomes(results: Iterable[Any]) -> list[Outcome]:
    """Return the search results among some Results as a study takes them."""
    return [to_outcome(result, result.config) for result in results if result.role == "search"]


def find_timed(outcomes: Iterable[Outcome], among: set | None = None) -> dict:
    """Return {config: log ratio} of the outcomes that are exact, of all configs or `among` some."""
    return {
        outcome.config: outcome.log_ratio
        for outcome in outcomes
        if outcome.status == "ok" and (among is None or outcome.config in among)
    }
