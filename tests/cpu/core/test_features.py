"""The selector's input: named, finite, versioned, and what the names say."""

import math

import numpy as np
import pytest

from deep_gemm import _C
from deep_gemm.errors import ConfigError
from tests.fakes.selectors import DEVICE, OP, make_portfolio, make_problems
from tests.fakes.variants import make_variants

PORTFOLIO = [
    *make_portfolio(12), _C.Config(128, 112, 4), _C.Config(128, 48, 6), _C.Config(64, 128, 6, cluster_n=2),
    _C.Config(16, 64, 12, swap_ab=1), _C.Config(16, 64, 12, split_k=4, swap_ab=1), _C.Config(80, 128, 6, swap_ab=1),
]  # fmt: skip
NAMES = _C.feature_names(OP, PORTFOLIO)
PROBLEMS = make_problems(120, seed=3) + [
    _C.Problem(OP, 2**31 - 1, 2**31 - 1, 2**31 - 1),
    _C.Problem(OP, 1, 1, 1),
    _C.Problem(OP, 300, 2112, 640, num_sms=5),
]


def named(problem) -> dict[str, float]:
    return dict(zip(NAMES, _C.get_features(problem, DEVICE, PORTFOLIO), strict=True))


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


def test_a_variant_is_told_by_flags_of_its_own():
    flags = [name for name in NAMES[:20] if name.startswith(("is_", "has_"))]
    seen = {}
    for problem in make_variants(64, 2112, 7168):
        config = _C.Config(64, 64, 4, block_k=128 if problem.op == OP else 64)
        values = dict(
            zip(_C.feature_names(problem.op, [config]), _C.get_features(problem, DEVICE, [config]), strict=True)
        )
        told = (problem.op, *(values[name] for name in flags))
        assert set(told[1:]) <= {0.0, 1.0} and seen.setdefault(told, problem) is problem
        assert values["k_steps"] == (56 if problem.op == OP else 112)
    assert len(flags) == 9


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
