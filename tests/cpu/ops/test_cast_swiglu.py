"""The cast of SwiGLU executed on the CPU: its short exponential and division, gates and ups in turn, and limits."""

import ctypes
import math

import pytest
import torch

from deep_gemm import cast_kernels, quantize
from tests.cpu.ops.test_cast_kernels import (  # noqa: F401  (host_kernels: a fixture)
    BF16,
    check,
    few,
    host_kernels,
    values,
)
from tests.fakes.plain_host import POISON, compile_host, run_plan


@pytest.mark.parametrize("n, gran", few((256, 128), (72, 64), (33, 32)))
def test_swiglu(n, gran):
    """Values are as close as the exponential functions of two libraries."""
    x = values((6, 2 * n))
    data, scales = run_plan(cast_kernels.plan_rows(x, gran, False, swiglu=(0, -1)), x)
    gate, up = x.float().chunk(2, -1)
    wanted, wanted_scales = quantize.per_token_cast_to_fp8(gate / (1 + torch.exp(-gate)) * up, False, gran)
    assert torch.allclose(scales, wanted_scales, rtol=1e-6)
    steps = (data.view(torch.uint8).int() - wanted.view(torch.uint8).int()).abs()
    assert steps.max() <= 1 and (steps > 0).float().mean() < 1e-2


@pytest.mark.parametrize(
    "is_interleaved, limit", few((True, 3.0), (True, 0.25), (True, None), (False, 3.0), (True, -0.0))
)
def test_swiglu_in_turn_and_limited(is_interleaved, limit):
    """Another order of the columns and limited numbers are what the kernel reads, with NaN and infinities; rows beyond
    masked_m stay as they are.
    """
    gate, up = values((2, 9, 256)), values((2, 9, 256), seed=1)
    gate[0, 0, :3], up[0, 0, 1:4] = torch.tensor([math.nan, math.inf, -math.inf]), math.nan
    order = (2, 9, 32, 8)
    x = torch.stack([gate.view(order), up.view(order)], 3).flatten(2) if is_interleaved else torch.cat([gate, up], -1)
    form, counts = quantize._make_swiglu(limit, is_interleaved), torch.tensor([9, 4], dtype=torch.int32)
    found = run_plan(cast_kernels.plan_rows(x, 128, False, True, swiglu=form), x, counts)
    gate, up = gate.float(), up.float()
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    wanted = quantize.per_token_cast_to_fp8(gate / (1 + torch.exp(-gate)) * up, False)
    for group, count in enumerate(counts):
        scales = found[1][group, :count], wanted[1][group, :count]
        assert torch.allclose(*scales, rtol=1e-6, equal_nan=True)
        steps = [part[0][group, :count].float().nan_to_num(1e4) for part in (found, wanted)]
        assert ((steps[0] - steps[1]).abs() <= 0.13 * steps[1].abs()).all()
        assert (found[0][group, count:].view(torch.uint8) == POISON).all()


def count_gates(source: str, element: str) -> list[int]:
    """Return both counts of device code over all bits of 16."""
    launch = compile_host(source, f"count<Element::{element}>((deep_gemm::i64*)a[0], (deep_gemm::i64*)a[1])")
    counts = torch.zeros(2, dtype=torch.int64)
    launch((ctypes.c_uint * 3)(256, 1, 1), 256, (ctypes.c_longlong * 2)(counts.data_ptr(), counts.data_ptr() + 8))
    return counts.tolist()


#: Counts the quotients that are not gate / divisor and those that are: of the gate whose bits are this thread's number,
#: for divisors and reciprocals of every error that divide_gate allows.
_QUOTIENTS = """
#include <atomic>
#include "deep_gemm/fp8_cast.cuh"
using namespace deep_gemm;
template <Element kElement>
void count(i64* wrong, i64* right) {
    const u32 bits = blockIdx.x * 256 + threadIdx.x, word = bits * 0x10001, words[4] = {word, word, word, word};
    const float gate = Elements<kElement>::to_float(bits);
    if (!Elements<kElement>::are_moderate(words)) return;
    const u32 exponential = __float_as_uint(float(std::exp(-double(gate))));
    for (int i = -8; i <= 8; ++i) {
        const float divisor = 1.0f + __uint_as_float(exponential + i);
        for (int j = -1; j <= 1; ++j) {
            const float reciprocal = __uint_as_float(__float_as_uint(1.0f / divisor) + j);
            const u32 quotient = __float_as_uint(divide_gate(gate, divisor, reciprocal));
            const bool is_right = quotient == __float_as_uint(gate / divisor);
            ++std::atomic_ref<i64>(is_right ? *right : *wrong);
        }
    }
}
"""


@pytest.mark.parametrize("element, moderate", few(("kBfloat16", 24 * 128 * 2), ("kFloat16", 20 * 1024 * 2)))
def test_the_short_division_of_gates_is_exact(element, moderate):
    assert count_gates(_QUOTIENTS, element) == [0, moderate * 17 * 3]


#: Counts moderate gates, and those of them whose exponent in add_exponential is another than in expf of CUDA.
_FLOORS = """
#include <atomic>
#include "deep_gemm/fp8_cast.cuh"
using namespace deep_gemm;
template <Element kElement>
void count(i64* moderate, i64* wrong) {
    const u32 bits = blockIdx.x * 256 + threadIdx.x, word = bits * 0x10001, words[4] = {word, word, word, word};
    const float gate = Elements<kElement>::to_float(bits);
    if (!Elements<kElement>::are_moderate(words)) return;
    const float clamped = std::fmin(std::fmax(__fmaf_rn(-gate, 0.00572498003f, 0.5f), 0.0f), 1.0f);
    ++std::atomic_ref<i64>(*moderate);
    if (__fmaf_rd(clamped, 252.0f, 12582913.0f) != shift_exponent(gate)) ++std::atomic_ref<i64>(*wrong);
}
"""


@pytest.mark.parametrize("element, moderate", few(("kFloat16", 20 * 1024 * 2), ("kBfloat16", 24 * 128 * 2)))
def test_the_short_exponential_takes_the_exponent_of_the_long_one(element, moderate):
    """Beyond that the instructions are the same, and a product by a power of two and its sum with 1 round once."""
    assert count_gates(_FLOORS, element) == [moderate, 0]


#: Counts words of which are_moderate says another thing than their halves say apart: of all low halves beside every
#: 61st high one.
_RANGES = """
#include <atomic>
#include "deep_gemm/fp8_cast.cuh"
using namespace deep_gemm;
template <Element kElement>
bool is_moderate(u32 half) {
    const float gate = std::fabs(Elements<kElement>::to_float(half));
    return gate >= (kElement == Element::kBfloat16 ? 0x1p-18f : 0x1p-14f) && gate < 64.0f;
}
template <Element kElement>
void count(i64* wrong, i64* right) {
    const u32 low = blockIdx.x * 256 + threadIdx.x;
    for (u32 high = 0; high < 0x10000; high += 61) {
        const u32 words[4] = {0x3C003C00, high << 16 | low, 0x3C003C00, 0xBC003C00};
        const bool expected = is_moderate<kElement>(low) && is_moderate<kElement>(high);
        const bool is_right = Elements<kElement>::are_moderate(words) == expected;
        ++std::atomic_ref<i64>(is_right ? *right : *wrong);
    }
}
"""


@pytest.mark.parametrize("element", ["kBfloat16", pytest.param("kFloat16", marks=pytest.mark.full)])
def test_the_range_of_a_word_is_that_of_its_halves(element):
    assert count_gates(_RANGES, element) == [0, 65536 * 1075]


def test_swiglu_of_gates_beyond_the_short_division():
    """Zeros of both signs, infinities and NaN, beside moderate gates in their chunks and in chunks of their own."""
    gates = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-30, -1e-30, 100.0, -100.0, 3e38, -3e38, 63.9])
    gate = torch.ones(24, 128)
    gate[:12, 3], gate[12:] = gates, gates[:, None]
    x = torch.cat([gate, torch.full_like(gate, -2.0)], 1).to(BF16)
    found = run_plan(cast_kernels.plan_rows(x, 128, False, swiglu=(0, -1)), x)
    gate, up = x.float().chunk(2, -1)
    check(found, quantize.per_token_cast_to_fp8(gate / (1 + torch.exp(-gate)) * up, False))
