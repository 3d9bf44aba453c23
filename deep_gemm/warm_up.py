"""Compile, load and plan ahead what a list of problems needs, so that no later call compiles.

Guarantees: a kernel is compiled once on this machine, however many processes warm up together; compilers run in
    processes of their own, which a crash or a hang does not leave; what failed is in the report and in one warning.
"""

import contextlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from deep_gemm import _C, environment, errors, plan, selection
from deep_gemm.errors import ArgumentError, CompileError, DeepGemmError, DeviceError, ProblemError, WarmUpWarning
from deep_gemm.fields import OP_KINDS
from deep_gemm.jit import ahead, cache
from deep_gemm.jit.compile import CompileResult
from deep_gemm.jit.compile_pool import TRANSPOSE, Job, Outcome, get_num_cores, run_jobs

#: The lock of all warm-ups with one cache folder: one process compiles on all cores, the others wait for it.
_LOCK_KEY = "0" * 63 + "1"


class Failure(NamedTuple):
    """A kernel that could not be compiled or loaded, and the error that a call would raise."""

    kernel: str
    error: DeepGemmError


@dataclass(frozen=True)
class WarmUpReport:
    """What warmup did.

    Attributes: `problems` that were given, counted with every m; `kernels` that they need, of which `compiled` by this
        call, `found` on the disk or in memory, and `failures`; `planned` problems that calls now find in the dispatch
        table (0 where no GPU is used); `seconds` of wall time.
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
    problems: "str | os.PathLike | Iterable[_C.Problem | Mapping | str]",
    m: int | Iterable[int] | None = None,
    *,
    device: "str | _C.Device | None" = None,
    any_size: bool = False,
    cores: int = 0,
) -> WarmUpReport:
    """Compile in parallel every kernel that the library chooses for `problems`, and load them on the current GPU.

    Args:
        problems: Problems, their JSON texts or dicts; or the path of a file that DG_RECORD_SHAPES named.
        m: numbers of rows that take the place of every problem's own: of m, or of expected_m where each group has room
            for m rows (masked products). Products that divide K among groups keep their sizes.
        device: a Device or the name of one, such as "h200"; None: the current GPU. Kernels are loaded where it is the
            current GPU.
        any_size: also compile what problems that differ from these in their sizes choose most often. No list of
            them can be complete.
        cores: compilers at a time; 0: one for each core of this process.

    The settings of this process (set_num_sms, set_batch_invariant) hold for problems that leave them out.

    Raises: ArgumentError, ProblemError for what is no list of problems; DeviceError for an unknown device, without a
        GPU where none is named, and where no config is legal. A kernel that does not compile is in the report's
        `failures`, and one WarmUpWarning names the first.
    """
    start = time.perf_counter()
    target, has_gpu = _find_device(device)
    listed = list_problems(problems, m, target)
    work = _Work(cores, _list_kernels(listed, target, any_size))
    work.compile([*work.needed_by, *_list_passes(listed)])
    work.compile(_list_substitutes(work, listed, target))
    planned = _load(work, listed) if has_gpu else 0
    report = work.make_report(len(listed), planned, time.perf_counter() - start)
    _warn(report.failures)
    return report


def _find_device(device: "str | _C.Device | None") -> tuple["_C.Device", bool]:
    """Return the device and whether it is the current GPU."""
    if device is None:
        return selection.current_device(), True
    named = _C.Device.known(device) if isinstance(device, str) else device
    if not isinstance(named, _C.Device):
        raise ArgumentError(f"device = {device!r}: must be a Device, its name or None; pass 'h200', for example.")
    with contextlib.suppress(DeviceError):
        current = _C.get_device()
        return named, current.as_dict() == named.as_dict() or (isinstance(device, str) and current.sku == named.sku)
    return named, False


#: Kernels, each with the first problem that needs it; None: it is for other sizes.
_Needs = dict[Job, "_C.Problem | None"]


# The problems.


def list_problems(problems, m: int | Iterable[int] | None, device: "_C.Device") -> list["_C.Problem"]:
    """Return the problems with every m in force, each once, those with few rows first. Raises: as warmup."""
    is_path = isinstance(problems, str | os.PathLike)
    given = read_shapes(Path(problems)) if is_path else [_read(problem) for problem in problems]
    given = [_apply_settings(problem, device) for problem in given]
    if m is None:
        return list(dict.fromkeys(given))
    rows = [m] if isinstance(m, int) else m
    return list(
        dict.fromkeys(_replace(problem, **ahead.fit_rows(problem, count)) for count in rows for problem in given)
    )


def read_shapes(path: Path) -> list["_C.Problem"]:
    """Return the problems of a file that DG_RECORD_SHAPES named. Raises: ArgumentError, ProblemError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"problems = {path}: cannot be read ({error}); pass a file of DG_RECORD_SHAPES.") from error
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found += [_C.Problem.from_json(line)] if line.strip() else []
        except DeepGemmError as error:
            raise ProblemError(f"{path}, line {number}: {error}") from error
    return found


def _read(problem) -> "_C.Problem":
    if isinstance(problem, _C.Problem):
        return problem
    if isinstance(problem, str):
        return _C.Problem.from_json(problem)
    if not isinstance(problem, Mapping):
        raise ArgumentError(f"problems: holds a {type(problem).__name__}; pass Problems, their JSON texts or dicts.")
    if "fields" in problem:
        return _C.Problem.from_json(json.dumps(dict(problem)))
    try:
        return _C.Problem(**problem)
    except TypeError as error:
        if isinstance(error, DeepGemmError):
            raise
        names = ", ".join(map(str, problem))
        raise ProblemError(
            f"problem = {{{names}}}: needs op, m, n and k, and may have other fields of a problem; name them."
        ) from error


def _replace(problem: "_C.Problem", **changes) -> "_C.Problem":
    return _C.Problem(**problem.as_dict() | changes)


def _apply_settings(problem: "_C.Problem", device: "_C.Device") -> "_C.Problem":
    changes: dict = {"batch_invariant": True} if _C.is_batch_invariant() else {}
    limit = _get_sm_limit()
    if not problem.num_sms and 0 < limit < device.sm_count:
        changes["num_sms"] = limit
    return _replace(problem, **changes) if changes else problem


def _get_sm_limit() -> int:
    try:
        return _C.get_num_sms()
    except DeviceError:  # no limit is set, and there is no GPU whose SMs could be counted
        return 0


# The kernels.


def _list_kernels(listed: list["_C.Problem"], device: "_C.Device", any_size: bool) -> "_Needs":
    """Return the kernels of the problems' choices, each with the first problem that needs it (None: another size)."""
    kernels: _Needs = {}
    for problem in listed:
        kernels.setdefault(_job_of(problem, selection.explain(problem, device).config), problem)
    for problem in {_C.kernel_identity(problem): problem for problem in listed}.values() if any_size else ():
        for config in ahead.list_any_size(problem, device):
            kernels.setdefault(_job_of(problem, config))
    return kernels


def _job_of(problem: "_C.Problem", config: "_C.Config") -> Job:
    return Job.of_config(_C.kernel_identity(problem), config)


def _list_passes(listed: list["_C.Problem"]) -> list[Job]:
    """Return what FP8 operands need that are not K-major; problems do not say whether theirs are."""
    return [TRANSPOSE] if any(OP_KINDS[problem.op].is_fp8 for problem in listed) else []


def _list_substitutes(work: "_Work", listed: list["_C.Problem"], device: "_C.Device") -> list[Job]:
    """Return what runs in place of the kernels that failed: the heuristic's choices for their variants."""
    failed = {job.problem for job in work.errors}
    of_failed = [problem for problem in listed if failed and _C.kernel_identity(problem).to_json() in failed]
    return list({_job_of(problem, selection.get_analytic_config(problem, device)): None for problem in of_failed})


@dataclass
class _Work:
    """The kernels so far: those that are there, of which `num_compiled` were compiled, the errors of the others, and
    what was `broken` when it was loaded.
    """

    cores: int
    needed_by: "_Needs"
    ready: dict[Job, None] = field(default_factory=dict)
    errors: dict[Job, DeepGemmError] = field(default_factory=dict)
    broken: list[Failure] = field(default_factory=list)
    num_compiled: int = 0

    def attempt(self, name: str, load: Callable[[], object]) -> bool:
        """Load one kernel; return whether that worked. Errors of compiling are known already."""
        try:
            load()
        except CompileError:
            return False
        except DeepGemmError as error:
            self.broken.append(Failure(name, error))
            return False
        return True

    def compile(self, jobs: list[Job]) -> None:
        """Compile the jobs that are new here and that neither memory nor the disk has."""
        missing = self._take_ready([job for job in jobs if job not in self.errors and job not in self.ready])
        if not missing:
            return
        with cache.get_disk_cache().lock(_LOCK_KEY):
            missing = self._take_ready(missing)  # another process may have compiled them meanwhile
            for job, outcome in zip(missing, run_jobs(missing, self.cores), strict=True):
                self._take_outcome(job, outcome)

    def _take_ready(self, jobs: list[Job]) -> list[Job]:
        """Keep the jobs whose kernels are there; return the others."""
        missing = []
        for job in jobs:
            try:
                if job.find():
                    self.ready[job] = None
                else:
                    missing.append(job)
            except DeepGemmError as error:
                self.errors[job] = error
        return missing

    def _take_outcome(self, job: Job, outcome: Outcome) -> None:
        if not outcome.error:
            self.ready[job] = None
            self.num_compiled += outcome.is_compiled
            return
        kind = getattr(errors, outcome.error, None)
        is_typed = isinstance(kind, type) and issubclass(kind, DeepGemmError)
        self.errors[job] = kind(outcome.message) if is_typed else CompileError(f"{outcome.error}: {outcome.message}")

    def make_report(self, num_problems: int, planned: int, seconds: float) -> WarmUpReport:
        """Return the report."""
        found = len(self.ready) - self.num_compiled
        num_kernels = len(self.ready) + len(self.errors)
        failures = (
            *(Failure(job.describe(self.needed_by.get(job)), error) for job, error in self.errors.items()),
            *self.broken,
        )
        return WarmUpReport(num_problems, num_kernels, self.num_compiled, max(found, 0), planned, seconds, failures)


# Loading.


def _load(work: _Work, listed: list["_C.Problem"]) -> int:
    """Load every kernel that is ready, and plan the problems for which the dispatch table has room; return how many.

    Where calls are to be printed or recorded, they plan for themselves, which compiles nothing either.
    """
    for job, error in work.errors.items():
        if job.problem and isinstance(error, CompileError):
            plan.remember_failure(*job.parse(), error)
    with ThreadPoolExecutor(get_num_cores()) as pool:
        kernels = dict(zip(work.ready, pool.map(Job.build, work.ready), strict=True))
    stats, first = _C.dispatch_stats(), [problem for problem in work.needed_by.values() if problem]
    wanted = list(dict.fromkeys([*first, *listed]))[: stats["capacity"] - stats["size"]]
    with plan.quiet():
        planned = sum([work.attempt(str(problem), partial(_C.plan_ahead, problem)) for problem in wanted])
    for job, kernel in kernels.items():
        _load_other(work, job, kernel)
    if environment.is_enabled("DG_PRINT_CONFIGS") or environment.get_string("DG_RECORD_SHAPES"):
        _C.dispatch_clear()
        return 0
    return planned


def _load_other(work: _Work, job: Job, kernel: CompileResult) -> None:
    """Load a kernel that none of the problems given needs."""
    if job == TRANSPOSE:
        work.attempt(job.describe(), _C.load_transpose_kernel)
    elif work.needed_by.get(job) is None:
        work.attempt(job.describe(), partial(_C.Kernel, kernel.cubin, kernel.kernel_name, *job.parse(), None))


def _warn(failures: tuple[Failure, ...]) -> None:
    if failures:
        first = failures[0]
        warnings.warn(
            f"warmup: {len(failures)} kernels failed, the first one {first.kernel}: {type(first.error).__name__}:"
            f" {str(first.error).partition(chr(10))[0]}; the report has all of them",
            WarmUpWarning,
            stacklevel=3,
        )
