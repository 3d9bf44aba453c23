"""Compile ahead, on all cores, in the order in which the kernels are needed; the jobs run meanwhile and wait for what
is missing.

A kernel's key is locked in the disk cache while one process builds it, so that nothing is built twice.
"""

import multiprocessing
import os
import threading
from collections.abc import Iterable
from concurrent.futures import CancelledError, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from deep_gemm import _C
from deep_gemm.jit.build import get_cubin

MAX_WORKERS = 32


def compile_kernel(arguments: tuple[str, str, str | None]) -> str:
    """Compile one (problem JSON, config JSON, compiler) into the disk cache; return the reason of a failure, "" when it
    is there.
    """
    problem, config, compiler = arguments
    try:
        get_cubin(_C.Problem.from_json(problem), _C.Config.from_json(config), compiler)
    except (
        Exception
    ) as error:  # a compiler's failure is this job's result; the section that needs the kernel reports it
        return f"{problem} {config} {compiler}: {type(error).__name__}: {str(error)[:300]}"
    return ""


def compile_all(kernels: Iterable[tuple[object, object]], compiler: str | None = "nvrtc", cores: int = 0) -> list[str]:
    """Compile every (problem, config) on `cores` cores (0: all); return the failures."""
    jobs = list(dict.fromkeys((problem.to_json(), config.to_json(), compiler) for problem, config in kernels))
    with make_pool(cores) as pool:
        return run_jobs(pool, jobs)


def make_pool(cores: int = 0) -> ProcessPoolExecutor:
    """Return a pool of `cores` processes (0: one for each core)."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # torch is imported once, not by every process
    return ProcessPoolExecutor(max(cores or get_num_cores(), 1), mp_context=context)


def get_num_cores() -> int:
    """Return how many cores this process may use, at most MAX_WORKERS."""
    return min(len(os.sched_getaffinity(0)), MAX_WORKERS)


def run_jobs(pool: ProcessPoolExecutor, jobs: list[tuple[str, str, str | None]]) -> list[str]:
    """Compile the jobs in their order; return the failures."""
    try:
        return [failure for failure in pool.map(compile_kernel, jobs) if failure]
    except (
        BrokenProcessPool,
        CancelledError,
    ) as error:  # what is missing is compiled when it is first needed, where its config is known
        return [f"compiling ahead stopped: {type(error).__name__} {error}"]


class Background:
    """A pool that compiles while the jobs run. One core is left to the process that launches them."""

    def __init__(self, jobs: list[tuple[str, str, str | None]]):
        self.failures: list[str] = []
        self.num_kernels = len(jobs)
        self._pool = make_pool(max(get_num_cores() - 1, 1))
        self._thread = threading.Thread(target=self._run, args=(jobs,), daemon=True)
        self._thread.start()

    def _run(self, jobs: list) -> None:
        self.failures = run_jobs(self._pool, jobs)

    def finish(self, timeout_s: float) -> list[str]:
        """Wait for the pool and end it, whatever is left; return its failures."""
        self._thread.join(timeout_s)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._thread.join()
        return self.failures
