"""SwiGLU in the backward of the layers: the product that a weight gradient takes, and the derivative.

For rows [gate, up]: y = silu(gate) * up. All is computed in FP32. The gradient that comes and the results are of the
dtype of x; but y, and the gradient that comes, stay FP32 for FP16, whose range they may leave. On a GPU it is one pass
over memory for BF16 and FP32 (swiglu_grad.cuh), with the steps of the formula.
"""

import torch

from deep_gemm import cast_kernels, planned
from deep_gemm.errors import ShapeError
from deep_gemm.nn.registration import register

_differentiate = planned.make_call("swiglu_grad", cast_kernels.plan_swiglu_grad)


def get_product_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of y, and of its gradient, for x of a dtype."""
    return torch.float32 if dtype == torch.float16 else dtype


def compute_swiglu(x: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up [..., n] of rows [gate, up] [..., 2 * n], contiguous."""
    gate, up = x.float().chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(get_product_dtype(x.dtype)).contiguous()


def compute_gradient(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Return the gradient of x [..., 2 * n] from `grad` [..., n], that of silu(gate) * up. The formula, in torch."""
    gate, up = x.float().chunk(2, dim=-1)
    grad, sigmoid = grad.float(), gate.sigmoid()
    slope = sigmoid * (1 + gate * (1 - sigmoid))
    return torch.cat((grad * up * slope, grad * gate * sigmoid), dim=-1).to(x.dtype).contiguous()


def differentiate_swiglu(
    x: torch.Tensor, grad: torch.Tensor | None, is_product_needed: bool
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return the gradient of x from that of silu(gate) * up, where there is one, and this product, where it is needed;
    in its place something else.
    """
    if grad is not None:
        return nn_swiglu_grad(x, grad, is_product_needed)
    return None, compute_swiglu(x) if is_product_needed else x


def _check(x: torch.Tensor, grad: torch.Tensor) -> None:
    if grad.dim() < 1 or x.shape != (*grad.shape[:-1], 2 * grad.shape[-1]):
        raise ShapeError(
            f"x.shape = {list(x.shape)}: must be [..., 2 * n] for grad.shape = {list(grad.shape)}, which is [..., n];"
            " pass rows [gate, up] and the gradient of their product."
        )


def _run(x: torch.Tensor, grad: torch.Tensor, has_y: bool) -> tuple[torch.Tensor, torch.Tensor]:
    _check(x, grad)
    done = _differentiate(x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1]), has_y)
    if done is NotImplemented:
        return compute_gradient(x, grad), compute_swiglu(x) if has_y else _make_nothing(x)
    dx, y = done if has_y else (done, _make_nothing(x))
    return dx.view(x.shape), y.view(grad.shape) if has_y else y


def _make_nothing(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(0, dtype=get_product_dtype(x.dtype))


def _fake(x: torch.Tensor, grad: torch.Tensor, has_y: bool) -> tuple[torch.Tensor, torch.Tensor]:
    _check(x, grad)
    y = grad.new_empty(grad.shape, dtype=get_product_dtype(x.dtype)) if has_y else _make_nothing(x)
    return x.new_empty(x.shape), y


#: As compute_gradient, with compute_swiglu or an empty tensor; an op that graphs hold.
nn_swiglu_grad = register("nn_swiglu_grad", "(Tensor x, Tensor grad, bool has_y) -> (Tensor, Tensor)", _run, _fake)
