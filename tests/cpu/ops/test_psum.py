"""Groups that are described by their ends (psum layout), on CPU tensors: products, padding, checks, graphs."""

import itertools

import pytest
import torch

import deep_gemm
from deep_gemm.errors import ArgumentError, DtypeError, ShapeError
from deep_gemm.quantize import align
from deep_gemm.testing import calc_diff
from tests.fakes.grouped_operands import FP32, RECIPES, make_contiguous, make_k_grouped, make_output, spoil

KINDS = [("fp8", "1d2d"), ("fp8", "1d1d"), ("bf16", None)]
K_OPS = [("fp8", "nt"), ("fp8", "tn"), ("bf16", "tn")]
UNTOUCHED = 77.0
ROWS = ([1], [5, 0, 130, 128], [0, 256, 0, 0, 1], [0, 0])


def make_ends(sizes: list[int], alignment: int = 128, is_aligned: bool = True) -> torch.Tensor:
    """Return where groups of those sizes end; `is_aligned`: empty ones where they start, else where the one before
    ends.
    """
    ends, before = [], 0
    for size in sizes:
        before = align(before, alignment) + size if size or is_aligned else before
        ends.append(before)
    return torch.tensor(ends, dtype=torch.int32)


def run_rows(kind: str, layout: str, call, ends, fill=UNTOUCHED, **options) -> torch.Tensor:
    d = make_output((len(call.exact), call.exact.shape[1]), FP32, fill)
    op = getattr(deep_gemm, f"m_grouped_{kind}_gemm_{layout}_contiguous")
    assert op(call.a, call.b, d, ends, use_psum_layout=True, **options) is None
    return d


@pytest.mark.parametrize("layout", ["nt", "nn"])
@pytest.mark.parametrize("kind, recipe", KINDS)
def test_rows_are_those_of_the_contiguous_op(kind, recipe, layout):
    options = {"recipe": RECIPES[recipe]} if recipe else {}
    for sizes, is_aligned in itertools.product(ROWS, (True, False)):
        call = make_contiguous(kind, layout, sizes, 40, 144, recipe or "1d2d")
        ends, is_row = make_ends(sizes, is_aligned=is_aligned), call.groups >= 0
        d = run_rows(kind, layout, call, ends, **options)
        assert calc_diff(d[is_row], call.exact[is_row]) < 1e-9 or not is_row.any()
        assert (d[~is_row] == UNTOUCHED).all(), "the reference leaves padding alone"
        contiguous = make_output(tuple(d.shape), FP32)
        op = getattr(deep_gemm, f"m_grouped_{kind}_gemm_{layout}_contiguous")
        op(call.a, call.b, contiguous, call.groups, **options)
        assert torch.equal(d[is_row], contiguous[is_row])
        zeroed = run_rows(kind, layout, call, ends, ensure_zero_padding=True, expected_m_for_psum_layout=3, **options)
        assert torch.equal(zeroed, contiguous) and not zeroed[~is_row].signbit().any(), "NaN of the padding of A leaked"


def test_the_alignment_is_the_callers():
    before = deep_gemm.get_mk_alignment_for_contiguous_layout()
    deep_gemm.set_mk_alignment_for_contiguous_layout(64)
    try:
        call = make_contiguous("bf16", "nt", [3, 64, 65, 1], 16, 32, alignment=64)
        d = run_rows("bf16", "nt", call, make_ends([3, 64, 65, 1], 64))
    finally:
        deep_gemm.set_mk_alignment_for_contiguous_layout(before)
    assert calc_diff(d[call.groups >= 0], call.exact[call.groups >= 0]) < 1e-9


def make_columns(kind: str, layout: str, sizes: list[int]) -> tuple:
    """Return (call, the same without padding, ends) of groups whose K is any number; padding of A and B is NaN."""
    padded = [align(size, 128) for size in sizes]
    generator = torch.Generator().manual_seed(sum(sizes))
    is_gap = torch.cat([torch.arange(wide) >= size for size, wide in zip(sizes, padded, strict=True)])
    operands, exact = [], None
    for rows in (32, 48):
        values = torch.randn(rows, sum(padded), generator=generator)
        scales = torch.rand(rows, sum(padded) // 128, generator=generator) + 0.5
        data = values.to(torch.float8_e4m3fn) if kind == "fp8" else values.bfloat16()
        wide = data.double() * (scales.double().repeat_interleave(128, 1) if kind == "fp8" else 1.0)
        wide[:, is_gap] = 0.0
        spoil(data.t(), None, is_gap) if kind == "bf16" else data.view(torch.uint8).t().__setitem__(is_gap, 0x7F)
        exact = (
            wide
            if exact is None
            else torch.stack([x @ y.t() for x, y in zip(exact.split(padded, 1), wide.split(padded, 1), strict=True)])
        )
        if layout == "nt":
            blocks = torch.cat([part.contiguous().view(torch.uint8).flatten() for part in data.split(padded, 1)])
            operands.append((blocks.view(data.dtype), scales))
        else:
            turned = data.t().contiguous()
            operands.append((turned, scales.t().contiguous()) if kind == "fp8" else turned)
    return operands, exact, make_ends(sizes)


@pytest.mark.parametrize("kind, layout", K_OPS)
def test_what_lies_between_groups_of_k_has_no_effect(kind, layout):
    for sizes in ([130, 1, 0, 255], [256, 128], [0, 0, 5]):
        (a, b), exact, ends = make_columns(kind, layout, sizes)
        op = getattr(deep_gemm, f"k_grouped_{kind}_gemm_{layout}_contiguous")
        c = torch.randn(exact.shape, generator=torch.Generator().manual_seed(1))
        total = sum(align(size, 128) for size in sizes)
        for ks in (None, sizes, [total, *[0] * (len(sizes) - 1)]):
            d = make_output(tuple(exact.shape), FP32)
            op(a, b, d, ks, ends, c, use_psum_layout=True)
            assert calc_diff(d, exact + c.double()) < 1e-9
            assert all(torch.equal(d[group], c[group]) for group, size in enumerate(sizes) if size == 0)


@pytest.mark.parametrize("kind, layout", K_OPS)
def test_groups_that_fill_their_memory_are_those_of_ks(kind, layout):
    ks = [128, 0, 256]
    call = make_k_grouped(kind, layout, ks, 24, 40)
    op = getattr(deep_gemm, f"k_grouped_{kind}_gemm_{layout}_contiguous")
    found, expected = make_output(tuple(call.exact.shape), FP32), make_output(tuple(call.exact.shape), FP32)
    op(call.a, call.b, found, None, make_ends(ks), use_psum_layout=True)
    op(call.a, call.b, expected, ks)
    assert torch.equal(found, expected)


ROW_CALL = make_contiguous("bf16", "nt", [100, 128], 16, 32)


@pytest.mark.parametrize(
    "ends, options, error, message",
    [
        ([100, 257], {}, ArgumentError, r"m_indices\[1\] = 257: must be an end within 0..m = 256"),
        ([-1, 256], {}, ArgumentError, r"m_indices\[0\] = -1: must be an end within"),
        ([100, 120], {}, ArgumentError, r"m_indices\[1\] = 120: must be at least 128, where the group starts"),
        ([100, 90], {}, ArgumentError, r"m_indices\[1\] = 90: must be at least 128"),
        ([100], {}, ShapeError, r"m_indices.shape = \[1\]: must be \[num_groups\] = \[2\]"),
        ([0] * 256, {}, ShapeError, r"m_indices.shape = \[256\]: must be \[num_groups\]"),
        ([100, 256], {"use_psum_layout": 1}, ArgumentError, "use_psum_layout = 1: must be a bool"),
        ([100, 256], {"ensure_zero_padding": None}, ArgumentError, "ensure_zero_padding = None: must be a bool"),
        (
            [100, 256],
            {"expected_m_for_psum_layout": -1},
            ArgumentError,
            "expected_m_for_psum_layout = -1: must be an int >= 0",
        ),
    ],
)
def test_wrong_rows_are_refused_before_anything_is_written(ends, options, error, message):
    d = make_output((256, 16), FP32, UNTOUCHED)
    with pytest.raises(error, match=message):
        deep_gemm.m_grouped_bf16_gemm_nt_contiguous(
            ROW_CALL.a, ROW_CALL.b, d, torch.tensor(ends, dtype=torch.int32), **{"use_psum_layout": True, **options}
        )
    assert (d == UNTOUCHED).all()


def test_an_empty_group_may_end_where_the_one_before_does():
    deep_gemm.m_grouped_bf16_gemm_nt_contiguous(
        ROW_CALL.a,
        ROW_CALL.b,
        make_output((256, 16), FP32),
        torch.tensor([100, 100], dtype=torch.int32),
        use_psum_layout=True,
    )


@pytest.mark.parametrize(
    "ks, ends, error, message",
    [
        (None, None, ArgumentError, "ks_tensor = None: with use_psum_layout it says where the groups end"),
        (None, [128, 385], ArgumentError, r"ks_tensor\[1\] = 385: must be an end within 0..sum_k = 384"),
        (None, [130, 200], ArgumentError, r"ks_tensor\[1\] = 200: must be at least 256"),
        ([384], [128, 384], ShapeError, "ks has 1 entries"),
        ([384, 1], [128, 384], ShapeError, "rounded up to a multiple of 128, sum to 512 and a has sum_k = 384"),
        (384, [128, 384], ArgumentError, "ks = 384: must be a list or tuple"),
    ],
)
def test_wrong_groups_of_k_are_refused(ks, ends, error, message):
    call = make_k_grouped("bf16", "tn", [128, 256], 16, 16)
    d = make_output((2, 16, 16), FP32, UNTOUCHED)
    tensor = None if ends is None else torch.tensor(ends, dtype=torch.int32)
    with pytest.raises(error, match=message):
        deep_gemm.k_grouped_bf16_gemm_tn_contiguous(call.a, call.b, d, ks, tensor, use_psum_layout=True)
    assert (d == UNTOUCHED).all()


def test_groups_of_k_start_at_multiples_of_128_alone():
    """Another alignment was passed over, and groups were added up over the wrong rows."""
    call = make_k_grouped("bf16", "tn", [128, 256], 16, 16)
    d, before = make_output((2, 16, 16), FP32, UNTOUCHED), deep_gemm.get_mk_alignment_for_contiguous_layout()
    deep_gemm.set_mk_alignment_for_contiguous_layout(256)
    try:
        with pytest.raises(ArgumentError, match="an alignment of 256 .*: groups of K start at multiples of 128"):
            deep_gemm.k_grouped_bf16_gemm_tn_contiguous(
                call.a, call.b, d, None, make_ends([128, 256]), use_psum_layout=True
            )
    finally:
        deep_gemm.set_mk_alignment_for_contiguous_layout(before)
    assert (d == UNTOUCHED).all()


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("ks", [None, []])
def test_the_host_need_not_know_the_k_of_groups(ks, is_compiled):
    (a, b), exact, ends = make_columns("bf16", "tn", [130, 128])

    def program(a, b, d, ends):
        deep_gemm.k_grouped_bf16_gemm_tn_contiguous(a, b, d, ks, ends, use_psum_layout=True)
        return d + 1.0

    d = torch.empty(exact.shape)
    torch._dynamo.reset()
    run = torch.compile(program, fullgraph=True, backend="aot_eager") if is_compiled else program
    assert torch.equal(run(a, b, d, ends), d + 1.0) and calc_diff(d, exact) < 1e-9


def test_other_wrong_arguments():
    call = make_k_grouped("fp8", "nt", [128, 256], 16, 16)
    d = make_output((2, 16, 16), FP32)
    with pytest.raises(ArgumentError, match="ks = None: must be a list or tuple"):
        deep_gemm.k_grouped_fp8_gemm_nt_contiguous(call.a, call.b, d, None, make_ends([128, 256]))
    with pytest.raises(DtypeError, match="ks_tensor.dtype = torch.int64"):
        deep_gemm.k_grouped_fp8_gemm_nt_contiguous(
            call.a, call.b, d, None, make_ends([128, 256]).long(), use_psum_layout=True
        )
    short = tuple((data[: rows * 200], scales[:, :2]) for (data, scales), rows in ((call.a, 16), (call.b, 16)))
    with pytest.raises(ShapeError, match="sum_k = 200: blocks of groups are multiples of 128 wide"):
        deep_gemm.k_grouped_fp8_gemm_nt_contiguous(*short, d, None, make_ends([128, 0]), use_psum_layout=True)


def test_sizes_of_zero():
    ends = torch.tensor([3, 140], dtype=torch.int32)
    d = make_output((256, 16), FP32)
    empty = torch.zeros(256, 0).bfloat16(), torch.zeros(2, 16, 0).bfloat16()
    deep_gemm.m_grouped_bf16_gemm_nt_contiguous(*empty, d, ends, use_psum_layout=True, ensure_zero_padding=True)
    assert (d == 0).all()
    d = make_output((2, 8, 16), FP32)
    deep_gemm.k_grouped_bf16_gemm_tn_contiguous(
        torch.zeros(0, 8).bfloat16(), torch.zeros(0, 16).bfloat16(), d, None, ends.zero_(), use_psum_layout=True
    )
    assert (d == 0).all()


@pytest.mark.parametrize("kind", ["fp8", "bf16"])
def test_a_compiled_call_with_ends_has_no_graph_break(kind):
    call, ends = make_contiguous(kind, "nt", [100, 128], 16, 32), make_ends([100, 128])
    op = getattr(deep_gemm, f"m_grouped_{kind}_gemm_nt_contiguous")

    def program(a, b, d, ends):
        op(a, b, d, ends, use_psum_layout=True, ensure_zero_padding=True, expected_m_for_psum_layout=100)
        return d + 1.0

    d = torch.empty(256, 16)
    returned = torch.compile(program, fullgraph=True, backend="aot_eager")(call.a, call.b, d, ends)
    expected = run_rows(kind, "nt", call, ends, ensure_zero_padding=True)
    assert torch.equal(d, expected) and torch.equal(returned, expected + 1.0)


def test_a_compiled_call_with_groups_of_k_has_no_graph_break():
    (a, b), exact, ends = make_columns("fp8", "nt", [130, 128])

    def program(a, b, d, ends):
        deep_gemm.k_grouped_fp8_gemm_nt_contiguous(a, b, d, [384, 0], ends, use_psum_layout=True)
        return d * 2.0

    d = torch.empty(exact.shape)
    returned = torch.compile(program, fullgraph=True, backend="aot_eager")(a, b, d, ends)
    assert calc_diff(d, exact) < 1e-9 and torch.equal(returned, d * 2.0)
