"""What the heuristic and the selector's input make of groups: sensible picks, and four features more than dense
problems have.
"""

import math

import numpy as np
import pytest

from deep_gemm import _C
from tests.fakes.grouped_variants import (
    CONTIGUOUS,
    GROUPED_OPS,
    K_GROUPED,
    MASKED,
    is_fp8,
    make_grouped,
    make_grouped_variants,
)
from tests.fakes.variants import OPS

H200 = _C.Device.known("h200")
SHAPES = ((4096, 7168), (7168, 2048))
GROUP_FEATURES = ["log2_num_groups", "log2_rows_per_group", "log2_alignment", "has_blocks"]


def pick(op, m, n, k, num_groups, **fields):
    """Return the heuristic's choice."""
    return _C.get_analytic_config(make_grouped(op, m, n, k, num_groups, **fields), H200)


def pick_us(problem) -> float:
    """Return the time that the heuristic expects of its choice."""
    return _C.estimate_time_us(problem, _C.get_analytic_config(problem, H200), H200)


def named(problem, portfolio=()) -> dict[str, float]:
    """Return the features of a problem by name."""
    values = _C.get_features(problem, H200, list(portfolio))
    return dict(zip(_C.feature_names(problem.op, list(portfolio)), values, strict=True))


# ---- the heuristic ----


def test_choice_is_the_first_argmin_of_the_estimate():
    for problem in [*make_grouped_variants(64, 2112, 7168, 8), *make_grouped_variants(8192, 2112, 8192, 8)]:
        candidates = _C.get_candidates(problem, H200)
        times = [_C.estimate_time_us(problem, config, H200) for config in candidates]
        assert _C.get_analytic_config(problem, H200) == candidates[int(np.argmin(times))]


@pytest.mark.parametrize("op", MASKED)
def test_decode_takes_narrow_token_tiles(op):
    for (n, k), groups in ((shape, groups) for shape in SHAPES for groups in (4, 32, 256)):
        for rows, widest in ((1, 8), (4, 8), (8, 16), (16, 32)):
            config = pick(op, 1024, n, k, groups, expected_m=rows)
            assert config.swap_ab and config.block_m <= widest, (groups, rows, config)
        assert pick(op, 1024, n, k, groups, expected_m=1024).block_m == 128, "full groups are no decode"


@pytest.mark.parametrize("op", MASKED)
def test_without_a_hint_every_row_is_expected(op):
    for n, k in SHAPES:
        assert (
            pick(op, 1024, n, k, 8) == pick(op, 1024, n, k, 8, expected_m=1024) != pick(op, 1024, n, k, 8, expected_m=8)
        )


@pytest.mark.parametrize("op", CONTIGUOUS)
def test_prefill_takes_tiles_of_128_rows(op):
    for (n, k), m, groups in (
        (shape, m, groups) for shape in SHAPES for m in (8192, 32768, 131072) for groups in (1, 4, 8)
    ):
        config = pick(op, m, n, k, groups)
        assert (config.block_m, config.swap_ab) == (128, 0) and config.block_n >= 128, (m, groups, config)


def test_the_choice_fits_the_alignment():
    for op in CONTIGUOUS:
        for alignment in (8, 16, 64, 128, 256):
            config = pick(op, 65536, 4096, 7168, 8, alignment=alignment)
            assert alignment % (config.block_m * config.cluster_m) == 0


@pytest.mark.parametrize("op", K_GROUPED)
def test_weight_gradients_take_large_tiles(op):
    for (n, k), groups in ((shape, groups) for shape in SHAPES for groups in (1, 4, 32)):
        config = pick(op, n, k, 8192 * groups, groups, c_mode="accumulate")
        assert config.block_m >= 128 and config.block_n >= 128 and not config.swap_ab, (groups, config)


@pytest.mark.parametrize("op", GROUPED_OPS)
def test_more_groups_are_never_faster(op):
    """The same rows of contiguous groups among more of them; masked groups have rows of their own each, and those of K
    their part of K.
    """
    for m, n, k in ((64, 4096, 7168), (1024, 7168, 2048), (8192, 2048, 8192)):
        counts = (1, 2, 4, 8, 32, 64)
        times = [pick_us(make_grouped(op, m, n, k * groups if op in K_GROUPED else k, groups)) for groups in counts]
        assert times == sorted(times) and times[-1] > times[0], (m, n, k)


def test_one_group_costs_what_a_dense_product_does():
    fields = {
        CONTIGUOUS[0]: {},
        CONTIGUOUS[1]: {},
        K_GROUPED[0]: {"recipe": "1d1d", "d_dtype": "fp32"},
        K_GROUPED[1]: {"a_major": "mn", "b_major": "mn", "d_dtype": "fp32"},
    }
    for op, needed in fields.items():
        dense = _C.Problem("fp8_gemm" if is_fp8(op) else "bf16_gemm", 1024, 2112, 7168, **needed)
        grouped = make_grouped(op, 1024, 2112, 7168, 1)
        shared = set(_C.get_candidates(dense, H200)) & set(_C.get_candidates(grouped, H200))
        assert len(shared) >= 3
        for config in shared:
            assert _C.estimate_time_us(grouped, config, H200) == _C.estimate_time_us(dense, config, H200)


def test_estimates_grow_with_rows_and_hints():
    config = _C.Config(64, 128, 6)
    for op, changes in {
        MASKED[0]: [{"expected_m": rows} for rows in (64, 256, 1024, 4096)],
        CONTIGUOUS[0]: [{"m": rows} for rows in (4096, 16384, 65536)],
    }.items():
        times = [
            _C.estimate_time_us(
                make_grouped(op, **({"m": 4096, "n": 4096, "k": 4096, "num_groups": 8} | change)), config, H200
            )
            for change in changes
        ]
        assert times == sorted(times) and times[-1] > 2 * times[0]


def test_largest_sizes_stay_finite():
    for op in GROUPED_OPS:
        huge = make_grouped(op, 2**31 - 1, 2**31 - 1, 2**31 - 1, 65535)
        assert np.isfinite(
            [_C.estimate_time_us(huge, config, H200) for config in _C.get_default_space(huge, H200)]
        ).all()
        assert np.isfinite(_C.get_features(huge, H200, _C.get_default_space(huge, H200))).all()


# ---- features ----


@pytest.mark.parametrize("op", GROUPED_OPS)
def test_grouped_ops_have_four_features_more(op):
    portfolio = _C.get_default_space(make_grouped(op, 1, 1, 128, 1), H200)[:3]
    dense, grouped = (_C.feature_names(name, portfolio) for name in (OPS[not is_fp8(op)], op))
    assert grouped == [*dense[:20], *GROUP_FEATURES, *dense[20:]]
    assert not set(GROUP_FEATURES) & set(dense) and len(grouped) == 24 + 6 * len(portfolio)
    assert len(_C.get_features(make_grouped(op, 64, 128, 256, 4), H200, portfolio)) == len(grouped)


@pytest.mark.parametrize("op, m, fields, expected", [
    (CONTIGUOUS[0], 4096, {}, (8, 512, 128, 0)), (CONTIGUOUS[1], 4097, {"alignment": 64, "b_major": "mn"}, (8, 513, 64, 0)),
    (MASKED[0], 4096, {}, (8, 4096, 128, 0)), (MASKED[1], 4096, {"expected_m": 20}, (8, 20, 128, 0)),
    (K_GROUPED[0], 4096, {}, (8, 4096, 128, 0)), (K_GROUPED[0], 4096, {"group_layout": "blocks"}, (8, 4096, 128, 1)),
])  # fmt: skip
def test_features_of_groups_say_what_they_are_named(op, m, fields, expected):
    values = named(make_grouped(op, m, 2112, 8192, 8, **fields))
    groups, rows, alignment, has_blocks = expected
    assert [values[name] for name in GROUP_FEATURES[:3]] == pytest.approx(
        [math.log2(size) for size in (groups, rows, alignment)], rel=1e-14
    )
    assert values["has_blocks"] == has_blocks
    assert values["log2_m"] == pytest.approx(math.log2(m)) and values["log2_k"] == pytest.approx(13)


def test_k_steps_are_those_of_one_group():
    for op, steps in zip((*MASKED, *K_GROUPED), (64, 128, 8, 16), strict=True):
        assert named(make_grouped(op, 64, 128, 8192, 8))["k_steps"] == steps


def test_waves_count_the_tiles_of_all_groups():
    """Of 132 SMs, one block of these configs on each: the rows of contiguous groups follow one another, groups of K
    repeat all of D.
    """
    config, sixteen = _C.Config(128, 128, 4), {"num_groups": 16}
    cases = {
        (CONTIGUOUS[0], 4096): 32 * 16, (MASKED[0], 256): 2 * 16 * 16, (K_GROUPED[0], 256): 2 * 16 * 16,
    }  # fmt: skip
    for (op, m), tiles in cases.items():
        values = named(make_grouped(op, m, 2048, 8192, **sixteen), [config])
        assert _C.blocks_per_sm(make_grouped(op, 1, 1, 128, 1), config) == 1
        assert values[f"waves of {config}"] == pytest.approx(tiles / 132) and values[
            f"useful_share of {config}"
        ] == pytest.approx(1.0)


def test_every_problem_of_a_variant_has_finite_features():
    for problem in make_grouped_variants(513, 2112, 7168, 7):
        portfolio = _C.get_default_space(problem, H200)
        values = _C.get_features(problem, H200, portfolio)
        assert np.isfinite(np.float32(values)).all() and values == _C.get_features(problem, H200, portfolio)


def test_a_variant_is_told_by_flags_of_its_own():
    seen = {}
    for problem in make_grouped_variants(64, 2112, 7168, 8):
        told = (problem.op, *(value for name, value in named(problem).items() if name.startswith(("is_", "has_"))))
        assert set(told[1:]) <= {0.0, 1.0} and seen.setdefault(told, problem) is problem
