"""The shapes of tf32_hc_prenorm_gemm, which is no op kind, as lines of DG_RECORD_SHAPES. Imports no torch, as commands
read such lines, too.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from deep_gemm.errors import ProblemError
from deep_gemm.fields import MAX_DIM

#: The name of the op, and what a recorded call has and may have beside it.
NAME = "tf32_hc_prenorm_gemm"
_SIZES, _OPTIONS = ("m", "n", "k"), ("num_splits",)
#: K in which rows of A start 16-byte aligned.
K_UNIT = 8


class Shape(NamedTuple):
    """The sizes of a call, and into how many slices the caller has K cut."""

    m: int
    n: int
    k: int
    splits: int = 1

    def to_json(self) -> str:
        """Return the line of DG_RECORD_SHAPES."""
        fields = dict(zip(_SIZES, self)) | ({"num_splits": self.splits} if self.splits > 1 else {})
        return json.dumps({"fields": fields, "op": NAME}, sort_keys=True, separators=(",", ":"))


def parse_shape(line: object) -> Shape | None:
    """Return the shape of a recorded call, {"op": NAME, "fields": {...}} or with the fields beside the op; None for
    what is of another op or no object.

    Raises: ProblemError for fields that no call has.
    """
    if not isinstance(line, Mapping) or line.get("op") != NAME:
        return None
    fields = line.get("fields", {name: value for name, value in line.items() if name != "op"})
    if not isinstance(fields, Mapping) or not {*_SIZES} <= {*fields} <= {*_SIZES, *_OPTIONS}:
        raise ProblemError(f"{NAME} = {ascii(fields)[:80]}: must have m, n and k, may have num_splits; name those.")
    m, n, k = (check_size(name, fields[name]) for name in _SIZES)
    if k % K_UNIT:
        raise ProblemError(f"{NAME}: k = {k}: must be a multiple of {K_UNIT}, as in calls; mend it.")
    return Shape(m, n, k, check_size("num_splits", fields.get("num_splits", 1)))


def check_size(name: str, value: Any) -> int:
    """Return a size of a recorded call. Raises: ProblemError where it is none."""
    number = value.__index__() if hasattr(value, "__index__") and not isinstance(value, bool) else 0
    if not 1 <= number <= MAX_DIM:
        raise ProblemError(f"{NAME}: {name} = {ascii(value)[:80]}: must be an int of 1..2^31 - 1; pass such a number.")
    return number
