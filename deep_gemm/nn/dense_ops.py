"""The differentiable FP8 product y = x @ weight.T + bias, and the products of its backward, as ops that graphs hold.

    y  = Q_token(x) @ Q_block(weight).T      a scale for each row and 128 columns, one for each 128 x 128 of the weight
    dx = Q_token(dy) @ Q_block(weight)       the weight as in y
    dw = Q_column(dy).T @ Q_column(x)        a scale for each column and 128 rows, which this product sums over

Q rounds to E4M3. Sums are in FP32. With SwiGLU, x has rows [gate, up], and silu(gate) * up takes its place.
"""

import torch

import deep_gemm
from deep_gemm.nn.products import (
    check_last_dim,
    give_weight_gradient,
    make_gradient_pair,
    make_weight_pair,
    quantise_rows,
    store_as,
    sum_rows,
)
from deep_gemm.nn.registration import differentiate, register
from deep_gemm.nn.swiglu import differentiate_swiglu, get_product_dtype

#: Both operands have a scale for each of their rows and 128 of K.
_BY_ROWS = (1, 1, 128)


def _run_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor | None,
    bias: torch.Tensor | None,
    main_grad: torch.Tensor | None,
    is_swiglu: bool,
    dtype: torch.dtype,
) -> torch.Tensor:
    check_last_dim(x, weight.shape[1], is_swiglu)
    rows = x.reshape(-1, x.shape[-1])
    a, b = quantise_rows(rows, is_swiglu), make_weight_pair(weight, scale)
    y = store_as(dtype, (len(rows), len(weight)), x, lambda d: deep_gemm.fp8_gemm_nt(a, b, d))
    if bias is not None:
        y.add_(bias)
    return y.view(*x.shape[:-1], len(weight))


def _fake_linear(x, weight, scale, bias, main_grad, is_swiglu, dtype) -> torch.Tensor:
    check_last_dim(x, weight.shape[1], is_swiglu)
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=dtype)


def _run_dgrad(
    grad: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    rows = grad.reshape(-1, weight.shape[0])
    a, b = quantise_rows(rows, False), make_weight_pair(weight, scale)
    dx = store_as(dtype, (len(rows), weight.shape[1]), grad, lambda d: deep_gemm.fp8_gemm_nn(a, b, d))
    return dx.view(*grad.shape[:-1], weight.shape[1])


def _fake_dgrad(grad, weight, scale, dtype) -> torch.Tensor:
    return grad.new_empty((*grad.shape[:-1], weight.shape[1]), dtype=dtype)


def _multiply_gradients(grad: torch.Tensor, x: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None) -> None:
    """Write d [n, k] = grad.T @ x + c for grad [..., n] and x [..., k]."""
    a, b = make_gradient_pair(grad.reshape(-1, grad.shape[-1])), make_gradient_pair(x.reshape(-1, x.shape[-1]))
    deep_gemm.fp8_gemm_tn(a, b, d, c, recipe=_BY_ROWS)


def _run_wgrad(grad: torch.Tensor, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    shape = (grad.shape[-1], x.shape[-1])
    return store_as(dtype, shape, grad, lambda d: _multiply_gradients(grad, x, d, None))


def _fake_wgrad(grad, x, dtype) -> torch.Tensor:
    return grad.new_empty((grad.shape[-1], x.shape[-1]), dtype=dtype)


def _run_wgrad_onto(grad: torch.Tensor, x: torch.Tensor, main_grad: torch.Tensor) -> None:
    _multiply_gradients(grad, x, main_grad, main_grad)


def _fake_wgrad_onto(grad, x, main_grad) -> None:
    return None


def _set_up(ctx, inputs: tuple, output: torch.Tensor) -> None:
    x, weight, scale, bias, main_grad, is_swiglu, _ = inputs
    ctx.save_for_backward(x if weight.requires_grad or is_swiglu else None, weight, scale)
    ctx.x_dtype, ctx.bias_dtype, ctx.is_swiglu = x.dtype, None if bias is None else bias.dtype, is_swiglu
    # Not saved by autograd, which would refuse it where another backward has added to it since.
    ctx.main_grad = main_grad


def _backward(ctx, grad: torch.Tensor) -> tuple:
    x, weight, scale = ctx.saved_tensors
    is_needed = ctx.needs_input_grad
    dx, dw = None, None
    if is_needed[0]:
        dtype = get_product_dtype(ctx.x_dtype) if ctx.is_swiglu else ctx.x_dtype
        dx = nn_linear_dgrad(grad, weight, scale, dtype)
    if ctx.is_swiglu:
        dx, x = differentiate_swiglu(x, dx, is_needed[1])
    if is_needed[1]:
        dw = give_weight_gradient(
            weight,
            ctx.main_grad,
            compute=lambda: nn_linear_wgrad(grad, x, weight.dtype),
            add=lambda: nn_linear_wgrad_onto(grad, x, ctx.main_grad),
        )
    db = sum_rows(grad, ctx.bias_dtype) if is_needed[3] else None
    return dx, dw, None, db, None, None, None


nn_linear = register(
    "nn_linear",
    "(Tensor x, Tensor weight, Tensor? scale, Tensor? bias, Tensor? main_grad, bool is_swiglu, ScalarType dtype)"
    " -> Tensor",
    _run_linear,
    _fake_linear,
)
nn_linear_dgrad = register(
    "nn_linear_dgrad",
    "(Tensor grad, Tensor weight, Tensor? scale, ScalarType dtype) -> Tensor",
    _run_dgrad,
    _fake_dgrad,
)
nn_linear_wgrad = register(
    "nn_linear_wgrad", "(Tensor grad, Tensor x, ScalarType dtype) -> Tensor", _run_wgrad, _fake_wgrad
)
nn_linear_wgrad_onto = register(
    "nn_linear_wgrad_onto", "(Tensor grad, Tensor x, Tensor(d!) main_grad) -> ()", _run_wgrad_onto, _fake_wgrad_onto
)
differentiate("nn_linear", _set_up, _backward)
