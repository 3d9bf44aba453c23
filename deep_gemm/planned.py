"""Calls of plain kernels that are planned in Python once for each kind of arguments, and then run in native code.

A planner gets the arguments and returns a Plan, or None where the call is left to Python. The native module remembers
what it returned by the dtypes, shapes, strides, alignment and GPU of tensors, by the other arguments, and by the limit
of SMs and batch invariance of the process (planned_call.cpp). A call that was planned takes memory, launches, and
returns; every other call gives NotImplemented, and the caller computes in torch.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch

from deep_gemm import _C

#: Name of a row of plain_kernels, threads of a CTA, constants: what get_kernel takes.
KernelOf = tuple[str, int, dict[str, int]]
#: An address: a tensor of the call (`argument`, `memory`), and bytes into it.
Place = tuple[int, int]


class Memory(NamedTuple):
    """A tensor that a plan takes memory for."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


class Launch(NamedTuple):
    """A launch of a plain kernel (get_kernel); its arguments are numbers and addresses."""

    kernel: Callable
    grid: tuple[int, ...]
    arguments: tuple[int | Place, ...]


class Plan(NamedTuple):
    """How a call is run: the launches in order, the memory taken before them, and the tensors that are returned: none,
    one, or a tuple of them. `results` holds first members of places.
    """

    launches: tuple[Launch, ...]
    memory: tuple[Memory, ...] = ()
    results: tuple[int, ...] = ()


#: Every planned call of the package.
CALLS: list[Callable] = []


def make_call(name: str, planner: Callable[..., Plan | None], written: tuple[int, ...] = ()) -> Callable:
    """Return the call of a planner; `written`: indices of the arguments that its kernels write."""
    call = _C.make_planned_call(name, planner, written)
    CALLS.append(call)
    return call


def argument(index: int, offset: int = 0) -> Place:
    """Return the address of a tensor among the arguments of the call, and `offset` bytes."""
    return index, offset


def memory(index: int, offset: int = 0) -> Place:
    """Return the address of a tensor among the memory of the plan, and `offset` bytes."""
    return -1 - index, offset


def write_to(plan: Plan, places: tuple[Place, ...]) -> Plan:
    """Return the plan with tensors of the call in the place of its memory, in order; it returns nothing."""
    taken: dict[int | Place, Place] = {memory(index): place for index, place in enumerate(places)}

    def move(launch: Launch) -> Launch:
        return launch._replace(arguments=tuple(taken.get(value, value) for value in launch.arguments))

    return Plan(tuple(map(move, plan.launches)))


def run(plan: Plan, *arguments: object):
    """Run a plan in Python: for arguments that the native call declines. Tensors that no kernel takes raise its errors.

    Raises: ArgumentError, DeviceError, LaunchError, CompileError.
    """
    first = next(one for one in arguments if isinstance(one, torch.Tensor))
    taken = [torch.empty_strided(*one[:2], dtype=one.dtype, device=first.device) for one in plan.memory]

    def find(index: int):
        return arguments[index] if index >= 0 else taken[-1 - index]

    def value_of(value: int | Place):
        if isinstance(value, int):
            return value
        index, offset = value
        return find(index).data_ptr() + offset if offset else find(index)

    for launch in plan.launches:
        launch.kernel(launch.grid, *map(value_of, launch.arguments))
    results = tuple(map(find, plan.results))
    return results if len(results) > 1 else results[0] if results else None


def decline(*arguments: object) -> object:
    """What a tracer records in place of a planned call: it fuses the formula, and holds no launches."""
    return NotImplemented


@functools.cache
def get_kernel(name: str, threads: int, **constants: int) -> Callable:
    """Return the builtin of a row of plain_kernels with these constants, made once."""
    return _C.make_plain_kernel(name, [(key, int(value)) for key, value in constants.items()], threads)
