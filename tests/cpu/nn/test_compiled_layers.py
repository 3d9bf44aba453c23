"""Layers in compiled graphs: whole graphs, the bits of eager calls, and sound registrations."""

import itertools

import pytest
import torch

from deep_gemm.nn import Fp8Experts, Fp8Linear

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "fresh_inputs")
FP32 = torch.float32


def run(layer, x: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return (y, dx, and the gradients of the layer's parameters that train)."""
    x = x.detach().requires_grad_()
    y = layer(x)
    trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    return y.detach(), *torch.autograd.grad(y, (x, *trained), grad)


@pytest.mark.parametrize("is_stored", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_compiled_layer_is_one_graph_with_the_same_bits(is_stored):
    layer = Fp8Linear(144, 32, trainable=not is_stored)
    x, grad = torch.randn(2, 9, 144), torch.randn(2, 9, 32)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert all(map(torch.equal, run(compiled, x, grad), run(layer, x, grad)))


def test_compiled_backward_adds_to_the_main_gradient():
    layer = Fp8Linear(48, 32)
    layer.accumulates_main_grad = True
    compiled, x = torch.compile(layer, fullgraph=True, backend="aot_eager"), torch.randn(5, 48)
    found = []
    for run_layer in (layer, compiled):
        layer.weight.main_grad = torch.zeros(32, 48)
        for _ in range(2):
            run_layer(x).sum().backward()
        found.append(layer.weight.main_grad)
    assert found[0].any() and torch.equal(*found) and layer.weight.grad is None


@pytest.mark.full
def test_dynamic_rows_share_one_graph():
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    layer = Fp8Linear(48, 32)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    for m in (3, 130, 17):
        x, grad = torch.randn(m, 48), torch.randn(m, 32)
        assert all(map(torch.equal, run(compiled, x, grad), run(layer, x, grad)))
    assert counter.frame_count == 1


@pytest.mark.full
def test_the_registration_is_sound():
    weight, x = torch.randn(32, 48, requires_grad=True), torch.randn(6, 48, requires_grad=True)
    op = torch.ops.deep_gemm_tuned.nn_linear.default
    torch.library.opcheck(op, (x, weight, None, torch.randn(32, requires_grad=True), None, False, FP32))
    onto = torch.ops.deep_gemm_tuned.nn_linear_wgrad_onto.default
    torch.library.opcheck(onto, (torch.randn(6, 32), x.detach(), torch.zeros(32, 48)))


@pytest.mark.full
def test_compiled_experts_are_one_graph_with_the_same_bits():
    layer, x = Fp8Experts(4, 48, 32), torch.randn(9, 48)
    index, weights, grad = torch.randint(0, 4, (9, 2)), torch.rand(9, 2), torch.randn(9, 48)

    def program(value):
        return layer(value, index, weights)

    program.parameters = layer.parameters
    wanted = run(program, x, grad)
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    compiled.parameters = layer.parameters
    assert all(map(torch.equal, run(compiled, x, grad), wanted))
    with torch.no_grad():
        assert torch.equal(torch.compile(program, fullgraph=True, backend="aot_eager")(x), program(x))


@pytest.mark.parametrize("least, most", [(2, 64), (65, 4096)])
def test_exported_experts_take_any_number_of_tokens(least, most):
    """In both layouts, of which the sizes follow from the tokens."""
    layer, tokens = Fp8Experts(4, 48, 32), torch.export.Dim("tokens", min=least, max=most)
    first, other = (
        (torch.randn(rows, 48), torch.randint(0, 4, (rows, 2)), torch.rand(rows, 2)) for rows in (least + 7, least + 2)
    )
    with torch.no_grad():
        exported = torch.export.export(layer, first, dynamic_shapes=({0: tokens},) * 3, strict=False)
        assert torch.equal(exported.module()(*other), layer(*other))


@pytest.mark.full
def test_registrations_of_groups_are_sound():
    ops, ends = torch.ops.deep_gemm_tuned, torch.tensor([5, 133], dtype=torch.int32)
    x, weight = torch.randn(256, 48, requires_grad=True), torch.randn(2, 32, 48, requires_grad=True)
    torch.library.opcheck(ops.nn_grouped.default, (x, weight, None, ends, None, False, FP32))
    wide = torch.randn(256, 96, requires_grad=True)
    torch.library.opcheck(ops.nn_grouped.default, (wide, weight, None, ends, None, True, FP32))
    grad = torch.randn(256, 32)
    torch.library.opcheck(ops.nn_grouped_wgrad_onto.default, (grad, x.detach(), ends, torch.zeros(2, 32, 48)))
    rows, gates = torch.tensor([[3, 1], [0, 7]]), torch.rand(2, 2, requires_grad=True)
    few = torch.randn(2, 48, requires_grad=True)
    torch.library.opcheck(ops.nn_spread.default, (few, rows, None, 9))
    for is_masked, choices in itertools.product((False, True), (rows, rows.t(), rows[:1].t(), rows.int())):
        torch.library.opcheck(ops.nn_place.default, (choices, 8, is_masked))
    torch.library.opcheck(ops.nn_combine.default, (x, rows, gates))
    tokens = few.detach(), rows, 256, weight.detach(), None, ends, 2, FP32
    torch.library.opcheck(
        ops.nn_grouped_tokens.default, tokens, test_utils=("test_schema", "test_autograd_registration")
    )
