"""Configs in quarantine: never chosen, or only for the variants that they built for."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest

from deep_gemm import _C
from deep_gemm.artifact import exact_key
from deep_gemm.selector import Selector
from tests.fakes.selectors import DEVICE, KERNEL_HASH, MARGIN, OP, exact_arrays, make_parts, pack
from tuner import errors
from tuner.ship import exact


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


def add(quarantined: list, arrays: dict, problem: "_C.Problem", winner: "_C.Config") -> exact.Entry:
    """Put the measured best config of a problem into the exact table of an artefact with entries in quarantine."""
    metadata = copy.deepcopy(make_parts()[0])
    metadata["ops"][OP]["quarantined"] = quarantined
    identity = SimpleNamespace(op=OP, sku=DEVICE.sku, kernel_hash=KERNEL_HASH, regime="cold-graph")
    block = SimpleNamespace(identity=identity, problem=problem, created="2026-01-01T00:00:00")
    ranking = SimpleNamespace(block=block, winner=winner, rows=[], judged={})
    return exact.add_entry(pack(metadata, arrays), ranking, DEVICE)


def test_a_config_that_was_timed_for_a_new_variant_may_serve_it():
    """`tune` and `refine` measure variants that the artefact's database lacks."""
    _, arrays, _, (recorded, *_) = make_parts()
    own, new = _C.kernel_identity(recorded), _C.Problem(OP, 64, 2112, 7168, d_dtype="fp32")
    configs = [exact.to_config(row) for row in arrays["configs"].tolist()]
    index = next(index for index, config in enumerate(configs) if _C.is_legal(new, config, DEVICE))
    entry = add([[index, own.to_json()]], arrays, new, configs[index])
    choice = Selector(entry.content).choose(new, DEVICE)
    assert (choice.source, choice.config) == ("exact", configs[index])


def test_configs_that_serve_some_variants_count_and_make_no_room():
    """They must be remembered, for what they did not build for."""
    _, arrays, _, (recorded, *_) = make_parts()
    space, own = _C.get_default_space(recorded, DEVICE), _C.kernel_identity(recorded).to_json()
    rows = np.array([list(config.as_dict().values()) for config in space[: exact.MAX_CONFIGS]], np.int32)
    changed, listed = arrays | {"configs": rows}, [[index, own] for index in range(exact.MAX_CONFIGS)]
    winner = space[exact.MAX_CONFIGS]
    selector = Selector(add(listed[:10], changed, recorded, winner).content)
    assert len(selector.configs(OP)) == exact.MAX_CONFIGS and set(space[:10]) <= set(selector.configs(OP))
    with pytest.raises(errors.InconclusiveError, match="no room"):
        add(listed, changed, recorded, winner)
