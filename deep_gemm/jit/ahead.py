"""Compile kernels ahead, on all cores, into the disk cache.

Processes take the kernels in their order. A kernel's key is locked in the disk cache while one process builds it, so
that nothing is built twice and whoever needs a kernel meanwhile waits for it.
"""

import multiprocessing
import os
import threading
from collections.abc import Iterable
from concurrent.futures import CancelledError, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from deep_gemm import _C
from deep_gemm.errors import DeepGemmError
from deep_gemm.jit.build import get_cubin
from deep_gemm.selection import get_selector

MAX_WORKERS = 32
#: A kernel as it travels to a process: problem as JSON, config as JSON, compiler ("nvrtc", "nvcc", None: the default).
Job = tuple[str, str, str | None]


def list_choices(op: str, problems: Iterable, device: "_C.Device") -> tuple[list, str]:
    """Return every config that the library can choose for an op kind on a device, and where they come from.

    Without an artefact for the op kind these are the heuristic's choices for `problems`.
    """
    reason = ""
    try:
        selector = get_selector(device)
        hidden = set(selector.quarantined(op)) if selector else set()
        configs = [config for config in selector.configs(op) if config not in hidden] if selector else []
        if configs:
            return configs, "artefact"
    except DeepGemmError as error:  # an artefact without this op kind
        reason = f" ({type(error).__name__}: {str(error)[:200]})"
    picks = {_C.get_analytic_config(problem, device): None for problem in problems}
    return list(picks), f"heuristic's picks on its problems{reason}"


def compile_kernel(job: Job) -> str:
    """Compile one kernel into the disk cache; return why it failed, "" when it is there."""
    problem, config, compiler = job
    try:
        get_cubin(_C.Problem.from_json(problem), _C.Config.from_json(config), compiler)
    except Exception as error:  # the job's result; whoever needs the kernel meets the same failure
        return f"{problem} {config} {compiler}: {type(error).__name__}: {str(error)[:300]}"
    return ""


def make_jobs(kernels: Iterable[tuple], compiler: str | None) -> list[Job]:
    """Return the jobs of (problem, config) pairs, each once."""
    return list(dict.fromkeys((problem.to_json(), config.to_json(), compiler) for problem, config in kernels))


def compile_all(kernels: Iterable[tuple], compiler: str | None = "nvrtc", cores: int = 0) -> list[str]:
    """Compile every (problem, config) on `cores` cores (0: all); return the failures."""
    with make_pool(cores) as pool:
        return run_jobs(pool, make_jobs(kernels, compiler))


def make_pool(cores: int = 0) -> ProcessPoolExecutor:
    """Return a pool of `cores` processes (0: one for each core)."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # torch is imported once, not by every process
    return ProcessPoolExecutor(max(cores or get_num_cores(), 1), mp_context=context)


def get_num_cores() -> int:
    """Return how many cores this process may use, at most MAX_WORKERS."""
    return min(len(os.sched_getaffinity(0)), MAX_WORKERS)


def run_jobs(pool: ProcessPoolExecutor, jobs: list[Job]) -> list[str]:
    """Compile the jobs in their order; return the failures."""
    try:
        return [failure for failure in pool.map(compile_kernel, jobs) if failure]
    except (BrokenProcessPool, CancelledError) as error:  # what is missing is compiled when it is first needed
        return [f"compiling ahead stopped: {type(error).__name__} {error}"]


class Background:
    """A pool that compiles while this process goes on; one core is left to it."""

    def __init__(self, jobs: list[Job]):
        self.failures: list[str] = []
        self.num_kernels = len(jobs)
        self._pool = make_pool(max(get_num_cores() - 1, 1))
        self._thread = threading.Thread(target=self._run, args=(jobs,), daemon=True)
        self._thread.start()

    def _run(self, jobs: list[Job]) -> None:
        self.failures = run_jobs(self._pool, jobs)

    def finish(self, timeout_s: float) -> list[str]:
        """Wait at most `timeout_s` seconds for the pool, end it and return its failures."""
        self._thread.join(timeout_s)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._thread.join()
        return self.failures
