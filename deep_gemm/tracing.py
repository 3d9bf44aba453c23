"""Lets `torch.compile` trace through the public ops, which cost an eager call nothing for it.

Dynamo cannot look into a C function, and a Python function that it could look into would slow every eager call down. So each public op
has a stand-in, registered with `torch.compiler.substitute_in_graph`, that only Dynamo ever runs: it puts `torch.ops.deep_gemm.*` into the
graph. Registering imports torch._dynamo, which takes seconds, so it waits until somebody else imports that.
"""

import sys
import warnings
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

import torch

from deep_gemm import _C, vendor
from deep_gemm.library import LAYOUTS

_DYNAMO = "torch._dynamo"
_BREAK = (
    "deep_gemm: a graph holds plain tensors and numbers, no stream= and no other objects. The call runs outside of the graph; "
    "use torch.cuda.stream(...) around the compiled function, and pass pairs of tensors and Python floats."
)


def substitute_when_traced() -> None:
    """Give Dynamo the stand-ins of the public ops, now or as soon as it is imported."""
    finder = _DynamoFinder({op: make for make, ops in _stand_ins() for op in ops})
    sys.meta_path.insert(0, finder)  # first: another thread may be about to import it
    if _DYNAMO in sys.modules:
        finder.finish()


class _DynamoFinder:
    """A finder of modules for torch._dynamo alone, which takes the stand-ins once it is loaded."""

    def __init__(self, pending: dict[Callable, Callable]) -> None:
        self._pending = pending

    def find_spec(self, name: str, path: list[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _DYNAMO:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            self._extend(spec.loader)
        return spec

    def _extend(self, loader) -> None:
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            self.finish()

        loader.exec_module = exec_module

    def finish(self) -> None:
        """Register what is not registered yet. A torch that refuses it still compiles, with a graph break at each op."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        try:
            while self._pending:
                op, make = self._pending.popitem()  # atomic, should two threads meet here
                torch.compiler.substitute_in_graph(op)(make(op.__name__))
        except Exception as error:
            warnings.warn(f"torch.compile will break graphs at the ops of deep_gemm: {error!r}", RuntimeWarning, stacklevel=2)


def _stand_ins() -> list[tuple[Callable, list[Callable]]]:
    """Return (maker of a stand-in, the ops that it is for)."""
    return [
        (_trace_fp8, [getattr(_C, f"fp8_gemm_{layout}") for layout in LAYOUTS]),
        (_trace_bf16, [getattr(_C, f"bf16_gemm_{layout}") for layout in LAYOUTS]),
        (_trace_vendor, [getattr(vendor, f"cublaslt_gemm_{layout}") for layout in LAYOUTS]),
        (_trace_heads, [_C.fp8_gemm_nt_skip_head_mid]),
    ]


# The stand-ins have the signatures of the public ops, which substitute_in_graph compares.


def _trace_fp8(name: str) -> Callable:
    op = getattr(torch.ops.deep_gemm, name).default

    def stand_in(a, b, d, c=None, recipe=None, compiled_dims=None, disable_ue8m0_cast=False, *, alpha=1.0, beta=1.0, stream=None):
        if stream is not None or not (_are_pairs(a, b) and _are_tensors(*a, *b, d, c) and _are_numbers(alpha, beta)):
            torch._dynamo.graph_break(msg=_BREAK)
        op(*a, *b, d, c, recipe, compiled_dims, disable_ue8m0_cast, alpha=float(alpha), beta=float(beta))

    return stand_in


def _trace_heads(name: str) -> Callable:
    op = getattr(torch.ops.deep_gemm, name).default

    def stand_in(a, b, d, head_splits, recipe=None, compiled_dims=None, disable_ue8m0_cast=False):
        if not (_are_pairs(a, b) and _are_tensors(*a, *b, d)):
            torch._dynamo.graph_break(msg=_BREAK)
        op(*a, *b, d, head_splits, recipe, compiled_dims, disable_ue8m0_cast)

    return stand_in


def _trace_bf16(name: str) -> Callable:
    op = getattr(torch.ops.deep_gemm, name).default

    def stand_in(a, b, d, c=None, compiled_dims=None, *, alpha=1.0, beta=1.0, stream=None):
        if stream is not None or not (_are_tensors(a, b, d, c) and _are_numbers(alpha, beta)):
            torch._dynamo.graph_break(msg=_BREAK)
        op(a, b, d, c, compiled_dims, alpha=float(alpha), beta=float(beta))

    return stand_in


def _trace_vendor(name: str) -> Callable:
    op = getattr(torch.ops.deep_gemm, name).default

    def stand_in(a, b, d, c=None):
        if not _are_tensors(a, b, d, c):
            torch._dynamo.graph_break(msg=_BREAK)
        op(a, b, d, c)

    return stand_in


def _are_pairs(*operands) -> bool:
    return all(isinstance(operand, (tuple, list)) and len(operand) == 2 for operand in operands)


def _are_tensors(*operands) -> bool:
    return all(operand is None or isinstance(operand, torch.Tensor) for operand in operands)


def _are_numbers(*factors) -> bool:
    return all(isinstance(factor, (int, float)) for factor in factors)
