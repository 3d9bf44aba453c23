"""Child processes of the GPU suite: none of them outlives a run that is interrupted, because it would keep the GPU."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

#: Seconds that a run has to end its own children before it is killed.
GRACE_S = 20.0


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does, so that what waits for children ends them; the exit code is 143."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def kill_group(child: subprocess.Popen) -> int:
    """Kill a child that leads a session of its own, with its children; return its exit status."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


def end_all(children: Sequence[subprocess.Popen], grace_s: float = GRACE_S) -> None:
    """Ask children to end, so that they end their own, and kill those that do not."""
    for child in children:
        if child.poll() is None:
            child.terminate()
    end = time.monotonic() + grace_s
    for child in children:
        try:
            child.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
