"""What may enter the tables: conversion of Python values to column values, and natural keys.

Exception contract: a wrong field name raises UsageError, an impossible value IntegrityError.
"""

import functools
import hashlib
import json
import math
import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime

import numpy as np
from sqlalchemy import Column, Table

from tuner import errors

#: sku, regime, effort and the like: safe in file names, tables and terminals.
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
HASH = re.compile(r"[0-9a-f]{64}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
PATTERNS = {
    **dict.fromkeys(("sku", "regime", "sampler", "effort"), NAME),
    **dict.fromkeys(("kernel_hash", "uuid_hash"), HASH),
    **dict.fromkeys(("created", "ended"), TIME),
    "uid": re.compile(r"[0-9a-f]{32}"),
    "workload": re.compile(r'|\{[A-Za-z0-9":,._-]*\}'),
}
MAX_ERROR_BYTES = 4096  # of the end of a log, which says what failed
MAX_TEXT_BYTES = 1 << 20
KINDS = {str: "text", int: "an integer", float: "a number", bytes: "bytes"}


def make_uid() -> str:
    """Return 32 random hex digits, which identify a sweep or block in all databases."""
    return uuid.uuid4().hex


def now() -> str:
    """Return the time in UTC with milliseconds, as text that sorts by time."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_json(value: object) -> str:
    """Return canonical JSON: sorted keys, no spaces, ASCII, finite numbers."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise errors.IntegrityError(f"{str(value)[:80]!r}: not JSON ({error})") from error


def make_key(row: Mapping) -> str:
    """Return the natural key of a device or environment: the SHA-256 of its fields that are not NULL."""
    return hashlib.sha256(
        to_json(
            {name: value for name, value in row.items() if value is not None and name not in ("id", "key")}
        ).encode()
    ).hexdigest()


def hash_uuid(board: str) -> str:
    """Return the hash that stands for a board's UUID in the database."""
    return hashlib.sha256(board.encode()).hexdigest()


def to_row(table: Table, fields: dict, *, own: tuple[str, ...] = ()) -> dict:
    """Return `fields` as a row of `table`; the columns in `own` may not be given, because the store fills them.

    Raises: UsageError, IntegrityError.
    """
    allowed = [column.name for column in table.columns if column.name not in own]
    unknown = sorted(set(fields) - set(allowed))
    if unknown:
        raise errors.UsageError(
            f"{table.name}: unknown field {', '.join(map(repr, unknown))}; the fields are {', '.join(allowed)}"
        )
    row = {name: to_value(table.columns[name], value) for name, value in fields.items()}
    check_names(table.name, row)
    return row


@functools.cache
def python_type(column: Column) -> type:
    """Return the type of a column's values."""
    return column.type.python_type


def to_value(column: Column, value: object) -> object:
    """Return a value as the driver takes it: numpy scalars become Python's, lists and dicts become JSON.

    Raises: IntegrityError.
    """
    if value is None:
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple, dict)):
        value = to_json(value)
    if isinstance(value, bool):
        value = int(value)
    kind = python_type(column)
    if not isinstance(value, (int, float) if kind is float else kind):
        raise errors.IntegrityError(
            f"{column} = {str(value)[:80]!r}: must be {KINDS[kind]}, not {type(value).__name__}"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise errors.IntegrityError(f"{column} = {value}: must be a finite number")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise errors.IntegrityError(f"{column} = {value}: must fit 64 bits")
    if isinstance(value, str):
        check_text(column, value)
    return value


def check_text(column: Column, value: str) -> None:
    """Raise IntegrityError for text that is not Unicode, or too long."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise errors.IntegrityError(f"{column} = {value[:80]!r}: not Unicode text ({error.reason})") from error
    if size > MAX_TEXT_BYTES:
        raise errors.IntegrityError(f"{column}: {size} bytes of text, at most {MAX_TEXT_BYTES}")


def check_names(table: str, row: Mapping) -> None:
    """Raise IntegrityError where a name, a hash or a time does not have the form of one."""
    for name, pattern in PATTERNS.items():
        value = row.get(name)
        if value is not None and not (isinstance(value, str) and pattern.fullmatch(value)):
            raise errors.IntegrityError(f"{table}.{name} = {str(value)[:80]!r}: must match {pattern.pattern}")


def to_samples(samples: object) -> bytes | None:
    """Return times in microseconds as little-endian float32.

    Raises: IntegrityError unless all are finite and positive.
    """
    if samples is None:
        return None
    array = np.asarray(samples, dtype=np.float64).astype("<f4")
    if array.ndim != 1 or not len(array) or not (np.isfinite(array) & (array > 0)).all():
        raise errors.IntegrityError("measurement.samples: must be a list of finite positive times in microseconds")
    return array.tobytes()


def to_log_tail(error: object) -> str | None:
    """Return the last MAX_ERROR_BYTES of a log as valid UTF-8."""
    if error is None:
        return None
    tail = str(error).encode("utf-8", "backslashreplace")[-MAX_ERROR_BYTES:]
    return tail.decode("utf-8", "ignore")


def to_device_row(fields: dict) -> dict:
    """Return the fields of a device with its UUID hashed and its compute capability as text ("9.0")."""
    fields = dict(fields)
    if fields.get("uuid") is not None:
        fields["uuid_hash"] = hash_uuid(str(fields["uuid"]))
    fields.pop("uuid", None)
    if isinstance(fields.get("compute_capability"), (list, tuple)):
        fields["compute_capability"] = ".".join(str(int(number)) for number in fields["compute_capability"])
    return fields
