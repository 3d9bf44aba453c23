"""Proposals: distinct candidates only, seeded, resumable, and better than chance."""

import math

import pytest

from deep_gemm import _C
from tests.fakes.spaces import make_space
from tuner import errors
from tuner.measure.simulated import simulate_time_us
from tuner.search import propose

DEVICE = _C.Device.known("h200")
PROBLEM = _C.Problem("fp8_gemm", 1024, 4096, 7168)
CANDIDATES = make_space(PROBLEM, DEVICE)[::2]
ESTIMATES = {config: _C.estimate_time_us(PROBLEM, config, DEVICE) for config in CANDIDATES}
TIMES = {config: simulate_time_us(PROBLEM, config, DEVICE) for config in CANDIDATES}


def outcome(config) -> tuple:
    """Return what measuring `config` would tell: far-off configs are censored."""
    log_ratio = math.log(TIMES[config] / TIMES[CANDIDATES[0]])
    return config, log_ratio, "ok" if TIMES[config] < 1.5 * min(TIMES.values()) else "censored"


def search(sampler: str, seed: int, trials: int, batch: int = 12) -> list:
    """Return the configs in the order in which a search measures them."""
    proposer, order = propose.OptunaProposer(CANDIDATES, sampler, seed, ESTIMATES), []
    while len(order) < trials and (configs := proposer.propose(min(batch, trials - len(order)))):
        proposer.tell([outcome(config) for config in configs])
        order += configs
    return order


def test_auto_enumerates_small_spaces_and_searches_large_ones():
    assert propose.choose_sampler("auto", 256) == "exhaustive" and propose.choose_sampler("auto", 257) == "tpe"
    assert propose.choose_sampler("random", 10) == "random"
    with pytest.raises(errors.UsageError, match="--sampler"):
        propose.choose_sampler("grid", 10)
    assert propose.default_trials(30) == 30 and propose.default_trials(300) == 100


def test_every_candidate_has_its_own_parameters():
    parameters = [propose.freeze(entry) for entry in propose.describe(CANDIDATES)]
    assert len(set(parameters)) == len(CANDIDATES)


@pytest.mark.parametrize("sampler", ["tpe", "random", "qmc"])
def test_searches_never_repeat_and_are_seeded(sampler):
    first = search(sampler, 3, 40)
    assert len(first) == len(set(first)) == 40 and set(first) <= set(CANDIDATES)
    assert first == search(sampler, 3, 40) and first != search(sampler, 4, 40)


def test_a_search_ends_when_the_space_does():
    proposer = propose.OptunaProposer(CANDIDATES[:30], "tpe", 0)
    seen = []
    while configs := proposer.propose(16):
        proposer.tell([outcome(config) for config in configs])
        seen += configs
    assert sorted(map(str, seen)) == sorted(map(str, CANDIDATES[:30]))


def test_a_resumed_study_knows_its_history():
    history = [outcome(config) for config in CANDIDATES[:20]] + [(CANDIDATES[20], None, "crash")]
    proposer = propose.OptunaProposer(CANDIDATES, "tpe", 0)
    proposer.tell(history)
    proposer.tell(history)
    assert len(proposer.study.trials) == 21
    assert not {config for config, _, _ in history} & set(proposer.propose(24))


def test_tpe_beats_random_at_a_quarter_of_the_space():
    def regret(sampler: str) -> float:
        best = [min(TIMES[config] for config in search(sampler, seed, len(CANDIDATES) // 4)) for seed in range(3)]
        return sum(math.log(value / min(TIMES.values())) for value in best) / len(best)

    assert regret("tpe") <= regret("random") and regret("tpe") < 0.03


def test_tpe_starts_from_the_estimates():
    proposer = propose.OptunaProposer(CANDIDATES, "tpe", 0, ESTIMATES)
    ranked = sorted(CANDIDATES, key=ESTIMATES.get)
    assert proposer.propose(8) == ranked[:8]
    assert not propose.OptunaProposer(CANDIDATES, "random", 0, ESTIMATES).first
