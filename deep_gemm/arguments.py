"""What functions ask of arguments that are no tensors, and how messages show any. Imports no torch, as commands that
only print help would wait for it.
"""

import collections
import operator
import sys
from collections.abc import Sequence
from typing import Any

from deep_gemm.errors import ArgumentError
from deep_gemm.fields import MAX_DIM


def check_integer(name: str, value: Any, minimum: int = 0) -> int:
    """Return `value`, an int or what converts to one. Raises: ArgumentError beyond minimum..2^31 - 1, for a bool and
    for a tensor, which could make the host wait.
    """
    if type(value) is int and minimum <= value <= MAX_DIM:  # as nearly all are; what follows takes microseconds
        return value
    number = to_integer(value)
    if number is None or not (_is_torchs("SymInt", number) or minimum <= number <= MAX_DIM):
        raise ArgumentError(f"{name} = {shorten(value)}: must be an int of {minimum}..2^31 - 1; pass such a number.")
    return number


def to_integer(value: Any) -> int | None:
    """Return `value` as an int, a symbolic one as it is; None for what is none, as check_integer says."""
    if _is_torchs("SymInt", value):
        return value
    try:
        return None if isinstance(value, bool) or _is_torchs("Tensor", value) else operator.index(value)
    except Exception:  # an object may do anything there
        return None


def check_integers(name: str, values: Any, minimum: int = 0) -> tuple[int, ...]:
    """Return `values` as a tuple. Raises: ArgumentError unless they are a list or tuple of such integers."""
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes)):
        raise ArgumentError(f"{name} = {shorten(values)}: must be a list or tuple of ints; pass one.")
    return tuple(check_integer(f"{name}[{index}]", value, minimum) for index, value in enumerate(values))


def check_flag(name: str, value: Any) -> None:
    """Raise ArgumentError unless `value` is a bool, a number or None, which say the same."""
    if value is not None and not isinstance(value, (bool, int)):
        raise ArgumentError(f"{name} = {shorten(value)}: must be a bool; pass True or False.")


def check_bool(name: str, value: Any) -> None:
    """Raise ArgumentError unless `value` is a bool."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{name} = {shorten(value)}: must be a bool; pass True or False.")


def holds_tensor(value: Any, depth: int = 4) -> bool:
    """Return whether a value is a tensor, or a collection with one in it: to print the numbers of one whose memory is
    freed would crash. What nests deeper than anybody means to is taken for such a value.
    """
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        return depth == 0 or any(holds_tensor(item, depth - 1) for item in value)
    return _is_torchs("Tensor", value)


def shorten(value: Any) -> str:
    """Return a short printable form of any object."""
    try:
        text = f"an object of type {type(value).__name__}" if holds_tensor(value) else ascii(value)
    except Exception:
        return f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _is_torchs(name: str, value: Any) -> bool:
    """Return whether `value` is of a class of torch; nothing is before that is imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, name))
