"""Models of transformers with random weights: quantize_, a forward, text from a cache, safetensors, training."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file

from deep_gemm.nn import Fp8Experts, Fp8Linear, quantize_

transformers = pytest.importorskip("transformers", minversion="5.0")

_SHARED = {
    "vocab_size": 64,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": None,
}
_EXPERTS = {"moe_intermediate_size": 64, "num_experts_per_tok": 2}
_GROUPED = {"num_key_value_heads": 2, "head_dim": 32}
_LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_INDEXED = {"index_n_heads": 16, "index_head_dim": 32, "index_topk": 8}
#: Name -> options of its config, FP8 layers, modules of FP8 experts.
MODELS = {
    "Llama": (_GROUPED, 14, 0),
    "Qwen3Moe": ({**_GROUPED, **_EXPERTS, "num_experts": 6}, 8, 2),
    "DeepseekV3": ({**_LATENT, **_EXPERTS}, 16, 1),
    "DeepseekV32": ({**_LATENT, **_EXPERTS, **_INDEXED}, 20, 1),
}


def make_model(name: str, dtype: torch.dtype = torch.bfloat16) -> torch.nn.Module:
    """Return a tiny model with random weights."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**_SHARED, **MODELS[name][0])
    return getattr(transformers, f"{name}ForCausalLM")(config).to(dtype).eval()


def count(model: torch.nn.Module, kind: type) -> int:
    """Return how many modules of a kind a model has."""
    return sum(isinstance(module, kind) for module in model.modules())


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_logits_and_text_follow_the_model(name):
    plain = make_model(name)
    model, tokens = quantize_(copy.deepcopy(plain)), torch.randint(2, 64, (2, 12))
    assert (count(model, Fp8Linear), count(model, Fp8Experts)) == MODELS[name][1:]
    assert type(model.lm_head) is torch.nn.Linear
    cosine = torch.cosine_similarity(model(tokens).logits.float(), plain(tokens).logits.float(), dim=-1)
    assert cosine.mean() > 0.985
    text = model.generate(tokens, max_new_tokens=4, do_sample=False)
    assert text.shape == (2, 16) and torch.equal(text[:, :12], tokens)
    step = model(text[:, :15], use_cache=False).logits[:, -1]
    cached = model(text[:, :14], use_cache=True)
    later = model(text[:, 14:15], past_key_values=cached.past_key_values).logits[:, -1]
    assert torch.cosine_similarity(later.float(), step.float(), dim=-1).min() > 0.985


@pytest.mark.parametrize("name", ["Llama", "Qwen3Moe"])
@torch.no_grad()
def test_weights_round_trip_through_safetensors(tmp_path, name):
    plain, tokens = make_model(name), torch.randint(2, 64, (1, 9))
    model = quantize_(copy.deepcopy(plain))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    with torch.device("meta"):
        empty = type(model)(model.config).to(torch.bfloat16).eval()
    quantize_(empty).load_state_dict(load_file(tmp_path / "model.safetensors"), assign=True)
    empty.model.rotary_emb = model.model.rotary_emb  # its buffers are in no state dict
    assert torch.equal(empty(tokens).logits, model(tokens).logits)
    other = quantize_(make_model(name))
    other.load_state_dict(plain.state_dict())
    assert torch.equal(other(tokens).logits, model(tokens).logits)


def test_a_mixture_of_experts_trains():
    model = make_model("Qwen3Moe", torch.float32).train()
    wanted, tokens = copy.deepcopy(model), torch.randint(2, 64, (2, 16))
    quantize_(model)
    losses = [one(tokens, labels=tokens).loss for one in (model, wanted)]
    torch.testing.assert_close(*losses, rtol=2e-2, atol=0)
    for loss in losses:
        loss.backward()
    found = model.model.layers[0].mlp.experts.down_proj.weight.grad
    right = wanted.model.layers[0].mlp.experts.down_proj.grad
    assert torch.cosine_similarity(found.flatten(), right.flatten(), dim=0) > 0.97
