"""A measuring backend whose jobs misbehave on request: {"type": "job", "fault": name}.

Imports neither torch nor deep_gemm.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time


class FaultyBackend:
    """Answers {"answer": 42} to a job without a fault."""

    def hello(self) -> dict:
        """Return a made-up device."""
        device = {"uuid_hash": os.environ.get("FAKE_UUID", "f" * 64), "sku": os.environ.get("FAKE_SKU", "faulty")}
        return {"package": os.environ["FAKE_PACKAGE"], "regime": "faulty", "device": device, "environment": {}}

    def run(self, job: dict, progress) -> dict:
        """Misbehave, or answer."""
        progress("check", 3)
        fault = job.get("fault")
        return getattr(self, f"do_{fault}")() if fault else {"answer": 42, "pid": os.getpid()}

    def do_raise(self):
        """Fail in Python."""
        raise ValueError("a fault in Python")

    def do_exit(self):
        """Exit without an answer or an error message."""
        os._exit(7)

    def do_segv(self):
        """Read address 0."""
        ctypes.string_at(0)

    def do_kill(self):
        """Die by SIGKILL."""
        os.kill(os.getpid(), signal.SIGKILL)

    def do_sleep(self):
        """Sleep for ever."""
        time.sleep(600)

    def do_spin(self):
        """Spin for ever and ignore SIGTERM."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            pass

    def do_spawn_child(self):
        """Start a child process and die without it."""
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(f"child {child.pid}", flush=True)
        os._exit(9)

    def do_print_garbage(self):
        """Write noise and terminal codes to standard output, then answer: messages travel elsewhere."""
        os.write(1, b"\x00\xff\x1b[31m garbage" * 10_000)
        return {"answer": 42}

    def do_garbage_reply(self):
        """Write noise where messages belong."""
        os.write(int(sys.argv[sys.argv.index("--replies") + 1]), b"\xff" * 64)
        time.sleep(600)

    def do_short_reply(self):
        """Announce a longer message than is sent, then die."""
        os.write(int(sys.argv[sys.argv.index("--replies") + 1]), b"\x00\x00\x10\x00{")
        os._exit(0)

    def do_huge_reply(self):
        """Answer with more than a message may hold."""
        return {"answer": "x" * (2 << 20)}

    def do_nan_reply(self):
        """Answer with a value that JSON cannot represent."""
        return {"answer": float("nan")}

    def do_unserialisable(self):
        """Answer with an object that is no result."""
        return {"answer": object()}


class BrokenBackend(FaultyBackend):
    """A backend that fails before its hello."""

    def hello(self) -> dict:
        """Fail."""
        print("the canary product is wrong", file=sys.stderr, flush=True)
        raise RuntimeError("the canary product is wrong")


class DriverError(Exception):
    """What the driver reports of a config."""

    config = 1


class FaultyGpu(FaultyBackend):
    """A GPU that takes 100 us, and on which a job's fault is one of tests.gpu.fault_kernels, or is said to be.

    FAKE_WRONG says what goes wrong besides: `quiet`: nothing fails; `blame`: no config is named; `error`: the driver's
    error is another; `hang`: there is no answer; `late`: it is 4 % slower after a fault; `disturbed`: only at first;
    `placed`: only in the first process after it; `canary`: the next process does not start at once. FAKE_MARK is a file
    that says that a fault was planted, and by its length how many processes began since.
    """

    def __init__(self):
        self.wrong, self.mark, self.num_jobs = os.environ.get("FAKE_WRONG"), os.environ["FAKE_MARK"], 0
        if self.wrong == "canary" and os.path.exists(self.mark):
            os.unlink(self.mark)
            raise RuntimeError("the canary product is wrong")
        self.place = 0
        if os.path.exists(self.mark):
            with open(self.mark, "a") as file:
                file.write("x")
                self.place = file.tell()

    def run(self, job: dict, progress) -> dict:
        """Answer the time of a product, or fail."""
        self.num_jobs += 1
        is_late = (
            self.wrong == "late"
            or (self.wrong == "disturbed" and self.num_jobs == 1)
            or (self.wrong == "placed" and self.place == 1)
        )
        if "fault" not in job:
            return {"reference_us": 104.0 if is_late and os.path.exists(self.mark) else 100.0}
        with open(self.mark, "w"):
            pass
        return {"reference_us": 100.0} if self.wrong == "quiet" else self.fail(job["fault"], progress)

    def fail(self, fault: str, progress) -> dict:
        """Fail as the GPU does."""
        progress("check", None if self.wrong == "blame" else DriverError.config)
        if fault == "barrier_wait" or self.wrong == "hang":
            time.sleep(600)
        if self.wrong == "blame":
            os._exit(1)
        raise DriverError("out of memory" if self.wrong == "error" else os.environ["FAKE_SIGNS"])
