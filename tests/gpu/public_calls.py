"""Fuzzed calls of every public function that op_calls.py knows, as calls.py has them for dense products: a right result
or a typed error, operands as they were, nothing written outside the outputs. The faults are in public_faults.py.

A call starts from the arguments of a call of that table, found by making it with a function that takes them down.
"""

import inspect
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial

import torch

from deep_gemm.errors import DeepGemmError
from deep_gemm.ops import OPS

from . import op_calls
from .calls import CALLS_PER_JOB, copy_memory, run_changes
from .grouped_memory import GroupedOutput
from .memory import PITCH_BYTES, align, as_integers, make_nan
from .op_calls import OpCall, Operands
from .op_jobs import find_fault, move
from .world import World

NUM_CALLS = 6000
#: Two results within a bound of calc_diff, which is a square, differ by no more than this times the bound.
TWICE = 4
#: Parameters that are written, where a function has them; and those that may be left out or be None.
OUTPUTS = ("d", "sqr_sum", "y")
OPTIONAL = ("c", "ks_tensor", "indices", "masked_m")
#: The row of the table of ops of each function; functions without one are called by Python.
ROWS = {op.name: op for op in OPS}


class _Taken(Exception):
    """The arguments of a call are known; nothing is computed."""


@dataclass
class PublicCall:
    """Arguments of one call under construction, and its required outcome: `right`, `error`, `either` or `any`.

    `any`: arguments that the function may well take, with another meaning.
    """

    world: World
    rng: random.Random
    call: OpCall
    operands: Operands
    arguments: dict[str, object]
    outputs: dict[str, GroupedOutput]
    name: str
    expected: str = "right"
    is_named: bool = False
    num_calls: int = 1
    found: object = None
    spoiled: list[str] = field(default_factory=list)

    @property
    def is_cuda(self) -> bool:
        """Whether kernels run."""
        return self.world.torch_device != "cpu"

    @property
    def written(self) -> list:
        """What an error must leave as it was: the outputs as passed, wherever they lie, and the guarded ones."""
        return [
            value
            for name, output in self.outputs.items() for value in (self.arguments.get(name), output.d)
        ]  # fmt: skip

    @property
    def is_op(self) -> bool:
        """Whether the function is a row of the table of ops that checks all of its arguments itself."""
        return self.call.name in ROWS and bool(ROWS[self.call.name].kind)

    def describe(self) -> str:
        """What the call is, for a failure."""
        return f"{self.name} {self.call.what}"

    def list_places(self) -> list[tuple]:
        """Return where the operands are: (name,) of an argument, or (name, index) of a part of a pair."""
        places: list[tuple] = []
        for name, value in self.arguments.items():
            if isinstance(value, tuple) and all(isinstance(part, torch.Tensor) for part in value):
                places += [(name, index) for index in range(len(value))]
            elif isinstance(value, torch.Tensor) and name not in OUTPUTS:
                places.append((name,))
        return places

    def get(self, place: tuple) -> torch.Tensor:
        """Return the operand of a place."""
        value = self.arguments[place[0]]
        return value[place[1]] if len(place) > 1 else value

    def put(self, place: tuple, value: object) -> None:
        """Pass something else in a place."""
        if len(place) > 1:
            parts = list(self.arguments[place[0]])
            parts[place[1]] = value
            self.arguments[place[0]] = tuple(parts)
        else:
            self.arguments[place[0]] = value

    def change(self, change: Callable[[torch.Tensor], object], expected: str, places: list | None = None) -> None:
        """Change the operand of a place chosen at random, if there is one."""
        places = self.list_places() if places is None else places
        if places:
            place = self.rng.choice(places)
            self.put(place, change(self.get(place)))
            self.expected = expected

    def num_dirty(self) -> int:
        """Count what was written outside the outputs: in their red zones, and operands."""
        return sum(int(output.num_dirty()) for output in self.outputs.values()) + len(self.spoiled)

    def invoke(self) -> str:
        """Run the function; return "" or the typed error's text. Any other exception propagates."""
        done: list[bool] = []
        before = [(place, self.get(place), copy_memory(self.get(place))) for place in self.list_watched()]
        try:
            for _ in range(self.num_calls):
                self.found = self.call.run(partial(self._run, done), self.operands)
        except DeepGemmError as error:
            return f"{type(error).__name__}: {error}"
        except (IndexError, RuntimeError, ValueError):
            if not done or self.expected != "any":  # what was returned has another shape than the call of the table
                raise
        finally:
            self.spoiled = [str(place) for place, now, old in before if not is_same(copy_memory(now), old)]
        return ""

    def list_watched(self) -> list[tuple]:
        """Return the places of operands that must stay as they are; C may be D."""
        memory = {id_of(value) for value in self.written if isinstance(value, torch.Tensor)}
        found = [place for place in self.list_places() if self.get(place).layout is torch.strided]
        return [place for place in found if id_of(self.get(place)) not in memory]

    def _run(self, done: list[bool], *positional: object, **named: object) -> object:
        """Stand in for the function in a call of the table, which gave it these arguments and reads these outputs."""
        given, own = bind(self.call.name, positional, named), dict(self.arguments)
        function = op_calls.find_function(self.name)
        first = [] if self.is_named else [own.pop(name) for name in list_first(self.call.name) if name in own]
        result = function(*first, **own)
        done.append(True)
        for name, output in self.outputs.items():
            given[name].copy_(output.d)
        return result

    def find_wrong(self) -> str:
        """Return what is wrong with the result, "" where nothing is or anything may come."""
        if self.expected == "any":
            return ""
        expected = get_expected(self.call.title, self.world.torch_device)
        return find_fault(self.found, expected, TWICE * self.call.bound) or ""


def id_of(tensor: torch.Tensor) -> object:
    """Return what tells the memory of tensors apart."""
    return tensor.untyped_storage().data_ptr()


def is_same(now: torch.Tensor | None, before: torch.Tensor | None) -> bool:
    """Return whether copies of memory are the same bytes."""
    return before is None or torch.equal(now, before)


def list_parameters(name: str) -> list[str]:
    """Return the names of a function's parameters."""
    if name in ROWS:
        return [parameter.name for parameter in ROWS[name].parameters]
    return list(inspect.signature(op_calls.find_function(name)).parameters)


def list_first(name: str) -> list[str]:
    """Return the parameters that need no name and no default."""
    if name in ROWS:
        return list_parameters(name)[: ROWS[name].num_required]
    parameters = inspect.signature(op_calls.find_function(name)).parameters.values()
    return [one.name for one in parameters if one.default is one.empty and one.kind == one.POSITIONAL_OR_KEYWORD]


def bind(name: str, positional: tuple, named: dict) -> dict[str, object]:
    """Return the arguments of a call by the names of the parameters."""
    return dict(zip(list_parameters(name), positional, strict=False)) | named


def take_arguments(call: OpCall, operands: Operands) -> dict[str, object]:
    """Return the arguments that a call of the table gives to its function."""
    found: dict[str, object] = {}

    def take(*positional: object, **named: object) -> None:
        found.update(bind(call.name, positional, named))
        raise _Taken

    with suppress(_Taken):
        call.run(take, operands)
    return found


@cache
def get_operands(title: str, device: str) -> Operands:
    """Return the operands of a call on a device, which no call changes."""
    return move(find_call(title).make(), device)


@cache
def find_call(title: str) -> OpCall:
    """Return the call of a title."""
    return next(call for call in op_calls.list_calls() if call.title == title)


@cache
def get_expected(title: str, device: str) -> tuple:
    """Return what a call gives as it is in the table. The section `ops` compares that with the CPU's result, which
    takes seconds for some.
    """
    call = find_call(title)
    return tuple(map(to_host, call.run(op_calls.find_function(call.name), get_operands(title, device))))


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the host with the same strides, of which `cpu()` would drop the padding between rows."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)


def make_public_call(world: World, rng: random.Random, call: OpCall) -> PublicCall:
    """Return a plain valid call."""
    operands = get_operands(call.title, world.torch_device)
    arguments = take_arguments(call, operands)
    outputs = {
        name: GroupedOutput(tuple(arguments[name].shape), world.torch_device, arguments[name].dtype)
        for name in OUTPUTS if name in arguments
    }  # fmt: skip
    arguments |= {name: output.d for name, output in outputs.items()}
    return PublicCall(world, rng, call, operands, arguments, outputs, call.name)


# Valid variations: the result must be right, or a layout is refused.


def use_name(call: PublicCall) -> None:
    """Call the function by another of its names."""
    call.name = call.rng.choice(op_calls.list_names(call.call))


def use_keywords(call: PublicCall) -> None:
    """Name every argument."""
    call.is_named = True


def use_aliases(call: PublicCall) -> None:
    """Name arguments as other versions of the API do."""
    row = ROWS.get(call.call.name)
    for parameter in row.parameters if row else ():
        if parameter.alias and parameter.name in call.arguments:
            call.is_named = True
            call.arguments[parameter.alias] = call.arguments.pop(parameter.name)


def use_stream(call: PublicCall) -> None:
    """Name the stream explicitly, as an object or as a handle."""
    if call.call.name in ROWS and "stream" in list_parameters(call.call.name):
        stream = torch.cuda.current_stream()
        call.arguments["stream"] = call.rng.choice((stream, stream.cuda_stream))


def use_repeat(call: PublicCall) -> None:
    """Call twice: the second call finds what the first remembered."""
    call.num_calls = 2


def use_dense_output(call: PublicCall) -> None:
    """Pass outputs whose matrices lie side by side."""
    for name, output in call.outputs.items():
        shape, dtype = tuple(output.d.shape), output.d.dtype
        call.outputs[name] = GroupedOutput(shape, call.world.torch_device, dtype, gap=0)
        call.arguments[name] = call.outputs[name].d


def use_pitch(call: PublicCall) -> None:
    """Pass an operand with wider rows, and NaN between them."""

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        return place(tensor, PITCH_BYTES // tensor.element_size() * call.rng.randint(1, 3), 0)

    call.change(widen, "either", [place for place in call.list_places() if call.get(place).dim() > 1])


def use_offset(call: PublicCall) -> None:
    """Start an operand 16 bytes into its memory."""
    call.change(lambda tensor: place(tensor, 0, PITCH_BYTES // tensor.element_size()), "either")


def use_odd_offset(call: PublicCall) -> None:
    """Start an operand one element into its memory."""
    call.change(lambda tensor: place(tensor, 0, 1), "either")


def use_odd_pitch(call: PublicCall) -> None:
    """Pass an operand whose rows are one element further apart."""
    places = [place for place in call.list_places() if call.get(place).dim() > 1]
    call.change(lambda tensor: place(tensor, 1, 0), "either", places)


def use_turned_memory(call: PublicCall) -> None:
    """Pass an operand whose last two dims lie the other way round in memory."""
    places = [place for place in call.list_places() if call.get(place).dim() > 1]
    call.change(lambda tensor: tensor.transpose(-1, -2).contiguous().transpose(-1, -2), "either", places)


def use_parameter(call: PublicCall) -> None:
    """Pass an operand as the parameter of a model."""
    call.change(lambda tensor: torch.nn.Parameter(tensor, requires_grad=False), "right")


def place(tensor: torch.Tensor, extra: int, offset: int) -> torch.Tensor:
    """Copy a tensor into memory of its own with rows `extra` elements wider, which starts `offset` elements in, and all
    bits set around it.
    """
    *lead, width = tensor.shape
    rows, pitch = int(torch.Size(lead).numel()), width + extra
    unit = PITCH_BYTES // tensor.element_size()
    memory = make_nan(align(offset + rows * pitch, unit) + unit, tensor.dtype, tensor.device)
    strides, step = [1], pitch
    for size in reversed(lead):
        strides.insert(0, step)
        step *= size
    found = memory.as_strided(tensor.shape, strides, offset)
    as_bits(found).copy_(as_bits(tensor))
    return found


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return integers of the same memory, where the dtype's size is one of FP8 to FP32."""
    return as_integers(tensor) if tensor.is_floating_point() and tensor.element_size() < 8 else tensor


VARIATIONS = (
    use_name,
    use_keywords,
    use_aliases,
    use_stream,
    use_repeat,
    use_dense_output,
    use_pitch,
    use_offset,
    use_odd_offset,
    use_odd_pitch,
    use_turned_memory,
    use_parameter,
)


def run_public_calls(world: World, seed: int, count: int) -> tuple[int, list[str]]:
    """Run `count` fuzzed calls of one seed: of one call of the table after the other, in an order of the seed's."""
    from .public_faults import FAULTS

    rng = random.Random(seed)
    listed = op_calls.list_public_calls()
    chosen = rng.sample(listed, len(listed))
    calls = iter(chosen * -(-count // len(chosen)))
    return run_changes(rng, count, lambda: make_public_call(world, rng, next(calls)), VARIATIONS, FAULTS)


def public_call_jobs(world: World) -> list:
    """Return the jobs of the fuzzer of every public function."""
    return [
        (f"public seed {seed}: all", partial(run_public_calls, world, seed, CALLS_PER_JOB))
        for seed in range(NUM_CALLS // CALLS_PER_JOB)
    ]
