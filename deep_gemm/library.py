"""The ops as `torch.ops.deep_gemm_tuned.*`: what a compiled or exported graph holds in place of a call.

They are flat forms of the public ops: an FP8 pair is two arguments (`a, scale_a`), and there is no `stream`, which a
graph cannot hold. Each writes `d` and returns nothing, or returns a new tensor; `c` may be `d` itself, as in the public
op. Integers may be symbolic: a graph serves all of their values. The ops are registered through `torch.library.Library`
because the wrapper that `torch.library.custom_op` puts around an op costs many times a launch.

The namespace is our own, because other packages in the process may hold a DeepGEMM that registers `deep_gemm`. What is
registered once stays for the life of the process, also where this package is loaded again: a second registration
changes nothing.
"""

from collections.abc import Callable

import torch

from deep_gemm import hc_prenorm, logits, vendor
from deep_gemm.ops import FUNCTIONS, OPS, Op

#: Operands reach an op with the strides that the program gave them: another layout would need another kernel, or one
#: that TMA cannot read.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)

#: Name -> the checks of an op without a kind that need no memory: its fake implementation.
_CHECKS: dict[str, Callable] = {**hc_prenorm.CHECKS, **vendor.CHECKS}

#: The namespace of the ops in torch.ops.
NAMESPACE = "deep_gemm_tuned"


def get_op(name: str) -> torch._ops.OpOverload:
    """Return the op of the row `name`."""
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def register_ops() -> None:
    """Register every public op that is not registered yet, for tensors of every device, with its checks as the fake
    implementation.

    Inputs that require grad are computed with, and no graph is recorded: nothing happens at the key of autograd.
    """
    library = get_library()
    for op in OPS:
        name = f"{NAMESPACE}::{op.name}"
        if torch._C._dispatch_has_kernel(name):
            continue
        run = _flatten(op, FUNCTIONS[op.name])
        library.define(op.name + op.schema, tags=_TAGS)
        library.impl(op.name, run, "CompositeExplicitAutograd")
        library.impl(op.name, torch.library.fallthrough_kernel, "Autograd")
        torch.library.register_fake(name, _make_fake(op, run), lib=library)


def get_library() -> torch.library.Library:
    """Return the one Library of the process. The namespace of torch holds it: dropping it would remove its ops."""
    holder = vars(getattr(torch.ops, NAMESPACE))
    if "_library" not in holder:
        holder["_library"] = torch.library.Library(NAMESPACE, "FRAGMENT")
    return holder["_library"]


def _flatten(op: Op, function: Callable) -> Callable:
    """Return the function of a row with the arguments of its schema: two in place of a pair."""
    if op.pairs == ("a", "b"):
        return _take_pairs(op)
    return _take_keys(function) if op.pairs else function


def _take_keys(op: Callable) -> Callable:
    def run(
        q: torch.Tensor, kv: torch.Tensor, scale_kv: torch.Tensor, *rest: object, **options: object
    ) -> torch.Tensor:
        return op(q, (kv, scale_kv), *rest, **options)

    return run


def _take_pairs(op: Op) -> Callable:
    """Return the function of an FP8 op in the form of its schema: a, scale_a, b, scale_b in place of two pairs."""
    function = FUNCTIONS[op.name]
    start = [parameter.name for parameter in op.parameters].index("a")

    def run(*operands: object, **factors: float) -> None:
        a, scale_a, b, scale_b = operands[start : start + 4]
        function(*operands[:start], (a, scale_a), (b, scale_b), *operands[start + 4 :], **factors)

    return run


def _make_fake(op: Op, run: Callable) -> Callable:
    """Return the fake implementation: the op itself, which makes the checks that need no memory on tensors without it.

    Reading a symbolic size would fix its value, so the checks of such operands wait for the call.
    """
    if op.name in _CHECKS:
        return _CHECKS[op.name]

    def fake(*operands: object, **options: object) -> torch.Tensor | None:
        given = (*operands, *options.values())
        if not any(isinstance(number, torch.SymInt) for operand in given for number in _numbers_of(operand)):
            return run(*operands, **options)
        return logits.make_fake(op.name, *operands) if op.returns_tensor else None

    return fake


def _numbers_of(operand: object) -> tuple:
    """Return the numbers of an operand that may be symbolic: sizes and strides, the integers of a list, or itself."""
    if isinstance(operand, torch.Tensor):
        return (*operand.shape, *operand.stride())
    return tuple(operand) if isinstance(operand, (list, tuple)) else (operand,)
