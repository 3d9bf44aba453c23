"""The grouped ops on CPU tensors, over layouts, recipes and dtypes of D, against independent products in FP64."""

import itertools

import pytest
import torch

import deep_gemm
from deep_gemm import reference
from deep_gemm.errors import ArgumentError, DtypeError, ShapeError
from deep_gemm.testing import calc_diff
from tests.fakes.grouped_operands import (
    BF16,
    FP8,
    FP32,
    RECIPES,
    make_contiguous,
    make_indices,
    make_k_grouped,
    make_masked,
    make_output,
)

#: Distance from the FP64 product: one rounding of D and FP32 sums.
TOLERANCE = {BF16: 2.0**-8, FP32: 2.0**-18}
KINDS = [("fp8", "1d2d"), ("fp8", "1d1d"), ("bf16", None)]
K_OPS = [("fp8", "nt"), ("fp8", "tn"), ("bf16", "tn")]
UNTOUCHED = 77.0


@pytest.fixture
def alignment():
    """Set the alignment of contiguous groups, and afterwards what it was."""
    before = deep_gemm.get_mk_alignment_for_contiguous_layout()
    yield deep_gemm.set_mk_alignment_for_contiguous_layout
    deep_gemm.set_mk_alignment_for_contiguous_layout(before)


def options_of(recipe: str | None) -> dict:
    return {"recipe": RECIPES[recipe]} if recipe else {}


def check(d: torch.Tensor, expected: torch.Tensor, magnitude: torch.Tensor) -> None:
    """Compare D with what it should be, element by element and as a whole; its guard columns are still NaN."""
    assert ((d.double() - expected).abs() <= expected.abs() * TOLERANCE[d.dtype] + magnitude * 2.0**-20).all()
    assert calc_diff(d, expected) < (5e-6 if d.dtype == BF16 else 1e-9)
    assert not d._is_view() or d._base[..., d.shape[-1] :].isnan().all(), "wrote beyond its columns"


def is_plus_zero(values: torch.Tensor) -> bool:
    return bool((values == 0).all()) and not values.signbit().any()


# ---- rows of A divided, contiguous ----


def run_contiguous(kind: str, layout: str, call, dtype=FP32, n=None, **options) -> torch.Tensor:
    d = make_output((len(call.groups), n or call.exact.shape[1]), dtype)
    assert (
        getattr(deep_gemm, f"m_grouped_{kind}_gemm_{layout}_contiguous")(call.a, call.b, d, call.groups, **options)
        is None
    )
    return d


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("layout", ["nt", "nn"])
@pytest.mark.parametrize("kind, recipe", KINDS)
def test_contiguous_products(kind, recipe, layout, dtype):
    for rows, n, k in (([1], 8, 16), ([5, 0, 130, 128], 264, 400), ([256, 1], 136, 144)):
        call = make_contiguous(kind, layout, rows, n, k, recipe or "1d2d")
        d = run_contiguous(kind, layout, call, dtype, **options_of(recipe))
        check(d, call.exact, call.magnitude)
        assert is_plus_zero(d[call.groups < 0]), "padding of A is NaN, and none of it may reach D"


def test_groups_may_come_in_any_order_and_twice(alignment):
    """Only the rows' numbers decide; -1 may also stand between the rows of a group."""
    alignment(8)
    call = make_contiguous("bf16", "nt", [8] * 4, 24, 32, alignment=8)
    order = torch.tensor([2, 0, 2, 3], dtype=torch.int32)
    indices = order.repeat_interleave(8)
    indices[10:13] = -1
    d = make_output((32, 24), FP32)
    deep_gemm.m_grouped_bf16_gemm_nt_contiguous(call.a, call.b, d, indices)
    is_there = indices >= 0
    rows, matrices = call.a[is_there].double()[:, None], call.b[indices[is_there].long()].double()
    check(d[is_there], (rows @ matrices.mT)[:, 0], (rows.abs() @ matrices.abs().mT)[:, 0])
    assert is_plus_zero(d[~is_there])


@pytest.mark.parametrize("size", [8, 64, 200, 256])
def test_the_alignment_is_the_callers(alignment, size):
    alignment(size)
    assert (
        deep_gemm.get_m_alignment_for_contiguous_layout() == size == deep_gemm.get_k_alignment_for_contiguous_layout()
    )
    call = make_contiguous("bf16", "nt", [3, 0, size, 1], 16, 32, alignment=size)
    assert len(call.groups) == 3 * size
    check(run_contiguous("bf16", "nt", call), call.exact, call.magnitude)
    alignment(2 * size)
    with pytest.raises(
        ArgumentError, match=rf"m_indices\[{size}\] = 2 and m_indices\[0\] = 0: rows of a block of {2 * size}"
    ):
        run_contiguous("bf16", "nt", call)


@pytest.mark.parametrize("value", [0, 4, 7, 12, -8, 65544, 2**40, 8.0, "8", None, True])
def test_alignments_that_no_tile_has_are_refused(alignment, value):
    with pytest.raises(ArgumentError, match="multiple of 8|must be"):
        alignment(value)
    assert deep_gemm.get_mk_alignment_for_contiguous_layout() == 128


def test_wrong_groups_of_rows_are_refused_before_anything_is_written():
    call = make_contiguous("bf16", "nt", [128, 128], 16, 32)
    d = make_output((256, 16), FP32, UNTOUCHED)
    for row, group, message in (
        (3, 2, r"m_indices\[3\] = 2"),
        (3, -2, r"m_indices\[3\] = -2"),
        (3, 1, r"m_indices\[3\] = 1 and m_indices\[0\] = 0"),
    ):
        indices = call.groups.clone()
        indices[row] = group
        with pytest.raises(ArgumentError, match=message):
            deep_gemm.m_grouped_bf16_gemm_nt_contiguous(call.a, call.b, d, indices)
    with pytest.raises(DtypeError, match="m_indices.dtype = torch.int64"):
        deep_gemm.m_grouped_bf16_gemm_nt_contiguous(call.a, call.b, d, call.groups.long())
    with pytest.raises(ShapeError, match="m_indices"):
        deep_gemm.m_grouped_bf16_gemm_nt_contiguous(call.a, call.b, d, call.groups[:-1])
    assert (d == UNTOUCHED).all()


# ---- rows of A divided, masked ----


def run_masked(kind: str, call, dtype=FP32, expected_m=4, fill=UNTOUCHED, **options) -> torch.Tensor:
    d = make_output(tuple(call.exact.shape), dtype, fill)
    assert (
        getattr(deep_gemm, f"m_grouped_{kind}_gemm_nt_masked")(call.a, call.b, d, call.groups, expected_m, **options)
        is None
    )
    return d


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("kind, recipe", KINDS)
def test_masked_products(kind, recipe, dtype):
    for counts, max_m, n, k in (([1], 1, 8, 16), ([0, 5, 33, 12], 33, 264, 400), ([64, 0], 64, 136, 144)):
        call = make_masked(kind, counts, max_m, n, k, recipe or "1d2d")
        d = run_masked(kind, call, dtype, **options_of(recipe))
        is_there = ~call.exact.isnan().all(-1)
        check(d, torch.where(is_there[..., None], call.exact, UNTOUCHED), call.magnitude)
        assert (d[~is_there] == UNTOUCHED).all(), "rows that are not there stay as they are"


@pytest.mark.parametrize("expected_m", [0, 1, 12, 10**9])
def test_the_hint_changes_nothing(expected_m):
    call = make_masked("bf16", [3, 0, 16], 16, 24, 32)
    assert torch.equal(run_masked("bf16", call, expected_m=expected_m), run_masked("bf16", call))


@pytest.mark.parametrize("value", [-1, 17])
def test_wrong_numbers_of_rows_are_refused(value):
    call = make_masked("bf16", [3, 0, 16], 16, 24, 32)
    call.groups[1] = value
    with pytest.raises(ArgumentError, match=rf"masked_m\[1\] = {value}: must be within 0..16"):
        run_masked("bf16", call)


@pytest.mark.parametrize("op", ["m_grouped_fp8_gemm_masked", "m_grouped_bf16_gemm_masked"])
def test_the_reference_cuts_numbers_of_rows_as_the_kernels_do(op):
    call = make_masked("fp8" if "fp8" in op else "bf16", [16, 0, 16], 16, 24, 32)
    call.groups.copy_(torch.tensor([99, -7, 16]))
    d = make_output((3, 16, 24), FP32, UNTOUCHED)
    operands = (*call.a, *call.b) if "fp8" in op else (call.a, call.b)
    getattr(reference, op)(*operands, d, call.groups)
    check(d[[0, 2]], call.exact[[0, 2]], call.magnitude[[0, 2]])
    assert (d[1] == UNTOUCHED).all()


# ---- K divided ----


def run_k(kind: str, layout: str, call, d=None, c=None, **options) -> torch.Tensor:
    d = make_output(tuple(call.exact.shape), FP32) if d is None else d
    assert (
        getattr(deep_gemm, f"k_grouped_{kind}_gemm_{layout}_contiguous")(call.a, call.b, d, call.groups, c=c, **options)
        is None
    )
    return d


@pytest.mark.parametrize("kind, layout", K_OPS)
def test_k_grouped_products(kind, layout):
    for ks, m, n in (([128], 8, 16), ([256, 0, 128, 0], 48, 264), ([0, 0], 16, 16), ([384] * 3, 130, 32)):
        call = make_k_grouped(kind, layout, ks, m, n)
        d = run_k(kind, layout, call)
        check(d, call.exact, call.magnitude)
        assert all(is_plus_zero(d[group]) for group, k in enumerate(ks) if k == 0)


@pytest.mark.parametrize("kind, layout", K_OPS)
def test_k_grouped_sums(kind, layout):
    """C in memory of its own, at another pitch, or D itself; an empty group has C."""
    call = make_k_grouped(kind, layout, [128, 0, 256], 24, 40)
    c = torch.randn(3, 24, 40, generator=torch.Generator().manual_seed(1))
    expected, magnitude = call.exact + c.double(), call.magnitude + c.double().abs()
    wide = torch.nn.functional.pad(c, (1, 2))[:, :, 1:41]
    for other in (c, wide, c.transpose(0, 1).contiguous().transpose(0, 1)):
        d = run_k(kind, layout, call, c=other)
        check(d, expected, magnitude)
        assert torch.equal(d[1], c[1])
    d = make_output((3, 24, 40), FP32)
    d.copy_(c)
    check(run_k(kind, layout, call, d, d), expected, magnitude)
    assert torch.equal(d[1], c[1])


def test_ks_may_also_lie_on_the_device():
    call = make_k_grouped("fp8", "nt", [256, 0, 128], 16, 24)
    expected, tensor = run_k("fp8", "nt", call), torch.tensor(call.groups, dtype=torch.int32)
    assert torch.equal(run_k("fp8", "nt", call, ks_tensor=tensor), expected)
    assert torch.equal(run_k("fp8", "nt", call, ks_tensor=tensor, recipe=(1, 1, 128)), expected)
    call.groups = [384, 0, 0]
    assert torch.equal(run_k("fp8", "nt", call, ks_tensor=tensor), expected), "where they differ, the tensor counts"
    for ks, error, message in (
        ([256, 0, 100], ShapeError, r"ks_tensor\[2\] = 100: must be a multiple of 128"),
        ([256, 0, 256], ArgumentError, "ks_tensor sums to 512 and a has sum_k = 384"),
        ([-128, 0, 256], ArgumentError, r"ks_tensor\[0\] = -128: must be within 0..sum_k = 384"),
    ):
        with pytest.raises(error, match=message):
            run_k("fp8", "nt", call, ks_tensor=torch.tensor(ks, dtype=torch.int32))
    with pytest.raises(DtypeError, match="ks_tensor.dtype"):
        run_k("fp8", "nt", call, ks_tensor=tensor.long())


def test_scales_of_groups_of_k_may_have_any_strides():
    call = make_k_grouped("fp8", "nt", [256, 128], 20, 24)
    expected = run_k("fp8", "nt", call)
    for change in (
        lambda scales: scales.t().contiguous().t(),
        deep_gemm.get_mn_major_tma_aligned_tensor,
        lambda scales: scales.repeat_interleave(2, 1)[:, ::2],
    ):
        call.a, call.b = (call.a[0], change(call.a[1])), (call.b[0], change(call.b[1]))
        assert torch.equal(run_k("fp8", "nt", call), expected)


def test_casts_per_channel_are_what_weight_gradients_take():
    """dy [tokens, m] and x [tokens, n], scaled per channel and 128 tokens: grad[g] = dy_g.T @ x_g."""
    ks, generator = [128, 256], torch.Generator().manual_seed(2)
    a, b = (deep_gemm.per_channel_cast_to_fp8(torch.randn(384, size, generator=generator), False) for size in (32, 48))
    grad = torch.empty(2, 32, 48)
    deep_gemm.k_grouped_fp8_gemm_tn_contiguous(a, b, grad, ks)
    x, y = (data.double() * scales.double().repeat_interleave(128, 0) for data, scales in (a, b))
    expected = torch.stack([left.t() @ right for left, right in zip(x.split(ks), y.split(ks), strict=True)])
    assert calc_diff(grad, expected) < 1e-9


@pytest.mark.parametrize("ks, message", [
    ([128, 200], r"ks\[1\] = 200: must be a multiple of 128"), ([128, 128, 128], "ks has 3 entries"),
    ([128, 128], "ks sum to 256 and a has sum_k = 384"),
])  # fmt: skip
@pytest.mark.parametrize("kind, layout", [("fp8", "tn"), ("bf16", "tn")])
def test_wrong_groups_of_k_are_refused(kind, layout, ks, message):
    call = make_k_grouped(kind, layout, [128, 256], 16, 16)
    call.groups = ks
    with pytest.raises(ShapeError, match=message):
        run_k(kind, layout, call)


# ---- all of them ----


def test_small_integers_are_exact():
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randint(-4, 5, shape, generator=generator).float() for shape in ((3, 40, 256), (3, 64, 256)))
    scale_a, scale_b = (2.0 ** torch.randint(-3, 4, shape, generator=generator) for shape in ((3, 40, 2), (3, 1, 2)))
    x, y = a.double() * scale_a.repeat_interleave(128, 2), b.double() * scale_b.repeat_interleave(128, 2)
    d = torch.empty(3, 40, 64)
    deep_gemm.m_grouped_fp8_gemm_nt_masked(
        (a.to(FP8), scale_a), (b.to(FP8), scale_b), d, torch.tensor([40] * 3, dtype=torch.int32), 40
    )
    assert torch.equal(d.double(), x @ y.mT)
    deep_gemm.m_grouped_bf16_gemm_nt_masked(a.to(BF16), b.to(BF16), d, torch.tensor([40] * 3, dtype=torch.int32), 40)
    assert torch.equal(d, a @ b.mT)


def test_one_group_is_the_dense_product():
    for kind, layout in itertools.product(("fp8", "bf16"), ("nt", "nn")):
        call = make_contiguous(kind, layout, [128], 136, 272)
        first = (call.b[0][0], call.b[1][0]) if kind == "fp8" else call.b[0]
        dense = make_output((128, 136), BF16)
        getattr(deep_gemm, f"{kind}_gemm_{layout}")(call.a, first, dense)
        assert torch.equal(run_contiguous(kind, layout, call, BF16), dense)


def test_without_groups_rows_or_columns_nothing_happens():
    for rows, n in (([], 16), ([0, 0], 16), ([128], 0)):
        for kind in ("fp8", "bf16"):
            call = make_contiguous(kind, "nt", rows, n, 32)
            d = torch.full((sum(rows), n), UNTOUCHED)
            getattr(deep_gemm, f"m_grouped_{kind}_gemm_nt_contiguous")(call.a, call.b, d, call.groups)
            assert (d == UNTOUCHED).all()
    for groups, max_m, n in ((0, 4, 8), (2, 0, 8), (2, 4, 0)):
        d = torch.full((groups, max_m, n), UNTOUCHED)
        operands = torch.zeros(groups, max_m, 32, dtype=BF16), torch.zeros(groups, n, 32, dtype=BF16)
        deep_gemm.m_grouped_bf16_gemm_nt_masked(*operands, d, torch.full((groups,), max_m, dtype=torch.int32), 1)
        assert (d == UNTOUCHED).all()
    for groups, m, n in ((0, 4, 8), (1, 0, 8), (1, 4, 0)):
        d = torch.full((groups, m, n), UNTOUCHED)
        k = 128 * groups
        deep_gemm.k_grouped_bf16_gemm_tn_contiguous(
            torch.zeros(k, m, dtype=BF16), torch.zeros(k, n, dtype=BF16), d, [128] * groups
        )
        assert (d == UNTOUCHED).all()


def test_without_k_the_product_is_zero():
    indices = make_indices([3, 128], 128)
    d = make_output((256, 16), FP32)
    deep_gemm.m_grouped_bf16_gemm_nt_contiguous(
        torch.zeros(256, 0, dtype=BF16), torch.zeros(2, 16, 0, dtype=BF16), d, indices
    )
    assert is_plus_zero(d)
    d = make_output((2, 8, 16), FP32)
    deep_gemm.m_grouped_bf16_gemm_nt_masked(
        torch.zeros(2, 8, 0, dtype=BF16),
        torch.zeros(2, 16, 0, dtype=BF16),
        d,
        torch.tensor([3, 8], dtype=torch.int32),
        3,
    )
    assert is_plus_zero(d[0, :3]) and is_plus_zero(d[1])
    empty, c = (torch.zeros(0, 8, dtype=BF16), torch.zeros(0, 16, dtype=BF16)), torch.randn(2, 8, 16)
    deep_gemm.k_grouped_bf16_gemm_tn_contiguous(*empty, d, [0, 0])
    assert is_plus_zero(d)
    deep_gemm.k_grouped_bf16_gemm_tn_contiguous(*empty, d, [0, 0], None, c)
    assert torch.equal(d, c)


def test_second_names():
    contiguous, masked, k_grouped = (
        make_contiguous("bf16", "nt", [3], 16, 32),
        make_masked("fp8", [3, 1], 4, 16, 32),
        make_k_grouped("bf16", "tn", [128, 0], 8, 16),
    )
    d, tensor = make_output((128, 16), FP32), torch.tensor([128, 0], dtype=torch.int32)
    deep_gemm.m_grouped_bf16_gemm_nt_contiguous(contiguous.a, contiguous.b, d, grouped_layout=contiguous.groups)
    assert torch.equal(d, run_contiguous("bf16", "nt", contiguous))
    d = make_output((2, 4, 16), FP32, UNTOUCHED)
    deep_gemm.fp8_m_grouped_gemm_nt_masked(masked.a, masked.b, d, masked.groups, expected_m_per_group=2)
    assert torch.equal(d, run_masked("fp8", masked))
    d = make_output((2, 8, 16), FP32)
    deep_gemm.k_grouped_bf16_gemm_tn_contiguous(k_grouped.a, k_grouped.b, d, ks_cpu=[128, 0], grouped_layout=tensor)
    assert torch.equal(d, run_k("bf16", "tn", k_grouped))
    with pytest.raises(ArgumentError, match="m_indices"):
        deep_gemm.m_grouped_bf16_gemm_nt_contiguous(
            contiguous.a, contiguous.b, d, contiguous.groups, grouped_layout=contiguous.groups
        )
    assert deep_gemm.bf16_m_grouped_gemm_nt_masked is deep_gemm.m_grouped_bf16_gemm_nt_masked


def test_the_promotion_is_per_128_of_k():
    """One huge K block and one tiny: the tiny one is added in FP32, not rounded away with the huge one's scale."""
    ones, scales = torch.ones(1, 8, 256).to(FP8), torch.tensor([2.0**20, 1.0]).expand(1, 8, 2)
    d = torch.empty(1, 8, 8)
    deep_gemm.m_grouped_fp8_gemm_nt_masked(
        (ones, scales), (ones, torch.ones(1, 1, 2)), d, torch.tensor([8], dtype=torch.int32), 8
    )
    assert (d == 128 * 2.0**20 + 128).all()
    deep_gemm.k_grouped_fp8_gemm_nt_contiguous(
        (ones.flatten(), scales[0]), (ones.flatten(), torch.ones(8, 2)), d, [256]
    )
    assert (d == 128 * 2.0**20 + 128).all()
