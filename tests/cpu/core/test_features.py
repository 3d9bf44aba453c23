"""The selector's input: features are named, finite, versioned, and have the values that their names promise."""

import math

import numpy as np
import pytest

from deep_gemm import _C
from deep_gemm.errors import ConfigError
from tests.fakes.grouped_variants import (
    CONTIGUOUS,
    GROUPED_OPS,
    K_GROUPED,
    MASKED,
    is_fp8,
    make_grouped,
    make_grouped_variants,
)
from tests.fakes.selectors import DEVICE, OP, make_portfolio, make_problems
from tests.fakes.variants import OPS, make_variants

PORTFOLIO = [
    *make_portfolio(12), _C.Config(128, 112, 4), _C.Config(128, 48, 6), _C.Config(64, 128, 6, cluster_n=2),
    _C.Config(16, 64, 12, swap_ab=1), _C.Config(16, 64, 12, split_k=4, swap_ab=1), _C.Config(80, 128, 6, swap_ab=1),
]  # fmt: skip
GROUP_FEATURES = ["log2_num_groups", "log2_rows_per_group", "log2_alignment", "has_blocks"]
NAMES = _C.feature_names(OP, PORTFOLIO)
PROBLEMS = [
    *make_problems(120, seed=3),
    _C.Problem(OP, 2**31 - 1, 2**31 - 1, 2**31 - 1),
    _C.Problem(OP, 1, 1, 1),
    _C.Problem(OP, 300, 2112, 640, num_sms=5),
]


def named(problem) -> dict[str, float]:
    return dict(zip(NAMES, _C.get_features(problem, DEVICE, PORTFOLIO), strict=True))


def named_of(problem, portfolio=()) -> dict[str, float]:
    """Return the features of a problem by name."""
    values = _C.get_features(problem, DEVICE, list(portfolio))
    return dict(zip(_C.feature_names(problem.op, list(portfolio)), values, strict=True))


def straddling_share(n: int, block_n: int) -> float:
    """Count the tiles that meet two 128-column blocks."""
    starts = range(0, n, block_n)
    return sum((min(start + block_n, n) - 1) // 128 != start // 128 for start in starts) / len(starts)


def test_version_names_and_length():
    assert isinstance(_C.FEATURES_VERSION, int) and len(set(NAMES)) == len(NAMES) == 20 + 6 * len(PORTFOLIO)
    assert _C.feature_names(OP, []) == NAMES[:20] and len(_C.get_features(PROBLEMS[0], DEVICE, [])) == 20


def test_features_are_finite_and_deterministic():
    for problem in PROBLEMS:
        values = _C.get_features(problem, DEVICE, PORTFOLIO)
        assert np.isfinite(np.float32(values)).all() and values == _C.get_features(problem, DEVICE, PORTFOLIO)


def test_sizes_and_alignments():
    for problem in PROBLEMS:
        values = named(problem)
        for name in "mnk":
            size = getattr(problem, name)
            assert values[f"log2_{name}"] == pytest.approx(math.log2(size), rel=1e-14, abs=1e-15)
            assert 2.0 ** values[f"log2_{name}_alignment"] == math.gcd(size, 256)
        assert values["num_sms"] == (problem.num_sms or 132) and values["k_steps"] == -(-problem.k // 128)
    assert named_of(_C.Problem("bf16_gemm", 64, 2112, 7168))["k_steps"] == 112


def test_a_variant_is_told_by_flags_of_its_own():
    seen = {}
    for problem in [*make_variants(64, 2112, 7168), *make_grouped_variants(64, 2112, 7168, 8)]:
        flags = {name: value for name, value in named_of(problem).items() if name.startswith(("is_", "has_"))}
        assert set(flags.values()) <= {0.0, 1.0} and len(flags) == 9 + (problem.num_groups > 0)
        assert seen.setdefault((problem.op, *flags.values()), problem) is problem


def test_batch_invariance_changes_only_the_pick_that_ratios_refer_to():
    plain, invariant = (_C.Problem(OP, 16, 512, 16384, batch_invariant=flag) for flag in (False, True))
    assert _C.get_analytic_config(plain, DEVICE).split_k > 1 == _C.get_analytic_config(invariant, DEVICE).split_k
    first, second = named(plain), named(invariant)
    assert all(first[name] == second[name] for name in NAMES if "heuristic" not in name)
    assert first["log2_heuristic_us"] < second["log2_heuristic_us"]


def count_slots(sms: int, size: int, blocks: int) -> int:
    """Return how many clusters of `size` run at once: those of more than two CTAs stay in a GPC of 16 SMs, or of 18 as
    long as SMs are left over.
    """
    if size <= 2 or sms < 16:
        return sms * blocks // size
    gpcs = [16] * (sms // 16)
    for index in range(min(sms % 16 // 2, len(gpcs))):
        gpcs[index] += 2
    return sum(gpc * blocks // size for gpc in gpcs)


def test_tiles():
    for problem in PROBLEMS:
        values = named(problem)
        for config in PORTFOLIO:
            tiles = math.ceil(problem.m / config.block_m / config.cluster_m) * math.ceil(
                problem.n / config.block_n / config.cluster_n
            )
            waves = tiles / max(
                1,
                count_slots(
                    int(values["num_sms"]),
                    config.cluster_m * config.cluster_n * config.split_k,
                    _C.blocks_per_sm(problem, config),
                ),
            )
            assert values[f"waves of {config}"] == pytest.approx(waves)
            assert values[f"last_wave_fill of {config}"] == pytest.approx(waves / math.ceil(waves))
            assert 0 < values[f"useful_share of {config}"] <= 1


def test_two_scale_share_counts_tiles():
    for n in (1, 64, 127, 128, 129, 500, 576, 1536, 2112, 7168):
        values = named(_C.Problem(OP, 64, n, 512))
        for config in PORTFOLIO:
            expected = 0 if config.swap_ab else straddling_share(n, config.block_n)
            assert values[f"two_scale_share of {config}"] == pytest.approx(expected)


def test_predicted_ratio_is_that_of_the_estimates():
    for problem in PROBLEMS:
        values = named(problem)
        pick_us = _C.estimate_time_us(problem, _C.get_analytic_config(problem, DEVICE), DEVICE)
        assert values["log2_heuristic_us"] == pytest.approx(math.log2(pick_us), rel=1e-12)
        for config in PORTFOLIO:
            ratio = _C.estimate_time_us(problem, config, DEVICE) / pick_us
            assert values[f"log_heuristic_ratio of {config}"] == pytest.approx(math.log(ratio), rel=1e-9, abs=1e-12)


def test_compiled_dims_do_not_enter():
    plain, fixed = _C.Problem(OP, 64, 2112, 7168), _C.Problem(OP, 64, 2112, 7168, compiled_dims="nk")
    assert _C.get_features(plain, DEVICE, PORTFOLIO) == _C.get_features(fixed, DEVICE, PORTFOLIO)


def test_impossible_portfolio_is_refused():
    with pytest.raises(ConfigError):
        _C.get_features(PROBLEMS[0], DEVICE, [_C.Config(64, 64, 4, cluster_m=7)])


@pytest.mark.parametrize("op", GROUPED_OPS)
def test_grouped_ops_have_four_features_more(op):
    portfolio = _C.get_default_space(make_grouped(op, 1, 1, 128, 1), DEVICE)[:3]
    dense, grouped = (_C.feature_names(name, portfolio) for name in (OPS[not is_fp8(op)], op))
    assert grouped == [*dense[:20], *GROUP_FEATURES, *dense[20:]]
    assert not set(GROUP_FEATURES) & set(dense) and len(grouped) == 24 + 6 * len(portfolio)
    assert len(_C.get_features(make_grouped(op, 64, 128, 256, 4), DEVICE, portfolio)) == len(grouped)


@pytest.mark.parametrize(
    "op, m, fields, expected",
    [
        (CONTIGUOUS[0], 4096, {}, (8, 512, 128, 0)),
        (CONTIGUOUS[1], 4097, {"alignment": 64, "b_major": "mn"}, (8, 513, 64, 0)),
        (MASKED[0], 4096, {}, (8, 4096, 128, 0)),
        (MASKED[1], 4096, {"expected_m": 20}, (8, 20, 128, 0)),
        (K_GROUPED[0], 4096, {}, (8, 4096, 128, 0)),
        (K_GROUPED[0], 4096, {"group_layout": "blocks"}, (8, 4096, 128, 1)),
    ],
)
def test_features_of_groups_say_what_they_are_named_of(op, m, fields, expected):
    values = named_of(make_grouped(op, m, 2112, 8192, 8, **fields))
    groups, rows, alignment, has_blocks = expected
    assert [values[name] for name in GROUP_FEATURES[:3]] == pytest.approx(
        [math.log2(size) for size in (groups, rows, alignment)], rel=1e-14
    )
    assert values["has_blocks"] == has_blocks
    assert values["log2_m"] == pytest.approx(math.log2(m)) and values["log2_k"] == pytest.approx(13)


def test_k_steps_are_those_of_one_group():
    for op, steps in zip((*MASKED, *K_GROUPED), (64, 128, 8, 16), strict=True):
        assert named_of(make_grouped(op, 64, 128, 8192, 8))["k_steps"] == steps


def test_waves_count_the_tiles_of_all_groups():
    """Of 132 SMs, one block of these configs on each: the rows of contiguous groups follow one another, groups of K
    repeat all of D.
    """
    config, sixteen = _C.Config(128, 128, 4), {"num_groups": 16}
    cases = {
        (CONTIGUOUS[0], 4096): 32 * 16, (MASKED[0], 256): 2 * 16 * 16, (K_GROUPED[0], 256): 2 * 16 * 16,
    }  # fmt: skip
    for (op, m), tiles in cases.items():
        values = named_of(make_grouped(op, m, 2048, 8192, **sixteen), [config])
        assert _C.blocks_per_sm(make_grouped(op, 1, 1, 128, 1), config) == 1
        assert values[f"waves of {config}"] == pytest.approx(tiles / 132) and values[
            f"useful_share of {config}"
        ] == pytest.approx(1.0)


def test_every_problem_of_a_variant_has_finite_features():
    for problem in make_grouped_variants(513, 2112, 7168, 7):
        portfolio = _C.get_default_space(problem, DEVICE)
        values = _C.get_features(problem, DEVICE, portfolio)
        assert np.isfinite(np.float32(values)).all() and values == _C.get_features(problem, DEVICE, portfolio)
