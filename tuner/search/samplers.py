"""Optuna's samplers, kept to the candidates of a problem.

A sampler of optuna's proposes points of a grid. Not all of them are configs that may be launched, and in a small
discrete space it proposes some points again and again. `CandidateSampler` measures the nearest candidate that was not
tried instead. So every trial of a study is another config.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import optuna

from tuner.search.space import Space, freeze

#: Trials before TPE and GP believe their models, and those of a generation of NSGA-II.
NUM_STARTUP = 8


def make_tpe(seed: int) -> optuna.samplers.BaseSampler:
    """Return tree-structured Parzen estimators over all parameters together."""
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=NUM_STARTUP, constant_liar=True, multivariate=True)


def make_gp(seed: int) -> optuna.samplers.BaseSampler:
    """Return a Gaussian process; optuna computes it with torch."""
    return optuna.samplers.GPSampler(seed=seed, n_startup_trials=NUM_STARTUP)


def make_cmaes(seed: int) -> optuna.samplers.BaseSampler:
    """Return CMA-ES."""
    return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)


def make_nsga2(seed: int) -> optuna.samplers.BaseSampler:
    """Return NSGA-II, with generations that a few dozen trials have several of."""
    return optuna.samplers.NSGAIISampler(seed=seed, population_size=NUM_STARTUP)


#: Optuna's samplers by the name of --sampler; `nsga2` is for studies of two directions. Orders have none: they take the
#: candidates as they come.
MAKERS: dict[str, Callable[[int], optuna.samplers.BaseSampler]] = {
    "tpe": make_tpe,
    "gp": make_gp,
    "cmaes": make_cmaes,
    "nsga2": make_nsga2,
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    "qmc": lambda seed: optuna.samplers.QMCSampler(seed=seed, scramble=True, warn_independent_sampling=False),
}


def make_sampler(name: str, space: Space, seed: int) -> optuna.samplers.BaseSampler:
    """Return the sampler of that name for the candidates of `space`, whose order is that of their predicted times."""
    if name == "exhaustive":
        return WholeSampler(seed)
    return CandidateSampler(space, MAKERS[name](seed) if name in MAKERS else None)


class WholeSampler(optuna.samplers.BruteForceSampler):
    """Proposes every config of a space once; optuna's own stops a loop that is not there."""

    def after_trial(self, study, trial, state, values) -> None:
        """Do nothing: who asks knows when the space is exhausted, and Study.stop raises outside of optuna's loop."""


class CandidateSampler(optuna.samplers.BaseSampler):
    """Proposes candidates of a Space that no trial of the study has: the nearest to what `inner` proposes.

    Without an `inner` sampler, the first of them.
    """

    def __init__(self, space: Space, inner: optuna.samplers.BaseSampler | None = None):
        self.space, self.inner = space, inner

    def infer_relative_search_space(self, study, trial) -> dict:
        """Return the whole space: its parameters are proposed together."""
        return self.space.distributions

    def sample_relative(self, study, trial, search_space: dict) -> dict[str, Any]:
        """Return the parameters of a candidate; any at all where every one was tried."""
        is_free = np.ones(len(self.space.candidates), bool)
        for other in study.get_trials(deepcopy=False):
            place = self.space.index.get(freeze(other.params))
            if place is not None and other.number != trial.number:
                is_free[place] = False
        if self.inner is None:
            return self.space.parameters[int(is_free.argmax())]
        return self.space.parameters[self.space.find_nearest(self.wish(study, trial), is_free)]

    def wish(self, study, trial) -> dict[str, Any]:
        """Return what the inner sampler proposes."""
        assert self.inner is not None
        wished = self.inner.sample_relative(study, trial, self.space.distributions)
        for name, distribution in self.space.distributions.items():
            if name not in wished:
                wished[name] = self.inner.sample_independent(study, trial, name, distribution)
        return wished

    def sample_independent(self, study, trial, param_name: str, param_distribution) -> Any:
        """Refuse: all parameters are proposed together."""
        raise NotImplementedError(f"{param_name}: the parameters of a config are proposed together")

    def before_trial(self, study, trial) -> None:
        """Let the inner sampler prepare."""
        if self.inner is not None:
            self.inner.before_trial(study, trial)

    def after_trial(self, study, trial, state, values) -> None:
        """Let the inner sampler take note."""
        if self.inner is not None:
            self.inner.after_trial(study, trial, state, values)
