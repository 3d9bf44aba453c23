"""fp8_gemm_nt on CPU tensors: the reference gives right products for every shape and layout that is accepted."""

import pytest
import torch

import deep_gemm
from deep_gemm import reference
from deep_gemm.testing import calc_diff
from deep_gemm.testing.bench import kernel_seconds
from tests.fakes.operands import count_wrong, make_operands, make_output, make_reference

SHAPES = [
    (1, 1, 1),
    (1, 7, 128),
    (3, 8, 16),
    (5, 130, 127),
    (64, 128, 129),
    (65, 264, 384),
    (33, 520, 900),
    (2, 96, 2064),
]


def run(a, scale_a, b, scale_b, d=None, **options):
    d = make_output(a.shape[0], b.shape[0]) if d is None else d
    assert deep_gemm.fp8_gemm_nt((a, scale_a), (b, scale_b), d, **options) is None
    return d


@pytest.mark.parametrize("shape", SHAPES)
def test_products(shape):
    m, n, k = shape
    operands = make_operands(*shape, seed=m + n + k)
    d = run(*operands)
    expected, magnitude = make_reference(*operands)
    assert count_wrong(d, expected, magnitude) == 0
    assert calc_diff(d, expected) < 5e-6
    assert d.storage_offset() == 0 and torch.isnan(d._base if d._is_view() else d)[:, n:].all(), (
        "wrote beyond its columns"
    )


def test_small_integers_are_exact():
    generator = torch.Generator().manual_seed(1)
    a, b = (
        torch.randint(-4, 5, (rows, 512), generator=generator).float().to(torch.float8_e4m3fn) for rows in (40, 256)
    )
    scale_a = 2.0 ** torch.randint(-3, 4, (40, 4), generator=generator)
    scale_b = 2.0 ** torch.randint(-3, 4, (2, 4), generator=generator)
    expected, _ = make_reference(a, scale_a, b, scale_b)
    assert torch.equal(run(a, scale_a, b, scale_b), expected.float().to(torch.bfloat16))


@pytest.mark.parametrize("alpha", [0.5, -2.0, 0.0, 1e-3])
def test_alpha(alpha):
    operands = make_operands(20, 136, 272)
    expected, magnitude = make_reference(*operands)
    assert count_wrong(run(*operands, alpha=alpha), expected * alpha, magnitude * abs(alpha)) == 0


def layouts(scales):
    """Return the same scales in other memory layouts."""
    rows, columns = scales.shape
    wide = torch.full((rows, columns + 5), float("nan"))
    wide[:, 2 : 2 + columns] = scales
    return {
        "MN-major": scales.t().contiguous().t(),
        "TMA-aligned": deep_gemm.get_mn_major_tma_aligned_tensor(scales),
        "slice": wide[:, 2 : 2 + columns],
        "every second": scales.repeat_interleave(2, 1)[:, ::2],
    }


def test_layouts_of_scales_and_rows_change_nothing():
    a, scale_a, b, scale_b = make_operands(33, 264, 400)
    expected = run(a, scale_a, b, scale_b)
    for name, other in layouts(scale_a).items():
        assert torch.equal(run(a, other, b, scale_b), expected), name
    for name, other in layouts(scale_b).items():
        assert torch.equal(run(a, scale_a, b, other), expected), name
    wide = torch.full((33, 512), float("nan")).to(torch.float8_e4m3fn)
    wide[:, 16:416] = a
    assert torch.equal(run(wide[:, 16:416], scale_a, b, scale_b), expected)
    broadcast = scale_b[:1].expand(3, -1)
    assert torch.equal(run(a, scale_a, b, broadcast), run(a, scale_a, b, broadcast.contiguous()))


@pytest.mark.parametrize("n", [1, 7, 13])
def test_a_single_row_may_have_any_width(n):
    operands = make_operands(1, n, 48)
    d = torch.full((1, n), float("nan"), dtype=torch.bfloat16)
    expected = make_reference(*operands)
    assert count_wrong(run(*operands, d=d), *expected) == 0


def test_strides_of_single_rows_and_columns_do_not_count():
    a, scale_a, b, scale_b = make_operands(1, 8, 32)
    strange = a.as_strided((1, 32), (7, 1))
    assert torch.equal(run(strange, scale_a.as_strided((1, 1), (5, 9)), b, scale_b), run(a, scale_a, b, scale_b))


def test_nan_and_infinity_stay_where_they_belong():
    a, scale_a, b, scale_b = make_operands(20, 264, 272)
    clean = run(a, scale_a, b, scale_b)
    a[3, 100] = float("nan")
    scale_b[2, 1] = float("inf")
    got = run(a, scale_a, b, scale_b)
    assert got[3].isnan().all() and not got[4:, 256:].isfinite().any()
    assert torch.equal(got[4:, :256], clean[4:, :256]) and torch.equal(got[:3, :256], clean[:3, :256])


def test_the_promotion_is_per_128_of_k():
    """One huge K block and one tiny: the tiny one is added in FP32, not rounded away with the huge one's scale."""
    a, b = torch.ones(1, 256).to(torch.float8_e4m3fn), torch.ones(8, 256).to(torch.float8_e4m3fn)
    scales = torch.tensor([[2.0**20, 1.0]])
    assert run(a, scales, b, torch.ones(1, 2))[0, 0] == float(torch.tensor(128 * 2.0**20 + 128).to(torch.bfloat16))
    assert run(a, scales * torch.tensor([[0.0, 1.0]]), b, torch.ones(1, 2))[0, 0] == 128


def test_reference_is_what_the_op_runs():
    a, scale_a, b, scale_b = make_operands(20, 136, 272)
    d = make_output(20, 136)
    reference.fp8_gemm(a, scale_a, b, scale_b, d, alpha=2.0)
    assert torch.equal(d, run(a, scale_a, b, scale_b, alpha=2.0))


def test_calc_diff_and_count_bytes():
    x = torch.randn(100)
    assert calc_diff(x, x) == pytest.approx(0.0, abs=1e-15) and calc_diff(torch.zeros(3), torch.zeros(3)) == 0.0
    assert calc_diff(x, -x) == pytest.approx(2.0)
    assert deep_gemm.testing.count_bytes(x, (x.half(), [x.double(), None]), torch.empty(0)) == 100 * (4 + 2 + 8)


def test_kernel_seconds():
    kernels = [("deep_gemm_fp8_gemm_nt", 10.0), ("reduce_kernel", 3.0)] * 30 + [("void gemm_split", 1.0)] * 60
    assert kernel_seconds(kernels, "fp8_gemm", 30, False) == pytest.approx(1e-5)
    assert kernel_seconds(kernels, "gemm", 30, True) == pytest.approx(1.2e-5)
    with pytest.raises(deep_gemm.errors.ArgumentError, match="matches several kernels"):
        kernel_seconds(kernels, "gemm", 30, False)
    assert kernel_seconds(kernels, "aten", 30, False) == 0.0  # it did not run
