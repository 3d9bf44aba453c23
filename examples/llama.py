"""A Llama-like transformer in plain torch, with random weights: what examples and benchmarks put FP8 layers into.

Grouped-query attention with rotary positions, RMS norms and SwiGLU, without biases. Projections that read the same
input are one layer (query, key and value; gate and up). With experts, each block has a mixture of them
(examples/experts.py) in place of one network. `deep_gemm.nn.quantize_` puts FP8 layers in the place of all but the
head and the routers.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch.nn.functional import scaled_dot_product_attention, silu

from deep_gemm.nn import Fp8Linear
from examples.experts import Moe

Model = TypeVar("Model", bound=torch.nn.Module)
#: Keys and values [sequences, kv_heads, positions, head_dim] of every layer.
Cache = list[tuple[torch.Tensor, torch.Tensor]]


class Sizes(NamedTuple):
    """The sizes of a model; a head has `head_width` features, or hidden / heads.

    intermediate: of the network, or of each expert where there are experts, of which a token gets `top_k`.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    head_width: int = 0
    experts: int = 0
    top_k: int = 0

    @property
    def width(self) -> int:
        """The features of a head."""
        return self.head_width or self.hidden // self.heads


#: Llama 3.1 8B and Qwen3 30B-A3B, without its norms of queries and keys.
LLAMA_8B = Sizes(hidden=4096, intermediate=14336, layers=32, heads=32, kv_heads=8, vocabulary=128256)
QWEN3_30B = Sizes(
    hidden=2048,
    intermediate=768,
    layers=48,
    heads=32,
    kv_heads=4,
    vocabulary=151936,
    head_width=128,
    experts=128,
    top_k=8,
)
#: A model of 0.1 billion parameters, and what a CPU computes in seconds.
SMALL = Sizes(hidden=768, intermediate=2048, layers=12, heads=12, kv_heads=4, vocabulary=4096)
TINY = Sizes(hidden=128, intermediate=256, layers=2, heads=4, kv_heads=2, vocabulary=64)
TINY_MOE = TINY._replace(intermediate=64, head_width=16, experts=6, top_k=2)


class Step(NamedTuple):
    """What all blocks share: angles FP32 [positions, width / 2], and the position of the token that joins a cache."""

    angles: torch.Tensor
    position: torch.Tensor | None


class Attention(torch.nn.Module):
    """Causal attention, over the tokens of a call or over a cache."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.heads, self.kv_heads, self.width = sizes.heads, sizes.kv_heads, sizes.width
        self.qkv_proj = torch.nn.Linear(sizes.hidden, (sizes.heads + 2 * sizes.kv_heads) * self.width, bias=False)
        self.o_proj = torch.nn.Linear(sizes.heads * sizes.width, sizes.hidden, bias=False)

    def forward(self, x: torch.Tensor, step: Step, cache: tuple | None) -> torch.Tensor:
        """Return [sequences, tokens, hidden]; with a cache, of one token at `step.position`, which joins it."""
        heads = self.qkv_proj(x).unflatten(-1, (self.heads + 2 * self.kv_heads, self.width)).transpose(1, 2)
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        q, k = rotate(q, step.angles), rotate(k, step.angles)
        if cache is None:
            out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            out = self.attend(q, k, v, cache, step.position)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def attend(self, q, k, v, cache: tuple, position: torch.Tensor) -> torch.Tensor:
        """Return [sequences, heads, 1, width]; the query heads that share keys are the rows of one product."""
        for memory, new in zip(cache, (k, v), strict=True):
            memory.index_copy_(2, position, new.to(memory.dtype))
        is_seen = torch.arange(cache[0].shape[2], device=q.device) <= position
        rows = q.reshape(len(q), self.kv_heads, -1, self.width)
        out = scaled_dot_product_attention(rows, *cache, attn_mask=is_seen.expand(rows.shape[2], -1))
        return out.reshape(len(q), self.heads, 1, self.width)


class Mlp(torch.nn.Module):
    """down(silu(gate) * up)."""

    def __init__(self, hidden: int, intermediate: int):
        super().__init__()
        self.gate_up_proj = torch.nn.Linear(hidden, 2 * intermediate, bias=False)
        self.down_proj = torch.nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor like x."""
        gate_up = self.gate_up_proj(x)
        if isinstance(self.down_proj, Fp8Linear):  # which quantises as it computes the activation
            return self.down_proj(gate_up, is_swiglu=True)
        gate, up = gate_up.chunk(2, dim=-1)
        return self.down_proj(silu(gate) * up)


class Block(torch.nn.Module):
    """Attention and network, each behind a norm and beside a residual connection."""

    def __init__(self, hidden: int, attention: torch.nn.Module, mlp: torch.nn.Module):
        super().__init__()
        self.attention_norm, self.mlp_norm = (torch.nn.RMSNorm(hidden, eps=1e-5) for _ in range(2))
        self.attention, self.mlp = attention, mlp

    def forward(self, x: torch.Tensor, step: Step, cache: tuple | None) -> torch.Tensor:
        """Return a tensor like x."""
        x = x + self.attention(self.attention_norm(x), step, cache)
        return x + self.mlp(self.mlp_norm(x))


class Llama(torch.nn.Module):
    """The model: tokens int64 [sequences, length] -> logits [sequences, length, vocabulary]."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.sizes = sizes
        self.embedding = torch.nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.blocks = torch.nn.ModuleList(self.make_block(index) for index in range(sizes.layers))
        self.norm = torch.nn.RMSNorm(sizes.hidden, eps=1e-5)
        self.lm_head = torch.nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)

    def forward(
        self,
        tokens: torch.Tensor,
        cache: Cache | None = None,
        position: torch.Tensor | None = None,
        is_last_only: bool = False,
    ) -> torch.Tensor:
        """Return logits.

        Args:
            cache: as `make_cache` makes it, for calls of one token of each sequence, at `position`, int64 [1] on the
                device.
            is_last_only: the logits of the last token alone.
        """
        step, x = self.begin(tokens, cache, position), self.embedding(tokens)
        for index, block in enumerate(self.blocks):
            x = block(x, step, None if cache is None else cache[index])
        return self.lm_head(self.norm(x[:, -1:] if is_last_only else x))

    def make_block(self, index: int) -> Block:
        """Return the block of a layer."""
        sizes = self.sizes
        widths = sizes.hidden, sizes.intermediate
        mlp = Moe(*widths, sizes.experts, sizes.top_k) if sizes.experts else Mlp(*widths)
        return Block(sizes.hidden, Attention(sizes), mlp)

    def begin(self, tokens: torch.Tensor, cache: Cache | None, position: torch.Tensor | None) -> Step:
        """Return what all blocks of a call share."""
        positions = torch.arange(tokens.shape[1], device=tokens.device) if position is None else position
        return Step(make_angles(positions, self.sizes.width), position)

    def make_cache(self, sequences: int, length: int, is_random: bool = False) -> Cache:
        """Return a cache for that many positions, empty or as if they had been seen."""
        sizes, like = self.sizes, self.embedding.weight
        shape = (sequences, sizes.kv_heads, length, sizes.width)
        fill = torch.randn if is_random else torch.zeros
        return [tuple(fill(shape, dtype=like.dtype, device=like.device) for _ in range(2)) for _ in self.blocks]


def make_angles(positions: torch.Tensor, width: int, base: float = 500_000.0) -> torch.Tensor:
    """Return the angles FP32 [positions, width / 2] of rotary positions."""
    steps = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    return positions[:, None] * base ** (-steps / width)


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Return x [..., positions, width] with its two halves turned by the angles."""
    first, second = x.float().chunk(2, dim=-1)
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1).to(x.dtype)


def make_model(sizes: Sizes, device: str, dtype: torch.dtype, seed: int = 0) -> Llama:
    """Return a model with random weights, the same ones for the same seed and device."""
    return make_random(lambda: Llama(sizes), sizes.layers, device, dtype, seed)


def make_random(make: Callable[[], Model], layers: int, device: str, dtype: torch.dtype, seed: int) -> Model:
    """Return the model that `make()` returns, made in `dtype` on a device, with random weights."""
    torch.manual_seed(seed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # a large model does not fit in FP32
    try:
        with torch.device(device):
            model = make()
    finally:
        torch.set_default_dtype(before)
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            depth = (2 * layers) ** 0.5 if "o_proj" in name or "down_proj" in name else 1.0
            torch.nn.init.normal_(weight, std=0.02 / depth)
    return model
