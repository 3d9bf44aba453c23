"""Work on every op kind of a database, of which some have too little to work on: these are left out, and named."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from tuner import errors

Result = TypeVar("Result")


def try_each(ops: Iterable[str], work: Callable[[str], Result]) -> tuple[dict[str, Result], dict[str, str]]:
    """Return what `work` gives of each op kind, and {op kind: why} of those that it has not enough rows of.

    Raises: InconclusiveError or UsageError, the first one, where it has enough of none; so a single op kind that was
    asked for is not left out.
    """
    found: dict[str, Result] = {}
    failed: dict[str, errors.TunerError] = {}
    for op in ops:
        try:
            found[op] = work(op)
        except (errors.InconclusiveError, errors.UsageError) as error:  # the latter: no row is of what was asked for
            failed[op] = error
    if failed and not found:
        first, *others = failed.values()
        if not others:
            raise first
        raise type(first)("; ".join(map(str, failed.values())))
    return found, {op: str(error) for op, error in failed.items()}
