"""The example's DeepSeek transformer on the CPU: beside that of transformers, over a cache, and in FP8."""

import copy

import pytest
import torch

import deep_gemm
from deep_gemm.nn import Fp8Experts, Fp8Linear, quantize_
from deep_gemm.testing import calc_diff
from examples import deepseek
from examples.deepseek import TINY

#: Without experts, whose products are in BF16: all of it in FP32.
DENSE = TINY._replace(dense_layers=TINY.layers)
#: Rotary positions have this base.
BASE = 500_000.0


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def make_model(sizes: deepseek.Sizes = DENSE, dtype: torch.dtype = torch.float32) -> deepseek.Deepseek:
    """Return a model for inference."""
    return deepseek.make_model(sizes, "cpu", dtype).eval()


def make_config(sizes: deepseek.Sizes):
    """Return the config of transformers for these sizes."""
    transformers = pytest.importorskip("transformers", minversion="5.0")
    return transformers.DeepseekV3Config(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        moe_intermediate_size=sizes.expert_width,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads,
        n_routed_experts=sizes.experts,
        n_shared_experts=1,
        num_experts_per_tok=sizes.top_k,
        n_group=sizes.groups,
        topk_group=sizes.top_groups,
        routed_scaling_factor=sizes.routed_scale,
        first_k_dense_replace=sizes.dense_layers,
        q_lora_rank=sizes.q_rank,
        kv_lora_rank=sizes.kv_rank,
        qk_nope_head_dim=sizes.plain,
        qk_rope_head_dim=sizes.turned,
        v_head_dim=sizes.values,
        rope_interleave=False,
        rope_parameters={"rope_type": "default", "rope_theta": BASE},
        rms_norm_eps=1e-5,
    )


#: Names of examples/deepseek.py -> those of transformers; a pair shares the rows of one weight.
NAMES = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "blocks": "model.layers",
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "attention": "self_attn",
    "q_norm": "q_a_layernorm",
    "kv_norm": "kv_a_layernorm",
    "qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


def rename(model: deepseek.Deepseek) -> dict[str, torch.Tensor]:
    """Return a state dict for the model of transformers."""
    renamed = {}
    for name, weight in model.state_dict().items():
        parts = [NAMES.get(part, part) for part in name.split(".") if "indexer" not in name]
        rows = model.sizes.q_rank if "qkv_a_proj" in name else len(weight) // 2
        for index, values in enumerate((weight[:rows], weight[rows:])):
            mine = [part if isinstance(part, str) else part[index] for part in parts]
            if any(not isinstance(part, str) for part in parts):
                renamed[".".join(mine)] = values
            elif parts:
                renamed[".".join(mine)] = weight
    return renamed


def test_logits_are_those_of_transformers():
    model, config = make_model(), make_config(DENSE)
    from transformers import DeepseekV3ForCausalLM

    other = DeepseekV3ForCausalLM(config).eval()
    other.load_state_dict(rename(model))
    tokens = torch.randint(64, (2, TINY.index_top_k))  # so few that every token sees all before it
    torch.testing.assert_close(model(tokens), other(tokens).logits)


def test_experts_are_those_of_transformers():
    config, x = make_config(TINY), torch.randn(2, 40, TINY.hidden)
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    moe = make_model(TINY, torch.bfloat16).blocks[1].mlp
    moe.balance.uniform_(-0.2, 0.2)
    config._experts_implementation = "eager"
    other = DeepseekV3MoE(config)
    other.gate.weight.copy_(moe.router.weight)
    other.gate.e_score_correction_bias.copy_(moe.balance)
    for name in ("gate_up_proj", "down_proj"):
        getattr(other.experts, name).copy_(getattr(moe.experts, name))
    gate, up = moe.shared.gate_up_proj.weight.chunk(2)
    for name, weight in (("gate_proj", gate), ("up_proj", up), ("down_proj", moe.shared.down_proj.weight)):
        getattr(other.shared_experts, name).weight.copy_(weight)
    x = x.bfloat16()
    index, weights = copy.deepcopy(moe).float().route(x.float().flatten(0, 1))
    _, wanted, chosen = other.gate(x.float())
    assert torch.equal(index.sort().values, chosen.sort().values)
    torch.testing.assert_close(weights.sort().values, wanted.sort().values)
    assert calc_diff(moe(x), other(x.float())) < 1e-4


@pytest.mark.parametrize("length", [TINY.index_top_k, 70])  # all positions, and the chosen ones of two pages
def test_decoding_over_a_cache_is_prefill(length):
    model, tokens = make_model(), torch.randint(64, (2, length))
    wanted, cache = model(tokens), model.make_cache(2, length)
    assert cache[0].latents.shape[1] == -(-length // 64) * 64
    for position in range(length):
        found = model(tokens[:, position : position + 1], cache, torch.tensor([position]))
        torch.testing.assert_close(found[:, 0], wanted[:, position])
    random = model.make_cache(2, 64, is_random=True)
    assert not torch.allclose(model(tokens[:, :1], random, torch.tensor([5]))[:, 0], wanted[:, 0])


def test_the_indexer_chooses_the_best_positions_seen():
    indexer, tokens = make_model().blocks[0].attention.indexer, 50
    x, q_latent = torch.randn(1, tokens, TINY.hidden), torch.randn(1, tokens, TINY.q_rank)
    angles = deepseek.Llama.begin(make_model(), torch.zeros(1, tokens), None, None).angles
    is_chosen = indexer.choose(x, q_latent, angles)[0, 0]
    assert not is_chosen.triu(1).any()
    assert torch.equal(is_chosen.sum(-1), torch.arange(1, tokens + 1).clamp(max=TINY.index_top_k))

    q = indexer.q_proj(q_latent)[0].unflatten(-1, (indexer.heads, -1)).transpose(0, 1)
    q, keys = (indexer._turn(one, angles) for one in (q, indexer.k_norm(indexer.k_proj(x))[0]))
    scores = torch.einsum("htk,th->tk", (q @ keys.T).relu(), indexer.weights_proj(x)[0])
    scores = scores.masked_fill(~torch.ones(tokens, tokens, dtype=torch.bool).tril(), float("-inf"))
    best = torch.zeros_like(is_chosen).scatter(1, scores.topk(TINY.index_top_k).indices, True).tril()
    assert (best & is_chosen).sum() > 0.9 * best.sum(), "FP8 moves few positions"


def test_what_is_not_chosen_has_no_effect():
    sizes, tokens = DENSE._replace(layers=1, dense_layers=1), torch.randint(64, (1, 30))
    model, seen = make_model(sizes), []
    choose = model.blocks[0].attention.indexer.choose
    model.blocks[0].attention.indexer.choose = lambda *inputs: seen.append(choose(*inputs)) or seen[0]
    before = model(tokens)
    unseen = int((~seen[0][0, 0, -1]).nonzero()[0])
    tokens[0, unseen] = (tokens[0, unseen] + 1) % 64  # the choice stays that of the first call
    after = model(tokens)
    torch.testing.assert_close(after[0, -1], before[0, -1])
    assert not torch.allclose(after[0, unseen], before[0, unseen])


def test_layers_and_experts_go_fp8():
    plain = make_model(TINY, torch.bfloat16)
    model, tokens = quantize_(copy.deepcopy(plain)), torch.randint(64, (2, 30))
    assert isinstance(model.blocks[1].mlp.experts, Fp8Experts)
    assert isinstance(model.blocks[1].mlp.shared.down_proj, Fp8Linear)
    kept = (model.lm_head, model.blocks[1].mlp.router, model.blocks[0].attention.indexer.weights_proj)
    assert all(type(layer) is torch.nn.Linear for layer in kept)
    assert torch.cosine_similarity(model(tokens).float(), plain(tokens).float(), dim=-1).mean() > 0.98
    attention, q = model.blocks[0].attention, torch.empty(0, dtype=torch.float32)
    weight = deep_gemm.numerics.widen(attention.kv_b_proj.weight, attention.kv_b_proj.weight_scale_inv)
    torch.testing.assert_close(attention.get_expansion(q).flatten(0, 1), weight, rtol=1e-5, atol=1e-7)
