"""Runs command lines of the tuner in forks of this process, as a shell would, with streams and limits at fault.

A fork ends as the interpreter does: what cannot be flushed at the end is exit code 120.
"""

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tuner import __main__

LIMIT_S = 120.0
#: Events of Python that use the network.
NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.bind")


class Ended(NamedTuple):
    """How a command line ended: exit code (minus a signal), what it said, and events of the network."""

    code: int
    out: str
    err: str
    network: str


def run_line(words: list[str], folder: Path, prepare: Callable[[], None] = lambda: None) -> Ended:
    """Run `tuner WORDS` in a fork; `prepare` is called in it, with its streams going to files in `folder`."""
    paths = {number: folder / f"stream{number}" for number in (1, 2, 3)}
    child = os.fork()
    if child == 0:
        run_in_child(words, paths, prepare)
    end = time.monotonic() + LIMIT_S
    while (waited := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.005)
    texts = [path.read_text(errors="replace") if path.exists() else "" for path in paths.values()]
    for path in paths.values():
        path.unlink(missing_ok=True)
    return Ended(os.waitstatus_to_exitcode(waited[1]), *texts)


def run_in_child(words: list[str], paths: dict[int, Path], prepare: Callable[[], None]) -> None:
    """Run the command line and end this process."""
    code = 99
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        watch_network(paths.pop(3))
        for number, path in paths.items():
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        prepare()
        sys.stdin, sys.stdout, sys.stderr = (open_stream(number) for number in range(3))
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
        sys.argv = ["tuner", *words]
        try:
            __main__.main()
        except SystemExit as end:
            code = end.code or 0
        finally:
            sys.setprofile(None)
        code = 120 if any(is_stuck(stream) for stream in (sys.stdout, sys.stderr)) else code
    except BaseException as error:  # what main() lets through would be a traceback
        with contextlib.suppress(Exception):
            os.write(2, f"Traceback of {error!r}\n".encode())
    finally:
        os._exit(code)


def watch_network(path: Path) -> None:
    """Write every use of the network to a file."""
    found = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    sys.addaudithook(lambda event, _: os.write(found, f"{event}\n".encode()) if event in NETWORK else None)


def open_stream(number: int):
    """Return a standard stream as Python starts with it, None where its descriptor is closed."""
    try:
        os.fstat(number)
    except OSError:
        return None
    return open(number, "w" if number else "r", buffering=1 if number == 2 else -1, closefd=False, encoding="utf-8")


def is_stuck(stream) -> bool:
    """Return whether what a stream holds cannot be written."""
    try:
        if stream is not None:
            stream.flush()
    except OSError:
        return True
    return False


def close(number: int) -> Callable[[], None]:
    """Return what closes a standard stream."""
    return lambda: os.close(number)


def break_pipe() -> None:
    """Let the reader of standard output be gone."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    os.dup2(write_end, 1)


def fill_output() -> None:
    """Let standard output go to a disk that is full."""
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def fill_disk() -> None:
    """Let no file grow; standard output and error are pipes, which may."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for number in (1, 2):
        pipe_to_file(number)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def pipe_to_file(number: int) -> None:
    """Let a stream be a pipe, whose content a further process copies to the file that the stream was."""
    target = os.dup(number)
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        os.close(write_end)
        while text := os.read(read_end, 65536):
            os.write(target, text)
        os._exit(0)
    os.close(read_end)
    os.dup2(write_end, number)
    os.close(write_end)


class InterruptAtCall:
    """Presses Ctrl-C at the n-th call of a Python function once the command line runs."""

    def __init__(self, place: int):
        self.place, self.count, self.has_begun = place, 0, False

    def __call__(self, frame, event, argument) -> None:
        self.has_begun = self.has_begun or frame.f_code is __main__.run.__code__
        if event == "call" and self.has_begun:
            self.count += 1
            if self.count == self.place:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)
