"""Compile every kernel of a sweep ahead of measuring, on all cores, in processes that can be killed.

NVRTC runs inside the process that calls it and cannot be interrupted, so it never runs in the sweep's own process. The
measuring process finds the cubins in the disk cache; only the compiler's report comes back here. A kernel is a pair of
a problem as fields.kernel_identity makes it and a config: sizes are run-time arguments, so that one kernel serves all
problems of a variant.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: One kernel takes 0.1 to 2 s. A pool that reports nothing for this long is killed, and what it left is compiled
#: kernel by kernel.
STALL_LIMIT_S = 120.0


@dataclass(frozen=True)
class Compiled:
    """The outcome of compiling one config: status `ok`, `spill` or `compile_error`, and the compiler's report."""

    status: str
    registers: int | None = None
    spill_bytes: int | None = None
    compile_ms: float | None = None
    compiler: str | None = None
    compiler_version: str | None = None
    error: str | None = None


def compile_one(problem, config) -> Compiled:
    """Compile one config in this process, or find it in a cache; every failure becomes a Compiled."""
    from deep_gemm.jit import build

    try:
        result = build.get_cubin(problem, config)
    except Exception as error:
        return Compiled("compile_error", error=f"{type(error).__name__}: {str(error)[-1500:]}")
    spills = result.spill_bytes or 0
    return Compiled(
        "spill" if spills else "ok",
        result.registers,
        spills,
        result.compile_ms,
        result.compiler,
        result.compiler_version,
        f"{spills} bytes of registers spilled" if spills else None,
    )


def compile_indexed(index: int, problem, config) -> tuple[int, Compiled]:
    """Compile one config; return its index too, because outcomes come in any order."""
    return index, compile_one(problem, config)


def count_processes(num_shards: int) -> int:
    """Return the processes of one shard's pool: the cores of this process, divided among the shards."""
    return max(len(os.sched_getaffinity(0)) // max(num_shards, 1), 1)


def compile_all(
    kernels: Sequence[tuple],
    num_processes: int,
    on_done: Callable[[int, int], None],
    first: int = 0,
    is_pool_kept: bool = False,
) -> dict:
    """Compile (problem, config) pairs and return {problem: {config: Compiled}}; `on_done(done, total)` is told how far.

    Compiling starts at position `first`: the shards of one host begin with different kernels and find each other's in
    the cache. `is_pool_kept`: the processes wait for the next call, until close_pool; to start them takes seconds.
    """
    order = [*kernels[first:], *kernels[:first]]
    done: dict[int, Compiled] = {}
    run_pool(order, range(len(order)), num_processes, done, on_done, is_pool_kept)
    for index in range(len(order)):
        if index not in done:  # a process died or hung: compile the kernel alone, to see whether it is to blame
            run_pool(order, [index], 1, done, on_done)
            done.setdefault(index, Compiled("compile_error", error="the compiling process died or hung"))
    compiled: dict = {}
    for index, (problem, config) in enumerate(order):
        compiled.setdefault(problem, {})[config] = done[index]
    return compiled


def close_pool() -> None:
    """Kill the processes of a pool, if there is one."""
    if "joblib.externals.loky" in sys.modules:
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor().shutdown(wait=False, kill_workers=True)


def run_pool(
    order: list,
    indices: Sequence[int],
    num_processes: int,
    done: dict,
    on_done: Callable[[int, int], None],
    is_kept: bool = False,
) -> None:
    """Compile `indices` of `order` into `done`; kill the pool when one of its processes dies or stalls, and at the end
    unless it is kept.
    """
    import joblib
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    tasks = (joblib.delayed(compile_indexed)(index, *order[index]) for index in indices)
    # At least two processes: with one, joblib would compile in this process, where nothing could be killed.
    pool = joblib.Parallel(
        n_jobs=max(num_processes, 2),
        backend="loky",
        return_as="generator_unordered",
        batch_size=1,
        timeout=STALL_LIMIT_S,
    )
    try:
        for index, outcome in pool(tasks):
            done[index] = outcome
            on_done(len(done), len(order))
    except (TerminatedWorkerError, multiprocessing.TimeoutError, OSError):
        pass  # the caller sees what is missing in `done`
    finally:
        if not is_kept or any(index not in done for index in indices):
            close_pool()


def summarize(compiled: dict, seconds: float) -> dict:
    """Return counts and times of compiling ahead, for the sweep's summary."""
    outcomes = [outcome for of_problem in compiled.values() for outcome in of_problem.values()]
    times = sorted(outcome.compile_ms for outcome in outcomes if outcome.compile_ms)
    return {
        "kernels": len(outcomes),
        "failed": sum(outcome.status != "ok" for outcome in outcomes),
        "seconds": round(seconds, 2),
        "median_ms": times[len(times) // 2] if times else None,
        "max_ms": times[-1] if times else None,
    }
