"""Kinds of configs that became candidates later than some artefacts: trees are not asked about a kind that they never
saw, and what stands behind such configs is rated in their place.
"""

import numpy as np
import pytest

from deep_gemm import _C
from deep_gemm.selection import get_selector
from deep_gemm.selector import Selector
from tests.fakes.selectors import DEVICE, KERNEL_HASH, make_metadata, make_parts, pack, widest_hull
from tuner.learn.learner import SLACK, widen
from tuner.problems import shapes

ADDING = _C.Problem("bf16_gemm", 4096, 4096, 4096, d_dtype="fp32", c_mode="accumulate")
PAIRED = _C.Problem("m_grouped_fp8_gemm_contiguous", 32768, 4096, 4096, num_groups=8, alignment=128)
BESIDE = _C.Problem("m_grouped_fp8_gemm_masked", 4096, 6144, 7168, num_groups=2, expected_m=512)
H100_PROBLEMS = [
    _C.Problem("m_grouped_fp8_gemm_masked", 4096, 5120, 7424, num_groups=2, expected_m=134),
    _C.Problem("m_grouped_fp8_gemm_masked", 4096, 1472, 4480, num_groups=4, expected_m=530),
]
#: What get_shortlist calls a kind, and from which value of which feature on a config is of it.
KINDS = {
    "adds": (ADDING, "reduce_add", 1),
    "pairs": (PAIRED, "cluster_m", 2),
    "beside": (BESIDE, "column_side", 209),
}


def test_the_kinds_are_those_of_the_package():
    assert {(name, feature, least) for name, (_, feature, least) in KINDS.items()} == set(_C.LATE_KINDS)


def is_late(config, kind: str) -> bool:
    """Return whether a config is of a kind."""
    _, feature, least = KINDS[kind]
    return getattr(config, feature) >= least


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_trees_rate_configs_of_kinds_that_they_saw(kind, is_known):
    problem, feature, least = KINDS[kind]
    arrays = make_parts()[1]
    configs = _C.get_candidates(problem, DEVICE)[: len(arrays["configs"])]
    hull = widest_hull() | {"configs": np.array([list(config.as_dict().values()) for config in configs], np.int32)}
    column = _C.config_feature_names().index(feature)
    hull["feature_min"][column], hull["feature_max"][column] = 0, 2 * least if is_known else least - 1
    choice = Selector(pack(make_metadata(problem.op), arrays | hull)).choose(problem, DEVICE, "model", KERNEL_HASH)
    everything = _C.get_shortlist(problem, DEVICE, 3 * _C.NUM_RANKED)
    assert any(is_late(config, kind) for config in everything[: _C.NUM_RANKED])
    wanted = [config for config in everything if is_known or not is_late(config, kind)]
    assert choice.source == "learned" and list(choice.scores) == wanted[: _C.NUM_RANKED]
    assert _C.get_shortlist(problem, DEVICE, _C.NUM_RANKED, **{kind: is_known}) == wanted[: _C.NUM_RANKED]


@pytest.mark.parametrize("high, is_known", [(208, False), (224, True), (256, True)])
def test_a_widened_hull_says_what_the_rows_had(high, is_known):
    """By itself the slack, half of the extent on either side, would reach far beyond tiles side by side."""
    column = _C.config_feature_names().index("column_side")
    features = np.zeros((2, len(_C.config_feature_names())), np.float32)
    features[:, column] = 8, high
    low, top = widen(features, SLACK)
    assert top[column] > 209 and _C.has_seen(low[column], top[column], 209) == is_known


@pytest.mark.parametrize("problem", H100_PROBLEMS, ids=str)
def test_the_h100s_trees_choose_no_tiles_side_by_side(problem):
    """They saw none."""
    device = _C.Device.known("h100")
    assert any(config.column_side > 208 for config in _C.get_shortlist(problem, device, _C.NUM_RANKED))
    selector = get_selector(device)
    hash_ = selector.metadata["ops"][problem.op]["kernel_hash"]
    choice = selector.choose(problem, device, "model", hash_)
    assert choice.source == "learned" and all(config.column_side <= 208 for config in choice.scores)


def test_something_stands_behind_tiles_side_by_side():
    """The first two of these are so."""
    problem = _C.Problem("m_grouped_fp8_gemm_masked", 4096, 4672, 3072, num_groups=8, expected_m=142)
    first, *_ = _C.get_shortlist(problem, DEVICE, 1, beside=False)
    assert all(config.column_side > 208 for config in _C.get_shortlist(problem, DEVICE, 3))
    assert first.column_side <= 208


@pytest.mark.parametrize("name", ["h200", "h100", "h20"])
def test_enough_stands_behind_pairs_and_the_heuristic_picks_none(name):
    device = _C.Device.known(name)
    problems = [one for one in shapes.load_preset("drawn_grouped") if one.op.endswith("_gemm_contiguous")]
    for problem in (one for one in problems if one.num_groups and one.op.startswith("m_")):
        singles = [config for config in _C.get_shortlist(problem, device, 176) if config.cluster_m == 1]
        shortlist = _C.get_shortlist(problem, device, _C.NUM_RANKED, pairs=False)
        assert shortlist == singles[: _C.NUM_RANKED]
        assert shortlist[0] == _C.get_analytic_config(problem, device)
