"""vLLM, SGLang, lmdeploy and RTP-LLM: products of a served model, as their wrappers call them."""

import contextlib
import functools
from collections.abc import Iterator

import torch

import deep_gemm
from deep_gemm.utils.layout import get_mn_major_tma_aligned_tensor
from tests.callers.operands import (
    check,
    expect_refusal,
    make,
    make_groups,
    multiply_groups,
    per_block,
    per_row,
    restore,
)

N, K, GROUPS = 256, 384, 4


class BlockScale(torch.nn.Parameter):
    """A parameter of a serving framework: a subclass that adds attributes."""


def vllm_takes_names_with_getattr(device: str) -> None:
    """vLLM looks every name up; the first one that is there is used."""
    gemm = getattr(deep_gemm, "fp8_gemm_nt", None)
    a, b = per_row(make(33, K, device=device)), per_block(make(N, K, device=device))
    d = torch.empty(33, N, dtype=torch.bfloat16, device=device)
    gemm(a, b, d, disable_ue8m0_cast=True)
    check(d, restore(a) @ restore(b).T)
    assert getattr(deep_gemm, "no_such_op", None) is None


def vllm_warms_up_a_linear_layer(device: str) -> None:
    """Each op is called for a list of m with slices of one workspace; weights and scales are parameters."""
    weight, scale = per_block(make(N, K, device=device))
    weight = torch.nn.Parameter(weight, requires_grad=False)
    scale = BlockScale(
        deep_gemm.transform_sf_into_required_layout(
            sf=scale, mn=N, k=K, recipe=(1, 128, 128), num_groups=None, is_sfa=False, disable_ue8m0_cast=True
        ),
        requires_grad=False,
    )
    x = make(64, K, device=device)
    data, scales = per_row(x)
    workspace = torch.empty(64, N, dtype=torch.bfloat16, device=device)
    for m in (1, 2, 8, 33, 64):
        aligned = deep_gemm.get_mn_major_tma_aligned_tensor(scales[:m])
        deep_gemm.fp8_gemm_nt((data[:m], aligned), (weight, scale), workspace[:m], disable_ue8m0_cast=True)
        check(workspace[:m], restore((data[:m], scales[:m])) @ restore((weight, scale)).T)


def vllm_runs_experts_on_contiguous_groups(device: str) -> None:
    """The alignment is asked for; -1 marks the padding."""
    rows = [5, 0, 130, 64]
    m_indices = make_groups(rows, deep_gemm.get_mk_alignment_for_contiguous_layout(), device)
    alignment = deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout(expected_m=sum(rows), num_groups=GROUPS)
    assert alignment == deep_gemm.get_mk_alignment_for_contiguous_layout()
    a, b = per_row(make(len(m_indices), K, device=device)), per_block(make(GROUPS, N, K, device=device))
    d = torch.empty(len(m_indices), N, dtype=torch.bfloat16, device=device)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, d, m_indices, disable_ue8m0_cast=True)
    check(d, multiply_groups(restore(a), restore(b), m_indices))


def vllm_routes_with_the_vendors_product(device: str) -> None:
    """The router's scores come from cuBLASLt."""
    a, b = make(7, K, device=device), make(N, K, device=device)
    d = torch.empty(7, N, dtype=torch.float32, device=device)
    deep_gemm.cublaslt_gemm_nt(a, b, d, c=None)
    check(d, a.double() @ b.double().T)


def make_masked(device: str) -> tuple:
    """Return (a, b, d, masked_m) of experts with room for 64 rows."""
    a = per_row(make(GROUPS, 64, K, device=device))
    b = per_block(make(GROUPS, N, K, device=device))
    masked_m = torch.tensor([3, 0, 64, 17], dtype=torch.int32, device=device)
    return a, b, torch.zeros(GROUPS, 64, N, dtype=torch.bfloat16, device=device), masked_m


def check_masked(d: torch.Tensor, a: torch.Tensor, b: torch.Tensor, masked_m: torch.Tensor) -> None:
    """Check the rows in use."""
    expected = a.double() @ b.double().mT
    for group, rows in enumerate(masked_m.tolist()):
        if rows:
            check(d[group, :rows], expected[group, :rows])


@contextlib.contextmanager
def use_sms(num_sms: int | None) -> Iterator[None]:
    """Limit the SMs as SGLang does: the number that was there comes back."""
    before = deep_gemm.get_num_sms()
    deep_gemm.set_num_sms(before if num_sms is None else num_sms)
    try:
        yield
    finally:
        deep_gemm.set_num_sms(before)


def sglang_limits_the_sms(device: str) -> None:
    """get_num_sms() is a number of SMs on a GPU, never 0."""
    assert deep_gemm.get_num_sms() > 0 or device == "cpu"
    before = deep_gemm.get_num_sms()
    with use_sms(20):
        assert deep_gemm.get_num_sms() == 20
    assert deep_gemm.get_num_sms() == before


def sglang_runs_masked_experts(device: str) -> None:
    """Without overlap there are no further arguments; where they are off they say nothing."""
    a, b, d, masked_m = make_masked(device)
    with use_sms(None):
        deep_gemm.fp8_m_grouped_gemm_nt_masked(a, b, d, masked_m, 21)
    check_masked(d, restore(a), restore(b), masked_m)
    deep_gemm.fp8_m_grouped_gemm_nt_masked(
        a, b, d.zero_(), masked_m, 21, enable_overlap=False, max_block_n=256, signal=None
    )
    check_masked(d, restore(a), restore(b), masked_m)


def sglang_sends_rows_while_they_are_computed(device: str) -> None:
    """The down projection signals its rows; the combine kernel of other SMs is told which number of rows a signal is
    for, and what it waits for. Signals are made for blocks of 64 rows, whatever comes back.
    """
    a, b, d, masked_m = make_masked(device)
    room = d.shape[1]
    signal = torch.zeros(GROUPS * ((room + 63) // 64), dtype=torch.int32, device=device)
    with use_sms(max(deep_gemm.get_num_sms() - 3, 1)):
        returned = deep_gemm.fp8_m_grouped_gemm_nt_masked(
            a, b, d, masked_m, 21, enable_overlap=True, max_block_n=160, signal=signal
        )
    block_m, threshold = returned
    blocks = -(-room // block_m)
    for group, rows in enumerate(masked_m.tolist()):
        counters = signal[group * blocks : (group + 1) * blocks].tolist()
        assert counters == [threshold if first < rows else 0 for first in range(0, room, block_m)]
    check_masked(d, restore(a), restore(b), masked_m)


def sglang_falls_back_on_runtime_errors(device: str) -> None:
    """What is missing for an overlap is said in an error that SGLang catches."""
    a, b, d, masked_m = make_masked(device)
    signal = torch.zeros(GROUPS, dtype=torch.int32, device=device)
    for options in ({"enable_overlap": True}, {"signal": signal}, {"enable_overlap": True, "signal": signal[:1]}):
        call = functools.partial(deep_gemm.fp8_m_grouped_gemm_nt_masked, a, b, d, masked_m, 21, **options)
        expect_refusal(call, "signal")


def sglang_counts_on_rows_that_do_not_depend_on_m(device: str) -> None:
    """Its batch-invariant mode asks for it where the name is there; products are BF16, nn."""
    before = deep_gemm.get_deterministic_algorithms()
    deep_gemm.use_deterministic_algorithms(True)
    try:
        x, w = make(48, 4096, device=device), make(4096, N, device=device)
        whole = torch.empty(48, N, dtype=torch.bfloat16, device=device)
        deep_gemm.bf16_gemm_nn(x, w, whole)
        for rows in (1, 5, 16, 33) if device != "cpu" else (48,):  # torch's CPU products depend on m
            part = torch.empty(rows, N, dtype=torch.bfloat16, device=device)
            deep_gemm.bf16_gemm_nn(x[:rows], w, part)
            deep_gemm.testing.assert_bitwise_equal(part, whole[:rows], f"{rows} rows")
    finally:
        deep_gemm.use_deterministic_algorithms(before)


def vllm_asks_whether_results_depend_on_m(device: str) -> None:
    """Its batch-invariant mode needs both names, and that the getter says what the setter was told."""
    setter, getter = (getattr(deep_gemm, f"{verb}_batch_invariant", None) for verb in ("set", "get"))
    before = getter()
    try:
        setter(True)
        assert getter() is True and deep_gemm.get_deterministic_algorithms()
    finally:
        setter(before)
    assert getter() == before


def sglang_prepares_scales(device: str) -> None:
    """One column of scales (K <= 128) has the strides of the layout, too."""
    for m, k in ((6, 128), (7, 384), (1, 512)):
        scales = per_row(make(m, k, device=device))[1]
        aligned = get_mn_major_tma_aligned_tensor(scales)
        assert aligned.stride() == (1, deep_gemm.get_tma_aligned_size(m, 4)) and torch.equal(aligned, scales)


def lmdeploy_runs_a_layer(device: str) -> None:
    """Dense and grouped products, one after the other, with PDL switched."""
    before = deep_gemm.get_pdl()
    deep_gemm.set_pdl(True)
    try:
        alignment = deep_gemm.get_m_alignment_for_contiguous_layout()
        m_indices = make_groups([alignment, 2 * alignment, 0, 3], alignment, device)
        assert len(m_indices) == alignment * deep_gemm.ceil_div(3 * alignment + 3, alignment)
        a, b = make(len(m_indices), K, device=device), make(GROUPS, N, K, device=device)
        d = torch.empty(len(m_indices), N, dtype=torch.bfloat16, device=device)
        deep_gemm.m_grouped_bf16_gemm_nt_contiguous(a, b, d, m_indices)
        check(d, multiply_groups(a, b, m_indices))
    finally:
        deep_gemm.set_pdl(before)


def lmdeploy_runs_masked_experts(device: str) -> None:
    """By the name of newer releases, with keywords."""
    a, b, d, masked_m = make_masked(device)
    deep_gemm.m_grouped_fp8_gemm_nt_masked(a, b, d, masked_m=masked_m, expected_m=21, disable_ue8m0_cast=False)
    check_masked(d, restore(a), restore(b), masked_m)


def rtp_llm_names_the_recipes_of_operands(device: str) -> None:
    """The fp8_fp4 names with FP8 operands; their recipes by name and by position."""
    a, b = per_row(make(19, K, device=device)), per_block(make(N, K, device=device))
    d = torch.empty(19, N, dtype=torch.bfloat16, device=device)
    deep_gemm.fp8_fp4_gemm_nt(a, b, d, recipe_a=(1, 128), recipe_b=(128, 128))
    check(d, restore(a) @ restore(b).T)
    b = per_row(make(N, K, device=device))
    deep_gemm.fp8_fp4_gemm_nt(a, b, d.zero_(), None, None, (1, 128), (1, 128), "nk", False)
    check(d, restore(a) @ restore(b).T)


def rtp_llm_runs_masked_experts(device: str) -> None:
    """The masked product by its fp8_fp4 name."""
    a, b, d, masked_m = make_masked(device)
    deep_gemm.m_grouped_fp8_fp4_gemm_nt_masked(a, b, d, masked_m, 21, recipe_a=(1, 128), recipe_b=(128, 128))
    check_masked(d, restore(a), restore(b), masked_m)


def rtp_llm_learns_that_fp4_is_for_sm100(device: str) -> None:
    """FP4 weights are prepared here, and multiplied elsewhere."""
    a = per_row(make(8, 128, device=device))
    b = deep_gemm.per_token_cast_to_fp4(make(N, 128, device=device), use_ue8m0=True, gran_k=32)
    check(deep_gemm.cast_back_from_fp4(*b, gran_k=32), make(N, 128, device=device).double(), limit=0.05)
    d = torch.empty(8, N, dtype=torch.bfloat16, device=device)
    for options in ({}, {"recipe_a": (1, 128), "recipe_b": (1, 32)}):
        expect_refusal(functools.partial(deep_gemm.fp8_fp4_gemm_nt, a, b, d, **options), "SM100 only")


PROGRAMS = (
    vllm_takes_names_with_getattr,
    vllm_warms_up_a_linear_layer,
    vllm_runs_experts_on_contiguous_groups,
    vllm_routes_with_the_vendors_product,
    sglang_limits_the_sms,
    sglang_runs_masked_experts,
    sglang_sends_rows_while_they_are_computed,
    sglang_falls_back_on_runtime_errors,
    sglang_counts_on_rows_that_do_not_depend_on_m,
    vllm_asks_whether_results_depend_on_m,
    sglang_prepares_scales,
    lmdeploy_runs_a_layer,
    lmdeploy_runs_masked_experts,
    rtp_llm_names_the_recipes_of_operands,
    rtp_llm_runs_masked_experts,
    rtp_llm_learns_that_fp4_is_for_sm100,
)
