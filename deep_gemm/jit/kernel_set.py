"""The kernels that a warm-up needs: which they are, compiling what is missing once on this machine, and loading."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import torch

from deep_gemm import _C, cast_kernels, environment, errors, plan, planned, selection
from deep_gemm.errors import CacheError, CompileError, DeepGemmError, ProblemError
from deep_gemm.fields import OP_KINDS, replace
from deep_gemm.identity import write_line
from deep_gemm.jit import ahead, cache
from deep_gemm.jit.compile import CompileResult
from deep_gemm.jit.compile_pool import METADATA, SCALE_COPIES, SUMS, TRANSPOSE, Job, Outcome, get_num_cores, run_jobs
from deep_gemm.planned import KernelOf
from deep_gemm.quantize import SCALE_BLOCK

#: The lock of all warm-ups with one cache folder: one process compiles on all cores, the others wait for it.
_LOCK_KEY = "0" * 63 + "1"
#: A size at which row-major scales are copied.
_COPIED_SIZE = 8192
#: Recipes whose scales the casts of deep_gemm.quantize make.
_CAST_RECIPES = ("1d2d", "1d1d")
#: Kernels, each with the first problem that needs it; None: it is for other sizes.
Needs = dict[Job, "_C.Problem | None"]


def compile_choices(
    listed: list["_C.Problem"],
    device: "_C.Device",
    any_size: bool,
    cores: int,
    plain: Iterable[KernelOf] = (),
) -> "KernelSet":
    """Compile what the problems need on `device`, what runs in place of kernels that do not compile, and `plain`
    kernels.

    Raises: CacheError before anything is compiled, where the disk cache cannot be read, or lacks a kernel and cannot be
        written.
    """
    cache.get_disk_cache().check()
    listed = _list_runs(listed, any_size)
    builtins = _list_casts(listed) | _make_builtins(plain)
    kernels = KernelSet(cores, _list_kernels(listed, device, any_size), builtins)
    kernels.compile([*kernels.needed_by, *_list_passes(listed, device, any_size), *builtins])
    kernels.compile(_list_substitutes(kernels, listed, device))
    return kernels


def _list_runs(listed: list["_C.Problem"], any_size: bool) -> list["_C.Problem"]:
    """Return the problems listed, and those that are run for them where scales are copied first: row-major ones of
    large problems, or of any size. Scales in another order than those two are never copied.
    """
    runs = [_with_mn_major(problem) for problem in listed if _may_copy_scales(problem, any_size)]
    return list(dict.fromkeys([*listed, *runs]))


def _with_mn_major(problem: "_C.Problem") -> "_C.Problem":
    return replace(problem, scale_layout="mn_major")


def _list_kernels(listed: list["_C.Problem"], device: "_C.Device", any_size: bool) -> Needs:
    """Return the kernels of the problems' choices, each with the first problem that needs it (None: another size)."""
    kernels: Needs = {}
    for problem in listed:
        if not _C.is_small_sum(problem, device):
            choice, second = selection.explain_tiles(problem, device)
            kernels.setdefault(_job_of(problem, choice.config, second), problem)
    for problem in _list_variants(listed) if any_size else ():
        for tiles in ahead.list_any_size(problem, device):
            kernels.setdefault(_job_of(problem, *tiles))
    return kernels


def _list_variants(listed: list["_C.Problem"]) -> list["_C.Problem"]:
    """Return a problem of each variant. Where kernels may have second tiles, of each number of groups, too, and of what
    is said of the rows of groups with ends: nothing, or that they fill their alignment, or a part of it.
    """
    found: dict = {}
    for problem in listed:
        kind, groups, said = OP_KINDS[problem.op], 0, (False, False)
        if kind.has_room:
            groups = min(problem.num_groups, _C.MOST_GROUPS_OF_TWO_TILES + 1)
        elif kind.has_ends and kind.m_is_shared:
            groups, said = problem.num_groups, (problem.expected_m > 0, _C.find_masked_twin(problem) is not None)
        found[_C.kernel_identity(problem), groups, said] = problem
    return list(found.values())


def _job_of(problem: "_C.Problem", config: "_C.Config", second: "_C.Config | None" = None) -> Job:
    return Job.of_config(_C.kernel_identity(problem), config, second)


def _list_passes(listed: list["_C.Problem"], device: "_C.Device", any_size: bool) -> list[Job]:
    """Return what FP8 operands need that are not K-major, what makes schedules, and what adds up sums; problems do not
    say whether their operands are, nor which D and C they have, nor where MN-major scales come from.
    """
    passes = [TRANSPOSE] if any(OP_KINDS[problem.op].is_fp8 for problem in listed) else []
    passes += [METADATA] if any(OP_KINDS[problem.op].is_paged for problem in listed) else []
    copies = any(_has_mn_major(problem) or _may_copy_scales(problem, any_size) for problem in listed)
    passes += SCALE_COPIES if copies else ()
    sums = {_C.is_small_sum(problem, device) for problem in listed if OP_KINDS[problem.op].is_summed}
    return passes + [job for job, (is_small, *_) in SUMS.items() if is_small in sums or (sums and any_size)]


def _list_casts(listed: list["_C.Problem"]) -> dict[Job, Callable]:
    """Return what makes FP8 operands of BF16 rows before a product, in calls of its own: with a scale for each row,
    also of masked groups, and, where both operands may have a scale for each column, with those. Problems do not say
    whether scales are powers of two.
    """
    products = [one for one in listed if _is_scaled_product(one) and one.recipe in _CAST_RECIPES]
    masks = {is_masked for problem in products for is_masked in {False, OP_KINDS[problem.op].has_room}}
    names = []
    for use_ue8m0 in (False, True):
        shared = torch.bfloat16, SCALE_BLOCK, use_ue8m0
        names += [cast_kernels.name_row_kernel(*shared, is_masked) for is_masked in sorted(masks)]
        if any(problem.recipe == "1d1d" for problem in products):
            names.append(cast_kernels.name_block_kernel(*shared, is_per_column=True))
    return _make_builtins(names)


def _make_builtins(kernels: Iterable[KernelOf]) -> dict[Job, Callable]:
    """Return plain kernels, each with its builtin of make_plain_kernel."""
    return {Job.of_plain(name, **made): planned.get_kernel(name, threads, **made) for name, threads, made in kernels}


def _is_scaled_product(problem: "_C.Problem") -> bool:
    kind = OP_KINDS[problem.op]
    return kind.is_fp8 and not kind.is_logits


def _has_mn_major(problem: "_C.Problem") -> bool:
    """Whether calls have MN-major scales, which get_mn_major_tma_aligned_tensor may have made."""
    return _is_scaled_product(problem) and problem.scale_layout == "mn_major"


def _copied_sizes(problem: "_C.Problem") -> dict[str, int]:
    names = ("m", "n", "k", *(("expected_m",) if problem.expected_m else ()))
    return dict.fromkeys(names, _COPIED_SIZE)


def _may_copy_scales(problem: "_C.Problem", any_size: bool) -> bool:
    """Whether calls of the problem, or of its variant at any size, may copy row-major scales."""
    fields = problem.as_dict() | {"scale_layout": "any"}
    try:
        row_major = _C.Problem(**fields | (_copied_sizes(problem) if any_size else {}))
    except ProblemError:  # an op kind without scales, or with others
        return False
    return _C.with_scale_copies(row_major) != row_major


def _list_substitutes(kernels: "KernelSet", listed: list["_C.Problem"], device: "_C.Device") -> list[Job]:
    """Return what runs in place of the kernels that failed: of two tiles the first alone, and the heuristic's choices
    for their variants.
    """
    failed = [job for job, error in kernels.errors.items() if isinstance(error, CompileError)]
    variants = {job.problem for job in failed}
    of_failed = [problem for problem in listed if variants and write_line(_C.kernel_identity(problem)) in variants]
    alone = [job._replace(second="") for job in failed if job.second]
    picks = [_job_of(problem, selection.get_analytic_config(problem, device)) for problem in of_failed]
    return list(dict.fromkeys([*alone, *picks]))


@dataclass
class KernelSet:
    """The kernels so far: those that are there, of which `num_compiled` were compiled, the errors of the others, and
    what was `broken` when it was loaded. `builtins` are of plain kernels that Python launches.
    """

    cores: int
    needed_by: Needs
    builtins: dict[Job, Callable]
    ready: dict[Job, None] = field(default_factory=dict)
    errors: dict[Job, DeepGemmError] = field(default_factory=dict)
    broken: list[tuple[str, DeepGemmError]] = field(default_factory=list)
    num_compiled: int = 0

    def attempt(self, name: str, load: Callable[[], object]) -> bool:
        """Load one kernel; return whether that worked. Errors of compiling are known already."""
        try:
            load()
        except CompileError:
            return False
        except DeepGemmError as error:
            self.broken.append((name, error))
            return False
        return True

    def compile(self, jobs: list[Job]) -> None:
        """Compile the jobs that are new here and that neither memory nor the disk has."""
        missing = self._take_ready([job for job in jobs if job not in self.errors and job not in self.ready])
        if not missing:
            return
        disk = cache.get_disk_cache()
        disk.check(is_filled=True)
        with disk.lock(_LOCK_KEY):
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
            self._take_stored(job, outcome)
            return
        kind = getattr(errors, outcome.error, None)
        if isinstance(kind, type) and issubclass(kind, DeepGemmError):
            self.errors[job] = kind(outcome.message)
        else:
            self.errors[job] = CompileError(f"{outcome.error}: {outcome.message}")

    def _take_stored(self, job: Job, outcome: Outcome) -> None:
        """Take a kernel that compiled, unless the process that compiled it could not store it."""
        if outcome.is_compiled and not job.find():
            folder = cache.get_disk_cache().path
            self.errors[job] = CacheError(f"{folder}: a compiled kernel could not be stored there; free disk space")
            return
        self.ready[job] = None
        self.num_compiled += outcome.is_compiled

    def list_failures(self) -> list[tuple[str, DeepGemmError]]:
        """Return what failed, with its error."""
        return [(job.describe(self.needed_by.get(job)), error) for job, error in self.errors.items()] + self.broken

    def load(self, listed: list["_C.Problem"]) -> int:
        """Load every kernel that is ready, and plan the problems for which the dispatch table has room, whose number
        is returned.

        Where calls are to be printed or recorded, they plan for themselves, which compiles nothing either.
        """
        for job, error in self.errors.items():
            if job.problem and isinstance(error, CompileError):
                plan.remember_failure(*job.parse(), error)
        for job in self.ready:
            if job.problem:
                plan.forget_failure(*job.parse())
        with ThreadPoolExecutor(get_num_cores()) as pool:
            kernels = dict(zip(self.ready, pool.map(Job.build, self.ready), strict=True))
        stats, first = _C.dispatch_stats(), [problem for problem in self.needed_by.values() if problem]
        wanted = list(dict.fromkeys([*first, *map(_C.with_scale_copies, listed)]))[: stats["capacity"] - stats["size"]]
        with plan.quiet():
            planned = sum([self.attempt(str(problem), partial(_C.plan_ahead, problem)) for problem in wanted])
        for job, kernel in kernels.items():
            self._load_other(job, kernel)
        if environment.is_enabled("DG_PRINT_CONFIGS") or environment.get_string("DG_RECORD_SHAPES"):
            _C.dispatch_clear()
            return 0
        return planned

    def _load_other(self, job: Job, kernel: CompileResult) -> None:
        """Load a kernel that no plan of the problems given has loaded."""
        if job in SUMS:
            self.attempt(job.describe(), partial(_C.load_sum_kernel, *SUMS[job]))
        elif job == TRANSPOSE:
            self.attempt(job.describe(), _C.load_transpose_kernel)
        elif job in SCALE_COPIES:
            self.attempt(job.describe(), _C.load_scale_copy_kernels)
        elif job in self.builtins:
            self.attempt(job.describe(), partial(_C.load_plain_kernel, self.builtins[job]))
        elif job.problem and self.needed_by.get(job) is None:
            problem, config, second = job.parse()
            load = partial(_C.Kernel, kernel.cubin, kernel.kernel_name, problem, config, None, second)
            self.attempt(job.describe(), load)
