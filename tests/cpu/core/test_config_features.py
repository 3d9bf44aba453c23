"""Rows of a problem's configs: named, finite for every op kind, and consistent with the estimate."""

import math

import numpy as np
import pytest

from deep_gemm import _C
from deep_gemm.errors import ConfigError
from deep_gemm.fields import OP_KINDS
from deep_gemm.jit.generator import canonical_cases

H200 = _C.Device.known("h200")
NAMES = _C.config_feature_names()


def named(problem, config) -> dict[str, float]:
    return dict(zip(NAMES, _C.get_config_features(problem, H200, [config])[0].tolist(), strict=True))


@pytest.mark.parametrize("op", sorted(OP_KINDS))
def test_rows_of_every_op_kind_are_finite_and_follow_the_estimate(op):
    for problem in {problem for problem, _ in canonical_cases(op)}:
        configs = _C.get_candidates(problem, H200)
        rows = _C.get_config_features(problem, H200, configs)
        assert rows.shape == (len(configs), len(NAMES)) and np.isfinite(np.float32(rows)).all()
        times = np.array([_C.estimate_time_us(problem, config, H200) for config in configs])
        assert rows[:, -1] == pytest.approx(np.log(times / times.min()), abs=1e-12)
        ranked = _C.rank_candidates(problem, H200, 8)
        assert ranked == [configs[index] for index in np.argsort(times, kind="stable")[:8]]
        assert _C.with_loop_knobs(problem, ranked[0], H200) == _C.get_analytic_config(problem, H200)


def test_names_differ_and_the_last_is_the_estimate():
    assert len(set(NAMES)) == len(NAMES) and NAMES[-1] == "log_ratio"


def test_values_are_those_of_their_names():
    problem = _C.Problem("fp8_gemm", 300, 2112, 7168)
    values = named(problem, _C.Config(128, 96, 5))
    assert values["log2_rows"] == pytest.approx(math.log2(300)) and values["k_steps"] == values["steps"] == 56
    tiles = 3 * 22
    assert values["waves"] == tiles / 132 and values["last_wave_fill"] == tiles / 132 and values["rounds"] == 1
    assert values["useful_share"] == pytest.approx(300 * 2112 / (384 * 2112)) and values["m_fill"] == 300 / 384
    shares = [values[f"{name}_share"] for name in ("memory", "l2", "power", "sm")]
    # Launch, and a fourth root of fourth powers, make up the whole estimate.
    assert values["launch_share"] + sum(share**4 for share in shares) ** 0.25 == pytest.approx(1.0)
    assert max(values[f"{name}_share"] for name in ("math", "load", "latency")) == 1.0


def test_a_split_shortens_the_steps_of_a_tile():
    problem = _C.Problem("fp8_gemm", 16, 512, 16384)
    assert named(problem, _C.Config(64, 64, 5, split_k=4))["steps"] == 32


def test_a_config_that_can_never_run_is_refused():
    with pytest.raises(ConfigError, match="cluster = 7x1"):
        _C.get_config_features(_C.Problem("fp8_gemm", 64, 128, 256), H200, [_C.Config(64, 64, 4, cluster_m=7)])
