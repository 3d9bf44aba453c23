"""How the ops of deep_gemm.nn are registered: in the library and the namespace of the public ops, under names that
begin with `nn_`, with fake implementations and, where they are differentiable, with their backward.

One definition serves tensors of every device: the products run the reference on CPU tensors.
"""

from collections.abc import Callable

import torch

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
    returns the gradient of every input.
    """
    full_name = f"{NAMESPACE}::{name}"
    if not torch._C._dispatch_has_kernel_for_dispatch_key(full_name, "Autograd"):
        torch.library.register_autograd(full_name, backward, setup_context=setup, lib=get_library())
