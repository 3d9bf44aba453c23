"""Dataclasses from JSON that others may have written."""

import math
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

Made = TypeVar("Made")


def make_typed(cls: type[Made], document: Any) -> Made:
    """Return `cls(**document)`, each value of which must be what the field's annotation says; numbers are finite.

    Raises: TypeError naming the field.
    """
    hints = get_type_hints(cls)
    if not isinstance(document, dict):
        raise TypeError(f"{cls.__name__}: must be an object")
    for name, value in document.items():
        if name in hints and not fits(value, hints[name]):
            raise TypeError(f"{cls.__name__}.{name} = {ascii(value)[:64]}: must be {hints[name]}")
    return cls(**document)


def fits(value: Any, hint: Any) -> bool:
    """Return whether a JSON value is what an annotation says: a class, list[...], dict[str, ...] or a union."""
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if origin is UnionType:
        return any(fits(value, each) for each in inner)
    if origin is float:
        return type(value) in (int, float) and math.isfinite(value)
    if not isinstance(value, origin) or (isinstance(value, bool) and origin is int):
        return False
    if origin is dict and inner:
        return all(isinstance(key, str) and fits(each, inner[1]) for key, each in value.items())
    return origin is not list or not inner or all(fits(each, inner[0]) for each in value)
