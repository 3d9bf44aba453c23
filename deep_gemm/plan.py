"""Plan a new problem: choose its config and get the compiled kernel. The native dispatch calls it on a miss, once per
problem.

Guarantees: a config that fails to compile falls back to the heuristic's with one warning; recording and printing never
    make a call fail.
"""

import contextlib
import os
import sys
import threading
import warnings
from typing import Any

from deep_gemm import _C, environment, selection
from deep_gemm.errors import CompileError, DeviceError, SelectorWarning
from deep_gemm.identity import write_line
from deep_gemm.jit import build, plain_kernels
from deep_gemm.text import MAX_MESSAGE, printable

_MAX_REMEMBERED = 65536

# By both tiles and kernel identity: asking the JIT again for every problem would hash the whole source.
_Key = tuple["_C.Config", "_C.Config | None", "_C.Problem"]
#: A config, the second tile of its kernel or None, the kernel's cubin and its name.
_Plan = tuple["_C.Config", "_C.Config | None", bytes, str]
_kernels: dict[_Key, "build.CompileResult"] = {}
_failed: dict[_Key, CompileError] = {}
_seen: set["_C.Problem"] = set()
_seen_unplanned: set["_C.Problem"] = set()
_seen_lines: set[str] = set()
_warned: set[str] = set()
_lock = threading.Lock()
_thread = threading.local()


def _reset_after_fork() -> None:
    """A child must not inherit a lock that another thread of the parent held."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_reset_after_fork)


def plan(problem: "_C.Problem", ordinal: int) -> _Plan:
    """Return (config, second tile or None, cubin, kernel name) for `problem` on CUDA device `ordinal`.

    Raises: DeviceError where no config is legal; CompileError where neither the chosen config nor the heuristic's
        compiles.
    """
    device = _C.get_device(ordinal)
    choice, second = selection.explain_tiles(problem, device)
    if not is_quiet() and _is_new(problem):
        reason = f": {choice.reason}" if choice.reason else ""
        _print(f"{_C.name_tiles(choice.config, second)} ({choice.source}{reason})", problem)
        _record(problem)
    try:
        result, config = _get_kernel(problem, choice.config, second), choice.config
    except CompileError as error:
        result, config = _build_another(problem, device, choice, second, error)
        second = None
    return config, second, result.cubin, result.kernel_name


def note_unplanned(problem: "_C.Problem") -> None:
    """Print and record a problem whose calls launch a plain kernel, in place of one that is chosen."""
    if not is_quiet() and _is_new(problem):
        _print("sum_products, without a config", problem)
        _record(problem)


def record_call(problem: "_C.Problem") -> None:
    """Record a problem as the caller gave it, which is not planned: its call runs the reference on CPU tensors, or
    copies its scales first.
    """
    if not is_quiet() and _is_new(problem, _seen_unplanned):
        _record(problem)


def record_line(line: str) -> None:
    """Record a call of an op that has no problems."""
    if not is_quiet() and _is_new(line, _seen_lines):
        _append(line)


def note_missing_copies(reason: str) -> None:
    """Warn that row-major scales of large products are read where they are, because what copies them fails."""
    _warn_once(f"row-major scales of large products are not copied, which takes longer: {reason}")


def plan_without_clusters(problem: "_C.Problem", ordinal: int) -> _Plan:
    """Plan again, as `plan`, where the GPU places no cluster of the planned config: the heuristic's best of those of
    one CTA.

    Raises: DeviceError where no such config is legal; CompileError.
    """
    device = _C.get_device(ordinal)
    single = [
        config
        for config in _C.get_candidates(problem, device)
        if config.cluster_m * config.cluster_n * config.split_k == 1
    ]
    if not single:
        raise DeviceError(
            f"{problem}: {device.name} places no cluster of CTAs, and no config without clusters is legal; use another"
            " GPU."
        )
    config = min(single, key=lambda candidate: _C.estimate_time_us(problem, candidate, device))
    _warn_once(f"{device.name} places no cluster of the config chosen for {problem}; using {config} instead")
    result = _get_kernel(problem, config)
    return config, None, result.cubin, result.kernel_name


def get_plain_kernel(name: str, constants: list[tuple[str, int]], is_refused: bool = False) -> tuple[bytes, str, int]:
    """Return (cubin, kernel name, number of its arguments) of a row of plain_kernels; `is_refused` as for
    build.get_cubin.

    Raises: ProblemError for another name or other constants; CompileError.
    """
    source, symbol = plain_kernels.plain_source(name, dict(constants)), plain_kernels.plain_symbol(name)
    result = build.get_cubin_for_source(source, symbol, is_refused=is_refused)
    return result.cubin, result.kernel_name, len(plain_kernels.PLAIN_KERNELS[name].parameters)


def rebuild(problem: "_C.Problem", config: "_C.Config", second: "_C.Config | None" = None) -> tuple[bytes, str, str]:
    """Compile again after the driver refused the cubin that plan gave; return (cubin, kernel name, compiler and
    version).

    Raises: CompileError.
    """
    result = _get_kernel(problem, config, second, is_refused=True)
    return result.cubin, result.kernel_name, f"{result.compiler} {result.compiler_version}"


def _build_another(problem, device, choice, second, error: CompileError):
    """Return (compiled kernel, config) of what compiles in place of what was chosen: of two tiles the first alone, else
    the heuristic's choice. Raises `error` where nothing does.
    """
    others = [choice.config] if second else []
    analytic = selection.get_analytic_config(problem, device)
    others += [analytic] if analytic != choice.config else []
    for config in others:
        with contextlib.suppress(CompileError):
            result = _get_kernel(problem, config)
            first_line = str(error).partition("\n")[0]
            remember_failure(problem, choice.config, second, error)  # another problem need not try that again
            _warn_once(
                f"{_C.name_tiles(choice.config, second)}, chosen for {problem} ({choice.source}), does not compile"
                f" ({first_line}); using {config} instead"
            )
            return result, config
    raise error


@contextlib.contextmanager
def quiet():
    """Let what this thread plans be neither printed nor recorded: no call has asked for it yet."""
    before, _thread.is_quiet = is_quiet(), True
    try:
        yield
    finally:
        _thread.is_quiet = before


def is_quiet() -> bool:
    """Return whether this thread is within `quiet`."""
    return getattr(_thread, "is_quiet", False)


def forget() -> None:
    """Forget what was planned, printed and recorded in this process (for tests and tools; loaded kernels stay)."""
    with _lock:
        _kernels.clear()
        _failed.clear()
        _seen.clear()
        _seen_unplanned.clear()
        _seen_lines.clear()
        _warned.clear()


def _get_kernel(
    problem: "_C.Problem", config: "_C.Config", second: "_C.Config | None" = None, is_refused: bool = False
):
    """Return the compiled kernel; `is_refused` as for build.get_cubin."""
    key = (config, second, _C.kernel_identity(problem))
    if key in _failed:
        raise _failed[key]
    result = None if is_refused else _kernels.get(key)
    if result is None:
        result = build.get_cubin(problem, config, second=second, is_refused=is_refused)
        with _lock:
            if len(_kernels) >= _MAX_REMEMBERED:
                _kernels.clear()
            _kernels[key] = result
    return result


def remember_failure(
    problem: "_C.Problem", config: "_C.Config", second: "_C.Config | None", error: CompileError
) -> None:
    """Let whoever needs this kernel meet `error` at once, without compiling."""
    with _lock:
        _failed[(config, second, _C.kernel_identity(problem))] = error


def forget_failure(problem: "_C.Problem", config: "_C.Config", second: "_C.Config | None") -> None:
    """Let this kernel be built again: it compiled meanwhile."""
    with _lock:
        _failed.pop((config, second, _C.kernel_identity(problem)), None)


def _is_new(problem: Any, seen: set = _seen) -> bool:
    """Return whether this process plans `problem` for the first time. It plans again after its table was cleared."""
    with _lock:
        if problem in seen:
            return False
        if len(seen) >= _MAX_REMEMBERED:
            seen.clear()
        seen.add(problem)
        return True


def _print(choice: str, problem: "_C.Problem") -> None:
    if environment.is_enabled("DG_PRINT_CONFIGS"):
        print(f"deep_gemm: {problem} -> {choice}", file=sys.stderr, flush=True)


def _record(problem: "_C.Problem") -> None:
    _append(write_line(problem))


def _append(line: str) -> None:
    """Append a line to DG_RECORD_SHAPES, in one write, so that lines of processes never mix."""
    path = environment.get_string("DG_RECORD_SHAPES")
    if not path:
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.write(descriptor, (line + "\n").encode("ascii"))
        finally:
            os.close(descriptor)
    except OSError as error:
        _warn_once(f"DG_RECORD_SHAPES={path}: shapes are not recorded ({error.strerror})")


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(printable(message, MAX_MESSAGE), SelectorWarning, stacklevel=3)
