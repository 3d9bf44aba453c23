"""Fp8GroupedLinear and Fp8Experts on the CPU: values and gradients against dense layers, one expert after the other."""

import copy
import itertools

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import deep_gemm
from deep_gemm import errors
from deep_gemm.nn import Fp8Experts, Fp8GroupedLinear, Fp8Linear, quantize_
from deep_gemm.nn.routing import place_masked
from deep_gemm.quantize import align
from deep_gemm.testing import calc_diff
from tests.gpu.nn_references import multiply

pytestmark = pytest.mark.usefixtures("fresh_inputs")
BF16, FP32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
HIDDEN, WIDTH, EXPERTS = 272, 144, 5
#: Of two products after each other, and of one: calc_diff against full precision.
MAX_FP8_DIFF, MAX_DIFF = 4e-3, 1e-10


class Expert(torch.nn.Module):
    """One expert as models in transformers write it."""

    def __init__(self, hidden: int = HIDDEN, width: int = WIDTH):
        super().__init__()
        self.gate_proj = torch.nn.Linear(hidden, width, bias=False)
        self.up_proj = torch.nn.Linear(hidden, width, bias=False)
        self.down_proj = torch.nn.Linear(width, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return down(silu(gate(x)) * up(x))."""
        return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


def make_rows(sizes: list[int], features: int) -> tuple[torch.Tensor, torch.Tensor, list[slice]]:
    """Return rows [m, features] of groups with zeros between them, their ends and where they lie."""
    parts, start = [], 0
    for size in sizes:
        parts.append(slice(start, start + size))
        start = align(start + size, 128)
    x = torch.zeros(start + 128, features)
    for part in parts:
        x[part] = torch.randn(part.stop - part.start, features)
    return x, torch.tensor([part.stop for part in parts], dtype=torch.int32), parts


def spoil(x: torch.Tensor, parts: list[slice]) -> torch.Tensor:
    """Return a copy with NaN between the groups."""
    is_row = torch.zeros(len(x), dtype=torch.bool)
    for part in parts:
        is_row[part] = True
    return torch.where(is_row[:, None], x, float("nan"))


@pytest.mark.parametrize("sizes", [[5, 0, 130], [128, 1, 256]])
def test_groups_are_dense_layers_on_their_rows(sizes):
    layer = Fp8GroupedLinear(3, 272, 144)
    x, ends, parts = make_rows(sizes, 272)
    grad, _, _ = make_rows(sizes, 144)
    x.requires_grad_()
    y = layer(x, ends)
    dx, dw = torch.autograd.grad(y, (x, layer.weight), grad)
    for group, part in enumerate(parts):
        wanted = multiply(x[part].detach(), layer.weight[group].detach(), grad[part])
        for found, right in zip((y[part].detach(), dx[part], dw[group]), wanted, strict=True):
            assert calc_diff(found, right) < MAX_DIFF
    padding = spoil(torch.zeros(len(x), 1), parts)[:, 0].isnan()
    assert not y[padding].any() and not dx[padding].any()
    assert torch.equal(layer(spoil(x.detach(), parts), ends), y), "padding of x leaked"


def test_swiglu_is_computed_before_the_product():
    layer, sizes = Fp8GroupedLinear(2, 144, 48), [70, 3]
    x, ends, _ = make_rows(sizes, 288)
    grad, _, _ = make_rows(sizes, 48)
    x.requires_grad_()
    gate, up = x.chunk(2, -1)
    active = torch.nn.functional.silu(gate) * up
    found = torch.autograd.grad(layer(x, ends, is_swiglu=True), (x, layer.weight), grad)
    y = layer(active, ends)
    wanted = torch.autograd.grad(y, (x, layer.weight), grad)
    assert torch.equal(layer(x, ends, is_swiglu=True), y)
    assert all(calc_diff(left, right) < MAX_DIFF for left, right in zip(found, wanted, strict=True))


def test_main_gradients_of_groups_are_added_in_fp32():
    layer = Fp8GroupedLinear(2, 48, 32, dtype=BF16)
    x, ends, _ = make_rows([3, 4], 48)
    layer(x.to(BF16), ends).sum().backward()
    layer.accumulates_main_grad, layer.weight.main_grad = True, torch.ones(2, 32, 48)
    layer(x.to(BF16), ends).sum().backward()
    assert calc_diff(layer.weight.main_grad - 1, layer.weight.grad) < 5e-6


def test_masked_rows_are_those_of_the_contiguous_form():
    layer, masked_m = Fp8GroupedLinear(3, 48, 32, trainable=False), torch.tensor([2, 0, 5], dtype=torch.int32)
    x = torch.full((3, 5, 96), float("nan"))
    for group, count in enumerate(masked_m.tolist()):
        x[group, :count] = torch.randn(count, 96)
    with torch.no_grad():
        y = layer.forward_masked(x, masked_m, 3, is_swiglu=True)
        rows, ends, parts = make_rows(masked_m.tolist(), 96)
        for group, part in enumerate(parts):
            rows[part] = x[group, : part.stop - part.start]
        wanted = layer(rows, ends, is_swiglu=True)
    for group, part in enumerate(parts):
        assert torch.equal(y[group, : part.stop - part.start], wanted[part])
    with pytest.raises(errors.ArgumentError, match="no backward"):
        Fp8GroupedLinear(3, 48, 32).forward_masked(x[..., :48], masked_m, 3)


def test_a_token_may_name_an_expert_twice():
    experts, weights = Fp8Experts(2, 64, 32, trainable=False), torch.rand(3, 3)
    index, x = torch.tensor([[0, 0, 0], [0, 1, 0], [1, 1, 1]]), torch.randn(3, 64)
    placement = place_masked(index, 2)
    assert placement.rows.tolist() == [[0, 0, 0], [1, 3, 1], [4, 4, 4]] and placement.groups.tolist() == [2, 2]
    with torch.no_grad():
        masked, contiguous = (experts(x, index, weights, layout=layout) for layout in ("masked", "contiguous"))
    assert calc_diff(masked, contiguous) < MAX_DIFF


def make_routing(tokens: int, top_k: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Return distinct experts of each token, never the last one, and weights."""
    index = torch.stack([torch.randperm(EXPERTS - 1)[:top_k] for _ in range(tokens)]).view(tokens, top_k)
    return index, torch.rand(tokens, top_k)


def run_densely(experts: torch.nn.ModuleList, x, index, weights) -> torch.Tensor:
    """Return the weighted sum of every token's experts; the unchosen ones take part with weight 0."""
    gates = torch.zeros(len(x), len(experts)).scatter(1, index, weights)
    return sum(expert(x) * gates[:, number, None] for number, expert in enumerate(experts))


def gather_gradients(experts: torch.nn.ModuleList) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of all experts as the two layers have them."""
    gate_up = [torch.cat((expert.gate_proj.weight.grad, expert.up_proj.weight.grad)) for expert in experts]
    return torch.stack(gate_up), torch.stack([expert.down_proj.weight.grad for expert in experts])


@pytest.mark.parametrize("tokens", [40, 300])
def test_experts_train_as_dense_experts_do(tokens):
    experts = torch.nn.ModuleList(Expert() for _ in range(EXPERTS))
    layer = Fp8Experts.from_experts(experts)
    (index, weights), grad = make_routing(tokens), torch.randn(tokens, HIDDEN)
    results = []
    for run in (layer, lambda *operands: run_densely(experts, *operands)):
        x, gates = torch.full((tokens, HIDDEN), 0.5).requires_grad_(), weights.clone().requires_grad_()
        x.data.copy_(torch.sin(torch.arange(tokens * HIDDEN, dtype=FP32)).view(tokens, HIDDEN) * 3)
        y = run(x, index, gates)
        y.backward(grad)
        results.append((y.detach(), x.grad, gates.grad))
    found = (*results[0], layer.gate_up_proj.weight.grad, layer.down_proj.weight.grad)
    for left, right in zip(found, (*results[1], *gather_gradients(experts)), strict=True):
        assert left.shape == right.shape and calc_diff(left, right) < MAX_FP8_DIFF


def test_both_layouts_agree_and_the_leading_dimensions_are_kept():
    layer, x = Fp8Experts(EXPERTS, 48, 32, trainable=False), torch.randn(3, 7, 48)
    index, weights = make_routing(21)
    masked, contiguous = (layer(x, index, weights, layout=layout) for layout in ("masked", "contiguous"))
    assert masked.shape == x.shape and torch.equal(masked, contiguous)
    assert torch.equal(layer(x, index, weights), masked)


def test_a_transposed_routing_is_the_same():
    """As torch.topk gives it along the first dimension."""
    experts, x = Fp8Experts(3, 64, 32, dtype=FP32), torch.randn(70, 64)
    index, weights = torch.randint(3, (2, 70)).t(), torch.rand(2, 70).t()
    assert torch.equal(experts(x, index, weights), experts(x, index.contiguous(), weights.contiguous()))


def test_the_layout_follows_the_call(monkeypatch):
    layer, seen = Fp8Experts(EXPERTS, 48, 32), []
    for name in ("_run_masked", "_run_contiguous", "_run_for_training"):
        monkeypatch.setattr(layer, name, lambda x, *rest, name=name: seen.append(name) or x)
    for tokens, is_grad in itertools.product((64, 65), (True, False)):
        with torch.set_grad_enabled(is_grad):
            layer(torch.zeros(tokens, 48), *make_routing(tokens))
    assert seen == ["_run_for_training", "_run_masked", "_run_for_training", "_run_contiguous"]


@pytest.mark.parametrize("is_trainable", [True, False])
def test_no_tokens(is_trainable):
    layer = Fp8Experts(EXPERTS, 48, 32, trainable=is_trainable)
    x = torch.zeros(0, 48, requires_grad=is_trainable)
    y = layer(x, *make_routing(1)[:1][0][:0].unsqueeze(0), torch.zeros(0, 2))
    assert y.shape == (0, 48)
    if is_trainable:
        y.sum().backward()
        assert not layer.down_proj.weight.grad.any() and not layer.gate_up_proj.weight.grad.any()


def test_stored_experts_keep_their_blocks():
    experts = torch.nn.ModuleList(Expert(256, 128) for _ in range(3)).eval()
    stored = Fp8Experts.from_experts(quantize_(copy.deepcopy(experts)))
    fresh = Fp8Experts.from_experts(experts)
    assert not fresh.gate_up_proj.is_trainable and stored.gate_up_proj.weight.dtype == FP8
    x, index = torch.randn(9, 256), torch.randint(0, 3, (9, 1))
    weights = torch.ones(9, 1)
    assert torch.equal(stored(x, index, weights), fresh(x, index, weights))


def test_weights_of_every_form_make_a_layer():
    weight = torch.nn.Parameter(torch.randn(3, 32, 48))
    assert Fp8GroupedLinear.from_weight(weight).weight is weight
    stored = Fp8GroupedLinear.from_checkpoint(*deep_gemm.per_block_cast_to_fp8(weight.detach(), use_ue8m0=False))
    x, ends, _ = make_rows([2, 3, 4], 48)
    assert torch.equal(stored(x, ends), Fp8GroupedLinear.from_weight(weight, trainable=False)(x, ends))
    other = Fp8GroupedLinear(3, 48, 32)
    other.load_state_dict(stored.state_dict())
    assert torch.equal(other(x, ends), stored(x, ends))


def make_layer() -> Fp8GroupedLinear:
    """Return a small layer."""
    return Fp8GroupedLinear(2, 48, 32)


ENDS = torch.tensor([1, 129], dtype=torch.int32)


def call_experts(x=None, index=None, weights=None, **options) -> torch.Tensor:
    """Return what three experts make of four tokens, and of other operands where these are given."""
    x = torch.zeros(4, 48) if x is None else x
    index = torch.zeros(4, 2).long() if index is None else index
    return Fp8Experts(3, 48, 32)(x, index, torch.ones(4, 2) if weights is None else weights, **options)


@pytest.mark.parametrize("call, error, message", [
    (lambda: Fp8GroupedLinear(0, 48, 32), errors.ShapeError, "num_groups = 0"),
    (lambda: Fp8GroupedLinear(2, 40, 32), errors.ShapeError, "in_features = 40"),
    (lambda: make_layer()(torch.zeros(200, 48), ENDS), errors.ShapeError, "m a multiple of 128"),
    (lambda: make_layer()(torch.zeros(256, 48), ENDS, is_swiglu=True), errors.ShapeError, r"must be \[..., 96\]"),
    (lambda: make_layer()(torch.zeros(256, 48), ENDS[:1]), errors.ShapeError, r"ends.shape = \[1\]: must be \[2\]"),
    (lambda: Fp8GroupedLinear.from_weight(torch.zeros(48, 32)), errors.ShapeError, "stack the groups"),
    (lambda: Fp8GroupedLinear.from_linears([torch.nn.Linear(16, 16)]), errors.ArgumentError, "without bias"),
    (lambda: Fp8GroupedLinear.from_linears([torch.nn.Linear(16, n, bias=False) for n in (16, 32)]), errors.ShapeError,
     "one shape"),
    (lambda: Fp8Experts.from_layers(make_layer(), make_layer()), errors.ShapeError, "gate_up_proj.weight.shape"),
    (lambda: Fp8Experts.from_experts([quantize_(Expert().eval())]), errors.ShapeError, "must be a multiple of 128"),
    (lambda: Fp8Experts(3, 48, 32)(torch.zeros(4, 48), torch.zeros(4, 2).long(), torch.zeros(4, 1)), errors.ShapeError,
     r"both must be \[4, top_k\]"),
    (lambda: call_experts(layout="x"), errors.ArgumentError, "layout = 'x'"),
    (lambda: call_experts(layout="masked"), errors.ArgumentError, "no backward"),
    (lambda: call_experts(index=torch.zeros(4, 2)), errors.DtypeError, "top_k_index.dtype = torch.float32"),
    (lambda: call_experts(index=torch.zeros(4, 2).bool()), errors.DtypeError, "top_k_index.dtype = torch.bool"),
    (lambda: call_experts(index=[[0, 1]]), errors.ArgumentError, "top_k_index = list: must be a torch.Tensor"),
    (lambda: call_experts(weights=torch.zeros(4, 2).int()), errors.DtypeError, "top_k_weights.dtype = torch.int32"),
    (lambda: call_experts(x=[1.0]), errors.ArgumentError, "x = list: must be a torch.Tensor"),
    (lambda: call_experts(x=torch.zeros(4, 48).int()), errors.DtypeError, "x.dtype = torch.int32"),
    (lambda: make_layer()([1.0], ENDS), errors.ArgumentError, "x = list: must be a torch.Tensor"),
    (lambda: make_layer().forward_masked([1.0], ENDS, 1), errors.ArgumentError, "x = list: must be a torch.Tensor"),
    (lambda: Fp8GroupedLinear("2", 48, 32), errors.ArgumentError, "num_groups = '2': must be an int"),
    (lambda: Fp8GroupedLinear(2, None, 32), errors.ArgumentError, "in_features = None: must be an int"),
    (lambda: Fp8GroupedLinear.from_weight(3), errors.ArgumentError, "weight = int: must be a torch.Tensor"),
    (lambda: Fp8GroupedLinear.from_checkpoint(1, 2), errors.ArgumentError, "weight_fp8 = int: must be a torch.Tensor"),
    (lambda: Fp8GroupedLinear.from_linears([]), errors.ArgumentError, r"linears = \[\]: must be modules, at least one"),
    (lambda: Fp8GroupedLinear.from_linears(3), errors.ArgumentError, "linears = 3: must be modules"),
    (lambda: Fp8Experts(3, 48, "32"), errors.ArgumentError, "intermediate_size = '32': must be an int"),
    (lambda: Fp8Experts.from_experts([]), errors.ArgumentError, r"experts = \[\]: must be modules, at least one"),
    (lambda: Fp8Experts.from_experts([torch.nn.ReLU()]), errors.ArgumentError, "have ReLU, must have gate_proj"),
    (lambda: Fp8Experts.from_layers(make_layer(), 3), errors.ArgumentError, "down_proj = 3: must be an Fp8Grouped"),
    (lambda: Fp8Experts.from_fused(3), errors.ArgumentError, "experts = int: must be SwiGLU networks"),
])  # fmt: skip
def test_what_cannot_be_is_a_typed_error(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("layout", ["contiguous", "masked"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_choice_of_no_expert_is_refused_where_nothing_waits(wrong, dtype, layout):
    index = torch.tensor([[0, 2], [wrong, 1], [1, 0], [2, 2]], dtype=dtype)
    with torch.no_grad(), pytest.raises(errors.ArgumentError, match=rf"holds {wrong}, must be experts 0\.\.2"):
        call_experts(index=index, layout=layout)


def test_a_recorded_graph_does_not_ask_for_the_routing():
    layer, operands = Fp8Experts(EXPERTS, 48, 32, trainable=False), (torch.randn(4, 48), *make_routing(4))
    for graph in (make_fx(layer)(*operands), torch.export.export(layer, operands, strict=False).module()):
        assert torch.equal(graph(*operands), layer(*operands))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert layer(*map(mode.from_tensor, operands)).shape == (4, 48)


@pytest.mark.parametrize("of", ["x", "weights"])
def test_what_differentiates_a_gradient_again_is_told(of):
    layer, operands = Fp8Experts(EXPERTS, 48, 32), {"x": torch.randn(4, 48, requires_grad=True)}
    index, operands["weights"] = make_routing(4)
    operands["weights"].requires_grad_()
    loss = layer(operands["x"], index, operands["weights"]).square().sum()
    (gradient,) = torch.autograd.grad(loss, operands[of], create_graph=True)
    for again in (operands["x"], operands["weights"], layer.gate_up_proj.weight, layer.down_proj.weight):
        with pytest.raises(errors.ArgumentError, match="create_graph = True: .* is differentiated again"):
            torch.autograd.grad(loss + gradient.norm(), again, retain_graph=True)


def test_another_alignment_of_groups_is_refused():
    before = deep_gemm.get_mk_alignment_for_contiguous_layout()
    deep_gemm.set_mk_alignment_for_contiguous_layout(64)
    try:
        with pytest.raises(errors.ShapeError, match="alignment = 64"):
            make_layer()(torch.zeros(256, 48), ENDS)
    finally:
        deep_gemm.set_mk_alignment_for_contiguous_layout(before)


def test_a_layer_of_one_group_is_the_dense_layer():
    dense = Fp8Linear(48, 32, bias=False)
    grouped = Fp8GroupedLinear.from_linears([torch.nn.Linear(48, 32, bias=False)], trainable=True)
    grouped.weight.data.copy_(dense.weight)
    x = torch.randn(128, 48)
    assert torch.equal(grouped(x, torch.tensor([128], dtype=torch.int32)), dense(x))
