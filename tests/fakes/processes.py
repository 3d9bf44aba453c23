"""Forked children for fault tests: a hundred of them start in milliseconds, with everything imported.

A child does its work and leaves by os._exit: 0 when it succeeded, 2 after a TunerError, which it reports as JSON [type,
message].
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from tuner import errors


def fork(work: Callable[[int], None]) -> tuple[int, int]:
    """Run `work(write end of a pipe)` in a child; return (process id, read end)."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(read_end)
            work(write_end)
            code = 0
        except errors.TunerError as error:
            os.write(write_end, json.dumps([type(error).__name__, str(error)]).encode())
            code = 2
        finally:
            os._exit(code)
    os.close(write_end)
    return child, read_end


def read_all(read_end: int) -> bytes:
    """Return everything from a pipe until its writer is gone."""
    with os.fdopen(read_end, "rb") as pipe:
        return pipe.read()


def exit_code(child: int) -> int:
    """Wait for a child; return its exit code, or minus its signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_child(work: Callable[[int], None]) -> tuple[int, bytes]:
    """Run `work` in a child to its end; return its exit code and what it wrote."""
    child, read_end = fork(work)
    said = read_all(read_end)
    return exit_code(child), said


def wait_until_gone(pid: int) -> bool:
    """Return whether a process ends within some seconds; one that nobody has waited for has ended, too."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False
