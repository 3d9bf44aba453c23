"""What the backward of layers with SwiGLU computes, and columns of any number of rows, by the formulas in torch."""

import pytest
import torch

from deep_gemm import cast_kernels
from deep_gemm.errors import ShapeError
from deep_gemm.nn import products, swiglu
from deep_gemm.quantize import per_channel_cast_to_fp8


def differentiate_in_torch(x: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return autograd's gradient of x, in FP64, and the product."""
    wide = x.double().requires_grad_()
    gate, up = wide.chunk(2, dim=-1)
    y = torch.nn.functional.silu(gate) * up
    return torch.autograd.grad(y, wide, grad.double())[0], y.detach()


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
def test_gradients_are_those_of_autograd(dtype, bound):
    x, grad = torch.randn(3, 5, 48).to(dtype), torch.randn(3, 5, 24).to(dtype)
    found = swiglu.nn_swiglu_grad(x, grad, True)
    for got, wanted in zip(found, differentiate_in_torch(x, grad), strict=True):
        assert got.dtype == dtype and got.is_contiguous()
        torch.testing.assert_close(got.double(), wanted, rtol=bound, atol=bound)
    assert torch.equal(found[1], swiglu.compute_swiglu(x))
    alone, nothing = swiglu.nn_swiglu_grad(x, grad, False)
    assert torch.equal(alone, found[0]) and nothing.shape == (0,)


def test_fp16_keeps_the_range_of_fp32_within():
    """Products and gradients beyond what FP16 holds, whose own results it holds."""
    x = torch.tensor([[200.0, 1e-3, 400.0, 1e-3]], dtype=torch.float16)
    grad = torch.tensor([[1e-3, 1e6]])
    dx, y = swiglu.nn_swiglu_grad(x, grad, True)
    assert (dx.dtype, y.dtype) == (torch.float16, torch.float32) and dx.isfinite().all() and y[0, 0] == 80000
    torch.testing.assert_close(dx.double(), differentiate_in_torch(x, grad)[0], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("shape", [(4, 20), (8, 64), (20,), ()])
def test_shapes_that_do_not_match_are_refused(shape):
    with pytest.raises(ShapeError, match="rows .gate, up. and the gradient"):
        swiglu.nn_swiglu_grad(torch.randn(4, 44), torch.randn(shape), True)
    assert cast_kernels.plan_swiglu_grad(torch.randn(4, 44), torch.randn(8, 64), True) is None


def test_nothing_is_computed_in_vain(monkeypatch):
    """A layer of which the bias alone is trained computes no product, and a frozen weight needs none."""
    x, grad = torch.randn(4, 40), torch.randn(4, 20)
    monkeypatch.setattr(swiglu, "compute_swiglu", lambda x: pytest.fail("a product that nobody takes"))
    assert swiglu.differentiate_swiglu(x, None, False) == (None, x)
    assert swiglu.differentiate_swiglu(x, grad, False)[1].numel() == 0


def test_large_gates_give_no_nan():
    gate = torch.tensor([-3e38, -200.0, -0.0, 200.0, 3e38])
    found = swiglu.nn_swiglu_grad(torch.cat([gate, torch.ones(5)])[None], torch.ones(1, 5), True)
    assert found[0][0].tolist() == pytest.approx([0.0, 0.0, 0.5, 1.0, 1.0, 0.0, 0.0, 0.0, 200.0, 3e38])


def test_the_op_is_one_that_graphs_hold():
    x, images = torch.randn(4, 40), torch.randn(1, 3, 4, 40).to(memory_format=torch.channels_last)
    torch.library.opcheck(swiglu.nn_swiglu_grad, (x, torch.randn(4, 20), False))
    torch.library.opcheck(swiglu.nn_swiglu_grad, (images, images[..., :20], True))
    half = torch.randn(40, 4, dtype=torch.bfloat16).t(), x[:, :20].bfloat16()
    torch.library.opcheck(swiglu.nn_swiglu_grad, (*half, True))


@pytest.mark.parametrize("rows", [0, 1, 100, 128, 129])
def test_columns_are_padded_to_whole_blocks(rows):
    x = torch.randn(rows, 32)
    data, scales = products.make_gradient_pair(x)
    padded = torch.nn.functional.pad(x, (0, 0, 0, -rows % 128))
    wanted = per_channel_cast_to_fp8(padded, False)
    assert torch.equal(data.float(), wanted[0].float()) and torch.equal(scales, wanted[1])
