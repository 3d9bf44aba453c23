"""Compile, load and plan ahead what a list of problems needs, so that no later call compiles.

Guarantees: a kernel is compiled once on this machine, however many processes warm up together; compilers run in
    processes of their own, which a crash or a hang does not leave; what failed is in the report and in one warning.
"""

import contextlib
import json
import os
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from deep_gemm import _C, cast_kernels, hc_prenorm, selection
from deep_gemm.arguments import check_bool, check_integer, shorten
from deep_gemm.errors import ArgumentError, DeepGemmError, DeviceError, ProblemError, WarmUpWarning
from deep_gemm.fields import fit_rows, replace, round_sizes
from deep_gemm.identity import read_line, take_signals
from deep_gemm.mega import layer
from deep_gemm.planned import KernelOf
from deep_gemm.recorded_calls import CALLS, Call, ExpertLayer, PrenormCall, SwigluCast, parse_call, with_rows
from deep_gemm.selector_files import list_skus
from deep_gemm.text import printable

#: What a warm-up may be given: a problem, or a call that is none.
Given = _C.Problem | Call


class Failure(NamedTuple):
    """A kernel that could not be compiled or loaded, and the error that a call would raise."""

    kernel: str
    error: DeepGemmError


@dataclass(frozen=True)
class WarmUpReport:
    """What warmup did.

    Attributes: `problems` that were given, counted with every m and setting; `kernels` that they need, of which
        `compiled` by this call, `found` on the disk or in memory, and `failures`; `planned` problems that calls now
        find in the dispatch table (0 where no GPU is used); `seconds` of wall time.
    """

    problems: int
    kernels: int
    compiled: int
    found: int
    planned: int
    seconds: float
    failures: tuple[Failure, ...]

    def as_dict(self) -> dict:
        """Return the report as JSON can hold it."""
        failed = [
            {"kernel": one.kernel, "error": type(one.error).__name__, "message": str(one.error)}
            for one in self.failures
        ]
        return {**vars(self), "seconds": round(self.seconds, 3), "failures": failed}


def warmup(
    problems: "str | os.PathLike | Iterable[_C.Problem | Call | Mapping | str]",
    m: int | Iterable[int] | None = None,
    *,
    device: "str | _C.Device | None" = None,
    any_size: bool = False,
    cores: int = 0,
) -> WarmUpReport:
    """Compile in parallel every kernel that the library chooses for `problems`, and load them on the current GPU.

    For FP8 products these include the casts of BF16 operands that come before them, with a scale for 128 numbers of a
    row or of a column, and the change of scales to the layout that products prefer.

    Args:
        problems: Problems, their JSON texts or dicts; or the path of a file that DG_RECORD_SHAPES named. Masked calls
            with signals are problems `with_signals()`, in texts and dicts with "has_signals": true. Calls of
            tf32_hc_prenorm_gemm, swiglu_per_token_cast_to_fp8 and fp8_mega_moe are written as problems of these ops,
            with the fields of deep_gemm.recorded_calls.
        m: numbers of rows that take the place of every problem's own: of m, or of expected_m where each group has room
            for m rows (masked products), or fills a part of its alignment. Products that divide K among groups keep
            their sizes, and so do layers of experts across GPUs.
        device: a Device or the name of one, such as "h200"; None: the current GPU. Kernels are loaded where it is the
            current GPU.
        any_size: also compile what problems that differ from these in their sizes choose most often. No list of
            them can be complete.
        cores: compilers at a time; 0: one for each core of this process.

    Problems get the settings of this process: its set_num_sms where they name no number of SMs, and its batch
    invariance (DG_BATCH_INVARIANT, set_batch_invariant), however they were recorded. Those that were recorded as batch
    invariant are prepared so, too.

    Raises: ArgumentError, ProblemError for what is no list of problems; DeviceError for an unknown device, without a
        GPU where none is named, and where no config is legal; CacheError, before anything is compiled, where the disk
        cache cannot be used or lacks a kernel and cannot be written. A kernel that does not compile is in the report's
        `failures`, and one WarmUpWarning names the first.
    """
    from deep_gemm.jit import kernel_set  # imports compilers: not before they are needed

    start = time.perf_counter()
    check_bool("any_size", any_size)
    cores = check_integer("cores", cores)
    target, has_gpu = _find_device(device)
    given = _read_all(problems)
    rows = _list_rows(m)
    calls = _list_calls(given, rows)
    products = list_problems(_list_products(calls), None, target)
    listed = list(dict.fromkeys([*list_problems(given, rows, target), *products]))
    kernels = kernel_set.compile_choices(listed, target, any_size, cores, _list_plain(calls, target, any_size))
    planned = kernels.load(listed) if has_gpu else 0
    failures = tuple(Failure(*failure) for failure in kernels.list_failures())
    found = max(len(kernels.ready) - kernels.num_compiled, 0)
    total, seconds = len(kernels.ready) + len(kernels.errors), time.perf_counter() - start
    _warn(failures)
    return WarmUpReport(len(listed) + len(calls), total, kernels.num_compiled, found, planned, seconds, failures)


def _find_device(device: "str | _C.Device | None") -> tuple["_C.Device", bool]:
    """Return the device and whether it is the current GPU."""
    named = selection.find_device(device)
    if device is None:
        return named, True
    with contextlib.suppress(DeviceError):
        current = _C.get_device()
        if isinstance(device, str) and named.sku in list_skus(current.sku):  # of this model, maybe at a lower limit
            return current, True
        return named, current.as_dict() == named.as_dict()
    return named, False


# The problems.


def list_problems(problems, m: int | Iterable[int] | None, device: "_C.Device") -> list["_C.Problem"]:
    """Return the problems with every m in force, each once, those with few rows first. Raises: as warmup."""
    given = [problem for problem in _read_all(problems) if isinstance(problem, _C.Problem)]
    given = [chosen for problem in given for chosen in _apply_settings(problem, device)]
    rows = _list_rows(m)
    if rows is not None:
        given = [replace(problem, **fit_rows(problem, count)) for count in rows for problem in given]
    return list(dict.fromkeys(replace(problem, **round_sizes(problem)) for problem in given))


def _list_rows(m: int | Iterable[int] | None) -> list[int] | None:
    if m is None:
        return None
    try:
        rows = iter(m)  # type: ignore[arg-type]  # of an int, too, which may be one of NumPy's
    except Exception:  # as in _read_all
        return [check_integer("m", m)]
    return [check_integer(f"m[{index}]", count) for index, count in enumerate(rows)]


def _list_calls(given: list["Given"], rows: list[int] | None) -> list[Call]:
    """Return the calls that are no problems, those that have an m with every m in force, each once."""
    calls = [call for call in given if not isinstance(call, _C.Problem)]
    if rows is not None:
        calls = [with_rows(call, count) for count in rows for call in calls]
    return list(dict.fromkeys(calls))


def _list_products(calls: list[Call]) -> list["_C.Problem"]:
    return [problem for call in calls if isinstance(call, ExpertLayer) for problem in layer.list_products(call)]


def _list_plain(calls: list[Call], device: "_C.Device", any_size: bool) -> list[KernelOf]:
    """Return the plain kernels of calls, under the settings of this process."""
    allowed, found = hc_prenorm.limit_sms(_get_sm_limit(), device.sm_count), []
    for call in calls:
        if isinstance(call, PrenormCall):
            found += hc_prenorm.list_kernels(call, *allowed, any_size)
        elif isinstance(call, SwigluCast):
            found += cast_kernels.list_kernels(call)
        else:
            found += layer.list_kernels(call)
    return found


def _read_all(problems) -> list["Given"]:
    if isinstance(problems, str | os.PathLike):
        return read_shapes(Path(problems))
    try:
        given = iter(problems)
    except Exception:  # a tensor, of which some have iterators, may do anything there
        raise ArgumentError(
            f"problems = {shorten(problems)}: must be a file, or problems; pass a list of them."
        ) from None
    return [_read(problem) for problem in given]


def read_shapes(path: Path) -> list["Given"]:
    """Return what is in a file that DG_RECORD_SHAPES named. Raises: ArgumentError, ProblemError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:  # ValueError: no text, or no name of a file
        raise ArgumentError(
            f"problems = {printable(path)}: cannot be read ({error}); pass a file of DG_RECORD_SHAPES."
        ) from error
    found: list[Given] = []
    for number, line in enumerate(lines, 1):
        try:
            found += [_parse(line)] if line.strip() else []
        except DeepGemmError as error:
            raise ProblemError(f"{path}, line {number}: {error}") from error
    return found


def _parse(text: str) -> "Given":
    with contextlib.suppress(json.JSONDecodeError, RecursionError):
        call = parse_call(json.loads(text)) if any(name in text for name in CALLS) else None
        if call:
            return call
    return read_line(text)


def _read(problem) -> "Given":
    if isinstance(problem, _C.Problem | Call):
        return problem
    if isinstance(problem, str):
        return _parse(problem)
    if not isinstance(problem, Mapping):
        raise ArgumentError(f"problems: holds a {type(problem).__name__}; pass Problems, their JSON texts or dicts.")
    if call := parse_call(problem):
        return call
    if "fields" in problem:
        return read_line(_to_json(problem))
    fields = dict(problem)
    has_signals = take_signals(fields)
    try:
        found = _C.Problem(**fields)
        return found.with_signals() if has_signals else found
    except TypeError as error:  # an ArgumentError, or names that are no text
        names = ", ".join(name if isinstance(name, str) else shorten(name) for name in problem)
        raise ProblemError(f"problem = {{{names}}}: {error}; it needs op, m, n and k.") from error


def _to_json(problem: Mapping) -> str:
    fields = dict(problem)
    try:
        return json.dumps(fields)
    except (TypeError, ValueError, RecursionError) as error:
        raise ProblemError(
            f"problem = {shorten(fields)}: holds what JSON cannot; pass numbers, strings and bools."
        ) from error


def _apply_settings(problem: "_C.Problem", device: "_C.Device") -> list["_C.Problem"]:
    """Return the problem as calls of this process have it, and as it was recorded where that was batch invariant and
    this process is not: whoever warms up for another process may have other settings.
    """
    changes: dict = {"batch_invariant": _C.is_batch_invariant(problem.op)}
    limit = _get_sm_limit()
    if not problem.num_sms and 0 < limit < device.sm_count:
        changes["num_sms"] = limit
    recorded = [changes | {"batch_invariant": True}] if problem.batch_invariant else []
    return [replace(problem, **fields) for fields in (changes, *recorded)]


def _get_sm_limit() -> int:
    try:
        return _C.get_num_sms()
    except DeviceError:  # no limit is set, and there is no GPU whose SMs could be counted
        return 0


def _warn(failures: tuple[Failure, ...]) -> None:
    if failures:
        first = failures[0]
        warnings.warn(
            f"warmup: {len(failures)} kernels failed, the first one {first.kernel}: {type(first.error).__name__}:"
            f" {str(first.error).partition(chr(10))[0]}; the report has all of them",
            WarmUpWarning,
            stacklevel=3,
        )
