"""The parent's side of the measuring process: start it, give it jobs, kill it when it is late, replace it.

Guarantees: there is at most one measuring process at a time. Nothing of its process group outlives `stop` or a failure.
    A job ends at most 5 s after its limit, whatever the child does.
Exception contract: `run` raises WorkerFailure for everything that goes wrong in the child, and DeviceRetired after
    three starts in a row failed. Apart from these, starting a process may raise OSError.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Self

from tuner import errors
from tuner.measure import protocol

#: Importing torch, opening the driver and multiplying the canary took 3 to 25 s; a cold disk takes longer.
HELLO_LIMIT_S = 180.0
#: The child imports this package from where its parent has it: a checkout need not be installed.
START = (
    f"import runpy, sys; root = {str(Path(__file__).parents[2])!r}; root in sys.path or sys.path.insert(0, root); "
    "runpy.run_module('tuner.measure.worker', run_name='__main__', alter_sys=True)"
)
LOG_TAIL_BYTES = 4096
MAX_START_FAILURES = 3
#: What the child inherits: where software, caches and the GPU are, and nothing else.
ENVIRONMENT_NAMES = (
    "PATH",
    "HOME",
    "LANG",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "XDG_RUNTIME_DIR",
)
ENVIRONMENT_PREFIXES = ("CUDA", "NVIDIA_", "DG_", "PYTORCH_", "LC_", "OMP_")


class WorkerFailure(Exception):
    """One job failed.

    `kind`: crash, timeout, reference or error. `config`: the index of the config to blame, or None. `log`: the end of
    the child's output.
    """

    def __init__(self, kind: str, message: str, config: int | None = None, log: str = ""):
        super().__init__(message)
        self.kind, self.config, self.log = kind, config, log


class DeviceRetired(errors.TunerError):
    """The measuring process failed to start three times in a row; the device is not used any further."""


def reduce_environment(extra: dict[str, str]) -> dict[str, str]:
    """Return the child's environment variables."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in ENVIRONMENT_NAMES or name.startswith(ENVIRONMENT_PREFIXES)
    }
    return kept | extra


class MeasuringWorker:
    """A measuring process that is started on first use and replaced after every failure."""

    def __init__(
        self,
        backend: str = "cuda",
        extra_environment: dict[str, str] | None = None,
        hello_limit_s: float = HELLO_LIMIT_S,
    ):
        self.backend, self.extra, self.hello_limit_s = backend, extra_environment or {}, hello_limit_s
        self.process: subprocess.Popen | None = None
        self.requests = self.replies = -1
        self.log: IO[bytes] | None = None
        self.identity: dict = {}  # the first hello; empty before it
        self.start_failures = 0

    def start(self) -> dict:
        """Start the process unless it runs; return its hello.

        Raises: DeviceRetired; TunerError for another board, and for a package that makes other kernels.
        """
        while self.process is None:
            try:
                self.launch()
                self.check_identity(self.read(time.monotonic() + self.hello_limit_s, "hello"))
            except WorkerFailure as failure:
                self.start_failures += 1
                if self.start_failures >= MAX_START_FAILURES:
                    last = (failure.log.strip().splitlines() or [str(failure)])[-1]
                    raise DeviceRetired(
                        f"the measuring process failed to start {self.start_failures} times: {last[-500:]}"
                    ) from failure
        self.start_failures = 0
        return self.identity

    def check_identity(self, hello: dict) -> None:
        """Remember the first hello; refuse one of another board, protocol or package."""
        from deep_gemm.jit import hashing  # imports the compilers

        if hello.get("protocol") != protocol.PROTOCOL_VERSION or not isinstance(hello.get("device"), dict):
            self.stop()
            raise errors.TunerError("the measuring process speaks another protocol: reinstall the package")
        if hello.get("package") != hashing.package_hash():
            self.stop()
            raise errors.TunerError(
                "the measuring process would make other kernels: it found another deep_gemm, or this one was changed"
                " meanwhile; check PYTHONPATH, and start the command again"
            )
        if self.identity and name_board(self.identity) != name_board(hello):
            self.stop()
            raise errors.TunerError(
                "the measuring process came back on another GPU or at another power limit: one sweep measures one board"
                " at one limit; start the sweep again"
            )
        self.identity = hello

    def launch(self) -> None:
        """Spawn the process with two pipes and a log file."""
        child_requests, self.requests = os.pipe()
        self.replies, child_replies = os.pipe()
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (read_log() closes it)
        command = [
            sys.executable,
            "-P",
            "-c",
            START,
            "--backend",
            self.backend,
            "--parent",
            str(os.getpid()),
        ]
        command += ["--requests", str(child_requests), "--replies", str(child_replies)]
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True,
                pass_fds=(child_requests, child_replies), env=reduce_environment(self.extra),
            )  # fmt: skip
        finally:
            os.close(child_requests)
            os.close(child_replies)

    def run(self, job: dict, limit_s: float, on_progress: Callable[[str], None] = lambda stage: None) -> dict:
        """Run one job and return its result; each message must come within `limit_s` of the one before.

        Raises: WorkerFailure, DeviceRetired.
        """
        self.start()
        last = None
        try:
            protocol.write_message(self.requests, job)
        except OSError as error:
            raise self.fail("crash", f"the measuring process is gone: {error}", None) from error
        while True:
            message = self.read(time.monotonic() + limit_s, "reply", last)
            if message["type"] == "result" and isinstance(message.get("result"), dict):
                return message["result"]
            if message["type"] != "progress":
                raise self.fail_from(message, last)
            last = message.get("config") if protocol.is_integer(message.get("config")) else None
            on_progress(str(message.get("stage")))

    def read(self, deadline: float, what: str, config: int | None = None) -> dict:
        """Read one message. Raises: WorkerFailure, after which the process is dead."""
        try:
            return protocol.read_message(self.replies, deadline)
        except protocol.MessageTimeout as error:
            raise self.fail("timeout", f"no {what} in time", config) from error
        except (EOFError, protocol.ProtocolError, OSError) as error:
            raise self.fail("crash", f"no {what}: {error}", config) from error

    def fail_from(self, message: dict, last: int | None) -> WorkerFailure:
        """Return the failure that a message reports. The process is killed, unless its reference was wrong.

        A message of an unknown type is a crash.
        """
        kind, error = message.get("kind"), str(message.get("error"))[:2000]
        config = message["config"] if protocol.is_integer(message.get("config")) else last
        if message["type"] == "failure" and kind == "reference":
            return WorkerFailure(kind, error, 0)
        return self.fail("error" if kind == "error" else "crash", error, config)

    def fail(self, kind: str, message: str, config: int | None) -> WorkerFailure:
        """Kill the process; return the failure, with the signal that ended it and the end of its log."""
        code = self.stop()
        ending = f" (signal {-code})" if code is not None and code < 0 and kind == "crash" else ""
        return WorkerFailure(kind, message + ending, config, self.read_log())

    def read_log(self) -> str:
        """Return the last 4 KiB of the process's output with control characters escaped."""
        if self.log is None:
            return ""
        size = self.log.seek(0, os.SEEK_END)
        self.log.seek(max(size - LOG_TAIL_BYTES, 0))
        text = self.log.read().decode("utf-8", "replace")
        self.log.close()
        self.log = None
        return "".join(letter if letter.isprintable() or letter == "\n" else f"\\x{ord(letter):02x}" for letter in text)

    def interrupt(self) -> None:
        """Kill the process from another thread than the one that waits for it, whose job then fails."""
        process = self.process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def stop(self) -> int | None:
        """Kill the process with its group; return its exit code, or minus the signal that had ended it before."""
        if self.process is None:
            return None
        code = wait_briefly(self.process)
        with contextlib.suppress(ProcessLookupError):
            # The group lives as long as any of its members, even without its leader.
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for fd in (self.requests, self.replies):
            os.close(fd)
        self.process = None
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def name_board(hello: dict) -> tuple:
    """Return which board a hello is of, and by its SKU at which power limit."""
    return hello["device"]["uuid_hash"], hello["device"].get("sku")


def wait_briefly(process: subprocess.Popen) -> int | None:
    """Return the exit code of a process that is ending by itself, None where it still runs. It is not reaped."""
    for _ in range(10):
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None:
            return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        time.sleep(0.01)
    return None
