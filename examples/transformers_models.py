"""Models of transformers with the sizes and the calls of examples/llama.py, with random weights: nothing is downloaded.

Their layers and attention are those of transformers (`pip install transformers`, 5.0 or later). The cache is a fixed
one: decoding asks the GPU for no size, so CUDA graphs can hold it.
"""

import torch
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from examples.llama import Sizes, make_random

#: Torch's attention under a name for which transformers makes no masks, as it does under capture: calls without a mask
#: are causal.
ATTENTION = "sdpa_without_masks"
transformers.AttentionInterface.register(ATTENTION, sdpa_attention_forward)


class Cache:
    """Keys and values of `length` positions for each layer, made when the layer first writes to it."""

    is_compileable = False

    def __init__(self, length: int, is_random: bool):
        self.length, self.position = length, torch.empty(0)
        self.fill = torch.randn if is_random else torch.zeros
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_, **__
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put keys and values of one position into the memory of a layer, and return all of it.

        What transformers passes beyond these, by position before 5.24 and by name since, is for caches of other kinds.
        """
        if layer == len(self.layers):
            self.layers.append(tuple(self._make_memory(one) for one in (keys, values)))
        for memory, new in zip(self.layers[layer], (keys, values), strict=True):
            memory.index_copy_(2, self.position, new)
        return self.layers[layer]

    def _make_memory(self, like: torch.Tensor) -> torch.Tensor:
        return self.fill(*like.shape[:2], self.length, like.shape[3], dtype=like.dtype, device=like.device)


class TransformersModel(torch.nn.Module):
    """A causal language model of transformers, called as examples.llama.Llama."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.sizes = sizes
        self.model = make_causal_model(sizes)

    @property
    def blocks(self) -> torch.nn.ModuleList:
        """The layers of attention and network."""
        return self.model.model.layers

    def forward(
        self,
        tokens: torch.Tensor,
        cache: Cache | None = None,
        position: torch.Tensor | None = None,
        is_last_only: bool = False,
    ) -> torch.Tensor:
        """Return logits, as Llama.forward."""
        options = {"logits_to_keep": 1 if is_last_only else 0, "use_cache": cache is not None}
        if cache is not None:
            cache.position = position
            is_seen = torch.arange(cache.length, device=tokens.device) <= position
            mask = is_seen.expand(len(tokens), 1, 1, -1)
            options |= {"past_key_values": cache, "position_ids": position[None], "attention_mask": mask}
        return self.model(tokens, **options).logits

    def make_cache(self, sequences: int, length: int, is_random: bool = False) -> Cache:
        """Return a cache for that many positions, empty or as if they had been seen."""
        return Cache(length, is_random)


def make_causal_model(sizes: Sizes) -> torch.nn.Module:
    """Return a Llama, or a Qwen3-MoE where there are experts."""
    options = {
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.width,
        "tie_word_embeddings": False,
        "attn_implementation": ATTENTION,
    }
    if not sizes.experts:
        config = transformers.LlamaConfig(intermediate_size=sizes.intermediate, **options)
        return transformers.LlamaForCausalLM(config)
    options |= {"num_experts": sizes.experts, "num_experts_per_tok": sizes.top_k}
    config = transformers.Qwen3MoeConfig(moe_intermediate_size=sizes.intermediate, norm_topk_prob=True, **options)
    return transformers.Qwen3MoeForCausalLM(config)


def make_model(sizes: Sizes, device: str, dtype: torch.dtype, seed: int = 0) -> TransformersModel:
    """Return a model with random weights, the same ones for the same seed and device."""
    return make_random(lambda: TransformersModel(sizes), sizes.layers, device, dtype, seed)
