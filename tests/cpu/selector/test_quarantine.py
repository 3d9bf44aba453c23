"""Configs in quarantine: never chosen, or only for the variants that they built for."""

import copy

import numpy as np
import pytest

from deep_gemm import _C
from deep_gemm.artifact import exact_key
from deep_gemm.selector import Selector
from tests.fakes.selectors import DEVICE, MARGIN, OP, exact_arrays, make_parts, pack


def load(quarantined: list, **arrays) -> Selector:
    """Return the selector with entries in quarantine and changed arrays."""
    metadata, original, _, _ = make_parts()
    metadata = copy.deepcopy(metadata)
    metadata["ops"][OP]["quarantined"] = quarantined
    return Selector(pack(metadata, original | arrays))


@pytest.fixture(scope="module")
def problem():
    """A problem for which the trees choose another config than the heuristic."""
    selector = load([], **exact_arrays([]))
    return next(one for one in make_parts()[3] if selector.choose(one, DEVICE).reason.startswith("predicted"))


@pytest.fixture(scope="module")
def best(problem):
    """The config that the trees choose for it."""
    return load([], **exact_arrays([])).choose(problem, DEVICE).config


@pytest.fixture(scope="module")
def configs(best) -> np.ndarray:
    """The configs of the artefact, with that one in place 3."""
    changed = make_parts()[1]["configs"].copy()
    changed[3] = list(best.as_dict().values())
    return changed


def test_quarantined_configs_are_never_chosen(problem, best, configs):
    """Neither by the exact table nor by the trees; the heuristic's pick stays what it is."""
    selector = load([3], configs=configs)
    assert selector.quarantined(OP) == [best]
    scores = selector.choose_learned(problem, DEVICE).scores
    second = min((score, place) for place, (config, score) in enumerate(scores.items()) if config != best)
    expected = list(scores)[second[1]] if second[0] < -MARGIN else _C.get_analytic_config(problem, DEVICE)
    assert selector.choose(problem, DEVICE, "model").config == expected != best
    for one in make_parts()[3]:
        choice = selector.choose(one, DEVICE)
        assert choice.config != best or best == _C.get_analytic_config(one, DEVICE)


def test_a_quarantined_config_may_be_chosen_for_a_variant_that_it_built_for(problem, best, configs):
    own, other = _C.kernel_identity(problem), _C.Problem(OP, 1, 1, 1, d_dtype="fp32")
    for variants, is_chosen in (([own], True), ([other, own], True), ([other], False)):
        selector = load([[3, *(variant.to_json() for variant in variants)]], configs=configs)
        assert selector.quarantined(OP) == [], "it may be chosen"
        assert (selector.choose(problem, DEVICE, "model").config == best) is is_chosen


def test_the_exact_table_names_a_quarantined_config_for_a_variant_that_it_built_for():
    _, arrays, _, (recorded, *_) = make_parts()
    index = int(arrays["exact_config"][arrays["exact_key"].tolist().index(exact_key(recorded))])
    assert load([]).choose(recorded, DEVICE).source == "exact"
    for entry, is_exact in ((index, False), ([index, _C.kernel_identity(recorded).to_json()], True)):
        assert (load([entry]).choose(recorded, DEVICE).source == "exact") is is_exact
