"""Scales packed as UE8M0, and FP4, against formulas that spell out the bits."""

import pytest
import torch

import deep_gemm
from deep_gemm import utils
from deep_gemm.errors import ArgumentError, DeviceError, DtypeError, ShapeError
from deep_gemm.utils import layout

G, MN, STEPS = 3, 37, 6
INF = float("inf")


ENDS = torch.tensor([3, 768], dtype=torch.int32)  # 1 and 5 rows; the second group is from 128 on

pack_groups = layout.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor


def make_scales(*shape):
    return torch.randn(shape).abs() + 0.01


def pack(scales: torch.Tensor) -> list[list[int]]:
    """Return the words of a matrix of scales, from Python's numbers alone."""
    bits = (scales.contiguous().view(torch.int32) >> 23).tolist()
    rows = [row + [0] * (-len(row) % 4) for row in bits]
    return [[sum(row[i + j] << 8 * j for j in range(4)) for i in range(0, len(row), 4)] for row in rows]


def as_words(packed: torch.Tensor) -> list[list[int]]:
    return (packed.long() & 0xFFFFFFFF).tolist()


@pytest.mark.parametrize("shape", [(MN, STEPS), (MN, 1), (1, 4), (G, MN, STEPS), (0, 3)])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_scales_are_packed_along_k(shape, is_transposed):
    scales = make_scales(*shape[:-2], shape[-1], shape[-2]).mT if is_transposed else make_scales(*shape)
    packed = deep_gemm.get_mn_major_tma_aligned_packed_ue8m0_tensor(scales)
    mn, words = shape[-2], -(-shape[-1] // 4)
    assert packed.shape == (*shape[:-1], words) and packed.dtype == torch.int32
    assert packed.stride()[-2:] == (1, deep_gemm.align(mn, 4))
    groups = zip(packed, scales) if len(shape) == 3 else [(packed, scales)]
    assert all(as_words(found) == pack(group) for found, group in groups)


def test_an_empty_packed_tensor_has_the_layout():
    packed = deep_gemm.get_mn_major_tma_aligned_packed_ue8m0_tensor((MN, 9), "meta")
    assert packed.shape == (MN, 3) and packed.stride() == (1, 40) and packed.dtype == torch.int32


@pytest.mark.parametrize("gran_k", [32, 128])
@pytest.mark.parametrize("form", ["host", "device", "second names"])
def test_no_word_holds_scales_of_two_groups(gran_k, form):
    ks = [gran_k * 3, 0, gran_k * 9]
    scales = make_scales(12, 8)
    tensor = torch.tensor(ks, dtype=torch.int32)
    arguments, named = {"host": ((tensor, ks), {}), "device": ((tensor,), {})}.get(
        form, ((), {"grouped_layout": tensor, "ks_cpu": ks})
    )
    found = pack_groups(scales, *arguments, gran_k=gran_k, **named)
    expected = torch.tensor(pack(scales[:3].T)).T.tolist() + torch.tensor(pack(scales[3:].T)).T.tolist()
    assert as_words(found) == expected and found.is_contiguous()


@pytest.mark.parametrize("gran_k, alignment", [(128, None), (32, 128), (128, 224), (32, 1)])
@pytest.mark.parametrize("given", ["nothing", "an empty list", "the sizes", "rounded sizes"])
def test_groups_by_their_ends(gran_k, alignment, given):
    sizes = [gran_k * 3, 1, 0, gran_k * 9 - 5]
    step, ends = alignment or 128, []
    for size in sizes:
        ends.append(deep_gemm.align(ends[-1] if ends else 0, step) + size)
    rows = [-(-size // gran_k) for size in sizes]
    scales = make_scales(sum(rows), 8)
    ks = {"nothing": None, "an empty list": [], "the sizes": sizes}.get(given, [size + -size % step for size in sizes])
    found = pack_groups(scales, torch.tensor(ends, dtype=torch.int32), ks, gran_k, alignment, True)
    packed = [torch.tensor(pack(part.T)).T for part in scales.split(rows) if len(part)]
    expected, words = torch.cat(packed).tolist(), sum(-(-count // 4) for count in rows)
    assert as_words(found)[:words] == expected and found.is_contiguous() and not found[words:].any()
    by_ks = sum(-(-size // (4 * gran_k)) for size in ks or [])
    assert len(found) == (by_ks if ks else (sum(rows) + 3 * len(sizes)) // 4)


def test_packing_and_unpacking_are_inverse():
    scales = deep_gemm.ceil_to_ue8m0(torch.randn(5, 8) * 100)
    packed = deep_gemm.pack_ue8m0_to_int(scales)
    assert packed.shape == (5, 2) and as_words(packed) == pack(scales)
    assert torch.equal(deep_gemm.unpack_ue8m0_from_int(packed), scales)


def test_lazily_negated_scales_are_packed():
    scales = (torch.ones(4, 4) * (1 - 2j)).conj().imag
    assert scales.is_neg() and scales[0, 0] == 2.0
    for pack_up in (deep_gemm.pack_ue8m0_to_int, deep_gemm.get_mn_major_tma_aligned_packed_ue8m0_tensor):
        assert torch.equal(pack_up(scales), pack_up(scales.clone()))


@pytest.mark.parametrize("number", [-2.0, 0.0, -0.0, INF, -INF, float("nan"), 2.0**-127, 2.0**-149])
def test_numbers_without_an_exponent_of_their_own_are_not_packed(number):
    with pytest.raises(ArgumentError, match=f"x holds {number}: must be powers of two within"):
        deep_gemm.pack_ue8m0_to_int(torch.tensor([[1.0, number, 1.0, 1.0]]))
    ends = torch.tensor([2.0**-126, 2.0**127, 1.0, 0.5])
    assert torch.equal(deep_gemm.unpack_ue8m0_from_int(deep_gemm.pack_ue8m0_to_int(ends)), ends)


def test_the_next_power_of_two():
    x = torch.tensor([1.0, 1.0000001, 3.0, -4.0, 0.0, 2.0**-130, 448.0, 3e38, INF, -INF, float("nan")])
    expected = [1.0, 2.0, 4.0, 4.0, 2.0**-126, 2.0**-126, 512.0, *[2.0**127] * 4]
    assert deep_gemm.ceil_to_ue8m0(x).tolist() == expected


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: deep_gemm.pack_ue8m0_to_int(torch.full((4,), 3.0)), ArgumentError, "holds 3.0: must be powers of two"),
        (lambda: deep_gemm.pack_ue8m0_to_int(torch.ones(2, 3)), ShapeError, "multiple of 4"),
        (lambda: deep_gemm.pack_ue8m0_to_int(torch.ones(4).half()), DtypeError, "sf.dtype = torch.float16"),
        (lambda: layout.get_mn_major_tma_aligned_packed_ue8m0_tensor(torch.ones(4)), ShapeError, "sf.ndim"),
        (
            lambda: pack_groups(torch.ones(4, 4), None, [128]),
            ShapeError,
            r"must be \[sum of ceil\(ks / 128\), mn\] = \[1, mn\]",
        ),
        (
            lambda: pack_groups(torch.ones(4, 4)),
            ArgumentError,
            "ks = None",
        ),
        (lambda: pack_groups(torch.ones(4, 4), use_psum_layout=True), ArgumentError, "ks_tensor = None: .*ends"),
        (lambda: pack_groups(torch.ones(6, 4), ENDS, ENDS, use_psum_layout=True), ArgumentError, "ks = "),
        (lambda: pack_groups(torch.ones(4, 4), ENDS, use_psum_layout=True), ShapeError, "need 6 rows .* has 4"),
        (lambda: pack_groups(torch.ones(6, 4), ENDS, [128], use_psum_layout=True), ShapeError, r"must be \[1\]"),
        (lambda: pack_groups(torch.ones(6, 4), ENDS, [9, 9], use_psum_layout=True), ShapeError, "3 of words.* make 2"),
        (lambda: pack_groups(torch.ones(6, 4), ENDS[None]), ShapeError, r"ks_tensor.shape = \[1, 2\]"),
        (lambda: pack_groups(torch.ones(5)), ShapeError, "sf.ndim = 1"),
    ],
)
def test_what_cannot_be_packed(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("recipe, is_sfa, gran_mn", [((1, 128), None, 1), ((128, 128), None, 128), ((1, 1, 128), 1, 1)])
@pytest.mark.parametrize("groups", [None, G])
def test_scales_for_sm100_have_a_row_for_each_row(recipe, is_sfa, gran_mn, groups):
    mn, k = 200, 700
    leading = () if groups is None else (groups,)
    scales = make_scales(*leading, -(-mn // gran_mn), 6)
    found = deep_gemm.transform_sf_into_required_layout(scales, mn, k, recipe, groups, is_sfa, target="ue8m0")
    rows = scales if gran_mn == 1 else scales.repeat_interleave(128, -2)[..., :mn, :]
    assert torch.equal(found, deep_gemm.get_mn_major_tma_aligned_packed_ue8m0_tensor(rows))
    again = deep_gemm.transform_sf_into_required_layout(found, mn, k, (1, 128), groups, target="ue8m0")
    assert again.data_ptr() == found.data_ptr()


@pytest.mark.parametrize("recipe, expected", [((1, 128), (1, 40)), ((128, 128), (6, 1))])
def test_scales_of_one_operand_for_sm90(recipe, expected):
    found = deep_gemm.transform_sf_into_required_layout(
        make_scales(MN, 6), MN if recipe[0] == 1 else MN * 128, 768, recipe
    )
    assert found.stride() == expected and found.dtype == torch.float32


def test_fine_scales_are_for_sm100():
    with pytest.raises(ArgumentError, match=r"recipe = \(1, 32\).*SM100 only"):
        deep_gemm.transform_sf_into_required_layout(make_scales(MN, 6), MN, 192, (1, 32))
    with pytest.raises(ArgumentError, match="mn = None"):
        deep_gemm.transform_sf_into_required_layout(make_scales(MN, 6), recipe=(128, 128), target="ue8m0")
    with pytest.raises(ArgumentError, match="target = 'sm120'"):
        deep_gemm.transform_sf_into_required_layout(make_scales(MN, 6), target="sm120")


@pytest.mark.parametrize("shape", [(MN, 1), (1, 5), (1, 1), (G, 40, 1), (G, MN, 1), (0, 1)])
def test_one_column_or_row_of_scales_has_the_strides_too(shape):
    """Upstream's test and callers read the strides, also of dims of size 1."""
    scales = make_scales(*shape)
    found = deep_gemm.get_mn_major_tma_aligned_tensor(scales)
    assert found.stride()[-2:] == (1, deep_gemm.align(shape[-2], 4)) and torch.equal(found, scales)
    assert deep_gemm.get_mn_major_tma_aligned_tensor(found) is found


VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


@pytest.mark.parametrize("use_ue8m0", [False, True])
@pytest.mark.parametrize("n, gran_k", [(128, 32), (96, 128), (130, 128)])
def test_fp4_is_the_nearest_number(n, gran_k, use_ue8m0):
    x = torch.randn(9, n)
    packed, scales = deep_gemm.per_token_cast_to_fp4(x, use_ue8m0, gran_k)
    assert packed.dtype == torch.int8 and packed.shape == (9, n // 2) and scales.shape == (9, -(-n // gran_k))
    back = deep_gemm.cast_back_from_fp4(packed, scales, gran_k)
    grid = torch.cat((VALUES, -VALUES))
    per_element = scales.repeat_interleave(gran_k, 1)[:, :n]
    best = (x[..., None] - grid * per_element[..., None]).abs().amin(-1)
    assert torch.allclose((x - back).abs(), best, atol=1e-6) and back.shape == x.shape


def test_fp4_in_bits():
    x = torch.tensor([[6.0, -6.0, 0.25, 0.2501, -0.1, 5.0, -5.01, 1.75]])
    packed, scales = deep_gemm.per_token_cast_to_fp4(x, use_ue8m0=False, gran_k=8)
    assert scales.tolist() == [[1.0]]
    assert packed.view(torch.uint8).tolist() == [[0xF7, 0x10, 0x60, 0x3F]]
    assert deep_gemm.cast_back_from_fp4(packed, scales, 8).tolist() == [[6.0, -6.0, 0.0, 0.5, 0.0, 4.0, -6.0, 1.5]]


@pytest.mark.filterwarnings("error")
def test_fp4_of_a_transposed_matrix():
    x = torch.randn(256, 64).T
    packed, scales = deep_gemm.per_token_cast_to_fp4(x, True)
    same, same_scales = deep_gemm.per_token_cast_to_fp4(x.contiguous(), True)
    assert torch.equal(packed, same) and torch.equal(scales, same_scales)


@pytest.mark.parametrize("use_ue8m0", [False, True])
def test_fp4_records_no_graph(use_ue8m0):
    results = deep_gemm.per_token_cast_to_fp4(torch.randn(5, 128, requires_grad=True), use_ue8m0)
    assert not any(result.requires_grad for result in results)


def test_fp4_with_packed_scales():
    x = torch.randn(5, 512)
    packed, words = deep_gemm.per_token_cast_to_fp4(x, True, 128, use_packed_ue8m0=True)
    same, scales = deep_gemm.per_token_cast_to_fp4(x, True, 128)
    assert torch.equal(packed, same) and as_words(words) == pack(scales)
    back = deep_gemm.cast_back_from_fp4(packed, words, 128, use_packed_ue8m0=True)
    assert torch.equal(back, deep_gemm.cast_back_from_fp4(packed, scales, 128))


@pytest.mark.parametrize("shape, gran_k", [((5, 512), 128), ((3, 5, 230), 64), ((0, 512), 128)])
def test_fp8_with_packed_scales(shape, gran_k):
    x = torch.randn(shape)
    data, words = deep_gemm.per_token_cast_to_fp8(x, True, gran_k, True)
    same, scales = deep_gemm.per_token_cast_to_fp8(x, True, gran_k)
    assert torch.equal(data.view(torch.uint8), same.view(torch.uint8))
    assert words.dtype == torch.int32 and words.shape == (*shape[:-1], 1)
    assert as_words(words.flatten(0, -2)) == pack(scales.flatten(0, -2))


@pytest.mark.parametrize(
    "shape, gran_k", [((5, 512), 128), ((3, 5, 230), 64), ((4, 96), 128), ((2, 7), 1), ((0, 64), 32)]
)
@pytest.mark.parametrize("use_ue8m0", [False, True])
def test_fp8_casts_back(shape, gran_k, use_ue8m0):
    x = torch.randn(shape)
    data, scales = deep_gemm.per_token_cast_to_fp8(x, use_ue8m0, gran_k)
    back = utils.math.cast_back_from_fp8(data, scales, gran_k)
    of_column = [column // gran_k for column in range(shape[-1])]
    assert back.dtype == torch.float32 and torch.equal(back, data.float() * scales[..., of_column])
    assert ((back - x).abs() <= x.abs() / 16 + scales[..., of_column] * 2.0**-10).all()


@pytest.mark.parametrize("gran_k, num_words", [(128, 1), (128, 2), (32, 4)])
def test_fp8_casts_back_by_packed_scales(gran_k, num_words):
    data, words = deep_gemm.per_token_cast_to_fp8(torch.randn(5, 512), True, gran_k, True)
    scales = utils.unpack_ue8m0_from_int(words)
    wider = torch.zeros(5, num_words, dtype=torch.int32)
    wider[:, : words.shape[1]] = words
    back = utils.cast_back_from_fp8(data, wider, gran_k, use_packed_ue8m0=True)
    assert torch.equal(back, deep_gemm.cast_back_from_fp8(data, scales, gran_k))


def test_fp8_casts_back_at_any_strides():
    data, scales = deep_gemm.per_token_cast_to_fp8(torch.randn(6, 256), False, scales="mn_major")
    mirrored = data.T.contiguous().T
    assert torch.equal(
        deep_gemm.cast_back_from_fp8(mirrored, scales), deep_gemm.cast_back_from_fp8(data, scales.contiguous())
    )


FP8_DATA = torch.ones(2, 8).to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    "data, sf, options, error, message",
    [
        (
            torch.ones(2, 8),
            torch.ones(2, 1),
            {},
            DtypeError,
            "x_fp8.dtype = torch.float32: must be torch.float8_e4m3fn",
        ),
        (FP8_DATA[0], torch.ones(1), {}, ShapeError, "x_fp8.ndim = 1"),
        (FP8_DATA, torch.ones(3, 1), {}, ShapeError, r"sf: scales \[3, 1\], but x_fp8 needs \[2, 1\]"),
        (FP8_DATA, torch.ones(2, 1), {"gran_k": 4}, ShapeError, r"needs \[2, 2\]"),
        (FP8_DATA, torch.ones(2), {}, ShapeError, r"sf: scales \[2\]"),
        (FP8_DATA, torch.ones(2, 1).int(), {}, DtypeError, "sf.dtype = torch.int32"),
        (FP8_DATA, torch.ones(2, 1), {"use_packed_ue8m0": True}, DtypeError, "packed.dtype = torch.float32"),
        (FP8_DATA, torch.ones(2, 1), {"use_packed_ue8m0": "no"}, ArgumentError, "use_packed_ue8m0 = .no"),
        (FP8_DATA, torch.ones(2, 1), {"gran_k": 0}, ArgumentError, "gran_k = 0"),
        (FP8_DATA, torch.ones(2, 1, device="meta"), {}, DeviceError, "sf.device = meta: x_fp8 is on cpu"),
    ],
)
def test_what_cannot_be_cast_back(data, sf, options, error, message):
    with pytest.raises(error, match=message):
        deep_gemm.cast_back_from_fp8(data, sf, **options)


def test_a_packed_matrix_is_transposed_by_its_numbers():
    packed, _ = deep_gemm.per_token_cast_to_fp4(torch.randn(6, 10), False)
    one = torch.ones(1, 1)
    values = deep_gemm.cast_back_from_fp4(packed, one.expand(6, 1))
    found = deep_gemm.transpose_packed_fp4(packed)
    assert torch.equal(deep_gemm.cast_back_from_fp4(found, one.expand(10, 1)), values.T)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: deep_gemm.per_token_cast_to_fp4(torch.ones(3, 5), False), ShapeError, "dim 1 of it even"),
        (lambda: deep_gemm.per_token_cast_to_fp4(torch.ones(3, 4).int(), False), DtypeError, "floating-point"),
        (lambda: deep_gemm.per_token_cast_to_fp4(torch.ones(3, 4), False, 128, True), ArgumentError, "use_ue8m0"),
        (lambda: deep_gemm.per_token_cast_to_fp8(torch.ones(3, 512), False, 128, True), ArgumentError, "use_ue8m0"),
        (lambda: deep_gemm.per_token_cast_to_fp8(torch.ones(3, 513), True, 128, True), ShapeError, "5 scales in a row"),
        (lambda: deep_gemm.per_token_cast_to_fp8(torch.ones(512), True, 128, True), ShapeError, "x.ndim = 1"),
        (
            lambda: deep_gemm.per_token_cast_to_fp8(torch.ones(3, 512), True, 128, True, scales="mn_major"),
            ArgumentError,
            "row-major",
        ),
        (lambda: deep_gemm.transpose_packed_fp4(torch.ones(3, 4).to(torch.int8)), ShapeError, "dim 0 of it even"),
        (lambda: deep_gemm.transpose_packed_fp4(torch.ones(2, 4)), DtypeError, "torch.int8"),
        (lambda: deep_gemm.transpose_packed_fp4(torch.ones(2).to(torch.int8)), ShapeError, "must be a matrix"),
    ],
)
def test_what_is_no_fp4(call, error, message):
    with pytest.raises(error, match=message):
        call()
