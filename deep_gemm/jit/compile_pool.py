"""Compile kernels in processes that can be killed.

A server, a fresh interpreter, imports this package once and forks one child for each kernel, so that a compiler that
crashes or hangs costs its own kernel only. NVRTC runs inside the process that calls it and cannot be interrupted. The
caller's main module is not imported again, as multiprocessing would do.

Protocol: the server reads one JSON line [jobs, number of children at a time, seconds that one may take], and writes
one JSON line [index of the job, *Outcome] as soon as a job is done.
"""

import collections
import contextlib
import json
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple, cast

from deep_gemm import _C
from deep_gemm.arguments import check_integer
from deep_gemm.errors import CompileError
from deep_gemm.identity import read_line, write_line
from deep_gemm.jit import build, generator, plain_kernels
from deep_gemm.jit.compile import get_toolchain

MAX_CHILDREN = 32
#: A kernel takes 0.1 to 2 s. NVCC has a limit of its own, and the child may wait for another process before.
LIMIT_S = 450.0
_MAX_MESSAGE = 300  # characters, as JSON at most 3600 bytes: an outcome is one write and one read of a pipe
_SERVER = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from deep_gemm.jit import compile_pool as pool; pool"
)


class Job(NamedTuple):
    """A kernel as it travels to a process: problem (identity.write_line) and config as JSON, the compiler (None: the
    default), and a second config as JSON where the kernel has two.

    A plain kernel has no problem, and its name and constants as JSON in place of a config.
    """

    problem: str
    config: str
    compiler: str | None = None
    second: str = ""

    @classmethod
    def of_config(
        cls,
        problem: "_C.Problem",
        config: "_C.Config",
        second: "_C.Config | None" = None,
        *,
        compiler: str | None = None,
    ) -> "Job":
        """Return the job of the kernel of `config`, and of a second tile, for the problem's variant."""
        return cls(write_line(problem), config.to_json(), compiler, second.to_json() if second else "")

    def _describe(self) -> tuple[str, str, str | None]:
        if not self.problem:
            name, constants = json.loads(self.config)
            return plain_kernels.plain_source(name, constants), plain_kernels.plain_symbol(name), self.compiler
        problem, config, second = self.parse()
        return generator.generate_source(problem, config, second), generator.kernel_name(problem.op), self.compiler

    @classmethod
    def of_plain(cls, name: str, **constants: int) -> "Job":
        """Return the job of a plain kernel."""
        return cls("", json.dumps([name, constants]))

    def parse(self) -> tuple["_C.Problem", "_C.Config", "_C.Config | None"]:
        """Return the problem, the config and the second one."""
        second = _C.Config.from_json(self.second) if self.second else None
        return read_line(self.problem), _C.Config.from_json(self.config), second

    def describe(self, needed_by: "_C.Problem | None" = None) -> str:
        """Return what messages call the kernel, which a problem needs."""
        if not self.problem:
            name, constants = json.loads(self.config)
            return f"{plain_kernels.plain_symbol(name)} {constants or ''}".rstrip()
        problem, config, second = self.parse()
        purpose = " with signals" if problem.has_signals else ""
        return f"{_C.name_tiles(config, second)} for {needed_by or problem}{purpose}"

    def find(self):
        """Return the compiled kernel from memory or the disk, or None. Raises: ConfigError, CompileError."""
        return build.find_cubin_for_source(*self._describe())

    def build(self):
        """Return the compiled kernel, from wherever it is. Raises: ConfigError, CompileError."""
        return build.get_cubin_for_source(*self._describe())


#: The pass that makes FP8 operands K-major.
TRANSPOSE = Job.of_plain("transpose_fp8")
#: The pass that copies row-major scales: words, or 16 bytes at once.
SCALE_COPIES = tuple(Job.of_plain("scale_layout", kPack=0, kAligned=is_aligned) for is_aligned in (0, 1))
#: What makes the schedule of paged logits, in a call before theirs.
METADATA = Job.of_plain("mqa_metadata")
#: What sums of products launch after the product, or in its place where they are small, each with the arguments of
#: _C.load_sum_kernel: whether the sum is small, whether D is FP32, and whether there is a C.
SUMS = {
    Job.of_plain(name, kFloatD=int(is_float), kHasC=int(has_c), **constants): (name == "sum_products", is_float, has_c)
    for name, constants in (("sum_parts", {}), ("sum_products", {"kParts": 8}))
    for is_float, has_c in ((False, False), (True, False), (True, True))
}


class Outcome(NamedTuple):
    """What became of a job: the type of its error ("": none) with its message, and whether it had to be compiled."""

    error: str
    message: str
    is_compiled: bool


def get_num_cores() -> int:
    """Return how many cores this process may use, at most MAX_CHILDREN."""
    return min(len(os.sched_getaffinity(0)), MAX_CHILDREN)


class CompilePool:
    """Compiles `jobs` in another process; `cores` children at a time (0: one for each core)."""

    def __init__(self, jobs: list[Job], cores: int = 0, limit_s: float = LIMIT_S):
        """Start the server. Raises: ArgumentError for `cores`; OSError where it cannot be started."""
        cores = check_integer("cores", cores) or get_num_cores()
        self._num_jobs = len(jobs)
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", f"{_SERVER}.serve()", json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        request = json.dumps([jobs, cores, limit_s])
        self._output = cast(IO[str], self._process.stdout)
        with (
            contextlib.suppress(BrokenPipeError),
            cast(IO[str], self._process.stdin) as stream,
        ):  # its output will say that it died
            stream.write(request + "\n")

    def outcomes(self) -> Iterator[tuple[int, Outcome]]:
        """Yield (index, outcome) as they come; fewer than there are jobs where the server dies or is killed."""
        for line in self._output:
            index, *outcome = json.loads(line)
            yield index, Outcome(*outcome)

    def kill(self) -> None:
        """End the server with all of its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Kill what still runs, and close the pipe; only for the thread that reads the outcomes."""
        self.kill()
        self._output.close()


def run_jobs(jobs: list[Job], cores: int = 0, limit_s: float = LIMIT_S) -> list[Outcome]:
    """Compile the jobs and return their outcomes in the same order; nothing is started for no jobs.

    Raises: ArgumentError for `cores` that is no number of at least 0.
    """
    cores = check_integer("cores", cores) or get_num_cores()
    done: dict[int, Outcome] = {}
    reason = "the compiling process died"
    if jobs:
        try:
            pool = CompilePool(jobs, min(cores, len(jobs)), limit_s)
            with contextlib.closing(pool):
                done.update(pool.outcomes())
        except OSError as error:
            reason = f"no process could be started: {error}"
    missing = Outcome(CompileError.__name__, reason, False)
    return [done.get(index, missing) for index in range(len(jobs))]


class _Child(NamedTuple):
    pid: int
    job: int
    deadline: float


def serve() -> None:
    """Run the server of this process's standard input and output."""
    jobs, cores, limit_s = json.loads(sys.stdin.readline())
    with contextlib.suppress(CompileError):
        get_toolchain()  # opened once, for all children
    server = _Server([Job(*job) for job in jobs], limit_s)
    try:
        server.run(cores)
    except BrokenPipeError:  # nobody wants the rest
        os.killpg(0, signal.SIGKILL)  # this process, which leads a group of its own, and all that it started


class _Server:
    def __init__(self, jobs: list[Job], limit_s: float):
        self._jobs, self._limit_s = jobs, limit_s
        self._selector = selectors.DefaultSelector()
        self._output = select.poll()
        self._output.register(sys.stdout, 0)  # an error alone, which a pipe without a reader has

    def _children(self) -> list[tuple[int, _Child]]:
        return [(key.fd, key.data) for key in self._selector.get_map().values()]

    def run(self, cores: int) -> None:
        """Compile all jobs. Raises: BrokenPipeError as soon as nobody reads the outcomes."""
        waiting = collections.deque(range(len(self._jobs)))
        while waiting or self._children():
            if self._output.poll(0):
                raise BrokenPipeError
            while waiting and len(self._children()) < max(cores, 1):
                self._start(waiting.popleft())
            for key, _ in self._selector.select(timeout=1.0):
                self._finish(key.fd, key.data, os.read(key.fd, 4096))
            for end, child in self._children():
                if time.monotonic() > child.deadline:
                    self._finish(end, child, b"", f"did not end in {self._limit_s:.0f} s")

    def _start(self, index: int) -> None:
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            _run_child(lambda: os.write(write_end, json.dumps(compile_job(self._jobs[index])).encode()))
        os.close(write_end)
        self._selector.register(read_end, selectors.EVENT_READ, _Child(pid, index, time.monotonic() + self._limit_s))

    def _finish(self, end: int, child: _Child, said: bytes, fault: str = "died") -> None:
        """Report the child's outcome, or `fault` where it said nothing, and end it."""
        self._selector.unregister(end)
        os.close(end)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
        outcome = json.loads(said) if said else Outcome(CompileError.__name__, f"the compiling process {fault}", False)
        print(json.dumps([child.job, *outcome]), flush=True)


def _run_child(work: Callable[[], object]) -> None:
    try:
        work()
    finally:
        os._exit(0)


def compile_job(job: Job) -> Outcome:
    """Compile one kernel into the disk cache, or find it there."""
    before = build.count_compilations()
    try:
        job.build()
    except Exception as error:  # the job's outcome; whoever needs the kernel meets the same failure
        return Outcome(type(error).__name__, str(error)[:_MAX_MESSAGE], False)
    return Outcome("", "", build.count_compilations() > before)
