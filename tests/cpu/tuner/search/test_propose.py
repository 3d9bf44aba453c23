"""Studies: distinct candidates only, seeded, resumable, in the form that an optuna user expects."""

import math

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from deep_gemm import _C
from tests.fakes.spaces import make_space
from tuner import errors
from tuner.measure.simulated import simulate_time_us
from tuner.search import propose, space, study, wide_space
from tuner.search.propose import Outcome
from tuner.search.study import ProblemStudy

DEVICE = _C.Device.known("h200")
PROBLEM = _C.Problem("fp8_gemm", 1024, 4096, 7168)
CANDIDATES = make_space(PROBLEM, DEVICE)[::2]
ESTIMATES = {config: _C.estimate_time_us(PROBLEM, config, DEVICE) for config in CANDIDATES}
TIMES = {config: simulate_time_us(PROBLEM, config, DEVICE) for config in CANDIDATES}


def outcome(config) -> Outcome:
    """Return what measuring `config` would tell: far-off configs are censored."""
    log_ratio = math.log(TIMES[config] / TIMES[CANDIDATES[0]])
    status = "ok" if TIMES[config] < 1.5 * min(TIMES.values()) else "censored"
    return Outcome(config, log_ratio, status, 3, math.exp(log_ratio) * 0.99, math.exp(log_ratio) * 1.01)


def search(sampler: str, seed: int, trials: int, batch: int = 8) -> list:
    """Return the configs in the order in which a search measures them."""
    asked, order = ProblemStudy(CANDIDATES, sampler, seed, ESTIMATES), []
    while len(order) < trials and (configs := asked.ask(min(batch, trials - len(order)))):
        asked.tell(map(outcome, configs))
        order += configs
    return order


def test_auto_enumerates_small_spaces_and_searches_large_ones():
    assert propose.choose_sampler("auto", 256) == "exhaustive"
    assert propose.choose_sampler("auto", 257) == propose.SEARCH_SAMPLER in propose.SAMPLERS
    assert propose.choose_sampler("random", 10) == "random"
    with pytest.raises(errors.UsageError, match="--sampler"):
        propose.choose_sampler("grid", 10)
    assert propose.default_trials(30) == 30 and propose.default_trials(300) == 100


def test_a_sampler_without_its_package_is_a_usage_error(monkeypatch):
    monkeypatch.setattr(propose.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(errors.UsageError, match="pip install cmaes"):
        propose.choose_sampler("cmaes", 1000)


@pytest.mark.parametrize(
    "problem",
    [
        PROBLEM,
        _C.Problem("bf16_gemm", 512, 512, 512, a_major="mn", b_major="mn"),
        _C.Problem("fp8_mqa_logits", 512, 4096, 128, heads=32),
        _C.Problem("m_grouped_fp8_gemm_masked", 4096, 4096, 7168, num_groups=32, expected_m=20),
    ],
)
@pytest.mark.parametrize("name", wide_space.SPACES)
def test_every_config_of_every_space_has_its_own_parameters(problem, name):
    configs = wide_space.SPACES[name](problem, DEVICE)
    assert len(set(map(space.freeze, space.describe(configs)))) == len(configs)
    made = space.Space(configs)
    assert len(made.index) == len(configs) and made.points.min() >= 0.0 and made.points.max() <= 1.0 + 1e-9
    assert all(isinstance(one, optuna.distributions.IntDistribution) for one in made.distributions.values())


def test_the_nearest_free_candidate_is_taken():
    made = space.Space(CANDIDATES)
    is_free = np.ones(len(CANDIDATES), bool)
    for place in (0, 7, len(CANDIDATES) - 1):
        assert made.find_nearest(made.parameters[place], is_free) == place
        is_free[place] = False
        other = made.find_nearest(made.parameters[place], is_free)
        distance = np.square(made.points - made.points[place]).sum(axis=1)
        assert other != place and distance[other] == distance[is_free].min()


@pytest.mark.parametrize("sampler", ["exhaustive", "tpe", "cmaes", "random", "qmc"])
def test_searches_never_repeat_and_are_seeded(sampler):
    if sampler == "cmaes":
        pytest.importorskip("cmaes")
    first = search(sampler, 3, 40)
    assert len(first) == len(set(first)) == 40 and set(first) <= set(CANDIDATES)
    assert first == search(sampler, 3, 40) and first != search(sampler, 4, 40)


@pytest.mark.full
def test_the_gaussian_process_searches_too():
    assert len(set(search("gp", 0, 24))) == 24


@pytest.mark.parametrize("sampler", propose.ORDERS)
def test_orders_follow_the_predicted_times(sampler):
    assert search(sampler, 0, 20) == sorted(CANDIDATES, key=ESTIMATES.get)[:20]


@pytest.mark.parametrize("sampler", ["exhaustive", "tpe", "analytic"])
def test_a_search_ends_when_the_space_does(sampler):
    asked, seen = ProblemStudy(CANDIDATES[:30], sampler, 0), []
    while configs := asked.ask(8):
        asked.tell(map(outcome, configs))
        seen += configs
    assert sorted(map(str, seen)) == sorted(map(str, CANDIDATES[:30]))
    assert {trial.state for trial in asked.study.trials} <= {TrialState.COMPLETE, TrialState.PRUNED}


@pytest.mark.parametrize("sampler", ["exhaustive", "tpe"])
def test_a_resumed_study_knows_its_history(sampler):
    history = [*map(outcome, CANDIDATES[:20]), Outcome(CANDIDATES[20], None, "crash")]
    asked = ProblemStudy(CANDIDATES, sampler, 0)
    asked.tell(history)
    asked.tell(history)
    assert len(asked.study.trials) == 21
    assert not {one.config for one in history} & set(asked.ask(len(CANDIDATES)))


def test_a_study_is_what_an_optuna_user_expects():
    facts = {"op": "fp8_gemm", "kernel_hash": "ab" * 32, "sku": DEVICE.sku}
    name = study.name_study("fp8_gemm", PROBLEM, facts["kernel_hash"])
    assert name == "fp8_gemm/m=1024 n=4096 k=7168/abababababab"
    asked = ProblemStudy(CANDIDATES, "tpe", 0, ESTIMATES, name, facts)
    configs = [*asked.ask(8), max(CANDIDATES, key=TIMES.get)]
    asked.tell([Outcome(configs[0], None, "crash"), *map(outcome, configs[1:])])
    found, failed, slowest = asked.study, asked.study.trials[0], asked.study.trials[8]
    assert found.study_name == name and found.user_attrs == facts and found.metric_names == [study.METRIC]
    assert failed.state == TrialState.FAIL and failed.user_attrs["status"] == "crash"
    assert slowest.state == TrialState.PRUNED and slowest.intermediate_values[3] == outcome(configs[8]).log_ratio
    best = found.best_trial
    assert best.value == min(outcome(config).log_ratio for config in configs[1:])
    chosen = next(config for config in configs if str(config) == best.user_attrs["config"])
    assert best.user_attrs["config_key"] == chosen.key("fp8_gemm") and best.user_attrs["samples"] == 3
    assert best.user_attrs["ratio_low"] < math.exp(best.value) < best.user_attrs["ratio_high"]
    assert best.params["rows"] == space.sides_of(chosen)[0] and best.params["columns"] == space.sides_of(chosen)[1]


def test_tpe_beats_random_at_a_quarter_of_the_space():
    def regret(sampler: str) -> float:
        best = [min(TIMES[config] for config in search(sampler, seed, len(CANDIDATES) // 4)) for seed in range(4)]
        return sum(math.log(value / min(TIMES.values())) for value in best) / len(best)

    assert regret("tpe") <= regret("random")
