"""Layers of experts across GPUs: operands, and what the layer computes, written once more from the definition."""

import torch

import deep_gemm

from .nn_references import round_blocks, round_rows


def make_weights(experts: int, hidden: int, intermediate: int, device: str = "cpu") -> tuple[torch.Tensor, ...]:
    """Return the weights of both layers of so many experts, gates before ups, in FP32."""
    shapes = (experts, 2 * intermediate, hidden), (experts, hidden, intermediate)
    return tuple(torch.randn(shape, device=device) * shape[2] ** -0.5 for shape in shapes)


def prepare(layers: tuple[torch.Tensor, ...], experts: slice = slice(None)) -> tuple:
    """Return both layers of some experts as fp8_mega_moe takes them."""
    pairs = [deep_gemm.per_block_cast_to_fp8(layer[experts], False) for layer in layers]
    return deep_gemm.transform_weights_for_mega_moe_sm90(*pairs)


def choose(tokens: int, experts: int, top_k: int, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    """Return different experts of each token, int32, a fifth of them -1, and their weights."""
    chosen = torch.rand(tokens, experts, device=device).topk(top_k).indices.int()
    weights, kept = torch.rand(2, tokens, top_k, device=device)
    return chosen.where(kept > 0.2, -1), weights


def multiply_experts(
    x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, layers: tuple[torch.Tensor, ...],
    limit: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return the sums in FP32 for BF16 x; numbers are quantised where the layer quantises them."""
    wide, (first, second) = round_rows(x), map(round_blocks, layers)
    sums = torch.zeros(x.shape, device=x.device)
    for expert in range(len(first)):
        tokens, choices = torch.where(chosen == expert)
        gate, up = (wide[tokens] @ first[expert].t()).bfloat16().float().chunk(2, 1)
        if limit is not None:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        made = (round_rows(torch.nn.functional.silu(gate) * up) @ second[expert].t()).bfloat16().float()
        sums.index_add_(0, tokens, weights[tokens, choices, None] * made)
    return sums


def fill(buffer: "deep_gemm.SymmBuffer", x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> None:
    """Fill a buffer in a caller's spelling."""
    deep_gemm.mega_moe_pre_dispatch_sm90(
        x, chosen, weights, buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights, num_tokens=len(x),
        group_size=128, routed_scaling_factor=1.0,
    )  # fmt: skip
