"""One optuna study a problem: which configs are measured next, and what became of them.

The study lives in memory. The tuner's own database is the truth: where a search is resumed, a new study is told what
the database has. A trial is a config, a value the log of its time relative to the heuristic's pick, smaller is better.
Configs that the race dropped early are pruned trials with a lower bound, those that failed are failed ones. Only one
process asks.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import TrialState

from tuner.search import samplers
from tuner.search.propose import Outcome
from tuner.search.space import DOUBLING, Space

# Once for the process: filters that are put back are not safe where several boards measure in threads.
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)

METRIC = "log(time / time of the heuristic's pick)"
#: The parameter that numbers the configs of a space which is measured whole, by predicted time.
PLACE = "place"
NAMED_DIGITS = 12


def name_study(op: str, problem, kernel_hash: str) -> str:
    """Return the name of a problem's study: op kind, problem and kernel hash."""
    return f"{op}/{str(problem).removeprefix(op).strip()}/{kernel_hash[:NAMED_DIGITS]}"


class ProblemStudy:
    """The study of one problem over different `candidates`.

    `predicted` are the log times expected of them: orders follow these, and among equals the other samplers do.
    """

    def __init__(
        self,
        candidates: Sequence,
        sampler: str,
        seed: int = 0,
        predicted: Mapping | None = None,
        name: str = "",
        facts: Mapping[str, str] | None = None,
    ):
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        times = predicted or {}
        self.space = Space(sorted(candidates, key=lambda config: times.get(config, 0.0)))
        self.is_whole = sampler == "exhaustive"
        chosen = samplers.make_sampler(sampler, self.space, seed)
        self.study = optuna.create_study(study_name=name or "problem", direction="minimize", sampler=chosen)
        self.study.set_metric_names([METRIC])
        self.facts = dict(facts or {})
        for fact, value in self.facts.items():
            self.study.set_user_attr(fact, value)
        self.op = self.facts.get("op", "fp8_gemm")
        self.num_shown = 0
        self.known: dict[Any, Outcome] = {}
        self.pending: dict[Any, optuna.Trial] = {}
        self.places = {config: place for place, config in enumerate(self.space.candidates)}

    def ask(self, count: int) -> list:
        """Return up to `count` candidates without a result, all different."""
        left = len(self.places) - len(self.known) - len(self.pending)
        return [self.ask_one() for _ in range(min(count, left))]

    def ask_one(self) -> Any:
        """Return the candidate of one new trial."""
        if not self.is_whole:
            trial = self.study.ask(self.space.distributions)
            config = self.space.find(trial.params)
        else:
            trial = self.study.ask()
            place = trial.suggest_int(PLACE, 0, len(self.places) - 1)
            config = self.space.candidates[place]
            for name, value in self.space.parameters[place].items():
                trial.suggest_int(name, value, value, log=name in DOUBLING)
        self.pending[config] = trial
        return config

    def tell(self, outcomes: Iterable[Outcome]) -> None:
        """Take the outcomes of proposals, or of an earlier sweep. The first one of a config counts."""
        for outcome in outcomes:
            if outcome.config not in self.places or outcome.config in self.known:
                continue
            self.known[outcome.config] = outcome
            trial = self.pending.pop(outcome.config, None)
            if trial is None:
                self.study.add_trial(self.make_trial(outcome))
            else:
                self.finish(trial, outcome)

    def take_news(self) -> list[optuna.trial.FrozenTrial]:
        """Return the trials that were finished since the last call; call it where no trial is pending."""
        trials = self.study.get_trials(deepcopy=False)
        news, self.num_shown = trials[self.num_shown :], len(trials)
        return [trial for trial in news if trial.state.is_finished()]

    def finish(self, trial: optuna.Trial, outcome: Outcome) -> None:
        """Finish a trial that was asked for."""
        for name, value in self.describe(outcome).items():
            trial.set_user_attr(name, value)
        state = find_state(outcome)
        if state == TrialState.PRUNED:
            trial.report(outcome.log_ratio or 0.0, outcome.num_samples or 1)
        self.study.tell(trial, outcome.log_ratio if state == TrialState.COMPLETE else None, state)

    def make_trial(self, outcome: Outcome) -> optuna.trial.FrozenTrial:
        """Return a finished trial that nobody asked for."""
        state, place = find_state(outcome), self.places[outcome.config]
        params, distributions = self.space.parameters[place], self.space.distributions
        if self.is_whole:
            params, distributions = {PLACE: place, **params}, self.space.fix(place, PLACE)
        return optuna.trial.create_trial(
            state=state,
            params=params,
            distributions=distributions,
            user_attrs=self.describe(outcome),
            value=outcome.log_ratio if state == TrialState.COMPLETE else None,
            intermediate_values=(
                {outcome.num_samples or 1: outcome.log_ratio or 0.0} if state == TrialState.PRUNED else None
            ),
        )

    def describe(self, outcome: Outcome) -> dict[str, Any]:
        """Return the user attributes of a trial."""
        known = {
            "samples": outcome.num_samples,
            "ratio_low": outcome.ratio_low,
            "ratio_high": outcome.ratio_high,
        }
        return {
            "config": str(outcome.config),
            "config_key": outcome.config.key(self.op),
            "status": outcome.status,
        } | {name: value for name, value in known.items() if value is not None}


def find_state(outcome: Outcome) -> TrialState:
    """Return the state of an outcome's trial."""
    if outcome.log_ratio is None:
        return TrialState.FAIL
    return TrialState.COMPLETE if outcome.status == "ok" else TrialState.PRUNED
