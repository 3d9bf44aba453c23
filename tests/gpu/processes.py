"""Child processes of the GPU suite: none of them outlives a run that is interrupted, because it would keep the GPU.

Ctrl-C and SIGTERM raise in the main thread, wherever it is. One that came while children are ended would leave the
others alive, so what starts or ends children holds both back (`holding_signals`).
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

#: Seconds that a run has to end its own children before it is killed.
GRACE_S = 20.0
#: What ends a run. A shard often hears both: Ctrl-C from the terminal, and SIGTERM from the run that started it.
ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def _handling(handle: Callable, *later: Callable) -> Iterator[None]:
    """Let a function handle ENDING, but for those that this process ignores. Other threads than the main one hear of
    no signal and can set nothing: there is nothing to do for them.

    What was there before comes back unless another than `handle` and those of `later` has taken its place: this process
    has then begun to end, and must go on to ignore.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in ENDING} if is_main else {}
    heard = {number: old for number, old in before.items() if old not in (signal.SIG_IGN, None)}
    try:
        for number in heard:
            signal.signal(number, handle)
        yield
    finally:
        for number, old in heard.items():
            if signal.getsignal(number) in (handle, old, *later):
                signal.signal(number, old)


def _ignore(*_: object) -> None:
    """Hear a signal and do nothing; unlike SIG_IGN, children do not inherit it."""


def _end(number: int, _: object) -> None:
    """Raise what ends this process, once: from then on it is ending, and no further signal must break that off."""
    for one in ENDING:
        signal.signal(one, _ignore)
    if number == signal.SIGTERM:
        sys.exit(128 + number)
    raise KeyboardInterrupt


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does, so that what waits for children ends them; the exit code is 143.

    After the first of both, further ones are ignored until the block has been left.
    """
    with _handling(_end, _ignore):
        yield


@contextmanager
def holding_signals() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back while children are started or ended; the first that came is heard afterwards."""
    held: list[int] = []
    try:
        with _handling(lambda number, _: held.append(number)):
            yield
    finally:
        if held:
            signal.raise_signal(held[0])


def send_kill(child: subprocess.Popen) -> None:
    """Kill a child that leads a session of its own, with its children, which may live although it has ended."""
    with suppress(ProcessLookupError, PermissionError):  # of one child, which must not keep the others alive
        os.killpg(child.pid, signal.SIGKILL)


def kill_groups(children: Sequence[subprocess.Popen]) -> None:
    """Kill children that lead sessions of their own, with their children: all of them before any is waited for."""
    with holding_signals():
        for child in children:
            send_kill(child)
        _wait_briefly(children)


def _wait_briefly(children: Sequence[subprocess.Popen]) -> None:
    """Wait for children that were killed, but not for ever: the driver may hold one, and signals are held meanwhile."""
    end = time.monotonic() + GRACE_S
    for child in children:
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, end - time.monotonic()))


def kill_group(child: subprocess.Popen) -> int:
    """Kill a child that leads a session of its own, with its children; return its exit status."""
    kill_groups([child])
    return -signal.SIGKILL if child.returncode is None else child.returncode


def end_all(children: Sequence[subprocess.Popen], grace_s: float = GRACE_S) -> None:
    """Ask children to end, so that they end their own, and kill those that do not."""
    with holding_signals():
        for child in children:
            child.terminate()  # does nothing where the child has ended
        end = time.monotonic() + grace_s
        for child in children:
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, end - time.monotonic()))
        for child in children:
            child.kill()
        _wait_briefly(children)
