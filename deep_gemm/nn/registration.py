"""How the ops of deep_gemm.nn are registered: in the library and the namespace of the public ops, under names that
begin with `nn_`, with fake implementations and, where they are differentiable, with their backward.

One definition serves tensors of every device: the products run the reference on CPU tensors.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd import forward_ad

from deep_gemm.errors import ArgumentError
from deep_gemm.library import NAMESPACE, get_library, get_op


def register(name: str, schema: str, run: Callable, fake: Callable) -> torch._ops.OpOverload:
    """Return the op `name` of this schema; it is registered once in a process, also where the package is loaded again.

    Args:
        run: computes with real tensors. fake: returns tensors like those of `run`, from shapes and dtypes alone.
    """
    full_name, library = f"{NAMESPACE}::{name}", get_library()
    if not torch._C._dispatch_has_kernel(full_name):
        library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(name, run, "CompositeExplicitAutograd")
        torch.library.register_fake(full_name, fake, lib=library)
    return get_op(name)


def differentiate(name: str, setup: Callable, backward: Callable) -> None:
    """Register the backward of an op: `setup(ctx, inputs, output)` keeps what `backward(ctx, grad)` reads, which
    returns the gradient of every input. What would differentiate a gradient again gets an ArgumentError, and so do
    tangents (forward mode) and what torch.func differentiates.
    """
    full_name = f"{NAMESPACE}::{name}"

    def differentiate_once(ctx, grad: torch.Tensor) -> tuple:
        seen = _Seen(ctx)
        check_no_tangents(name, (grad, *seen.saved_tensors))
        if not torch.is_grad_enabled():
            return backward(seen, grad)
        if torch._C._are_functorch_transforms_active():
            raise ArgumentError(_describe_transform(name))
        with torch.no_grad():
            gradients = backward(seen, grad)
        return _Gradients.apply(name, len(gradients), *gradients, grad, *seen.saved_tensors)

    if not torch._C._dispatch_has_kernel_for_dispatch_key(full_name, "Autograd"):
        torch.library.register_autograd(full_name, differentiate_once, setup_context=setup, lib=_Guarded(name))


def check_no_tangents(name: str, operands: Iterable[Any]) -> None:
    """Raise ArgumentError where a tensor has a tangent of forward mode: an op that computes with the values alone would
    drop it, and derivatives would be 0 with no word of it.
    """
    if forward_ad._current_level < 0:  # as nearly always
        return
    for operand in operands:
        if isinstance(operand, torch.Tensor) and forward_ad.unpack_dual(operand).tangent is not None:
            raise ArgumentError(
                f"{name}: an operand has a tangent (torch.func.jvp, jacfwd, torch.autograd.forward_ad), but FP8 layers"
                " have no derivatives in forward mode; use torch.autograd.grad, or torch's layers."
            )


def _describe_transform(name: str) -> str:
    return (
        f"{name}: is differentiated by torch.func (grad, vjp, jacrev, or within vmap with create_graph), which cannot"
        " see the derivative of a registered op; use torch.autograd.grad, or torch's layers."
    )


class _Guarded:
    """The library, as torch.library.register_autograd asks for it. Kernels of autograd see the tensors of every level
    of torch.func, and refuse there what would be lost or has no derivative.
    """

    def __init__(self, name: str):
        self._name = name

    def impl(self, name: str, kernel: Callable, key: str, **options: Any) -> None:
        """Register a kernel that makes these checks first."""

        def run(keyset, *operands):
            check_no_tangents(self._name, operands)
            is_transformed = torch._C._are_functorch_transforms_active() and torch.is_grad_enabled()
            if is_transformed and any(isinstance(one, torch.Tensor) and one.requires_grad for one in operands):
                raise ArgumentError(_describe_transform(self._name))
            return kernel(keyset, *operands)

        get_library().impl(name, run, key, **options)


class _Seen:
    """The context of a backward, with the saved tensors at hand: checkpointed ones can be asked for once."""

    def __init__(self, ctx):
        self._ctx, self.saved_tensors = ctx, ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


class _Gradients(torch.autograd.Function):
    """The gradients of an op in the graph that create_graph asks for. The ops of a backward have no derivative, so that
    gradients would count as constants there, and second derivatives would be 0 with no word of it.
    """

    @staticmethod
    def forward(ctx, name: str, count: int, *tensors: torch.Tensor | None) -> tuple:
        """Return the first `count` tensors as they are; what they were made from is behind them."""
        ctx.name = name
        return tuple(None if tensor is None else tensor.detach() for tensor in tensors[:count])

    @staticmethod
    def backward(ctx, *_: torch.Tensor) -> None:
        """Raise ArgumentError."""
        raise ArgumentError(
            f"create_graph = True: a gradient of {ctx.name} is differentiated again, but FP8 layers have first"
            " derivatives only; use torch's layers where second ones are wanted."
        )
