"""The FP8 products of experts, as ops that graphs hold: y[i] = f(x[i]) @ weight[g].T for the rows i of a group g.

f is the identity or SwiGLU, silu(gate) * up of rows [gate, up]; the forward computes it in FP32 and quantises it
without a rounding in between, the backward as swiglu.py says. Scales are those of the dense layer (dense_ops.py).

Contiguous: groups of rows by their ends (`use_psum_layout` in docs/ops.md), each from a multiple of 128 on; rows
between them are padding: +0 in every result, and to be 0 in x and dy, whose columns share scales with them. All of it
is differentiable, and no size comes back to the host. Where the expected rows of a group are given, padding is
undefined instead, tiles are chosen for so many rows, and there is no backward. Masked: room for the same number of rows
in each group, without backward.
"""

import torch

import deep_gemm
from deep_gemm.errors import ShapeError
from deep_gemm.nn.products import (
    check_last_dim,
    give_weight_gradient,
    make_gradient_pair,
    make_weight_pair,
    quantise_rows,
    store_as,
)
from deep_gemm.nn.registration import differentiate, register
from deep_gemm.nn.routing import nn_spread
from deep_gemm.nn.swiglu import differentiate_swiglu, get_product_dtype
from deep_gemm.quantize import SCALE_BLOCK, per_token_cast_to_fp8


def check_contiguous(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor, is_swiglu: bool) -> None:
    """Refuse operands that do not fit together.

    Raises: ShapeError.
    """
    if x.dim() != 2 or x.shape[0] % SCALE_BLOCK:
        raise ShapeError(
            f"x.shape = {list(x.shape)}: must be [m, features] with m a multiple of {SCALE_BLOCK}, where groups start;"
            " pad it with rows of zeros."
        )
    check_last_dim(x, weight.shape[2], is_swiglu)
    if ends.shape != weight.shape[:1]:
        raise ShapeError(f"ends.shape = {list(ends.shape)}: must be [{weight.shape[0]}], the end of each group's rows.")
    alignment = deep_gemm.get_mk_alignment_for_contiguous_layout()
    if alignment != SCALE_BLOCK:
        raise ShapeError(
            f"alignment = {alignment}: groups of a layer start at multiples of {SCALE_BLOCK}; call"
            f" set_mk_alignment_for_contiguous_layout({SCALE_BLOCK})."
        )


def _run_grouped(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor | None,
    ends: torch.Tensor,
    main_grad: torch.Tensor | None,
    is_swiglu: bool,
    dtype: torch.dtype,
    expected_m: int | None = None,
) -> torch.Tensor:
    check_contiguous(x, weight, ends, is_swiglu)
    return _multiply(quantise_rows(x, is_swiglu), weight, scale, ends, dtype, expected_m)


def _multiply(
    a: tuple[torch.Tensor, torch.Tensor],
    weight: torch.Tensor,
    scale: torch.Tensor | None,
    ends: torch.Tensor,
    dtype: torch.dtype,
    expected_m: int | None,
) -> torch.Tensor:
    b, options = make_weight_pair(weight, scale), _ends_options(expected_m)
    shape = (len(a[0]), weight.shape[1])
    return store_as(dtype, shape, a[0], lambda d: deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, d, ends, **options))


def _ends_options(expected_m: int | None = None) -> dict[str, int]:
    if expected_m is None:
        return {"use_psum_layout": True, "ensure_zero_padding": True}
    return {"use_psum_layout": True, "expected_m_for_psum_layout": expected_m}


def _fake_grouped(x, weight, scale, ends, main_grad, is_swiglu, dtype, expected_m=None) -> torch.Tensor:
    check_last_dim(x, weight.shape[2], is_swiglu)
    return x.new_empty((x.shape[0], weight.shape[1]), dtype=dtype)


def _run_tokens(
    x: torch.Tensor,
    rows: torch.Tensor,
    num_rows: int,
    weight: torch.Tensor,
    scale: torch.Tensor | None,
    ends: torch.Tensor,
    expected_m: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    check_last_dim(x, weight.shape[2], False)
    values, scales = per_token_cast_to_fp8(x, use_ue8m0=False)
    # Bits of FP8 numbers, two at a time.
    a = nn_spread(values.view(torch.bfloat16), rows, None, num_rows, False).view(values.dtype)
    a_scales = nn_spread(scales, rows, None, num_rows, False)
    check_contiguous(a, weight, ends, False)
    return _multiply((a, a_scales), weight, scale, ends, dtype, expected_m)


def _fake_tokens(x, rows, num_rows, weight, scale, ends, expected_m, dtype) -> torch.Tensor:
    check_last_dim(x, weight.shape[2], False)
    return x.new_empty((num_rows, weight.shape[1]), dtype=dtype)


def _run_dgrad(
    grad: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor | None, ends: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    a, b, options = quantise_rows(grad, False), make_weight_pair(weight, scale), _ends_options()
    shape = (grad.shape[0], weight.shape[2])
    return store_as(dtype, shape, grad, lambda d: deep_gemm.m_grouped_fp8_gemm_nn_contiguous(a, b, d, ends, **options))


def _fake_dgrad(grad, weight, scale, ends, dtype) -> torch.Tensor:
    return grad.new_empty((grad.shape[0], weight.shape[2]), dtype=dtype)


def _run_wgrad(grad: torch.Tensor, x: torch.Tensor, ends: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    d = torch.empty(len(ends), grad.shape[1], x.shape[1], dtype=torch.float32, device=grad.device)
    _multiply_gradients(grad, x, ends, d, None)
    return d.to(dtype)


def _multiply_gradients(
    grad: torch.Tensor, x: torch.Tensor, ends: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None
) -> None:
    """Write d[g] = grad_g.T @ x_g + c[g]."""
    a, b = make_gradient_pair(grad), make_gradient_pair(x)
    deep_gemm.k_grouped_fp8_gemm_tn_contiguous(a, b, d, None, ends, c, use_psum_layout=True)


def _fake_wgrad(grad, x, ends, dtype) -> torch.Tensor:
    return grad.new_empty((ends.shape[0], grad.shape[1], x.shape[1]), dtype=dtype)


def _run_wgrad_onto(grad: torch.Tensor, x: torch.Tensor, ends: torch.Tensor, main_grad: torch.Tensor) -> None:
    _multiply_gradients(grad, x, ends, main_grad, main_grad)


def _fake_wgrad_onto(grad, x, ends, main_grad) -> None:
    return None


def _set_up(ctx, inputs: tuple, output: torch.Tensor) -> None:
    x, weight, scale, ends, main_grad, is_swiglu, *_ = inputs
    is_kept = weight.requires_grad or is_swiglu
    ctx.save_for_backward(x if is_kept else None, weight, scale, ends)
    # As in dense_ops.py, main_grad is not saved by autograd.
    ctx.main_grad, ctx.is_swiglu, ctx.x_dtype = main_grad, is_swiglu, x.dtype


def _backward(ctx, grad: torch.Tensor) -> tuple:
    x, weight, scale, ends = ctx.saved_tensors
    dx, dw = None, None
    if ctx.needs_input_grad[0]:
        dtype = get_product_dtype(ctx.x_dtype) if ctx.is_swiglu else ctx.x_dtype
        dx = nn_grouped_dgrad(grad, weight, scale, ends, dtype)
    if ctx.is_swiglu:
        dx, x = differentiate_swiglu(x, dx, ctx.needs_input_grad[1])
    if ctx.needs_input_grad[1]:
        dw = give_weight_gradient(
            weight,
            ctx.main_grad,
            compute=lambda: nn_grouped_wgrad(grad, x, ends, weight.dtype),
            add=lambda: nn_grouped_wgrad_onto(grad, x, ends, ctx.main_grad),
        )
    return dx, dw, None, None, None, None, None, None


def _run_masked(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor | None,
    masked_m: torch.Tensor,
    expected_m: int,
    is_swiglu: bool,
    dtype: torch.dtype,
) -> torch.Tensor:
    check_last_dim(x, weight.shape[2], is_swiglu)
    a, b = quantise_rows(x, is_swiglu, masked_m), make_weight_pair(weight, scale)
    shape = (*x.shape[:2], weight.shape[1])
    return store_as(dtype, shape, x, lambda d: deep_gemm.m_grouped_fp8_gemm_nt_masked(a, b, d, masked_m, expected_m))


def _fake_masked(x, weight, scale, masked_m, expected_m, is_swiglu, dtype) -> torch.Tensor:
    check_last_dim(x, weight.shape[2], is_swiglu)
    return x.new_empty((*x.shape[:2], weight.shape[1]), dtype=dtype)


nn_grouped = register(
    "nn_grouped",
    "(Tensor x, Tensor weight, Tensor? scale, Tensor ends, Tensor? main_grad, bool is_swiglu, ScalarType dtype,"
    " SymInt? expected_m=None) -> Tensor",
    _run_grouped,
    _fake_grouped,
)
#: The product of the tokens x [tokens, k] at the rows of their choices, which quantises each of them once.
nn_grouped_tokens = register(
    "nn_grouped_tokens",
    "(Tensor x, Tensor rows, SymInt num_rows, Tensor weight, Tensor? scale, Tensor ends, SymInt expected_m,"
    " ScalarType dtype) -> Tensor",
    _run_tokens,
    _fake_tokens,
)
nn_grouped_dgrad = register(
    "nn_grouped_dgrad",
    "(Tensor grad, Tensor weight, Tensor? scale, Tensor ends, ScalarType dtype) -> Tensor",
    _run_dgrad,
    _fake_dgrad,
)
nn_grouped_wgrad = register(
    "nn_grouped_wgrad", "(Tensor grad, Tensor x, Tensor ends, ScalarType dtype) -> Tensor", _run_wgrad, _fake_wgrad
)
nn_grouped_wgrad_onto = register(
    "nn_grouped_wgrad_onto",
    "(Tensor grad, Tensor x, Tensor ends, Tensor(d!) main_grad) -> ()",
    _run_wgrad_onto,
    _fake_wgrad_onto,
)
nn_grouped_masked = register(
    "nn_grouped_masked",
    "(Tensor x, Tensor weight, Tensor? scale, Tensor masked_m, SymInt expected_m, bool is_swiglu, ScalarType dtype)"
    " -> Tensor",
    _run_masked,
    _fake_masked,
)
differentiate("nn_grouped", _set_up, _backward)
