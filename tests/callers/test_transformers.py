"""The DeepGEMM integration of transformers, its own code, on this package: layers, experts and a whole model, on the
CPU reference. Where transformers would fetch its kernel from a hub, it gets this package: docs/compatibility.md.
"""

import copy
import dataclasses

import pytest
import torch

import deep_gemm
from deep_gemm.testing import calc_diff

transformers = pytest.importorskip("transformers", minversion="5.0")

from transformers.integrations import deepgemm, hub_kernels  # noqa: E402

EXPERTS, HIDDEN, WIDTH = 4, 256, 128


@pytest.fixture(autouse=True)
def use_this_package(monkeypatch):
    monkeypatch.setitem(hub_kernels._KERNEL_MODULE_MAPPING, "deep-gemm", deep_gemm)
    monkeypatch.setattr(deepgemm, "_DEEPGEMM", None)
    # Without a GPU: what these two ask is that it is there, and its architecture.
    monkeypatch.setattr(deepgemm, "is_deepgemm_loadable", lambda raise_error=False: True)
    monkeypatch.setattr(deepgemm, "is_sm100", lambda: False)
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def test_it_finds_every_name():
    found = deepgemm.load_deepgemm_kernel()
    assert found.fp8_fp4_matmul is deep_gemm.fp8_fp4_gemm_nt
    assert found.m_alignment == deep_gemm.get_mk_alignment_for_contiguous_layout() == 128


def test_its_linear_layer_multiplies():
    x, weight = torch.randn(2, 5, HIDDEN, dtype=torch.bfloat16), torch.randn(WIDTH, HIDDEN)
    bias = torch.randn(WIDTH, dtype=torch.bfloat16)
    pair = deep_gemm.per_block_cast_to_fp8(weight, use_ue8m0=False)
    found = deepgemm.deepgemm_fp8_fp4_linear(x, *pair, bias=bias, block_size=(128, 128))
    assert found.dtype == x.dtype and calc_diff(found, x.float() @ weight.T + bias.float()) < 1.5e-3


def make_experts() -> torch.nn.Module:
    """Return the experts of a Qwen3-MoE layer in BF16."""
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

    config = transformers.Qwen3MoeConfig(
        hidden_size=HIDDEN, moe_intermediate_size=WIDTH, num_experts=EXPERTS, num_experts_per_tok=2
    )
    config._experts_implementation = "eager"
    experts = Qwen3MoeExperts(config).bfloat16()
    for weight in experts.parameters():
        weight.normal_(std=weight.shape[2] ** -0.5)
    return experts


def make_routing(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens and the indices and weights of their experts, of which one has no tokens."""
    weights, index = torch.rand(tokens, EXPERTS - 1).topk(2)
    return torch.randn(tokens, HIDDEN, dtype=torch.bfloat16), index, weights.bfloat16()


def test_its_bf16_experts_are_the_plain_ones():
    experts, routing = make_experts(), make_routing(37)
    found = deepgemm.deepgemm_bf16_experts_forward(experts, *routing)
    assert calc_diff(found, experts(*routing)) < 1e-4


def test_its_fp8_experts_are_the_plain_ones():
    experts, routing = make_experts(), make_routing(37)
    wanted = experts(*routing)
    rounded = copy.deepcopy(experts)
    for name in ("gate_up_proj", "down_proj"):
        parts = [deep_gemm.per_block_cast_to_fp8(one, use_ue8m0=False) for one in getattr(experts, name).float()]
        delattr(rounded, name)
        setattr(rounded, name, torch.stack([values.view(torch.uint8) for values, _ in parts]).view(parts[0][0].dtype))
        setattr(rounded, f"{name}_scale_inv", torch.stack([scales for _, scales in parts]))
    rounded.block_size, rounded.activation_scheme, rounded._deepgemm_disabled = (128, 128), "dynamic", False
    found = deepgemm.deepgemm_fp8_fp4_experts_forward(rounded, *routing)
    assert 1e-5 < calc_diff(found, wanted) < 5e-3


def test_a_model_runs_with_it():
    config = transformers.Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=HIDDEN,
        intermediate_size=WIDTH,
        moe_intermediate_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        num_experts=EXPERTS,
        num_experts_per_tok=2,
    )
    model = transformers.Qwen3MoeForCausalLM(config).bfloat16().eval()
    tokens = torch.randint(64, (2, 9))
    wanted = model(tokens).logits
    calls = []
    taken = deepgemm.load_deepgemm_kernel().grouped_bf16_matmul_nt
    deepgemm._DEEPGEMM = dataclasses.replace(
        deepgemm._DEEPGEMM, grouped_bf16_matmul_nt=lambda *a, **options: calls.append(a) or taken(*a, **options)
    )
    model.set_experts_implementation("deepgemm")
    assert calc_diff(model(tokens).logits, wanted) < 1e-3 and len(calls) == 4, "two products in each layer"
