"""Calls that are no problems, as lines of DG_RECORD_SHAPES: {"op": NAME, "fields": {...}}, what is at its default left
out. Each kind of call is a tuple of what decides which kernels it needs. Imports no torch.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

from deep_gemm.arguments import shorten, to_integer
from deep_gemm.errors import ProblemError
from deep_gemm.fields import MAX_DIM

#: K in which rows of A of tf32_hc_prenorm_gemm start 16-byte aligned.
K_UNIT = 8
#: Choices of a token of fp8_mega_moe: a lane of a warp has one (mega_pull.cuh).
MAX_CHOICES = 32
#: What sizes are multiples of, and at most.
_UNITS = {"k": K_UNIT, "hidden": 128, "intermediate_hidden": 128, "alignment": 8}
_MOST = {"num_topk": MAX_CHOICES, "alignment": 1 << 16}
#: Bytes of a number by the name of its dtype, and lanes whose 16 bytes share a scale.
_BYTES, _LANES = {"bf16": 2, "fp16": 2, "fp32": 4}, (2, 4, 8, 16, 32)


class PrenormCall(NamedTuple):
    """A call of tf32_hc_prenorm_gemm: its sizes, and into how many slices the caller has K cut."""

    m: int
    n: int
    k: int
    num_splits: int = 1


class SwigluCast(NamedTuple):
    """A call of swiglu_per_token_cast_to_fp8 of any size. `is_aligned`: all rows are multiples of 16 bytes."""

    dtype: str = "bf16"
    gran_k: int = 128
    use_ue8m0: bool = False
    is_masked: bool = False
    is_interleaved: bool = False
    has_limit: bool = False
    is_aligned: bool = True


class ExpertLayer(NamedTuple):
    """A call of fp8_mega_moe: its buffer, and whether it has an activation_clamp. Weights are as
    transform_weights_for_mega_moe_sm90 returns them.
    """

    num_ranks: int
    num_experts: int
    num_max_tokens_per_rank: int
    num_topk: int
    hidden: int
    intermediate_hidden: int
    alignment: int = 128
    has_limit: bool = False

    @property
    def num_local_experts(self) -> int:
        """The experts of one GPU."""
        return self.num_experts // self.num_ranks


Call = PrenormCall | SwigluCast | ExpertLayer
#: By the name of the op.
CALLS: dict[str, type[Call]] = {
    "tf32_hc_prenorm_gemm": PrenormCall,
    "swiglu_per_token_cast_to_fp8": SwigluCast,
    "fp8_mega_moe": ExpertLayer,
}
_NAMES = {kind: name for name, kind in CALLS.items()}


def to_line(call: Call) -> str:
    """Return the line of DG_RECORD_SHAPES."""
    fields = {name: value for name, value in call._asdict().items() if call._field_defaults.get(name) != value}
    return json.dumps({"fields": fields, "op": _NAMES[type(call)]}, sort_keys=True, separators=(",", ":"))


def record(call: Call) -> None:
    """Record a call, where DG_RECORD_SHAPES is set."""
    from deep_gemm import plan  # which imports compilers

    plan.record_line(to_line(call))


def is_call(line: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether an object of JSON is of an op of CALLS."""
    return isinstance(line, Mapping) and isinstance(line.get("op"), str) and line["op"] in CALLS


def parse_call(line: object) -> Call | None:
    """Return the recorded call, {"op": NAME, "fields": {...}} or with the fields beside the op; None for what is of
    another op or no object.

    Raises: ProblemError for fields that no call has.
    """
    if not is_call(line):
        return None
    name, kind = line["op"], CALLS[line["op"]]
    fields = line.get("fields", {name: value for name, value in line.items() if name != "op"})
    required = [field for field in kind._fields if field not in kind._field_defaults]
    if not isinstance(fields, Mapping) or not {*required} <= {*fields} <= {*kind._fields}:
        raise ProblemError(f"{name} = {shorten(fields)}: {_list_names(kind, required)}; name those.")
    call = kind(**{field: _check_value(kind, field, value) for field, value in fields.items()})
    _check_together(name, call)
    return call


def with_rows(call: Call, rows: int) -> Call:
    """Return the call with another m; itself, if it has none. Raises: ProblemError."""
    return call._replace(m=_check_value(PrenormCall, "m", rows)) if isinstance(call, PrenormCall) else call


def _list_names(kind: type[Call], required: list[str]) -> str:
    must = f"must have {', '.join(required[:-1])} and {required[-1]}, may have " if required else "may have "
    return must + ", ".join(kind._field_defaults)


def _check_value(kind: type[Call], field: str, value: Any) -> Any:
    """Return the value of a field. Raises: ProblemError where it is none."""
    place, wanted = f"{_NAMES[kind]}: {field} = {shorten(value)}", kind.__annotations__[field]
    if wanted is int:
        return _check_size(place, value, _MOST.get(field, MAX_DIM), _UNITS.get(field, 1))
    if wanted is bool and not isinstance(value, bool):
        raise ProblemError(f"{place}: must be a bool; pass true or false.")
    if wanted is str and not (isinstance(value, str) and value in _BYTES):
        raise ProblemError(f"{place}: must be one of {', '.join(_BYTES)}; pass that of x.")
    return value


def _check_size(place: str, value: Any, most: int, unit: int) -> int:
    number = to_integer(value)
    if number is None or not 1 <= number <= most:
        last = "2^31 - 1" if most == MAX_DIM else most
        raise ProblemError(f"{place}: must be an int of 1..{last}; pass such a number.")
    if number % unit:
        raise ProblemError(f"{place}: must be a multiple of {unit}, as in calls; mend it.")
    return number


def _check_together(name: str, call: Call) -> None:
    """Refuse values that contradict each other."""
    if isinstance(call, SwigluCast):
        legal = [16 // _BYTES[call.dtype] * lanes for lanes in _LANES]
        if call.gran_k not in legal:
            raise ProblemError(f"{name}: gran_k = {call.gran_k}: no kernel has it; pass one of {legal}.")
        if call.is_interleaved and call.dtype == "fp32":
            raise ProblemError(f"{name}: is_interleaved = True: no kernel of fp32 has it; pass another dtype.")
    if isinstance(call, ExpertLayer) and call.num_experts % call.num_ranks:
        raise ProblemError(
            f"{name}: num_experts = {call.num_experts}: must be a multiple of num_ranks = {call.num_ranks}; pass all"
            " GPUs' experts."
        )
