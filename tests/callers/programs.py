"""All programs."""

from collections.abc import Callable

from tests.callers import newer, serving, training
from tests.callers.names import PENDING

#: Name of a program -> (the program, what it needs).
PROGRAMS: dict[str, tuple[Callable[[str], None], tuple[tuple[str, str], ...]]] = {
    program.__name__: (program, needs)
    for program, needs in (
        *((program, ()) for program in (*serving.PROGRAMS, *training.PROGRAMS)),
        *newer.PROGRAMS,
    )
}


def is_pending(name: str) -> bool:
    """Return whether a program needs something that is not here yet."""
    return any(need in PENDING for need in PROGRAMS[name][1])
