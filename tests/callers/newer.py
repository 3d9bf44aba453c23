"""Calls of names and keywords of newer releases: attention, psum groups, einsum."""

import contextlib
import math
from collections.abc import Iterator

import torch
import torch.distributed as dist

import deep_gemm
from tests.callers.operands import check, make, per_block, per_row, restore

N, K, GROUPS, HEADS, WIDTH = 256, 384, 3, 32, 128
FP8 = torch.float8_e4m3fn


def vllm_passes_the_ends_of_groups(device: str) -> None:
    """vLLM's FP8 experts on SM90: group g starts at the end of g - 1 rounded up; +0 between where that is asked for."""
    ends = torch.tensor([100, 128 + 40, 256 + 128], dtype=torch.int32, device=device)
    a, b = per_row(make(384, K, device=device)), per_block(make(GROUPS, N, K, device=device))
    d = torch.full((384, N), 7.0, dtype=torch.bfloat16, device=device)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(
        a, b, d, ends, use_psum_layout=True, ensure_zero_padding=True, expected_m_for_psum_layout=128
    )
    for group, (start, end) in enumerate(((0, 100), (128, 168), (256, 384))):
        check(d[start:end], restore(a)[start:end] @ restore(b)[group].T)
    assert not d[100:128].any() and not d[168:256].any()


def transformers_says_that_groups_have_no_ends(device: str) -> None:
    """use_psum_layout=False is what there was before."""
    m_indices = torch.zeros(128, dtype=torch.int32, device=device)
    a, b = make(128, K, device=device), make(1, N, K, device=device)
    d = torch.empty(128, N, dtype=torch.bfloat16, device=device)
    deep_gemm.m_grouped_bf16_gemm_nt_contiguous(a, b, d, m_indices, use_psum_layout=False)
    check(d, a.double() @ b[0].double().T)


def upstream_passes_the_ends_of_k(device: str) -> None:
    """Ends of the groups along K, on the device alone."""
    ends = torch.tensor([128, 384], dtype=torch.int32, device=device)
    a, b = make(384, 64, device=device), make(384, N, device=device)
    d = torch.zeros(2, 64, N, dtype=torch.float32, device=device)
    deep_gemm.k_grouped_bf16_gemm_tn_contiguous(a, b, d, None, ends, c=d, use_psum_layout=True)
    for group, (start, end) in enumerate(((0, 128), (128, 384))):
        check(d[group], a[start:end].double().T @ b[start:end].double())


def upstream_names_no_argument(device: str) -> None:
    """All by position, as the signatures of 2.8 allow."""
    a, b, d = make(128, K, device=device), make(N, K, device=device), make(128, N, device=device)
    deep_gemm.bf16_gemm_nt(a, b, d, None, "nk", 0.5)
    check(d, 0.5 * (a.double() @ b.double().T))
    fp8_a, fp8_b, exact = per_row(a), per_block(b), restore(per_row(a)) @ restore(per_block(b)).T
    deep_gemm.fp8_fp4_gemm_nt(fp8_a, fp8_b, d, None, None, (1, 128), (128, 128), "nk", False, 0.5)
    check(d, 0.5 * exact)
    ends = torch.tensor([100], dtype=torch.int32, device=device)
    d.fill_(7.0)
    deep_gemm.m_grouped_bf16_gemm_nt_contiguous(a, b[None], d, ends, "nk", True, True, None)
    check(d[:100], a[:100].double() @ b.double().T)
    assert not d[100:].any()
    total = torch.empty(1, N, K, dtype=torch.float32, device=device)
    deep_gemm.k_grouped_bf16_gemm_tn_contiguous(d, a, total, None, ends + 28, None, "mn", True)
    check(total[0], d.double().T @ a.double())
    groups = (fp8_b[0][None], fp8_b[1][None])
    deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(
        fp8_a, groups, d, ends, None, None, None, "nk", False, True, True, 100
    )
    check(d[:100], exact[:100])
    assert not d[100:].any()


def upstream_multiplies_by_expression(device: str) -> None:
    """BF16, batched over heads."""
    x, y = make(5, 4, 128, device=device), make(4, 192, 128, device=device)
    d = torch.empty(5, 4, 192, dtype=torch.bfloat16, device=device)
    deep_gemm.einsum("bhr,hdr->bhd", x, y, d, use_cublaslt=False)
    check(d, torch.einsum("bhr,hdr->bhd", x.double(), y.double()))
    z = torch.empty(5, 4, 128, dtype=torch.bfloat16, device=device)
    deep_gemm.einsum("bhd,hdr->bhr", d, y, z)
    check(z, torch.einsum("bhd,hdr->bhr", d.double(), y.double()))
    grad = make(4, 192, 128, device=device).float()
    expected = grad.double() + torch.einsum("bhd,bhr->hdr", d.double(), x.double())
    deep_gemm.einsum("bhd,bhr->hdr", d, x, grad, grad)
    check(grad, expected)


def deepseek_v4_multiplies_fp8_by_expression(device: str) -> None:
    """Its output projection: scales per row of x, per block of y."""
    x, y = per_row(make(5, 4, 256, device=device)), per_block(make(4, 128, 256, device=device))
    d = torch.empty(5, 4, 128, dtype=torch.bfloat16, device=device)
    deep_gemm.fp8_einsum("bhr,hdr->bhd", x, y, d, recipe=(1, 128, 128))
    check(d, torch.einsum("bhr,hdr->bhd", restore(x), restore(y)))


def deepseek_v4_mixes_streams(device: str) -> None:
    """The product before the norm, in slices of K that the caller adds up."""
    a, b = make(13, 512, device=device), make(24, 512, device=device, dtype=torch.float32)
    d = torch.empty(2, 13, 24, dtype=torch.float32, device=device)
    squares = torch.empty(2, 13, dtype=torch.float32, device=device)
    deep_gemm.tf32_hc_prenorm_gemm(a, b, d, squares, num_splits=2)
    check(d.sum(0), a.double() @ b.double().T, limit=1e-7)
    check(squares.sum(0), (a.double() ** 2).sum(1), limit=1e-9)


def make_index(rows: int, columns: int, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (q, keys, scales of keys, weights) of attention's index."""
    q = make(rows, HEADS, WIDTH, device=device).to(FP8)
    keys = make(columns, WIDTH, device=device).to(FP8)
    scales = make(columns, device=device, dtype=torch.float32).abs()
    return q, keys, scales, make(rows, HEADS, device=device, dtype=torch.float32)


def score(q: torch.Tensor, keys: torch.Tensor, scales: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the logits of all rows and columns, in FP64."""
    products = torch.einsum("shd,td->sht", q.double(), keys.double()).relu()
    return torch.einsum("sht,sh->st", products, weights.double()) * scales.double()


def check_window(found: torch.Tensor, expected: torch.Tensor, start: torch.Tensor, end: torch.Tensor) -> None:
    """Check the columns start..end of each row, and -inf elsewhere."""
    column = torch.arange(expected.shape[1], device=expected.device)
    is_seen = (column >= start[:, None]) & (column < end[:, None])
    assert torch.equal(found == float("-inf"), ~is_seen)
    check(found.masked_fill(~is_seen, 0), expected * is_seen)


def sglang_scores_a_prefill(device: str) -> None:
    """By the older name, whose q is one tensor."""
    q, keys, scales, weights = make_index(6, 200, device)
    start = torch.tensor([0, 0, 3, 64, 100, 200], dtype=torch.int32, device=device)
    end = torch.tensor([1, 128, 77, 200, 100, 200], dtype=torch.int32, device=device)
    logits = deep_gemm.fp8_mqa_logits(q, (keys, scales), weights, start, end, clean_logits=True)
    check_window(logits, score(q, keys, scales, weights), start, end)


def vllm_scores_a_prefill(device: str) -> None:
    """By the newer name: q is a pair, the 6th position is clean_logits or a number of columns."""
    q, keys, scales, weights = make_index(6, 200, device)
    start = torch.tensor([0, 0, 3, 64, 100, 200], dtype=torch.int32, device=device)
    end = torch.tensor([1, 128, 77, 128, 100, 200], dtype=torch.int32, device=device)
    expected = score(q, keys, scales, weights)
    logits = deep_gemm.fp8_fp4_mqa_logits((q, None), (keys, scales), weights, start, end, True)
    check_window(logits, expected, start, end)
    compressed = deep_gemm.fp8_fp4_mqa_logits((q, None), (keys, scales), weights, start, end, 128)
    for row, (first, last) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        if last > first:
            check(compressed[row, : last - first], expected[row, first:last])


def make_pages(device: str) -> tuple:
    """Return (q, cache, keys and scales of each of 4 pages, weights, page table) of 2 requests."""
    q, keys, scales, weights = make_index(2, 256, device)
    pages = keys.view(torch.uint8).view(4, 64 * WIDTH), scales.view(4, 64).view(torch.uint8).view(4, 256)
    cache = torch.cat(pages, dim=1).view(4, 64, 1, WIDTH + 4)
    table = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32, device=device)
    return q, cache, keys.view(4, 64, WIDTH), scales.view(4, 64), weights, table


def score_pages(name: str, device: str, **options) -> None:
    """Check the logits of a decode step."""
    q, cache, keys, scales, weights, table = make_pages(device)
    lengths = torch.tensor([70, 128], dtype=torch.int32, device=device)
    num_sms = deep_gemm.get_num_sms() or 4
    schedule = deep_gemm.get_paged_mqa_logits_metadata(lengths, 64, num_sms)
    operand = (q[:, None], None) if "fp4" in name else q[:, None]
    logits = getattr(deep_gemm, name)(operand, cache, weights, lengths, table, schedule, 128, **options)
    for row, length in enumerate(lengths.tolist()):
        pages = table[row].long()
        chosen = keys.float()[pages].flatten(0, 1)  # torch 2.9 cannot index FP8 on the CPU
        expected = score(q[row : row + 1], chosen, scales[pages].flatten(), weights[row : row + 1])
        check(logits[row, :length], expected[0, :length])


def sglang_scores_a_decode_step(device: str) -> None:
    """By the older name."""
    score_pages("fp8_paged_mqa_logits", device, clean_logits=False)


def vllm_scores_a_decode_step(device: str) -> None:
    """By the newer name."""
    score_pages("fp8_fp4_paged_mqa_logits", device, clean_logits=False, logits_dtype=torch.float32)


def sglang_scores_four_tokens_a_sequence(device: str) -> None:
    """A length for each token, requests by number, and a schedule for half of the SMs; then nothing to score at all."""
    _, cache, keys, scales, _, table = make_pages(device)
    q, _, _, weights = make_index(8, 1, device)
    requests = torch.tensor([0, 1], dtype=torch.int32, device=device)
    num_sms = (deep_gemm.get_num_sms() or 8) // 2
    for lengths in ([[67, 68, 69, 70], [0, 0, 0, 0]], [[0] * 4] * 2):
        lens = torch.tensor(lengths, dtype=torch.int32, device=device)
        schedule = deep_gemm.get_paged_mqa_logits_metadata(lens, 64, num_sms, indices=requests)
        operands = (q.view(2, 4, HEADS, WIDTH), None), cache, weights, lens, table, schedule, 128
        logits = deep_gemm.fp8_fp4_paged_mqa_logits(
            *operands, indices=requests, clean_logits=False, logits_dtype=torch.float32
        )
        chosen = keys.float()[table[0].long()].flatten(0, 1)
        expected = score(q, chosen, scales[table[0].long()].flatten(), weights)
        for token, length in enumerate(lengths[0]):
            if length:
                check(logits[token, :length], expected[token, :length])


def sglang_compiles_without_running(device: str) -> None:
    """Warm-up in compile mode: nothing is written."""
    a, b = make(16, K, device=device), make(N, K, device=device)
    d = torch.zeros(16, N, dtype=torch.bfloat16, device=device)
    before = deep_gemm.get_compile_mode()
    deep_gemm.set_compile_mode(1)
    try:
        deep_gemm.bf16_gemm_nt(a, b, d)
    finally:
        deep_gemm.set_compile_mode(before)
    assert device == "cpu" or not d.any()


def sglang_names_the_granularity(device: str) -> None:
    """Blocks of gran_k x gran_k, channels of gran_k rows."""
    x = make(128, 256, device=device)
    assert deep_gemm.per_block_cast_to_fp8(x, use_ue8m0=True, gran_k=32)[1].shape == (4, 8)
    assert deep_gemm.per_channel_cast_to_fp8(x, use_ue8m0=True, gran_k=32)[1].shape == (4, 256)


def transformers_packs_scales(device: str) -> None:
    """For SM100; the same numbers as without packing."""
    x = make(9, 512, device=device)
    data, packed = deep_gemm.per_token_cast_to_fp8(x, use_ue8m0=True, gran_k=128, use_packed_ue8m0=True)
    same, scales = deep_gemm.per_token_cast_to_fp8(x, use_ue8m0=True, gran_k=128)
    assert torch.equal(data.view(torch.uint8), same.view(torch.uint8))
    assert torch.equal(packed, deep_gemm.pack_ue8m0_to_int(scales))


@contextlib.contextmanager
def group_of_one() -> Iterator[dist.ProcessGroup]:
    """Give the default group, which a server has made; here of one process."""
    is_new = not dist.is_initialized()
    if is_new:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield dist.group.WORLD
    finally:
        if is_new:
            dist.destroy_process_group()


def sglang_runs_experts_across_gpus(device: str) -> None:
    """Its MegaMoE on SM90: weights are prepared by these functions or in their way, a buffer serves every layer, and a
    step has no token but a row.
    """
    assert all(hasattr(deep_gemm, name) for name in ("fp8_mega_moe", "mega_moe_pre_dispatch_sm90"))
    experts, hidden, width, top_k, tokens = 4, 256, 128, 2, 5
    w13, w2 = (per_block(make(experts, *shape, device=device)) for shape in ((2 * width, hidden), (hidden, width)))
    scales = [
        deep_gemm.transform_sf_into_required_layout(
            sf, mn=weight.shape[1], k=weight.shape[2], recipe=(128, 128), num_groups=experts, disable_ue8m0_cast=True
        )
        for weight, sf in (w13, w2)
    ]
    l1, l2 = deep_gemm.transform_weights_for_mega_moe_sm90((w13[0], scales[0]), (w2[0], scales[1]))
    # So does the caller itself where it saves memory.
    in_turn = w13[0].view(torch.uint8).view(experts, 2, width // 8, 8, hidden).transpose(1, 2).reshape(w13[0].shape)
    assert torch.equal(l1[0].view(torch.uint8), in_turn)
    x, weights = make(tokens, hidden, device=device), make(tokens, top_k, device=device, dtype=torch.float32)
    ids = torch.tensor([[0, 3], [1, -1], [2, 3], [3, 0], [-1, -1]], dtype=torch.int32, device=device)
    with group_of_one() as group:
        buffer = deep_gemm.get_symm_buffer_for_mega_moe(
            group, experts, 16, top_k, hidden, width, num_shared_experts=0, mma_type="fp8xfp4", activation="swiglu"
        )
        for count, first in ((tokens, l1), (tokens, (l1[0], scales[0])), (0, l1)):
            deep_gemm.mega_moe_pre_dispatch_sm90(
                x, ids, weights, buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights, num_tokens=count,
                group_size=128, routed_scaling_factor=2.5,
            )  # fmt: skip
            y = torch.empty(max(count, 1), hidden, dtype=torch.bfloat16, device=device)
            deep_gemm.fp8_mega_moe(
                y, first, l2, buffer, recipe=(128, 128, 128), activation="swiglu", activation_clamp=None, fast_math=True
            )
            check(y[:count], multiply_chosen(x[:count], ids, 2.5 * weights, restore(w13), restore(w2)), 1e-3)
        buffer.destroy()


def vllm_runs_experts_across_gpus(device: str) -> None:
    """Its layer fills the buffer itself, and counts the rows of each expert."""
    experts, hidden, width, top_k, tokens = 4, 256, 128, 2, 5
    w13, w2 = (per_block(make(experts, *shape, device=device)) for shape in ((2 * width, hidden), (hidden, width)))
    l1, l2 = deep_gemm.transform_weights_for_mega_moe_sm90(w13, w2)
    x, weights = make(tokens, hidden, device=device), make(tokens, top_k, device=device, dtype=torch.float32)
    ids = torch.tensor([[0, 3], [1, -1], [2, 3], [3, 0], [-1, -1]], device=device)
    stats = torch.zeros(experts, dtype=torch.int32, device=device)
    with group_of_one() as group:
        buffer = deep_gemm.get_symm_buffer_for_sm90_mega_moe(group, experts, 16, top_k, hidden, width)
        for step in (1, 2):
            places = (buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights)
            for place, given in zip(places, (*per_row(x), ids, weights), strict=True):
                place[:tokens].copy_(given)
            y = torch.empty(tokens, hidden, dtype=torch.bfloat16, device=device)
            deep_gemm.fp8_mega_moe_sm90(
                y, l1, l2, buffer, cumulative_local_expert_recv_stats=stats, activation_clamp=10.0, fast_math=True
            )
            check(y, multiply_chosen(x, ids, weights, restore(w13), restore(w2), clamp=10.0), 1e-3)
            assert stats.tolist() == [2 * step, step, step, 3 * step]
        buffer.destroy()


def multiply_chosen(x, ids, weights, gate_up, down, clamp: float = math.inf) -> torch.Tensor:
    """Return the sums of every token's experts in FP64, of unquantised activations."""
    rows, sums = restore(per_row(x)) if len(x) else x.double(), torch.zeros(x.shape, device=x.device).double()
    for token, choice in torch.nonzero(ids[: len(x)] >= 0).tolist():
        expert = ids[token, choice]
        gate, up = (gate_up[expert] @ rows[token]).chunk(2)
        gate, up = gate.clamp(max=clamp), up.clamp(-clamp, clamp)
        sums[token] += weights[token, choice] * (down[expert] @ (torch.nn.functional.silu(gate) * up))
    return sums


PROGRAMS = (
    vllm_passes_the_ends_of_groups,
    transformers_says_that_groups_have_no_ends,
    upstream_passes_the_ends_of_k,
    upstream_names_no_argument,
    upstream_multiplies_by_expression,
    deepseek_v4_multiplies_fp8_by_expression,
    deepseek_v4_mixes_streams,
    sglang_scores_a_prefill,
    vllm_scores_a_prefill,
    sglang_scores_a_decode_step,
    vllm_scores_a_decode_step,
    sglang_scores_four_tokens_a_sequence,
    sglang_compiles_without_running,
    sglang_names_the_granularity,
    transformers_packs_scales,
    sglang_runs_experts_across_gpus,
    vllm_runs_experts_across_gpus,
)
