"""Rows of a problem's configs: named, finite for every op kind, and consistent with the estimate."""

import math

import numpy as np
import pytest

from deep_gemm import _C
from deep_gemm.errors import ConfigError
from deep_gemm.fields import OP_KINDS
from deep_gemm.jit.generator import canonical_cases
from tests.fakes.grouped_variants import CONTIGUOUS, K_GROUPED, MASKED, make_grouped, make_grouped_variants
from tests.fakes.selectors import OP, make_portfolio, make_problems
from tests.fakes.variants import make_variants

H200 = _C.Device.known("h200")
CONFIGS = [
    *make_portfolio(12), _C.Config(128, 112, 4), _C.Config(128, 48, 6), _C.Config(64, 128, 6, cluster_n=2),
    _C.Config(16, 64, 12, swap_ab=1), _C.Config(16, 64, 12, split_k=4, swap_ab=1), _C.Config(80, 128, 6, swap_ab=1),
]  # fmt: skip
PROBLEMS = [
    *make_problems(120, seed=3),
    _C.Problem(OP, 2**31 - 1, 2**31 - 1, 2**31 - 1),
    _C.Problem(OP, 1, 1, 1),
    _C.Problem(OP, 300, 2112, 640, num_sms=5),
]
KNOBS = ("loop", "scale_warp", "tile_barrier", "reduce_add")
NAMES = _C.config_feature_names()


def named(problem, config=None) -> dict[str, float]:
    """Return the features of a config by name, by default of the heuristic's pick."""
    config = config or _C.get_analytic_config(problem, H200)
    return dict(zip(NAMES, _C.get_config_features(problem, H200, [config])[0].tolist(), strict=True))


@pytest.mark.parametrize("op", sorted(OP_KINDS))
def test_rows_of_every_op_kind_are_finite_and_follow_the_estimate(op):
    for problem in {problem for problem, _ in canonical_cases(op)}:
        configs = _C.get_candidates(problem, H200)
        rows = _C.get_config_features(problem, H200, configs)
        assert rows.shape == (len(configs), len(NAMES)) and np.isfinite(np.float32(rows)).all()
        times = np.array([_C.estimate_time_us(problem, config, H200) for config in configs])
        assert rows[:, -1] == pytest.approx(
            np.log(times / _C.estimate_time_us(problem, _C.get_analytic_config(problem, H200), H200)), abs=1e-12
        )
        shortlist = _C.get_shortlist(problem, H200, 8)
        tiles = list(dict.fromkeys(map(_C.without_loop_knobs, shortlist)))
        assert tiles == [configs[index] for index in np.argsort(times, kind="stable")[: len(tiles)]]
        assert shortlist[0] == _C.get_analytic_config(problem, H200) and len(shortlist) <= 8


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


def test_a_row_is_the_same_behind_any_other():
    problem = _C.Problem("fp8_gemm", 64, 2112, 7168)
    configs = [_C.Config(64, 64, 2), _C.Config(64, 64, 2, loop=1), *CONFIGS, _C.Config(128, 112, 4, loop=1)]
    alone = [_C.get_config_features(problem, H200, [config])[0] for config in configs]
    for order in (configs, configs[::-1]):
        rows = dict(zip(order, _C.get_config_features(problem, H200, order), strict=True))
        assert all(np.array_equal(rows[config], row) for config, row in zip(configs, alone, strict=True))
    assert len({row.tobytes() for row in alone}) == len(configs)


def test_a_split_shortens_the_steps_of_a_tile():
    problem = _C.Problem("fp8_gemm", 16, 512, 16384)
    assert named(problem, _C.Config(64, 64, 5, split_k=4))["steps"] == 32


def test_a_config_that_can_never_run_is_refused():
    with pytest.raises(ConfigError, match="cluster = 7x1"):
        _C.get_config_features(_C.Problem("fp8_gemm", 64, 128, 256), H200, [_C.Config(64, 64, 4, cluster_m=7)])


def test_sizes_and_alignments():
    for problem in PROBLEMS:
        values = named(problem)
        for name, size in {"rows": problem.m, "n": problem.n, "k": problem.k}.items():
            assert values[f"log2_{name}"] == pytest.approx(math.log2(size), rel=1e-14, abs=1e-15)
        for name in "mnk":
            assert 2.0 ** values[f"log2_{name}_alignment"] == math.gcd(getattr(problem, name), 256)
        assert values["num_sms"] == (problem.num_sms or 132) and values["k_steps"] == -(-problem.k // 128)
    assert named(_C.Problem("bf16_gemm", 64, 2112, 7168))["k_steps"] == 112


def test_a_variant_is_told_by_flags_of_its_own():
    seen = {}
    for problem in [*make_variants(64, 2112, 7168), *make_grouped_variants(64, 2112, 7168, 8)]:
        names = NAMES[: NAMES.index("block_m")]
        flags = tuple(named(problem)[name] for name in names if name.startswith(("is_", "has_")))
        assert set(flags) <= {0.0, 1.0} and len(flags) == 16
        assert seen.setdefault((problem.op, *flags), problem) is problem


def test_the_knobs_of_the_loop_are_features_and_change_no_estimate():
    problem = _C.Problem("fp8_gemm", 4096, 7168, 4096)
    tile = _C.without_loop_knobs(_C.get_analytic_config(problem, H200))
    knobbed = _C.with_loop_knobs(problem, tile, H200)
    plain, with_knobs = named(problem, tile), named(problem, knobbed)
    differing = {name for name in NAMES if plain[name] != with_knobs[name]}
    assert {name for name in KNOBS if getattr(knobbed, name)} <= differing and plain["log_ratio"] == 0.0
    assert differing <= {*KNOBS, "smem_bytes", "is_pipelined", "d_tiles"}


def test_batch_invariance_changes_only_the_pick_that_ratios_refer_to():
    plain, invariant = (_C.Problem(OP, 16, 512, 16384, batch_invariant=flag) for flag in (False, True))
    assert _C.get_analytic_config(plain, H200).split_k > 1 == _C.get_analytic_config(invariant, H200).split_k
    first, second = (named(problem, CONFIGS[0]) for problem in (plain, invariant))
    assert {name for name in NAMES if first[name] != second[name]} == {"log2_pick_us", "log_ratio"}
    assert first["log2_pick_us"] < second["log2_pick_us"]


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
        for config in CONFIGS:
            values, cluster = named(problem, config), config.cluster_m * config.cluster_n * config.split_k
            rows, columns = config.block_m * config.cluster_m, config.block_n * config.cluster_n
            is_alone = problem.num_sms != 0 and config.split_k == 1  # with a limit of SMs a grid has one CTA each
            ctas = 1 if is_alone else _C.blocks_per_sm(problem, config)
            slots = count_slots(int(values["num_sms"]), cluster, ctas)
            waves = -(-problem.m // rows) * -(-problem.n // columns) / max(1, slots)
            assert values["waves"] == pytest.approx(waves)
            assert values["last_wave_fill"] == pytest.approx(waves / math.ceil(waves))
            assert 0 < values["useful_share"] <= 1


def straddling_share(n: int, block_n: int) -> float:
    """Count the tiles that meet two 128-column blocks."""
    starts = range(0, n, block_n)
    return sum((min(start + block_n, n) - 1) // 128 != start // 128 for start in starts) / len(starts)


def test_two_scale_share_counts_tiles():
    for n in (1, 64, 127, 128, 129, 500, 576, 1536, 2112, 7168):
        for config in CONFIGS:
            # With two warpgroups side by side, 64x256: each meets one block.
            is_whole = config.swap_ab or (config.block_m, config.block_n) == (64, 256)
            expected = 0 if is_whole else straddling_share(n, config.block_n)
            assert named(_C.Problem(OP, 64, n, 512), config)["two_scale_share"] == pytest.approx(expected)


def test_compiled_dims_do_not_enter():
    plain, fixed = _C.Problem(OP, 64, 2112, 7168), _C.Problem(OP, 64, 2112, 7168, compiled_dims="nk")
    assert named(plain) == named(fixed)


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
    values = named(make_grouped(op, m, 2112, 8192, 8, **fields))
    names = ("log2_num_groups", "log2_rows", "log2_alignment")
    assert [values[name] for name in names] == pytest.approx([math.log2(size) for size in expected[:3]], rel=1e-14)
    assert values["has_blocks"] == expected[3]


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
        values = named(make_grouped(op, m, 2048, 8192, **sixteen), config)
        assert _C.blocks_per_sm(make_grouped(op, 1, 1, 128, 1), config) == 1
        assert values["waves"] == pytest.approx(tiles / 132) and values["useful_share"] == pytest.approx(1.0)
