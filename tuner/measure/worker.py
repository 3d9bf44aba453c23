"""The measuring process: `python -P -m tuner.measure.worker`. It holds the GPU and two pipes, and nothing durable.

It runs in a session of its own, dies with its parent, and reads jobs until the request pipe ends. After a fault it
reports what it knows and ends itself. (A wrong reference config is no fault.) The parent then starts a fresh process,
which multiplies a canary before it says hello. Standard output and error go to the parent's log file; messages have
pipes of their own.
"""

import argparse
import ctypes
import importlib
import os
import signal
import sys

from tuner.measure import protocol

PR_SET_PDEATHSIG = 1
#: Backends by name; tests name theirs as module:class.
BACKENDS = {"cuda": "tuner.measure.backend:CudaBackend", "simulated": "tuner.measure.simulated:SimulatedBackend"}
#: Measures kernels of several sets, of the folder behind "="; no sweep uses it.
SETS_BACKEND = "tuner.measure.sets:SetsBackend"


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies; exit at once where the parent is dead already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def load_backend(name: str):
    """Return the backend called `name`: a key of BACKENDS, or module:class; behind "=" the argument it is made with."""
    name, has_argument, argument = name.partition("=")
    module, _, attribute = BACKENDS.get(name, name).partition(":")
    make = getattr(importlib.import_module(module), attribute)
    return make(argument) if has_argument else make()


def serve(backend, requests: int, replies: int) -> None:
    """Answer jobs until the parent closes the request pipe or a job fails."""
    hello = backend.hello()
    protocol.write_message(replies, {"type": "hello", "protocol": protocol.PROTOCOL_VERSION, **hello})
    while True:
        try:
            job = protocol.read_message(requests)
        except EOFError:
            return
        reply = answer(backend, job, replies)
        protocol.write_message(replies, reply)
        if reply["type"] == "failure" and reply["kind"] != "reference":
            sys.exit(1)


def answer(backend, job: dict, replies: int) -> dict:
    """Return the reply to one job. An exception becomes a failure, which names the config to blame where known."""

    last: int | None = None

    def progress(stage: str, config: int | None) -> None:
        nonlocal last
        last = config
        protocol.write_message(replies, {"type": "progress", "stage": stage, "config": config})

    try:
        return {"type": "result", "result": backend.run(job, progress)}
    except BrokenPipeError:
        raise
    except Exception as error:
        is_reference = type(error).__name__ == "ReferenceFailed"
        return {
            "type": "failure",
            "kind": "reference" if is_reference else "crash" if hasattr(error, "config") else "error",
            "error": f"{type(error).__name__}: {' '.join(str(error).split())[:2000]}",
            "config": 0 if is_reference else getattr(error, "config", last),
        }


def main(arguments: list[str]) -> None:
    """Run the worker of one parent."""
    parser = argparse.ArgumentParser(
        prog="python -P -m tuner.measure.worker", description="Measuring process of `python -m tuner sweep`."
    )
    parser.add_argument("--backend", required=True)
    for name in ("--requests", "--replies", "--parent"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args(arguments)
    die_with_parent(options.parent)
    serve(load_backend(options.backend), options.requests, options.replies)


if __name__ == "__main__":
    main(sys.argv[1:])
