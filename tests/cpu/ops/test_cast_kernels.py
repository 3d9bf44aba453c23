"""The quantising kernels executed on the CPU: equal to the bit to the torch formula, as CUDA rounds its division.

Every variant is a compilation, so most cases are `full`.
"""

import itertools
import math

import pytest
import torch

from deep_gemm import cast_kernels, quantize
from deep_gemm.group_packing import get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor as get_k_grouped_packed
from tests.fakes.plain_host import POISON, make_kernel, run_plan, use_host_kernels

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(autouse=True)
def host_kernels(monkeypatch):
    """Run kernels on the CPU; torch divides by a number as it does on GPUs."""
    use_host_kernels(monkeypatch)
    monkeypatch.setattr(quantize, "_divide_by_max", lambda amax: amax * (torch.ones(()) / quantize.FP8_MAX))


def values(shape, dtype=BF16, seed=0):
    """Return numbers of many magnitudes, zeros of both signs among them."""
    torch.manual_seed(seed)
    x = torch.randn(shape) * 10.0 ** torch.randint(-6, 4, shape)
    x.view(-1)[::7] = -0.0
    return x.to(dtype)


def few(*cases):
    """Return the cases as parameters; all but the first one are `full`."""
    return [cases[0], *(pytest.param(*case, marks=pytest.mark.full) for case in cases[1:])]


def check(cast, expected):
    assert cast is not None
    for found, wanted in zip(cast, expected, strict=True):
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        kind = torch.uint8 if found.dtype == torch.float8_e4m3fn else torch.int32
        assert torch.equal(bits(found, kind), bits(wanted, kind))


def bits(tensor, kind):
    """Return the bits, with one NaN for all: a CPU and a GPU give the NaN of 0 * inf different signs."""
    flat = tensor.contiguous()
    return flat.view(kind).masked_fill(flat.float().isnan(), -1 if kind is torch.int32 else 0x7F)


def strided(x, extra):
    """Return x with rows `extra` elements further apart."""
    wide = torch.full((*x.shape[:-1], x.shape[-1] + extra), torch.nan, dtype=x.dtype)
    wide[..., : x.shape[-1]] = x
    return wide[..., : x.shape[-1]]


def rows(x, gran=128, use_ue8m0=False, masked_m=None, is_mn_major=False):
    plan = cast_kernels.plan_rows(x, gran, use_ue8m0, masked_m is not None, is_mn_major)
    return run_plan(plan, x, masked_m)


def blocks(x, gran=128, use_ue8m0=False, is_per_column=False):
    return run_plan(cast_kernels.plan_blocks(x, gran, use_ue8m0, is_per_column), x)


@pytest.mark.parametrize("use_ue8m0", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "shape, dtype, gran, extra",
    few(
        ((5, 512), BF16, 128, 0), ((3, 200), BF16, 128, 8), ((4, 131), BF16, 64, 0), ((70, 256), FP32, 128, 4),
        ((9, 96), FP16, 32, 1), ((3, 5, 256), BF16, 128, 16), ((2, 3, 2, 128), BF16, 64, 0), ((1, 1), FP32, 32, 0),
    ),
)  # fmt: skip
def test_per_token(shape, dtype, gran, extra, use_ue8m0):
    x = strided(values(shape, dtype), extra)
    check(rows(x, gran, use_ue8m0), quantize.per_token_cast_to_fp8(x, use_ue8m0, gran))


@pytest.mark.parametrize("shape", [(5, 256), (3, 6, 256), (1, 4, 384), (2, 2, 3, 128)])
def test_mn_major_scales(shape):
    x = values(shape)
    cast, expected = rows(x, is_mn_major=True), quantize.per_token_cast_to_fp8(x, False, scales="mn_major")
    assert cast[1].stride() == expected[1].stride() and cast[1].stride(-1) == -(-shape[-2] // 4) * 4
    check(cast, expected)


@pytest.mark.full
@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan, 3e38, 1e-40])
@pytest.mark.parametrize("use_ue8m0", [False, True])
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_numbers_that_are_not_finite_give_what_torch_gives(special, use_ue8m0, dtype):
    x = values((4, 256), dtype)
    x[1, 3] = x[2, 200] = special
    x[3] = special
    check(rows(x, 128, use_ue8m0), quantize.per_token_cast_to_fp8(x, use_ue8m0))
    check(blocks(x, 128, use_ue8m0), quantize.per_block_cast_to_fp8(x, use_ue8m0))
    tall = x.repeat(32, 1)
    check(blocks(tall, 128, use_ue8m0, True), quantize.per_channel_cast_to_fp8(tall, use_ue8m0))


@pytest.mark.full
def test_a_torch_that_does_not_saturate_is_followed(monkeypatch):
    """Before 2.13 it cast numbers beyond 448, which only scales of infinite groups leave, to NaN."""
    monkeypatch.setattr(cast_kernels, "_does_torch_saturate", lambda: False)
    x = torch.tensor([[math.inf, -math.inf, 465.0, -480.0, 464.0, -448.0, 3.0, math.nan]]).repeat(128, 16)
    wanted = torch.tensor([0x7F, 0xFF, 0x7F, 0xFF, 0x7E, 0xFE, 0x44, 0x7F], dtype=torch.uint8).repeat(128, 16)
    for data, scales in (rows(x, 128, True), blocks(x, 128, True)):
        assert torch.equal(data.view(torch.uint8), wanted) and (scales == 1).all()


@pytest.mark.parametrize("ctas, may_start", [(1, True), (512, True), (513, False)])
def test_products_start_early_behind_casts_that_run_at_once(monkeypatch, ctas, may_start):
    counts = []

    def get_kernel(*arguments, **constants):
        launch = make_kernel(*arguments, **constants)
        return lambda grid, *numbers: counts.append(launch((ctas, 1), *numbers))

    monkeypatch.setattr(cast_kernels, "get_kernel", get_kernel)
    x = values((5, 512))
    check(rows(x), quantize.per_token_cast_to_fp8(x, False, 128))
    assert counts == [256 * ctas if may_start else 0]


@pytest.mark.parametrize("sm_count, is_mn_major", [(132, True), (1, False)])
def test_masked_rows_are_neither_read_nor_written(monkeypatch, sm_count, is_mn_major):
    monkeypatch.setattr(cast_kernels, "_sm_count", lambda x: sm_count)
    x, counts = values((4, 70, 256)), [70, 0, 3, 99]  # more rows than there are: all
    for group, count in enumerate(counts):
        x[group, count:] = torch.nan
    data, scales = rows(x, 128, False, torch.tensor(counts, dtype=torch.int32), is_mn_major)
    expected = quantize.per_token_cast_to_fp8(x, False)
    for group, count in enumerate(counts):
        check((data[group, :count], scales[group, :count].contiguous()), [part[group, :count] for part in expected])
        assert (data[group, count:].view(torch.uint8) == POISON).all()
        assert (scales[group, count:].contiguous().view(torch.int32) == POISON * 0x01010101).all()


@pytest.mark.parametrize("use_ue8m0", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "shape, dtype, gran, extra",
    few(
        ((128, 256), BF16, 128, 0), ((130, 300), BF16, 128, 0), ((3, 5, 129), FP16, 128, 3),
        ((2, 256, 136), BF16, 128, 8),
        ((70, 100), FP32, 64, 4), ((33, 200), BF16, 32, 0), ((200, 64), FP32, 128, 0),
    ),
)  # fmt: skip
def test_per_block(shape, dtype, gran, extra, use_ue8m0):
    x = strided(values(shape, dtype), extra)
    check(blocks(x, gran, use_ue8m0), quantize.per_block_cast_to_fp8(x, use_ue8m0, gran))


@pytest.mark.parametrize("use_ue8m0", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "m, n, dtype, gran", few((256, 128, BF16, 128), (128, 70, BF16, 128), (64, 300, FP32, 32), (128, 136, FP16, 64))
)
def test_per_channel(m, n, dtype, gran, use_ue8m0):
    x = values((m, n), dtype)
    check(blocks(x, gran, use_ue8m0, True), quantize.per_channel_cast_to_fp8(x, use_ue8m0, gran))


@pytest.mark.parametrize("shape, extra", [((3, 128, 70), 0), pytest.param((2, 2, 64, 96), 4, marks=pytest.mark.full)])
@pytest.mark.parametrize("is_tall", [True, False])
def test_per_channel_of_groups(shape, extra, is_tall):
    """Groups that lie one after the other are one tall matrix, others are walked apart."""
    x = strided(values(shape), extra)
    x = x if is_tall else torch.stack([x, x * 2], x.dim() - 2).select(x.dim() - 2, 1)
    gran = min(shape[-2], 128)
    plan = cast_kernels.plan_blocks(x, gran, False, True)
    assert plan.launches[0].grid[1:] == ((math.prod(shape[:-1]) // gran, 1) if is_tall else (1, math.prod(shape[:-2])))
    check(run_plan(plan, x), quantize.per_channel_cast_to_fp8(x, False, gran))


def test_memory_that_no_kernel_walks_is_left_to_torch():
    x = values((2, 3, 128, 130))
    assert rows(x.mT) is None and blocks(x.mT) is None and rows(x[:, ::2].permute(1, 0, 2, 3)) is None


@pytest.mark.parametrize("shape", [(0, 256), (5, 0), (0, 3, 128), (2, 0, 128)])
def test_zero_sizes_launch_nothing(shape):
    x = torch.empty(shape, dtype=BF16)
    check(rows(x), quantize.per_token_cast_to_fp8(x, False))
    check(blocks(x), quantize.per_block_cast_to_fp8(x, False))


@pytest.mark.parametrize(
    "n, gran, dtype",
    [(16, 16, BF16), (9, 16, BF16), (8, 8, FP32), *few((17, 16, BF16), (9, 8, FP32), (32, 32, BF16))],
)
def test_rows_of_few_columns(n, gran, dtype):
    """A row that is one slice is left to torch: the kernel finds rows by a division that is none by 1."""
    x = values((70, n), dtype)
    found = rows(x, gran)
    assert (found is None) == (n <= gran == 32 // x.element_size())
    if found is not None:
        check(found, quantize.per_token_cast_to_fp8(x, False, gran))


@pytest.mark.parametrize("gran, dtype", [(48, BF16), (8, BF16), (512, BF16), (256, FP32), (128, torch.float64)])
def test_what_no_kernel_does_is_left_to_torch(gran, dtype):
    assert rows(torch.ones(2, 1024, dtype=dtype), gran) is None


@pytest.mark.parametrize(
    "shape, extra", [((5, 7), 0), ((130, 33), 3), ((3, 129, 5), 0), ((2, 4, 60), 8), ((131, 56), 0), ((129, 300), 4)]
)
def test_scale_layouts(shape, extra):
    sf = strided(values(shape, FP32).abs(), extra)
    aligned = -(-shape[-2] // 4) * 4
    found, packed = (run_plan(cast_kernels.plan_layout(sf, is_packed), sf) for is_packed in (False, True))
    exponents = torch.nn.functional.pad((sf.contiguous().view(torch.int32) >> 23).to(torch.uint8), (0, -shape[-1] % 4))
    for tensor, wanted in ((found, sf), (packed, exponents.contiguous().view(torch.int32))):
        assert torch.equal(tensor, wanted) and tensor.stride()[-2:] == (1, aligned)
        assert len(shape) == 2 or tensor.stride(0) == aligned * tensor.shape[-1]


def test_only_tiles_with_rows_of_their_group_are_laid_out():
    """Groups of 65, 0 and 130 rows: 2, 0 and 3 tiles of 64 rows; all other words keep the poison."""
    groups, rows, k, sizes = 3, 260, 8, torch.tensor([65, 0, 130], dtype=torch.int32)
    sf, out = values((groups, rows, k), FP32), torch.full((groups, k, rows), 77.0)
    launch = make_kernel("scale_layout", 256, kPack=False, kAligned=True)
    launch((1, 5, groups), sf, out, sizes, rows, k, k, rows * k, k, rows * k, rows)
    for group, copied in enumerate((128, 0, 192)):
        assert torch.equal(out[group, :, :copied], sf[group, :copied].T)
        assert (out[group, :, copied:] == 77.0).all()


def test_columns_of_scales_that_are_not_contiguous_are_left_to_torch():
    assert cast_kernels.plan_layout(torch.ones(8, 4).T, False) is None
    assert cast_kernels.plan_layout(torch.ones(2, 2, 8, 4), True) is None


def packed_groups(sf, numbers, words, gran_k, alignment, is_ends):
    groups = torch.tensor(numbers, dtype=torch.int32)
    return run_plan(cast_kernels.plan_groups(sf, groups, words, gran_k, alignment, is_ends), sf, groups)


@pytest.mark.parametrize("mn, extra", few((40, 0), (1032, 4), (37, 0), (36, 1)))
@pytest.mark.parametrize("is_ends", [pytest.param(False, marks=pytest.mark.full), True])
def test_scales_of_groups_are_packed_by_one_kernel(mn, extra, is_ends):
    torch.manual_seed(mn)
    some = torch.randint(0, 300, (300,)) * (torch.arange(300) % 5 == 0)  # more groups than threads, most of them empty
    sizes = [384, 0, 5, 0, 0, 640, *some.tolist()]
    ends = list(itertools.accumulate(sizes, lambda end, size: -(-end // 160) * 160 + size))
    rows = [-(-size // 128) for size in sizes]
    sf = strided(values((sum(rows), mn), FP32).abs(), extra)
    words = sum(-(-count // 4) for count in rows)
    found = packed_groups(sf, ends if is_ends else sizes, words + 2, 128, 160, is_ends)
    assert torch.equal(found[:words], get_k_grouped_packed(sf, None, sizes)) and not found[words:].any()


def test_ends_beyond_the_scales_pack_zeros():
    sf = values((3, 8), FP32).abs()
    found = packed_groups(sf, [-7, 128 * 7, 1 << 30], 4, 128, 128, True)
    assert torch.equal(found[:1], get_k_grouped_packed(sf, None, [384])) and not found[1:].any()


@pytest.mark.parametrize("divisor", [2, 3, 4, 5, 7, 16, 56, 896, 65535, 1 << 20, (1 << 20) + 1, (1 << 31) - 1])
def test_the_division_of_indices_is_exact(divisor):
    magic, shift = cast_kernels.divider(divisor)
    largest = (1 << 31) - 1
    assert magic < 1 << 32
    for multiple in (0, 1, 2, largest // divisor // 2, largest // divisor):
        for x in (multiple * divisor - 1, multiple * divisor, multiple * divisor + 1, largest):
            if 0 <= x <= largest:
                assert (x * magic >> 32) >> shift == x // divisor


@pytest.mark.full
def test_casts_are_one_compiled_graph_of_the_same_values(monkeypatch):
    """Of the formula: no kernel takes part, and what poisons memory for kernels cannot be traced."""
    monkeypatch.undo()

    def cast(x):
        return (
            quantize.per_token_cast_to_fp8(x, False),
            quantize.swiglu_per_token_cast_to_fp8(x, True, scales="mn_major"),
        )

    x = values((3, 256))
    for found, expected in zip(torch.compile(cast, backend="eager", fullgraph=True)(x), cast(x), strict=True):
        check(found, expected)
