"""Experts in one module: which ones quantize_ takes for Fp8Experts, and that these compute the same."""

import copy

import pytest
import torch
from torch.nn.functional import silu

from deep_gemm import errors
from deep_gemm.nn import Fp8Experts, quantize_
from deep_gemm.nn.fused import holds_experts
from deep_gemm.testing import calc_diff

pytestmark = pytest.mark.usefixtures("fresh_inputs")
EXPERTS, HIDDEN, WIDTH = 3, 32, 48


class Experts(torch.nn.Module):
    """SwiGLU networks in two parameters, as those of transformers 5, which visit every expert."""

    def __init__(self, hidden: int = HIDDEN, width: int = WIDTH):
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(torch.randn(EXPERTS, 2 * width, hidden) * hidden**-0.5)
        self.down_proj = torch.nn.Parameter(torch.randn(EXPERTS, hidden, width) * width**-0.5)
        self.act_fn = torch.nn.SiLU()

    def forward(self, hidden_states, top_k_index, top_k_weights):
        """Return the weighted sum of every token's experts."""
        out = torch.zeros_like(hidden_states)
        for expert in range(EXPERTS):
            gate, up = (hidden_states @ self.gate_up_proj[expert].t()).chunk(2, -1)
            share = (top_k_weights * (top_k_index == expert)).sum(-1, keepdim=True)
            out = out + share * ((self.act_fn(gate) * up) @ self.down_proj[expert].t())
        return out


class Block(torch.nn.Module):
    """A model with experts."""

    def __init__(self, *sizes: int):
        super().__init__()
        self.experts = Experts(*sizes)


def route(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return indices and weights of two experts for each token."""
    weights, index = torch.randn(tokens, EXPERTS).softmax(-1).topk(2)
    return index, weights


@pytest.mark.parametrize("is_trainable", [True, False])
def test_experts_are_replaced_and_compute_the_same(is_trainable):
    model, x, routing = Block().train(is_trainable), torch.randn(7, HIDDEN), route(7)
    before = copy.deepcopy(model)
    parameter = model.experts.gate_up_proj
    quantize_(model)
    assert isinstance(model.experts, Fp8Experts) and model.experts.training == is_trainable
    assert (model.experts.gate_up_proj.weight is parameter) == is_trainable
    found, wanted = (one.experts(x, *routing) for one in (model, before))
    assert calc_diff(found.detach(), wanted.detach()) < 5e-3
    if is_trainable:
        grad = torch.randn(7, HIDDEN)
        found.backward(grad)
        wanted.backward(grad)
        assert calc_diff(model.experts.down_proj.weight.grad, before.experts.down_proj.grad) < 5e-3


@pytest.mark.parametrize("is_trainable", [True, False])
def test_a_state_dict_of_the_replaced_module_loads(is_trainable):
    source, model = Block(), quantize_(Block(), trainable=is_trainable)
    state = source.state_dict()
    model.load_state_dict(state)
    wanted = quantize_(source, trainable=is_trainable).state_dict()
    found = model.state_dict()
    assert found.keys() == wanted.keys() and "experts.gate_up_proj" in state
    assert all(torch.equal(found[name].float(), wanted[name].float()) for name in wanted)


class Clamped(Experts):
    """As some models have them, whose gates end at 7."""

    def _apply_gate(self, rows):
        gate, up = rows.chunk(2, -1)
        return silu(gate.clamp(max=7.0)) * up


class Interleaved(Experts):
    """Gate and up take turns."""

    def _apply_gate(self, rows):
        return silu(rows[..., ::2]) * rows[..., 1::2]


class Plain(Experts):
    """SwiGLU, computed by a method."""

    def _apply_gate(self, rows):
        gate, up = rows.chunk(2, -1)
        return self.act_fn(gate) * up


class Scaled(Experts):
    """Called with another argument."""

    def forward(self, hidden_states, top_k_index, top_k_weights, scale):
        """Return scaled results."""
        return scale * super().forward(hidden_states, top_k_index, top_k_weights)


def make_other(change: str) -> torch.nn.Module:
    """Return experts that differ in one respect."""
    experts = Experts()
    if change == "activation":
        experts.act_fn = torch.nn.GELU()
    elif change == "no activation":
        del experts.act_fn
    elif change == "bias":
        experts.gate_up_proj_bias = torch.nn.Parameter(torch.zeros(EXPERTS, 2 * WIDTH))
    elif change == "transposed":
        experts.gate_up_proj = torch.nn.Parameter(torch.randn(EXPERTS, HIDDEN, 2 * WIDTH))
    elif change == "mark":
        experts.is_transposed = True
    else:
        experts.is_concatenated = False
    return experts


@pytest.mark.parametrize("change", ["activation", "no activation", "bias", "transposed", "mark", "not concatenated"])
def test_other_layouts_stay_as_they_are(change):
    experts = make_other(change)
    assert not holds_experts(experts) and quantize_(experts) is experts
    with pytest.raises(errors.ArgumentError, match="experts = Experts: must be SwiGLU"):
        Fp8Experts.from_fused(experts)


def test_the_activation_is_tried():
    assert holds_experts(Experts()) and holds_experts(Plain())
    assert not any(map(holds_experts, (Clamped(), Interleaved(), Scaled())))
    with torch.device("meta"):
        assert holds_experts(Experts())


def test_sizes_and_the_filter_decide():
    assert type(quantize_(Block(24, 48)).experts) is Experts
    with pytest.raises(errors.ShapeError, match="in_features = 24"):
        quantize_(Block(24, 48), lambda module, name: True)
    assert type(quantize_(Block(), lambda module, name: name != "experts").experts) is Experts
    assert isinstance(quantize_(Experts()), Fp8Experts)
