"""deep_gemm.numerics: dequantising, the one error bound of the tuner and the GPU suite, and group sizes."""

import random

import pytest
import torch

from deep_gemm import _C, numerics
from deep_gemm.quantize import per_block_cast_to_fp8, per_token_cast_to_fp8
from tests.gpu import operands as suite
from tests.gpu.variants import Variant
from tuner.measure import operands
from tuner.measure.checked_output import CheckedOutput, Reference
from tuner.problems.workload import Workload, make_groups

OPERANDS = {"fp8_gemm": torch.float8_e4m3fn, "bf16_gemm": torch.bfloat16}
K_GROUPED = "k_grouped_fp8_gemm_contiguous"


@pytest.fixture(autouse=True)
def small_pools(monkeypatch):
    monkeypatch.setattr(operands, "MIN_POOL_BYTES", 1 << 16)


def make_checked(problem, groups=None) -> tuple[Reference, CheckedOutput]:
    """Return the tuner's reference of a problem, and a D that holds exactly it."""
    pool = operands.OperandPool("cpu", 1 << 10, 0)
    reference, output = Reference(problem, pool.make_ring(problem, groups)[0], groups), CheckedOutput(problem, "cpu")
    output.prepare(pool.make_start(problem))
    output.rows.copy_(reference.product + (0 if output.start is None else output.rows))
    return reference, output


@pytest.mark.parametrize("d_dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("op", OPERANDS)
@pytest.mark.parametrize("k", [16, 128, 384, 512, 528, 640, 2048])
def test_the_tuner_and_the_gpu_suite_allow_the_same_error(op, k, d_dtype):
    problem = _C.Problem(op, 24, 40, k, d_dtype=d_dtype)
    entry = operands.OperandPool("cpu", 1 << 10, 0).make_ring(problem)[0]
    output = CheckedOutput(problem, "cpu")
    output.prepare(None)
    _, mine = Reference(problem, entry).measure(output, slice(None))
    case = suite.set_reference(
        suite.Case(Variant(op, d_dtype=d_dtype), *entry[:4], reference=torch.empty(0), bound=torch.empty(0))
    )
    torch.testing.assert_close(mine.double(), case.bound, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("k", "is_right"), [(128, True), (384, True), (512, True), (640, False), (1152, False)])
def test_an_error_that_few_steps_of_k_may_have_passes_the_tuners_check(k, is_right):
    problem = _C.Problem("fp8_gemm", 24, 40, k, d_dtype="fp32")
    reference, output = make_checked(problem)
    magnitude = reference.sums_error / numerics.get_sums_error(torch.float8_e4m3fn, k)
    output.rows += magnitude * 2.0**-11.5
    fault, _ = reference.compare(output)
    assert (fault is None) == is_right


def test_every_group_of_k_is_bounded_by_its_own_size():
    problem = _C.Problem(
        K_GROUPED, 24, 40, 768, num_groups=2, recipe="1d1d", d_dtype="fp32", c_mode="accumulate", group_layout="blocks"
    )
    groups = make_groups(problem, Workload("skewed"))
    assert sorted(groups.sizes) == [0, 768]
    groups = groups._replace(starts=[0, 128], sizes=[128, 640])
    reference, output = make_checked(problem, groups)
    scale = torch.tensor([2.0**-11, 2.0**-12]).repeat_interleave(24)[:, None]
    output.rows += reference.sums_error / scale * 2.0**-11.5
    assert reference.compare(output)[0] == "960 elements of 48 checked rows differ from the dequantised product"


def test_bounds_are_those_of_the_contract():
    fp8, bf16, fp32 = torch.float8_e4m3fn, torch.bfloat16, torch.float32
    assert [numerics.get_sums_error(fp8, k) for k in (1, 512, 513, 7168)] == [2.0**-11] * 2 + [2.0**-12] * 2
    assert {numerics.get_sums_error(bf16, k) for k in (1, 512, 7168)} == {2.0**-18}
    assert {numerics.get_sums_error(dtype, 7168, is_any_data=True) for dtype in (fp8, bf16)} == {2.0**-9}
    assert {bf16: 2.0**-8, fp32: 2.0**-22} == numerics.ROUNDING
    diffs = [numerics.get_max_diff(d, is_fp8) for d, is_fp8 in ((bf16, True), (bf16, False), (fp32, True))]
    assert diffs == [5e-6, 5e-6, 5e-8] and numerics.get_max_diff(fp32, False) == 1e-9
    bound = numerics.make_bound(torch.tensor([-4.0]), torch.tensor([0.5]), bf16)
    assert bound.item() == 4.0 * 2.0**-8 + 0.5


def test_widening_undoes_quantising():
    x = torch.randn(3, 200, 300)
    for cast in (per_token_cast_to_fp8, per_block_cast_to_fp8):
        values, scales = cast(x, False)
        for dtype in (torch.float32, torch.float64):
            wide = numerics.widen(values, scales, dtype)
            assert wide.dtype == dtype and float((wide - x).abs().max()) < 0.2
        assert torch.equal(wide[1], numerics.widen(values[1], scales[1], torch.float64))
        assert torch.equal(wide[0, 150, 200], values[0, 150, 200].double() * scales[0, 150 * len(scales[0]) // 200, 1])
    values = torch.ones(2, 3, dtype=torch.bfloat16)
    assert numerics.widen(values, torch.tensor([2.0, 3.0])).tolist() == [[2.0] * 3, [3.0] * 3]
    assert numerics.widen(values, None).dtype == torch.float32


def test_group_sizes():
    factors = numerics.draw_factors(100, random.Random(0))
    assert len(factors) == 100 and 0.7 <= min(factors) < 0.75 and 1.25 < max(factors) <= 1.3
    assert numerics.divide(10, [1.0, 1.0, 1.0]) == [4, 3, 3] and numerics.divide(3, [0.1, 0.5, 0.4]) == [0, 2, 1]
    assert numerics.get_starts([5, 0, 130, 1], 128) == [0, 128, 128, 384] and numerics.get_starts([]) == []
    indices = numerics.make_m_indices([0, 4, 4], [3, 0, 2], 8)
    assert indices.tolist() == [0, 0, 0, -1, 2, 2, -1, -1] and indices.dtype == torch.int32
