"""Megatron-LM, prime-rl and transformers: layers whose operands require gradients, and weight gradients."""

import functools

import torch

import deep_gemm
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

N, K, GROUPS = 256, 384, 3


def megatron_multiplies_what_requires_grad(device: str) -> None:
    """Its autograd function calls the op on parameters, also with grad mode on; no graph comes of it."""
    x = make(40, K, device=device).requires_grad_()
    w = torch.nn.Parameter(make(N, K, device=device))
    d = torch.empty(40, N, dtype=torch.bfloat16, device=device)
    deep_gemm.bf16_gemm_nt(x, w, d)
    assert not d.requires_grad and d.grad_fn is None
    check(d, x.detach().double() @ w.detach().double().T)


def megatron_refuses_a_result_that_requires_grad(device: str) -> None:
    """To write it would make its gradient wrong."""
    x, w = make(40, K, device=device), make(N, K, device=device)
    d = torch.zeros(40, N, dtype=torch.bfloat16, device=device, requires_grad=True)
    expect_refusal(lambda: deep_gemm.bf16_gemm_nt(x, w, d), "d.requires_grad = True")
    assert not d.detach().any()


def megatron_runs_grouped_experts_both_ways(device: str) -> None:
    """Forward with m_indices; the weight gradient adds onto main_grad, which is C and D."""
    alignment = deep_gemm.get_m_alignment_for_contiguous_layout()
    m_indices = make_groups([alignment, 40, 2 * alignment], alignment, device)
    x, w = make(len(m_indices), K, device=device), make(GROUPS, N, K, device=device).requires_grad_()
    d = torch.empty(len(m_indices), N, dtype=torch.bfloat16, device=device)
    deep_gemm.m_grouped_bf16_gemm_nt_contiguous(x, w, d, m_indices)
    check(d, multiply_groups(x, w.detach(), m_indices))
    ks = [alignment, alignment, 2 * alignment]
    ks_tensor = torch.tensor(ks, dtype=torch.int32, device=device)
    main_grad = make(GROUPS, N, K, device=device, dtype=torch.float32)
    expected = main_grad.double()
    for group, (dy, part) in enumerate(zip(d.split(ks), x.split(ks), strict=True)):
        expected[group] += dy.double().T @ part.double()
    deep_gemm.k_grouped_bf16_gemm_tn_contiguous(d, x, main_grad, ks, ks_tensor, main_grad)
    check(main_grad, expected)


def megatron_scales_the_weight_gradient(device: str) -> None:
    """FP8 with scales per row on both sides, FP32 results that add up, an alpha of None."""
    a, b = per_row(make(64, K, device=device)), per_row(make(N, K, device=device))
    d = make(64, N, device=device, dtype=torch.float32)
    expected = d.double() + restore(a) @ restore(b).T
    deep_gemm.fp8_gemm_nt(a, b, d, c=d, recipe=(1, 1, 128), alpha=None, epilogue=None)
    check(d, expected)


def muon_orthogonalises_an_update(device: str) -> None:
    """A step of Newton and Schulz on a batch of weights: X X^T, and its product with X, as DeepGEMM 2.8 names them."""
    x = make(2, 128, K, device=device)
    gram, update = (torch.empty(2, 128, n, dtype=torch.bfloat16, device=device) for n in (128, K))
    deep_gemm.batched_syrk(x, gram)
    check(gram, x.double() @ x.double().mT)
    deep_gemm.batched_symm(gram, x, update)
    check(update, gram.double() @ x.double())
    deep_gemm.batched_syrk(x[0], gram[0])
    check(gram[0], x[0].double() @ x[0].double().mT)


def prime_rl_divides_k_by_what_the_device_says(device: str) -> None:
    """FP8 weight gradients of experts: matrices in blocks of memory, scales side by side. The host knows the sum of K
    alone.
    """
    ks = [256, 0, 128]
    a = [per_row(make(64, k, device=device)) for k in ks if k]
    b = [per_row(make(N, k, device=device)) for k in ks if k]
    d = torch.empty(GROUPS, 64, N, dtype=torch.float32, device=device)
    operands = [
        (torch.cat([data.flatten() for data, _ in pairs]), torch.cat([scales for _, scales in pairs], 1))
        for pairs in (a, b)
    ]
    ks_tensor = torch.tensor(ks, dtype=torch.int32, device=device)
    deep_gemm.k_grouped_fp8_gemm_nt_contiguous(*operands, d, [sum(ks), 0, 0], ks_tensor, c=None)
    assert not d[1].any()
    for group, i in ((0, 0), (2, 1)):
        check(d[group], restore(a[i]) @ restore(b[i]).T)


def prime_kernels_multiplies_blocks_of_several_experts(device: str) -> None:
    """Its groups lie close together. The rows of a block that are not of its first row's group are computed again, so
    that they may hold anything here; the CPU, on which its other kernels do not run, refuses such groups.
    """
    counts = (130, 200, 54, 0, 100)
    m_indices = torch.tensor([g for g, n in enumerate(counts) for _ in range(n)] + [-1] * 30, device=device).int()
    a, b = per_row(make(len(m_indices), K, device=device)), per_block(make(len(counts), N, K, device=device))
    d = torch.empty(len(m_indices), N, dtype=torch.bfloat16, device=device)
    multiply = functools.partial(deep_gemm.m_grouped_fp8_gemm_nt_contiguous, (a[0], a[1].T.contiguous().T), b, d)
    if device == "cpu":
        expect_refusal(functools.partial(multiply, m_indices), "must be of one group")
        return
    multiply(m_indices)
    blocks = m_indices.split(deep_gemm.get_mk_alignment_for_contiguous_layout())
    is_first = torch.cat([block == block[0] for block in blocks]) & (m_indices >= 0)
    check(d[is_first], multiply_groups(restore(a), restore(b), m_indices)[is_first])


def transformers_runs_experts_of_any_number_of_rows(device: str) -> None:
    """Total rows are no multiple of the alignment; sentinels at the end are -1; weights are parameters in eval."""
    total = 300
    m_indices = make_groups([128, 20], 128, device, total)
    weight, scale = per_block(make(2, N, K, device=device))
    weight, scale = torch.nn.Parameter(weight, requires_grad=False), torch.nn.Parameter(scale)
    a = per_row(make(total, K, device=device))
    d = torch.full((total, N), 7.0, dtype=torch.bfloat16, device=device)
    deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(
        a, (weight, scale), d, m_indices, recipe_a=(1, 128), recipe_b=(128, 128)
    )
    check(d, multiply_groups(restore(a), restore((weight, scale.detach())), m_indices))
    assert not d[m_indices < 0].any()


def transformers_runs_bf16_experts(device: str) -> None:
    """Weights as [groups, k, n]."""
    m_indices = make_groups([3, 128, 5], 128, device)
    a, b = make(len(m_indices), K, device=device), make(GROUPS, K, N, device=device)
    d = torch.empty(len(m_indices), N, dtype=torch.bfloat16, device=device)
    deep_gemm.m_grouped_bf16_gemm_nn_contiguous(a, b, d, m_indices)
    check(d, multiply_groups(a, b.mT, m_indices))


PROGRAMS = (
    megatron_multiplies_what_requires_grad,
    megatron_refuses_a_result_that_requires_grad,
    megatron_runs_grouped_experts_both_ways,
    megatron_scales_the_weight_gradient,
    muon_orthogonalises_an_update,
    prime_rl_divides_k_by_what_the_device_says,
    prime_kernels_multiplies_blocks_of_several_experts,
    transformers_runs_experts_of_any_number_of_rows,
    transformers_runs_bf16_experts,
)
