"""Switches of the process under names that other versions of the API have; the others are in deep_gemm._C."""

from collections.abc import Sequence

from deep_gemm import _C
from deep_gemm.arguments import check_bool, shorten, to_integer
from deep_gemm.errors import ArgumentError

#: The setting under the name that callers probe: what it returns can be given back to set_batch_invariant.
get_batch_invariant = _C.is_batch_invariant


def use_deterministic_algorithms(is_enabled: bool) -> None:
    """Let a row of D not depend on m, bit for bit: set_batch_invariant(True).

    False, where that is on, goes back to what holds without a call (set_batch_invariant(None)); where it is not, it
    changes nothing. So callers restore what get_deterministic_algorithms returned.

    Without it, too, the same call gives the same bits each time.

    Raises: ArgumentError.
    """
    check_bool("is_enabled", is_enabled)
    if is_enabled != get_deterministic_algorithms():
        _C.set_batch_invariant(is_enabled or None)


def get_deterministic_algorithms() -> bool:
    """Return whether a row of D depends on m for no op: whether is_batch_invariant() is True."""
    return bool(_C.is_batch_invariant())


def set_ignore_compile_dims(is_enabled: bool) -> None:
    """Accepted for compatibility: `compiled_dims` of a call decides here.

    Raises: ArgumentError.
    """
    check_bool("is_enabled", is_enabled)


def set_block_size_multiple_of(value: int | Sequence[int]) -> None:
    """Accepted for compatibility: the selection chooses tiles. `value`: one number for block_m and block_n, or both.

    Raises: ArgumentError.
    """
    values = value if isinstance(value, (list, tuple)) else (value,)
    if len(values) not in (1, 2) or any((to_integer(each) or 0) < 1 for each in values):
        raise ArgumentError(f"value = {shorten(value)}: must be an int >= 1, or two of them; pass such numbers.")
