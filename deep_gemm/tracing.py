"""Lets torch record the public ops in graphs; an eager call pays nothing for it.

Dynamo (`torch.compile`, strict `torch.export`) cannot look into a C function, and a Python function that it could look
into would slow every eager call down. So each public op has a stand-in, registered with
`torch.compiler.substitute_in_graph`, that puts `torch.ops.deep_gemm.*` into the graph and that eager calls never meet.
Registering imports torch._dynamo, which takes seconds, so it waits until somebody else imports that. Tracers that run
the program on fake tensors (`make_fx`, other `torch.export`) reach the C functions, which then ask for `get_recorder`.
"""

import sys
import warnings
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

import torch

from deep_gemm import stand_ins
from deep_gemm.errors import ArgumentError

_DYNAMO = "torch._dynamo"
_RULE = (
    "a graph holds the tensors and numbers of a call of deep_gemm, no stream= and no other objects; pass pairs of"
    " tensors and Python floats, and run the graph under torch.cuda.stream(...)."
)


def substitute_when_traced() -> None:
    """Give Dynamo the stand-ins of the public ops, now or as soon as it is imported."""
    finder = _DynamoFinder({op: make for make, ops in stand_ins.list_makers() for op in ops})
    sys.meta_path.insert(0, finder)  # first: another thread may be about to import it
    if _DYNAMO in sys.modules:
        finder.finish()


def is_recording() -> bool:
    """Return whether a call on fake tensors belongs into a graph that is being recorded."""
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return proxies is not None and proxies.get_proxy_mode() is not None


def get_recorder(name: str) -> Callable:
    """Return what takes a call of the op `name` into such a graph; it raises ArgumentError for what no graph can hold."""
    make = next(make for make, ops in stand_ins.list_makers() for op in ops if op.__name__ == name)
    return make(_node(name), _refuse)


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
        """Register what is not registered yet.

        A torch that refuses it still compiles, with a graph break at each op.
        """
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        try:
            while self._pending:
                op, make = self._pending.popitem()  # atomic, should two threads meet here
                leave = torch.compiler.disable(op, reason=_RULE)
                torch.compiler.substitute_in_graph(op)(make(_node(op.__name__), leave))
        except Exception as error:
            warnings.warn(
                f"torch.compile will break graphs at the ops of deep_gemm: {error!r}", RuntimeWarning, stacklevel=2
            )


def _node(name: str) -> torch._ops.OpOverload:
    return getattr(torch.ops.deep_gemm, name).default


def _refuse(*arguments: object, **options: object) -> None:
    raise ArgumentError(f"cannot be recorded: {_RULE}")
