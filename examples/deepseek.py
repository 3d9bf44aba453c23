"""A transformer as DeepSeek-V3.2 in plain torch, with random weights: what FP8 layers and index logits are for.

Latent attention: keys and values of all heads are projections of one latent of each position, which is what the cache
holds. Prefill expands latents to heads; decoding moves the projections to the queries and to the sums instead, so that
all heads share one key. An indexer scores every position with a few FP8 heads (`fp8_mqa_logits`, and
`fp8_paged_mqa_logits` for decoding), and a token attends to the best ones only. The first layers have a dense network,
the others a mixture of experts beside a shared one, chosen within the best groups of experts. The Hadamard transform of
the indexer is left out: it changes no sum. Rotary positions turn halves, not neighbours. For inference.

    python -m benchmarks.models --model deepseek_v3 --layers 3
"""

from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

import deep_gemm
from examples.experts import Moe
from examples.llama import Block, Llama, Mlp, Step, make_random, rotate

#: Positions in a page of index keys.
PAGE = 64
_FP8 = torch.float8_e4m3fn


class Sizes(NamedTuple):
    """The sizes of a model.

    intermediate: of dense networks; expert_width: of each expert, the shared one, too. q_rank, kv_rank: of the latents
    of queries, and of keys and values. plain, turned: features of a head's query without and with positions; values: of
    its result. groups: of experts, of which a token's experts lie in `top_groups`. index_top_k: positions that a token
    attends to.
    """

    hidden: int
    intermediate: int
    layers: int
    dense_layers: int
    heads: int
    q_rank: int
    kv_rank: int
    plain: int
    turned: int
    values: int
    vocabulary: int
    expert_width: int
    experts: int
    top_k: int
    groups: int
    top_groups: int
    routed_scale: float
    index_heads: int
    index_width: int
    index_top_k: int

    @property
    def width(self) -> int:
        """The features with positions."""
        return self.turned


DEEPSEEK_V3 = Sizes(
    hidden=7168,
    intermediate=18432,
    layers=61,
    dense_layers=3,
    heads=128,
    q_rank=1536,
    kv_rank=512,
    plain=128,
    turned=64,
    values=128,
    vocabulary=129280,
    expert_width=2048,
    experts=256,
    top_k=8,
    groups=8,
    top_groups=4,
    routed_scale=2.5,
    index_heads=64,
    index_width=128,
    index_top_k=2048,
)
#: What a CPU computes in seconds.
TINY = Sizes(
    hidden=128,
    intermediate=256,
    layers=2,
    dense_layers=1,
    heads=4,
    q_rank=64,
    kv_rank=32,
    plain=16,
    turned=16,
    values=16,
    vocabulary=64,
    expert_width=64,
    experts=8,
    top_k=2,
    groups=4,
    top_groups=2,
    routed_scale=2.5,
    index_heads=8,
    index_width=32,
    index_top_k=8,
)


class LayerCache(NamedTuple):
    """Memory of a layer: latents [sequences, length, kv_rank + turned], and pages of index keys and their scales, uint8
    [sequences * pages, 64, 1, index_width + 4].
    """

    latents: torch.Tensor
    pages: torch.Tensor


class DecodingStep(NamedTuple):
    """What all blocks of a decoding call share: as `Step`, and how the pages of index keys are read.

    lengths: int32 [sequences]. table: int32 [sequences, pages of each]. schedule: of the paged index logits.
    """

    angles: torch.Tensor
    position: torch.Tensor
    lengths: torch.Tensor
    table: torch.Tensor
    schedule: torch.Tensor


class Indexer(torch.nn.Module):
    """Scores positions with a few FP8 heads, whose keys are one for all heads."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.heads, self.width, self.turned, self.top_k = (
            sizes.index_heads,
            sizes.index_width,
            sizes.turned,
            sizes.index_top_k,
        )
        self.q_proj = torch.nn.Linear(sizes.q_rank, self.heads * self.width, bias=False)
        self.k_proj = torch.nn.Linear(sizes.hidden, self.width, bias=False)
        self.k_norm = torch.nn.LayerNorm(self.width)
        self.weights_proj = torch.nn.Linear(sizes.hidden, self.heads, bias=False)

    def quantise(self, x: torch.Tensor, q_latent: torch.Tensor, angles: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return q FP8 [sequences, tokens, heads, width], the heads' weights FP32 [sequences * tokens, heads], keys FP8
        [sequences * tokens, width] and their scales FP32 [sequences * tokens].
        """
        q = self.q_proj(q_latent).unflatten(-1, (self.heads, self.width))
        q = self._turn(q.transpose(1, 2), angles).transpose(1, 2)
        keys, scales = self._cast(self._turn(self.k_norm(self.k_proj(x)), angles))
        values, q_scales = self._cast(q)
        weights = self.weights_proj(x).float().flatten(0, 1) * (self.heads * self.width) ** -0.5
        return values.view(q.shape), weights * q_scales.view(weights.shape), keys, scales

    def _turn(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """Return x [..., positions, width] with its first features turned by their positions."""
        turned, plain = x.split((self.turned, self.width - self.turned), dim=-1)
        return torch.cat((rotate(turned, angles), plain), dim=-1)

    def _cast(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of x in FP8 and a scale for each."""
        rows = x.reshape(-1, self.width)
        values, scales = deep_gemm.per_token_cast_to_fp8(rows, use_ue8m0=False, gran_k=self.width)
        return values, scales.flatten()

    def choose(self, x: torch.Tensor, q_latent: torch.Tensor, angles: torch.Tensor) -> torch.Tensor | None:
        """Return which positions each token of a prefill attends to, bool [sequences, 1, tokens, tokens]; None where
        they are all that it sees.
        """
        sequences, tokens = x.shape[:2]
        if tokens <= self.top_k:
            return None
        q, weights, keys, scales = self.quantise(x, q_latent, angles)
        rows = torch.arange(sequences * tokens, dtype=torch.int32, device=x.device)
        starts = rows // tokens * tokens
        logits = deep_gemm.fp8_mqa_logits(
            q.flatten(0, 1), (keys, scales), weights, starts, rows + 1, max_seqlen_k=tokens
        ).view(sequences, tokens, tokens)
        is_seen = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).tril()
        best = logits.masked_fill(~is_seen, float("-inf")).topk(self.top_k, dim=-1).indices
        return (torch.zeros_like(logits, dtype=torch.bool).scatter(-1, best, True) & is_seen)[:, None]

    def choose_cached(self, x: torch.Tensor, q_latent: torch.Tensor, step: DecodingStep, pages: torch.Tensor):
        """Return (positions int64 [sequences, top_k] that the token attends to, whether it sees each). Its key joins
        the pages.
        """
        q, weights, keys, scales = self.quantise(x, q_latent, step.angles)
        self._store(pages, keys, scales, step)
        most = step.table.shape[1] * PAGE
        logits = deep_gemm.fp8_paged_mqa_logits(
            q, pages, weights, step.lengths, step.table, step.schedule, most, clean_logits=True
        )
        best = logits.topk(min(self.top_k, most), dim=-1)
        return best.indices, best.values > float("-inf")

    def _store(self, pages: torch.Tensor, keys: torch.Tensor, scales: torch.Tensor, step: DecodingStep) -> None:
        """Write the keys of one position into the pages: a page holds all its keys, then all their scales."""
        flat = pages.view(len(pages), -1)
        rows, slot = step.table.long().index_select(1, step.position // PAGE)[:, 0], step.position % PAGE
        flat[:, : PAGE * self.width].unflatten(1, (PAGE, self.width))[rows, slot] = keys.view(torch.uint8)
        flat[:, PAGE * self.width :].unflatten(1, (PAGE, 4))[rows, slot] = scales[:, None].view(torch.uint8)


class Attention(torch.nn.Module):
    """Causal latent attention to the positions that an indexer chooses."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.sizes = sizes
        ranks = sizes.q_rank + sizes.kv_rank + sizes.turned
        self.qkv_a_proj = torch.nn.Linear(sizes.hidden, ranks, bias=False)
        self.q_norm, self.kv_norm = (torch.nn.RMSNorm(rank, eps=1e-6) for rank in (sizes.q_rank, sizes.kv_rank))
        self.q_b_proj = torch.nn.Linear(sizes.q_rank, sizes.heads * (sizes.plain + sizes.turned), bias=False)
        self.kv_b_proj = torch.nn.Linear(sizes.kv_rank, sizes.heads * (sizes.plain + sizes.values), bias=False)
        self.o_proj = torch.nn.Linear(sizes.heads * sizes.values, sizes.hidden, bias=False)
        self.indexer = Indexer(sizes)
        self.expansion: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, step: Step | DecodingStep, cache: LayerCache | None) -> torch.Tensor:
        """Return [sequences, tokens, hidden]; with a cache, of one token at `step.position`, which joins it."""
        sizes = self.sizes
        q_latent, latent, turned = self.qkv_a_proj(x).split((sizes.q_rank, sizes.kv_rank, sizes.turned), dim=-1)
        q_latent = self.q_norm(q_latent)
        q = self.q_b_proj(q_latent).unflatten(-1, (sizes.heads, -1)).transpose(1, 2)
        plain, q_turned = q.split((sizes.plain, sizes.turned), dim=-1)
        parts = plain, rotate(q_turned, step.angles), self.kv_norm(latent), rotate(turned, step.angles)
        if cache is None:
            out = self.attend(*parts, self.indexer.choose(x, q_latent, step.angles))
        else:
            cache.latents.index_copy_(1, step.position, torch.cat(parts[2:], dim=-1))
            out = self.attend_cached(*parts[:2], cache, *self.indexer.choose_cached(x, q_latent, step, cache.pages))
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def attend(self, plain, q_turned, latent, turned, is_chosen: torch.Tensor | None) -> torch.Tensor:
        """Return [sequences, heads, tokens, values] of a prefill, whose latents are expanded to heads."""
        sizes = self.sizes
        expanded = self.kv_b_proj(latent).unflatten(-1, (sizes.heads, -1)).transpose(1, 2)
        k, v = expanded.split((sizes.plain, sizes.values), dim=-1)
        q = torch.cat((plain, q_turned), dim=-1)
        k = torch.cat((k, turned[:, None].expand(-1, sizes.heads, -1, -1)), dim=-1)
        return scaled_dot_product_attention(q, k, v, attn_mask=is_chosen, is_causal=is_chosen is None)

    def attend_cached(self, plain, q_turned, cache: LayerCache, best, is_seen) -> torch.Tensor:
        """Return [sequences, heads, 1, values] of one token of each sequence: latents are the keys of all heads."""
        sizes = self.sizes
        to_keys, to_values = self.get_expansion(plain).split((sizes.plain, sizes.values), dim=1)
        latents = cache.latents.gather(1, best[..., None].expand(-1, -1, cache.latents.shape[2]))
        q = torch.cat((torch.einsum("bhtp,hpr->bhtr", plain, to_keys), q_turned), dim=-1)[:, :, 0]
        scores = (q @ latents.mT).float() * (sizes.plain + sizes.turned) ** -0.5
        shares = scores.masked_fill(~is_seen[:, None], float("-inf")).softmax(-1).to(q.dtype)
        mean = shares @ latents[..., : sizes.kv_rank]
        return torch.einsum("bhr,hvr->bhv", mean, to_values)[:, :, None]

    def get_expansion(self, like: torch.Tensor) -> torch.Tensor:
        """Return the weight of kv_b_proj [heads, plain + values, kv_rank] in the dtype of `like`, kept from the first
        call on: what the layer makes of the unit vectors, in whichever form it keeps its weight. Make a new model
        where weights change afterwards.
        """
        if self.expansion is None:
            units = torch.eye(self.sizes.kv_rank, dtype=like.dtype, device=like.device)
            self.expansion = self.kv_b_proj(units).t().contiguous().unflatten(0, (self.sizes.heads, -1))
        return self.expansion


class SharedMoe(Moe):
    """A mixture of experts beside one that every token gets; weights are sigmoids, and groups are chosen first."""

    def __init__(self, sizes: Sizes):
        super().__init__(sizes.hidden, sizes.expert_width, sizes.experts, sizes.top_k)
        self.groups, self.top_groups, self.scale = sizes.groups, sizes.top_groups, sizes.routed_scale
        self.balance = torch.nn.Parameter(torch.zeros(sizes.experts))
        self.shared = Mlp(sizes.hidden, sizes.expert_width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor like x."""
        return super().forward(x) + self.shared(x)

    def route(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return indices and weights [tokens, top_k]; `balance` counts for the choice alone."""
        scores = self.router(rows).float().sigmoid()
        ranked = (scores + self.balance.float()).unflatten(1, (self.groups, -1))
        best = ranked.topk(2, dim=-1).values.sum(-1).topk(self.top_groups, dim=-1).indices
        is_open = torch.zeros(ranked.shape[:2], dtype=torch.bool, device=rows.device).scatter(1, best, True)
        index = ranked.masked_fill(~is_open[..., None], float("-inf")).flatten(1).topk(self.top_k, dim=-1).indices
        weights = scores.gather(1, index)
        return index, weights / weights.sum(-1, keepdim=True) * self.scale


class Deepseek(Llama):
    """The model: tokens int64 [sequences, length] -> logits [sequences, length, vocabulary]."""

    sizes: Sizes

    def make_block(self, index: int) -> Block:
        """Return the block of a layer."""
        sizes = self.sizes
        is_dense = index < sizes.dense_layers
        return Block(
            sizes.hidden,
            Attention(sizes),
            Mlp(sizes.hidden, sizes.intermediate) if is_dense else SharedMoe(sizes),
        )

    def begin(self, tokens: torch.Tensor, cache: list[LayerCache] | None, position: torch.Tensor | None):
        """Return what all blocks of a call share."""
        step = super().begin(tokens, cache, position)
        if cache is None:
            return step
        sequences = len(tokens)
        lengths = (position + 1).int().expand(sequences).contiguous()
        pages = torch.arange(len(cache[0].pages), dtype=torch.int32, device=tokens.device)
        slots = max(deep_gemm.get_num_sms(), 1)
        schedule = deep_gemm.get_paged_mqa_logits_metadata(lengths, PAGE, slots)
        return DecodingStep(*step, lengths, pages.view(sequences, -1), schedule)

    def make_cache(self, sequences: int, length: int, is_random: bool = False) -> list[LayerCache]:
        """Return a cache for that many positions, rounded up to pages, empty or as if they had been seen."""
        return [self._make_layer_cache(sequences, -(-length // PAGE), is_random) for _ in self.blocks]

    def _make_layer_cache(self, sequences: int, pages: int, is_random: bool) -> LayerCache:
        sizes, like = self.sizes, self.embedding.weight
        fill = torch.randn if is_random else torch.zeros
        options = {"dtype": like.dtype, "device": like.device}
        latents = fill(sequences, pages * PAGE, sizes.kv_rank + sizes.turned, **options)
        keys = fill(sequences * pages, PAGE * sizes.index_width, **options).to(_FP8).view(torch.uint8)
        scales = torch.ones(sequences * pages, PAGE, device=like.device).view(torch.uint8)
        return LayerCache(latents, torch.cat((keys, scales), dim=1).view(-1, PAGE, 1, sizes.index_width + 4))


def make_model(sizes: Sizes, device: str, dtype: torch.dtype, seed: int = 0) -> Deepseek:
    """Return a model with random weights, the same ones for the same seed and device."""
    return make_random(lambda: Deepseek(sizes), sizes.layers, device, dtype, seed)
