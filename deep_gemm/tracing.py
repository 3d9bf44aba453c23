"""Lets torch record the public ops in graphs, at no cost for an eager call.

Dynamo (`torch.compile`, strict `torch.export`) cannot trace a C function, and a Python function that it could trace
would slow every eager call down. So each public op has a stand-in, registered with
`torch.compiler.substitute_in_graph`: it puts an op of deep_gemm.library into the graph, and eager calls never reach it.
Registering imports torch._dynamo, which takes seconds, so it waits until something else imports that. Tracers that run
the program on fake tensors (`make_fx`, non-strict `torch.export`) reach the C functions, which then ask for
`get_recorder`.

C functions that return a setting of the process have stand-ins, too: a graph holds what they returned.
"""

import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

import torch

from deep_gemm import _C, planned
from deep_gemm.errors import ArgumentError
from deep_gemm.library import get_op
from deep_gemm.ops import FUNCTIONS, OPS, Op
from deep_gemm.stand_ins import make_stand_in

_DYNAMO = "torch._dynamo"
_RULE = (
    "a graph holds the tensors and numbers of a call of deep_gemm, no stream= and no other objects; pass tensors (FP8:"
    " pairs of tensors) and Python numbers, and run the graph under torch.cuda.stream(...)."
)


#: A function and what makes its stand-in.
_Pending = tuple[Callable, Callable[[], Callable]]

# The functions that have a stand-in; it survives a reload of this module.
_given: set[Callable] = globals().get("_given", set())


def substitute_when_traced() -> None:
    """Give Dynamo the stand-ins of the public ops, of planned calls and of settings, now or as soon as it is imported;
    each is given once.
    """
    ops = [(FUNCTIONS[op.name], functools.partial(_make_leaving_stand_in, op)) for op in OPS]
    calls: list[_Pending] = [(call, lambda: planned.decline) for call in planned.CALLS]
    settings: list[_Pending] = [(getattr(_C, name), functools.partial(_make_reader, name)) for name in _C.SETTINGS]
    pending = [(function, make) for function, make in ops + calls + settings if function not in _given]
    if not pending:  # a second finder would hide the first
        return
    finder = _DynamoFinder(pending)
    _given.update(function for function, _ in pending)
    sys.meta_path.insert(0, finder)  # first: another thread may be about to import it
    if _DYNAMO in sys.modules:
        finder.finish()


def _make_leaving_stand_in(op: Op) -> Callable:
    """Return the stand-in of an op that breaks the graph where that cannot hold the arguments."""
    return make_stand_in(op, get_op(op.name), torch.compiler.disable(FUNCTIONS[op.name], reason=_RULE))


def _make_reader(name: str) -> Callable:
    """Return the stand-in of the function `name` of _C, which returns a setting: what it returns while a program is
    traced is a constant of the graph, and the program is traced again where another value was set since.
    """
    function = getattr(_C, name)

    @torch.compiler.assume_constant_result
    def read(setting: str, *arguments: object) -> object:
        return function(*arguments)

    def stand_in(*arguments: object) -> object:
        return read(_C.SETTINGS[name], *arguments)

    return stand_in


def is_recording() -> bool:
    """Return whether a graph is being recorded, to which a call on fake tensors then belongs."""
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return proxies is not None and proxies.get_proxy_mode() is not None


def get_recorder(name: str) -> Callable:
    """Return the function that records a call of the op `name` in such a graph.

    It raises ArgumentError for arguments that no graph can hold.
    """
    op = next(op for op in OPS if op.name == name)
    return make_stand_in(op, get_op(name), _refuse)


class _DynamoFinder:
    """A module finder for torch._dynamo alone; it registers the stand-ins once that is loaded."""

    def __init__(self, pending: "list[_Pending]") -> None:
        self._pending = pending

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
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
        """Register the stand-ins that are not registered yet.

        A torch that refuses them still compiles, with a graph break at each op.
        """
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        try:
            while self._pending:
                function, make = self._pending.pop()  # atomic, should two threads meet here
                torch.compiler.substitute_in_graph(function)(make())
        except Exception as error:
            warnings.warn(
                f"torch.compile will break graphs at the ops of deep_gemm: {error!r}", RuntimeWarning, stacklevel=2
            )


def _refuse(*arguments: object, **options: object) -> None:
    raise ArgumentError(f"cannot be recorded: {_RULE}")
