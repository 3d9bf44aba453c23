"""Canonical JSON and keys of problems and configs.

A key is the SHA-256 of canonical JSON: `{"fields":{...},"op":"..."}` with sorted names, no white space, ASCII only, and
fields at their default left out, so that a new field keeps every key that there is. Keys identify measurements in
databases and artefacts; they never change.
"""

import hashlib
import json
from collections.abc import Mapping

from deep_gemm import _C
from deep_gemm.arguments import shorten
from deep_gemm.errors import ConfigError, DeepGemmError, ProblemError
from deep_gemm.fields import CONFIG_FIELDS, OP_KINDS, PROBLEM_FIELDS

_MAX_BYTES = 4096  # of the text of a problem or a config: many times what all fields take
#: What says in recorded lines that calls of a problem signal.
SIGNALS = "has_signals"
#: The type of a field's value in JSON, and how an error calls it.
_TYPES = {
    "integer": (int, "an integer"),
    "word": (str, "a string"),
    "dims": (str, "a string"),
    "flag": (bool, "a bool"),
}


def problem_json(problem: "_C.Problem") -> str:
    """Return the canonical JSON of a problem."""
    fields = problem.as_dict(False)
    op = fields.pop("op")
    return f'{{"fields":{_write(fields)},"op":"{op}"}}'


def problem_key(problem: "_C.Problem") -> str:
    """Return the key of a problem, in hexadecimal."""
    return hashlib.sha256(problem_json(problem).encode("ascii")).hexdigest()


def config_json(config: "_C.Config") -> str:
    """Return the fields of a config as canonical JSON."""
    return _write(config.as_dict(False))


def config_key(config: "_C.Config", op: str) -> str:
    """Return the key of a config of problems of an op kind, in hexadecimal. Raises: ProblemError for an unknown op."""
    _check_op(op)
    return hashlib.sha256(f'{{"fields":{config_json(config)},"op":"{op}"}}'.encode("ascii")).hexdigest()


def read_problem(text: str) -> "_C.Problem":
    """Return the problem that `text` describes, canonical or not.

    Raises: ProblemError for text that is no JSON object of an op kind and its fields, a repeated or unknown name, a
        value of another type or outside its range, or fields that contradict each other.
    """
    found = _parse(text, ProblemError)
    if found.keys() != {"fields", "op"} or not isinstance(found["fields"], dict):
        raise ProblemError(f"problem = {text[:80]!r}: must have the members fields and op; write Problem.to_json()")
    _check_op(found["op"])
    return _C.Problem(op=found["op"], **_check_fields(found["fields"], PROBLEM_FIELDS, ProblemError))


def write_line(problem: "_C.Problem") -> str:
    """Return the line of DG_RECORD_SHAPES: canonical JSON, with SIGNALS beside the fields where calls signal. It is no
    field, as it changes neither keys nor measurements, but it is another kernel.
    """
    text = problem_json(problem)
    return text.replace(',"op":', f',"{SIGNALS}":true,"op":') if problem.has_signals else text


def read_line(text: str) -> "_C.Problem":
    """Return the problem that write_line wrote. Raises: ProblemError, as read_problem, for SIGNALS that is no bool, and
    for an op kind without signals.
    """
    if SIGNALS not in text:
        return read_problem(text)
    found = _parse(text, ProblemError)
    has_signals = take_signals(found)
    problem = read_problem(json.dumps(found))
    return problem.with_signals() if has_signals else problem


def take_signals(found: dict) -> bool:
    """Take SIGNALS out of an object of JSON and return it. Raises: ProblemError."""
    has_signals = found.pop(SIGNALS, False)
    if not isinstance(has_signals, bool):
        raise ProblemError(f"{SIGNALS} = {shorten(has_signals)}: must be a bool; pass true or false.")
    return has_signals


def read_config(text: str) -> "_C.Config":
    """Return the config that `text` describes, canonical or not.

    Raises: ConfigError for text that is no JSON object of fields, a repeated or unknown name, or a value that is no
        integer within its range.
    """
    return _C.Config(**_check_fields(_parse(text, ConfigError), CONFIG_FIELDS, ConfigError))


def _write(fields: Mapping) -> str:
    """Return the fields as a JSON object; words are plain ASCII and need no escapes."""
    members = [
        f'"{name}":"{value}"' if value.__class__ is str else f'"{name}":{"true" if value is True else value}'
        for name, value in sorted(fields.items())
    ]
    return "{" + ",".join(members) + "}"


def _parse(text: str, error: type[DeepGemmError]) -> dict:
    """Return the JSON object that `text` is."""
    if len(text) > _MAX_BYTES:
        raise error(f"JSON of {len(text)} characters: must have at most {_MAX_BYTES}; write one problem or config")
    try:
        if not text.isascii():
            raise ValueError("only ASCII is allowed")
        found = _DECODER.decode(text)
    except (ValueError, RecursionError) as reason:
        raise error(f"JSON = {text[:80]!r}: malformed ({reason}); write what to_json() returns") from None
    if not isinstance(found, dict):
        raise error(f"JSON = {text[:80]!r}: must be an object; write what to_json() returns")
    return found


def _make_object(pairs: list[tuple[str, object]]) -> dict:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_make_object, parse_constant=_refuse_constant)


def _check_op(op: object) -> None:
    if not isinstance(op, str) or op not in OP_KINDS:
        raise ProblemError(f"op = {shorten(op)}: no such op kind; use one of {', '.join(sorted(OP_KINDS))}")


def _check_fields(given: dict, known: "Mapping[str, _C.Field]", error: type[DeepGemmError]) -> dict:
    """Return `given` if its names are known, none that is required is missing and every type is right."""
    for name, value in given.items():
        if name not in known:
            raise error(f"field {name[:32]!r} is unknown; use {', '.join(known)}")
        wanted, type_name = _TYPES[known[name].type]
        if type(value) is not wanted or (isinstance(value, str) and not value.isascii()):
            raise error(f"{name} = {str(value)[:32]!r}: must be {type_name}; write what to_json() returns")
    missing = [name for name, field in known.items() if field.default is None and name not in given]
    if missing:
        raise error(f"{missing[0]} is missing; write every field that has no default")
    return given
