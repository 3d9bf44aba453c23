"""The casts to FP8: shapes, values, scales, powers of two, zero sizes."""

import functools
import math

import numpy as np
import pytest
import torch

import deep_gemm
from deep_gemm import utils
from deep_gemm.errors import ArgumentError, DtypeError, LayoutError, ShapeError
from deep_gemm.quantize import round_up_to_power_of_two

FP8 = torch.float8_e4m3fn


def check_group(x, data, scale, use_ue8m0):
    """Compare one group that shares a scale with the definition."""
    wanted = x.abs().float().max().clamp(1e-4) / 448.0
    if use_ue8m0:
        wanted = 2.0 ** torch.ceil(torch.log2(wanted.double())).float()
    assert scale == wanted
    assert torch.equal(data.float(), (x.float() * (1.0 / scale)).to(FP8).float())
    assert (data.float() * scale - x).abs().max() <= x.abs().max().clamp(1e-4) * 2.0**-4


@pytest.mark.parametrize("use_ue8m0", [False, True])
@pytest.mark.parametrize("m, n", [(1, 1), (3, 128), (5, 200), (130, 300)])
def test_per_token(m, n, use_ue8m0):
    x = torch.randn(m, n) * 10
    data, scales = deep_gemm.per_token_cast_to_fp8(x, use_ue8m0)
    assert data.shape == x.shape and data.dtype == FP8 and data.is_contiguous()
    assert scales.shape == (m, -(-n // 128)) and scales.dtype == torch.float32
    for i in {0, m - 1}:
        for j in range(scales.shape[1]):
            block = slice(128 * j, 128 * j + 128)
            check_group(x[i, block], data[i, block], scales[i, j], use_ue8m0)


def test_per_token_granularity():
    x = torch.randn(4, 96)
    data, scales = deep_gemm.per_token_cast_to_fp8(x, False, gran_k=32)
    assert scales.shape == (4, 3)
    check_group(x[2, 32:64], data[2, 32:64], scales[2, 1], False)


@pytest.mark.parametrize("use_ue8m0", [False, True])
def test_per_channel(use_ue8m0):
    x = torch.randn(256, 70, dtype=torch.bfloat16)
    data, scales = deep_gemm.per_channel_cast_to_fp8(x, use_ue8m0)
    assert data.shape == x.shape and scales.shape == (2, 70)
    check_group(x[128:, 5], data[128:, 5], scales[1, 5], use_ue8m0)
    transposed = torch.randn(70, 256).t()
    found, wanted = (deep_gemm.per_channel_cast_to_fp8(each, False) for each in (transposed, transposed.contiguous()))
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one.float(), other.float()) and one.stride() == other.stride()


@pytest.mark.parametrize("m, n", [(128, 128), (130, 300), (1, 1)])
def test_per_block(m, n):
    x = torch.randn(m, n)
    data, scales = deep_gemm.per_block_cast_to_fp8(x, False)
    assert data.shape == x.shape and data.is_contiguous() and scales.shape == (-(-m // 128), -(-n // 128))
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            block = slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128)
            check_group(x[block].flatten(), data[block].flatten(), scales[i, j], False)


def test_per_custom_dims():
    x = torch.randn(4, 6, 32)
    data, scales = deep_gemm.per_custom_dims_cast_to_fp8(x, (0, 2), False)
    assert data.shape == x.shape and scales.shape == (4, 32)
    check_group(x[1, :, 7], data[1, :, 7], scales[1, 7], False)
    assert deep_gemm.per_custom_dims_cast_to_fp8(x, (0, 1, 2), False)[1].shape == (4, 6, 32)
    assert deep_gemm.per_custom_dims_cast_to_fp8(x, (-3,), False)[1].shape == (4,)
    assert deep_gemm.per_custom_dims_cast_to_fp8(x, (), True)[1].shape == ()


#: Every cast, of one tensor.
EVERY_CAST = {
    "token": lambda x: deep_gemm.per_token_cast_to_fp8(x, False),
    "token, mn_major": lambda x: deep_gemm.per_token_cast_to_fp8(x, True, scales="mn_major"),
    "token, packed": lambda x: deep_gemm.per_token_cast_to_fp8(x, True, use_packed_ue8m0=True),
    "swiglu": lambda x: deep_gemm.swiglu_per_token_cast_to_fp8(x, True, limit=2.0),
    "channel": lambda x: deep_gemm.per_channel_cast_to_fp8(x, False),
    "block": lambda x: deep_gemm.per_block_cast_to_fp8(x, False),
    "custom dims": lambda x: deep_gemm.per_custom_dims_cast_to_fp8(x, (0,), False),
}


@pytest.mark.parametrize("how", ["eager", "compiled", "inference"])
@pytest.mark.parametrize("name", EVERY_CAST)
def test_no_graph_is_recorded(name, how):
    """As the kernels do, whatever the input requires."""
    cast, x = EVERY_CAST[name], torch.randn(128, 512, requires_grad=True)
    expected = cast(x.detach())
    if how == "compiled":
        torch._dynamo.reset()
        cast = torch.compile(cast, fullgraph=True, backend="aot_eager")
    with torch.inference_mode(how == "inference"):
        found = cast(x)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.float(), other.float()) and one.stride() == other.stride()
        assert not one.requires_grad and one.grad_fn is None


def test_zero_sizes():
    for shape in ((0, 256), (5, 0), (0, 0)):
        for cast, rows in (
            (deep_gemm.per_token_cast_to_fp8, shape[0]),
            (deep_gemm.per_block_cast_to_fp8, -(-shape[0] // 128)),
        ):
            data, scales = cast(torch.empty(shape), False)
            assert data.shape == shape and scales.shape == (rows, -(-shape[1] // 128))
    for shape in ((0, 8), (2, 0, 8), (0, 128, 8), (2, 128, 0)):
        data, scales = deep_gemm.per_channel_cast_to_fp8(torch.empty(shape), False)
        assert data.shape == shape and scales.shape == (*shape[:-2], shape[-2] // 128, shape[-1])


CASTS = [
    deep_gemm.per_token_cast_to_fp8,
    pytest.param(
        lambda x, use_ue8m0: deep_gemm.per_token_cast_to_fp8(x, use_ue8m0, gran_k=32),
        id="per_token_cast_to_fp8 gran_k=32",
    ),
    deep_gemm.per_block_cast_to_fp8,
]


@pytest.mark.parametrize("use_ue8m0", [False, True])
@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("shape", [(3, 130, 300), (2, 2, 5, 129), (1, 256, 128)])
def test_each_group_is_quantised_by_itself(shape, cast, use_ue8m0):
    check_groups(shape, cast, use_ue8m0)


@pytest.mark.parametrize("use_ue8m0", [False, True])
@pytest.mark.parametrize("shape", [(3, 160, 300), (2, 2, 32, 129), (1, 256, 128)])
def test_each_group_has_channels_of_its_own(shape, use_ue8m0):
    check_groups(shape, lambda x, use_ue8m0: deep_gemm.per_channel_cast_to_fp8(x, use_ue8m0, gran_k=32), use_ue8m0)


def check_groups(shape, cast, use_ue8m0):
    """Compare the cast of random groups with those of each alone."""
    x = torch.randn(shape) * 10.0 ** torch.arange(shape[0]).view(
        -1, *[1] * (len(shape) - 1)
    )  # a scale shared by two groups is wrong for one
    data, scales = cast(x, use_ue8m0)
    matrices = x.flatten(0, -3)
    single = [cast(matrix, use_ue8m0) for matrix in matrices]
    assert data.shape == shape and data.dtype == FP8 and data.is_contiguous() and scales.is_contiguous()
    assert scales.shape == (*shape[:-2], *single[0][1].shape) and scales.dtype == torch.float32
    assert torch.equal(data.view(matrices.shape).float(), torch.stack([part[0] for part in single]).float())
    assert torch.equal(scales.flatten(0, -3), torch.stack([part[1] for part in single]))


def test_groups_may_be_strided():
    x = torch.randn(130, 3, 70).transpose(0, 1)
    for cast in (deep_gemm.per_token_cast_to_fp8, deep_gemm.per_block_cast_to_fp8):
        for part, wanted in zip(cast(x, False), cast(x.contiguous(), False), strict=True):
            assert part.is_contiguous() and torch.equal(part.float(), wanted.float())


def test_groups_of_zero_sizes():
    for shape in ((0, 130, 300), (3, 0, 300), (3, 130, 0), (0, 0, 0), (2, 0, 5, 7)):
        for cast, rows in (
            (deep_gemm.per_token_cast_to_fp8, shape[-2]),
            (deep_gemm.per_block_cast_to_fp8, -(-shape[-2] // 128)),
        ):
            data, scales = cast(torch.empty(shape), False)
            assert (
                data.shape == shape and data.dtype == FP8 and scales.shape == (*shape[:-2], rows, -(-shape[-1] // 128))
            )


def test_zeros_and_the_largest_values_survive():
    for value in (0.0, 3e38, -448.0, 1e-30):
        x = torch.full((1, 128), value)
        for use_ue8m0 in (False, True):
            data, scales = deep_gemm.per_token_cast_to_fp8(x, use_ue8m0)
            assert data.float().isfinite().all() and scales.isfinite().all() and (scales > 0).all()


def test_powers_of_two_are_exact():
    exponents = torch.arange(-100, 100).float()
    powers = 2.0**exponents
    assert torch.equal(round_up_to_power_of_two(powers), powers)
    assert torch.equal(round_up_to_power_of_two(torch.nextafter(powers, torch.tensor(float("inf")))), 2.0 * powers)
    assert torch.equal(round_up_to_power_of_two(torch.nextafter(powers, torch.tensor(0.0))), powers)


@pytest.mark.parametrize("special", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize(
    "cast, options",
    [
        (deep_gemm.per_token_cast_to_fp8, {}),
        (deep_gemm.per_block_cast_to_fp8, {}),
        (deep_gemm.per_channel_cast_to_fp8, {}),
        (deep_gemm.per_custom_dims_cast_to_fp8, {"dims": (0,)}),
    ],
)
def test_what_shares_a_scale_with_infinity_or_nan_keeps_its_numbers(cast, options, special):
    """Where scales are powers of two: with ceil_to_ue8m0's 2^127 the numbers would become 0."""
    x = torch.arange(128.0).repeat(128, 1) - 64.0
    x[3] = x[:, 3] = special  # in every row, column and block
    data, scales = cast(x, use_ue8m0=True, **options)
    finite = x.isfinite()
    assert (scales == 1.0).all() and torch.equal(data.float()[finite], x[finite].to(FP8).float())
    assert deep_gemm.ceil_to_ue8m0(x[3, :1]) == 2.0**127
    unrounded = cast(x, use_ue8m0=False, **options)[1]
    assert not unrounded.isfinite().any() and unrounded.isnan().all() == x.isnan().any()


@pytest.mark.parametrize("amax", [1e-4, 0.3, 448.0, 448.0001, 1e5, 3e38])
def test_rounded_scales_are_those_of_ceil_to_ue8m0(amax):
    x = torch.full((1, 128), amax)
    plain, rounded = (deep_gemm.per_token_cast_to_fp8(x, use_ue8m0)[1] for use_ue8m0 in (False, True))
    assert torch.equal(rounded, deep_gemm.ceil_to_ue8m0(plain))


def test_wrong_inputs():
    casts = deep_gemm.per_token_cast_to_fp8, deep_gemm.per_block_cast_to_fp8, deep_gemm.per_channel_cast_to_fp8
    for cast in casts:
        for x in (torch.zeros(()), torch.zeros(3)):
            with pytest.raises(ShapeError, match=rf"x.ndim = {x.ndim}: must be a matrix \[m, n\] or groups of them"):
                cast(x, False)
    for shape in ((100, 4), (128, 100, 4)):
        with pytest.raises(ShapeError, match="m = 100: per-channel scales cover 128 rows"):
            deep_gemm.per_channel_cast_to_fp8(torch.zeros(shape), False)
    with pytest.raises(DtypeError, match="x.dtype = torch.int64"):
        deep_gemm.per_block_cast_to_fp8(torch.zeros(4, 4, dtype=torch.int64), False)
    with pytest.raises(ShapeError, match=r"dims = \(3,\)"):
        deep_gemm.per_custom_dims_cast_to_fp8(torch.zeros(1, 2, 3), (3,), False)


def test_integers():
    assert [utils.ceil_div(x, 128) for x in (0, 1, 128, 129)] == [0, 1, 1, 2]
    assert [utils.align(x, 16) for x in (0, 1, 16, 17)] == [0, 16, 16, 32]


@pytest.mark.parametrize("call", [utils.ceil_div, utils.align])
def test_what_cannot_be_divided(call):
    for x, y in ((None, 2), (2, None), ("x", 2), ([], 2), (2, 0)):
        with pytest.raises(ArgumentError, match="x, y = .*: must be ints, y not 0"):
            call(x, y)
    assert torch.equal(utils.ceil_div(torch.tensor([5, 6]), 3), torch.tensor([2, 2])), "as callers of DeepGEMM do"


@pytest.mark.parametrize("form", ["per_token", "per_block", "per_channel", "swiglu_per_token"])
def test_a_granularity_may_be_a_number_of_numpy(form):
    x, cast = torch.randn(64, 128), getattr(deep_gemm, f"{form}_cast_to_fp8")
    for found, expected in zip(cast(x, True, np.int64(32)), cast(x, True, 32), strict=True):
        assert torch.equal(found.float(), expected.float())
    for gran_k in (True, 0, torch.tensor(32), "32"):
        with pytest.raises(ArgumentError, match="gran_k = .*: must be an int of 1"):
            cast(x, True, gran_k)


def test_the_gate_is_the_first_half():
    gate, up = torch.randn(2, 5, 256, generator=torch.Generator().manual_seed(1)).unbind()
    wanted = deep_gemm.per_token_cast_to_fp8(torch.nn.functional.silu(gate) * up, False)
    found = deep_gemm.swiglu_per_token_cast_to_fp8(torch.cat([gate, up], 1), False)
    assert all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(found, wanted, strict=True))
    with pytest.raises(ShapeError, match=r"x.shape\[-1\] = 257: rows are \[gate, up\]"):
        deep_gemm.swiglu_per_token_cast_to_fp8(torch.zeros(4, 257), False)


def test_gates_and_ups_in_turn_and_their_limit():
    """As the layers of DeepSeek-V4 compute them."""
    gate, up = torch.randn(2, 5, 256, generator=torch.Generator().manual_seed(1)).unbind()
    in_turn = torch.stack([gate.view(5, 32, 8), up.view(5, 32, 8)], 2).view(5, 512)
    wanted = deep_gemm.swiglu_per_token_cast_to_fp8(torch.cat([gate.clamp(max=0.5), up.clamp(-0.5, 0.5)], 1), False)
    found = deep_gemm.swiglu_per_token_cast_to_fp8(in_turn, False, limit=0.5, is_interleaved=True)
    assert all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(found, wanted, strict=True))
    with pytest.raises(ShapeError, match=r"x.shape\[-1\] = 504: gates and ups are interleaved"):
        deep_gemm.swiglu_per_token_cast_to_fp8(torch.zeros(4, 504), False, is_interleaved=True)
    for limit in (-1.0, math.nan, 1e39, True, "7"):
        with pytest.raises(ArgumentError, match="limit = "):
            deep_gemm.swiglu_per_token_cast_to_fp8(in_turn, False, limit=limit)


def test_a_limited_swiglu_in_a_graph():
    """No graph break, and the numbers of the call."""
    x = torch.randn(4, 512)
    call = functools.partial(deep_gemm.swiglu_per_token_cast_to_fp8, use_ue8m0=False, limit=0.5, is_interleaved=True)
    found = torch.compile(call, backend="eager", fullgraph=True)(x)
    assert all(torch.equal(a.float(), b.float()) for a, b in zip(found, call(x), strict=True))


@pytest.mark.parametrize("shape, groups", [((2, 8, 128), 3), ((2, 8, 128), 1), ((8, 128), 8)])
@pytest.mark.parametrize("name", ["per_token_cast_to_fp8", "swiglu_per_token_cast_to_fp8"])
def test_a_mask_has_a_number_for_each_group(name, shape, groups):
    with pytest.raises(ShapeError, match="masked_m.shape"):
        getattr(deep_gemm, name)(torch.zeros(shape), False, masked_m=torch.ones(groups, dtype=torch.int32))


@pytest.mark.parametrize("name", ["per_token_cast_to_fp8", "swiglu_per_token_cast_to_fp8"])
def test_a_mask_is_contiguous_int32(name):
    x, masked_m = torch.zeros(2, 4, 256), torch.tensor([3, 0, 4, 0], dtype=torch.int32)
    with pytest.raises(LayoutError, match=r"masked_m.stride\(\) = \(2,\): .* pass masked_m.contiguous\(\)"):
        getattr(deep_gemm, name)(x, False, masked_m=masked_m[::2])
    getattr(deep_gemm, name)(x, False, masked_m=masked_m[::2].contiguous())
    with pytest.raises(DtypeError, match=r"masked_m.dtype = torch.int64: .* convert it with .int\(\)"):
        getattr(deep_gemm, name)(x, False, masked_m=masked_m[:2].long())


@pytest.mark.parametrize("cast", [deep_gemm.per_block_cast_to_fp8, deep_gemm.per_token_cast_to_fp8])
def test_a_number_of_rows_that_only_values_tell_can_be_exported(cast):
    class Picked(torch.nn.Module):
        def forward(self, x, mask):
            return cast(x[mask.nonzero().squeeze(1)], use_ue8m0=False)

    x, mask = torch.randn(8, 256), torch.arange(8) % 2 == 0
    program = torch.export.export(Picked(), (x, mask), strict=False).module()
    for found, expected in zip(program(x, mask), cast(x[::2].contiguous(), use_ue8m0=False), strict=True):
        assert torch.equal(found.float(), expected.float())
