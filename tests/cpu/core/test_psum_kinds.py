"""Op kinds whose groups have ends: in everything that decides which config runs, they are their siblings."""

import itertools

import numpy as np
import pytest

from deep_gemm import _C, selection
from deep_gemm.jit import ahead, generator
from tests.fakes.grouped_variants import CONTIGUOUS, K_GROUPED, WITH_ENDS, make_grouped_variants, with_ends
from tuner.problems.shapes import load_preset

KINDS = {kind.name: kind for kind in _C.OP_KINDS}
SIBLINGS = {name: kind.sibling for name, kind in KINDS.items() if kind.has_ends}
DEVICE = _C.Device.known("h200")
SIZES = [(1, 8, 128, 1), (100, 504, 1152, 4), (4096, 7168, 2048, 32), (32768, 4096, 7168, 8)]


def make_problems() -> list:
    """Return a problem of each variant of the siblings, and each size."""
    return [
        problem for size in SIZES for problem in make_grouped_variants(*size) if problem.op in (*CONTIGUOUS, *K_GROUPED)
    ]


def test_every_op_of_contiguous_groups_has_a_twin_with_ends():
    assert {sibling: name for name, sibling in SIBLINGS.items()} == WITH_ENDS
    assert {KINDS[name].grouping for name in SIBLINGS} == {"m_psum", "k_psum"}
    assert all(KINDS[name].sibling is None for name in KINDS if name not in SIBLINGS)


@pytest.mark.parametrize("name", SIBLINGS)
def test_a_twin_differs_in_its_groups_alone(name):
    kind, sibling = KINDS[name], KINDS[SIBLINGS[name]]
    own = {"name", "grouping", "has_ends", "sibling"}
    properties = [one for one in dir(kind) if not one.startswith("_") and one not in own]
    assert len(properties) > 10
    assert [getattr(kind, one) for one in properties] == [getattr(sibling, one) for one in properties]


def test_candidates_features_and_estimates_are_those_of_the_sibling():
    for problem in make_problems():
        psum = with_ends(problem)
        candidates = _C.get_candidates(problem, DEVICE)
        assert _C.get_candidates(psum, DEVICE) == candidates
        assert _C.get_analytic_config(psum, DEVICE) == _C.get_analytic_config(problem, DEVICE)
        for config in candidates[::16]:
            assert _C.smem_bytes(psum, config) == _C.smem_bytes(problem, config)
            assert _C.estimate_time_us(psum, config, DEVICE) == _C.estimate_time_us(problem, config, DEVICE)
        features = [_C.get_config_features(one, DEVICE, candidates[:2]) for one in (psum, problem)]
        assert np.array_equal(*features)


def test_legality_is_that_of_the_sibling():
    problem = _C.Problem(CONTIGUOUS[0], 512, 512, 512, num_groups=4, alignment=128)
    for rows, cluster in itertools.product((64, 128, 256), (1, 2)):
        config = _C.Config(rows, 64, 3, cluster_m=cluster)
        assert _C.legality_reason(with_ends(problem), config, DEVICE) == _C.legality_reason(problem, config, DEVICE)


@pytest.mark.parametrize("mode", ["auto", "model", "analytic"])
def test_the_shipped_artefact_chooses_as_for_the_sibling(monkeypatch, mode):
    """By its exact table, its forest or its guards, with the same reason."""
    monkeypatch.setenv("DG_SELECTOR", mode)
    selection.forget_selectors()
    try:
        problems = make_problems()[::7]
        choices = [selection.choose(problem, DEVICE) for problem in problems]
        found = [selection.choose(with_ends(problem), DEVICE) for problem in problems]
        assert [(one.config, one.source, one.reason) for one in found] == [
            (one.config, one.source, one.reason) for one in choices
        ]
        assert mode == "analytic" or {one.source for one in found} >= {"learned"}
    finally:
        selection.forget_selectors()


def test_an_exact_measurement_of_the_sibling_serves_its_twin():
    measured = [problem for problem in load_preset("grouped") if problem.op in SIBLINGS.values()]
    exact = [problem for problem in measured if selection.explain(problem, DEVICE).source == "exact"]
    assert len(exact) > 10
    for problem in exact:
        found, expected = selection.choose(with_ends(problem), DEVICE), selection.choose(problem, DEVICE)
        assert (found.config, found.source) == (expected.config, "exact")


@pytest.mark.parametrize("name", SIBLINGS)
def test_a_warm_up_prepares_the_configs_of_the_sibling(name):
    found, source = ahead.list_choices(name, [], DEVICE)
    expected = ahead.list_choices(SIBLINGS[name], [], DEVICE)[0]
    assert source == "artefact" and found[: len(expected)] == expected
    assert len(found) == len(expected) or KINDS[name].grouping == "m_psum", "beside those of masked groups"


@pytest.mark.parametrize("name", SIBLINGS)
def test_kernels_are_those_of_the_sibling_with_another_scheduler(name):
    kind = KINDS[name]
    source, other = (generator.canonical_sources(op)[0] for op in (name, SIBLINGS[name]))
    scheduler = f"{'M' if kind.m_is_shared else 'K'}PsumScheduler"
    assert f'"deep_gemm/{kind.kernel}.cuh"' in source and f"deep_gemm::{scheduler}<deep_gemm::Config>" in source
    assert "Psum" not in other and "kSeparateBlocks" not in other
    assert ("kSeparateBlocks" in source) == kind.k_is_divided
