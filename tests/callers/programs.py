"""All programs."""

from collections.abc import Callable

from tests.callers import newer, serving, training

#: By name. Each takes the device.
PROGRAMS: dict[str, Callable[[str], None]] = {
    program.__name__: program for program in (*serving.PROGRAMS, *training.PROGRAMS, *newer.PROGRAMS)
}
