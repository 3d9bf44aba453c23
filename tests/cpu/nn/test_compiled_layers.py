"""Layers in compiled graphs: whole graphs, the bits of eager calls, and sound registrations."""

import pytest
import torch

from deep_gemm.nn import Fp8Linear
from tests.gpu.nn_references import poisoned

FP32 = torch.float32


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    print("seed", torch.seed())
    with poisoned():
        yield
    torch._dynamo.reset()


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
    torch.library.opcheck(op, (x, weight, None, torch.randn(32, requires_grad=True), None, FP32))
    onto = torch.ops.deep_gemm_tuned.nn_linear_wgrad_onto.default
    torch.library.opcheck(onto, (torch.randn(6, 32), x.detach(), torch.zeros(32, 48)))
