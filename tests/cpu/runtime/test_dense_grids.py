"""How many CTAs of a dense product's grid share an SM, and what else hangs on that."""

import itertools

import pytest

import deep_gemm
from deep_gemm import _C
from deep_gemm.jit import hashing
from tests.fakes.stub_driver import load_kernel, select
from tests.fakes.stub_operands import make_variant

H200 = _C.Device.known("h200")
#: Rings of 8 x 64 tiles for one, two and three CTAs an SM.
RINGS = {1: 24, 2: 11, 3: 7}


def few(stages, **others):
    """Return a config of eight tokens by 64 rows of the weight."""
    return _C.Config(**{"block_m": 8, "block_n": 64, "num_stages": stages, "block_k": 128, "swap_ab": 1, **others})


def count_ctas(config, tiles, *, m=5, sms=132, **fields):
    """Return the grid of so many tiles along n."""
    problem = _C.Problem("fp8_gemm", m, tiles * config.block_n - 3, 4096, **fields)
    return _C.launch_geometry(problem, config, sm_count=sms)["num_ctas"]


@pytest.mark.parametrize(
    "fitting, tiles, ctas",
    [
        (1, 435, 132),
        (2, 132, 132),  # no more tiles than SMs
        (2, 150, 150),
        (2, 384, 132),  # 2.9 rounds of one CTA, 1.5 of two: three tiles an SM with either
        (2, 398, 264),  # four tiles of one SM with either, and one CTA would be alone with the last
        (3, 384, 384),
        (3, 398, 264),  # 1.005 rounds of three: six tiles of one SM
        (3, 435, 264),
        (3, 576, 396),
    ],
)
def test_the_fewest_tiles_of_an_sm_decide(fitting, tiles, ctas):
    config = few(RINGS[fitting])
    assert _C.blocks_per_sm(_C.Problem("fp8_gemm", 5, 4096, 4096), config) == fitting
    assert count_ctas(config, tiles) == ctas


def test_other_products_have_one_cta_an_sm():
    config = few(RINGS[3])
    assert count_ctas(config, 435, m=9) == 132, "two tiles along m"
    assert count_ctas(config, 435, num_sms=120) == 120
    pair = _C.Config(64, 64, 4, cluster_n=2)
    assert _C.blocks_per_sm(_C.Problem("fp8_gemm", 5, 4096, 4096), pair) > 1 and count_ctas(pair, 870) == 132
    assert count_ctas(config, 40, sms=16) == 40 and count_ctas(config, 40, sms=0) == 1


def find_shallow(op, m, n, **fields):
    """Return the rings for three CTAs an SM among the candidates of a product, and those of them worth trying."""
    problem = _C.Problem(op, m, n, 4096, **fields)
    space = _C.get_default_space(_C.Problem(op, 1, 1, 1), H200)
    shallow = [each for each in space if each.swap_ab and each.split_k == 1 and _C.blocks_per_sm(problem, each) == 3]
    found = [config for config in _C.get_candidates(problem, H200) if config in shallow]
    assert found == [config for config in shallow if _C.is_worth_trying(problem, config, H200)]
    return found


@pytest.mark.parametrize("op", ["fp8_gemm", "bf16_gemm"])
def test_rings_for_three_are_for_grids_of_several_ctas_an_sm(op):
    """Where an SM has one CTA all the same, the ring for two is no worse."""
    seen = set()
    for m, tiles in itertools.product((5, 8, 9, 16, 20), (100, 132, 133, 264, 384, 398)):
        rows = -(-m // 8) * 8
        found = find_shallow(op, m, tiles * 64)
        for each in found:
            problem = _C.Problem(op, m, tiles * 64, 4096)
            assert _C.launch_geometry(problem, each, sm_count=132)["num_ctas"] > 132
        assert (rows in {each.block_m for each in found}) == (tiles > 132), (m, tiles)
        seen.update(found)
    assert {each.block_m for each in seen} == {8, 16, 24}
    assert not find_shallow(op, 5, 384 * 64, num_sms=120), "a limit of SMs leaves one CTA on each"


def test_a_ring_for_three_needs_registers_for_three():
    problem = _C.Problem("fp8_gemm", 40, 384 * 64, 4096)
    tiles = [each for each in _C.get_default_space(problem, H200) if each.swap_ab and each.block_m == 48]
    whole = [each for each in tiles if each.block_n == 64 and each.split_k == 1]
    assert [_C.blocks_per_sm(problem, each) for each in whole] == [1, 2]


def test_the_launch_takes_the_kernels_registers():
    problem, config = _C.Problem("fp8_gemm", 5, 384 * 64, 4096), few(RINGS[3])
    found = [_C.launch_geometry(problem, config, sm_count=132, register_blocks=blocks) for blocks in (1, 2, 3)]
    assert [geometry["num_ctas"] for geometry in found] == [132, 132, 384]


def launch(op, tiles, cubin):
    """Launch a product of so many tiles, by a ring for three CTAs; a kernel stays loaded, so each needs other bytes."""
    config, problem = few(RINGS[3], block_k=_C.stage_k(op)), _C.Problem(op, 1, 1, 1)
    positional, _ = make_variant(problem, 5, tiles * 64, 4096)
    load_kernel(config, 0, cubin, problem).launch(*positional)


@pytest.mark.parametrize("registers, ctas", [(80, 384), (81, 132), (128, 132), (129, 132)])
@pytest.mark.parametrize("op", ["fp8_gemm", "bf16_gemm"])
def test_no_cta_waits_for_the_registers_of_another(driver, op, registers, ctas):
    """Of an SM's 65,536 registers three CTAs of 256 threads have 80 each, two 128: the compiled kernel's count, not the
    estimate, by which three fit.
    """
    for tiles, expected in ((384, ctas), (398, 264 if registers <= 128 else 132)):
        _, events = driver.call(launch, op, tiles, b"%s of %d" % (op.encode(), registers), registers=registers)
        assert [event["grid"] for event in select(events, "LaunchKernelEx")] == [[expected, 1, 1]]


def test_estimates_count_one_cta_with_a_limit_of_sms():
    """A ring for three CTAs is then no better than any other of its tile."""
    limited, free = (_C.Problem("fp8_gemm", 8, 48704, 5504, num_sms=sms) for sms in (66, 0))
    deep, shallow = few(RINGS[1]), few(RINGS[3])
    slower = [_C.estimate_time_us(p, shallow, H200) / _C.estimate_time_us(p, deep, H200) for p in (limited, free)]
    assert slower[0] > slower[1] and slower[0] >= 1


def test_measurements_of_other_grids_are_of_other_kernels(monkeypatch):
    now = {op: hashing.kernel_hash(op) for op in ("fp8_gemm", "batched_fp8_gemm")}
    hashing.kernel_hash.cache_clear()
    monkeypatch.setattr(_C, "grid_revision", lambda op: 1)
    try:
        before = {op: hashing.kernel_hash(op) for op in now}
    finally:
        hashing.kernel_hash.cache_clear()
    assert before["fp8_gemm"] == "5c7fe8b92236e1af0d497369b4ac6d964803686cfa98abd08e9c5ae78f48afb8"
    assert before["batched_fp8_gemm"] == now["batched_fp8_gemm"] and before["fp8_gemm"] != now["fp8_gemm"]


def test_grids_have_a_revision_for_each_op_kind():
    assert {op: _C.grid_revision(op) for op in ("fp8_gemm", "bf16_gemm", "m_grouped_fp8_gemm_masked")} == {
        "fp8_gemm": 2,
        "bf16_gemm": 2,
        "m_grouped_fp8_gemm_masked": 1,
    }
    with pytest.raises(deep_gemm.errors.ProblemError):
        _C.grid_revision("gemm")
