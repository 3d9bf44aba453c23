"""Compile kernels ahead, on all cores, into the disk cache.

Processes take the kernels in their order. A kernel's key is locked in the disk cache while one process builds it, so
that nothing is built twice and whoever needs a kernel meanwhile waits for it.
"""

import contextlib
import itertools
import threading
from collections.abc import Iterable, Iterator

from deep_gemm import _C
from deep_gemm.errors import DeepGemmError, DeviceError, ProblemError
from deep_gemm.fields import fit_rows
from deep_gemm.jit.compile_pool import CompilePool, Job, Outcome, get_num_cores, run_jobs
from deep_gemm.selection import explain_tiles, get_selector, list_recorded_ops
from deep_gemm.selector import Selector

#: Sizes for which the choice is asked: n and k as in models, and n as only other callers have them.
_ROWS = (1, 8, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256, 384, 512, 1024, 1536, 2048, 3072, 4096, 8192)
_WIDTHS = (
    *(128, 256, 512, 768, 1536, 3072, 4096, 7168, 16384, 20480, 24576),
    *(440, 680, 1000, 1256, 2104, 4056, 5448, 8072, 9096, 9512, 10264, 12280, 13000, 14520),
)
_DEPTHS = (128, 512, 1024, 1536, 2048, 3072, 4096, 5120, 7168, 16384)
#: Any other sizes. A grid alone misses what wins between its lines: 2 % of new FP8 shapes on an H200, 7 % of masked
#: ones. With 8,000 sizes spread evenly it was 11 of 3,000 new FP8 shapes, with 24,000 none; of 2,000 with row-major
#: scales, by the H200's next trees, 24,000 missed five, 32,000 three.
_NUM_SPREAD = 32000
_MOST_ROWS, _MOST_COLUMNS, _MOST_DEPTH = 8192, 32768, 18432
_COLUMN_UNIT, _DEPTH_UNIT = 8, 16


def list_choices(op: str, problems: Iterable, device: "_C.Device") -> tuple[list, str]:
    """Return every config that the library can choose for an op kind on a device, and where they come from.

    Without an artefact for the op kind these are the heuristic's choices for `problems`.
    """
    reason = ""
    try:
        selector = get_selector(device)
        if selector and (configs := _list_recorded(list_recorded_ops(op, selector), selector)):
            return configs, "artefact"
    except DeepGemmError as error:  # an artefact without this op kind
        reason = f" ({type(error).__name__}: {str(error)[:200]})"
    picks = {_C.get_analytic_config(problem, device): None for problem in problems}
    return list(picks), f"heuristic's picks on its problems{reason}"


def _list_recorded(ops: Iterable[str], selector: Selector) -> list["_C.Config"]:
    """Return the artefact's configs of op kinds, each once. Raises: ModelError where it does not know one."""
    found: dict = {}
    for op in ops:
        hidden = set(selector.quarantined(op))
        found |= dict.fromkeys(config for config in selector.configs(op) if config not in hidden)
    return list(found)


def list_any_size(problem: "_C.Problem", device: "_C.Device") -> list[tuple["_C.Config", "_C.Config | None"]]:
    """Return the configs, each with a second tile or None, that problems which differ from `problem` in their sizes
    choose most often on a device: the artefact's, the heuristic's picks for many sizes, and what these sizes choose.
    """
    found: dict = dict.fromkeys((config, None) for config in list_choices(problem.op, [], device)[0])
    for sized in _vary_sizes(problem):
        with contextlib.suppress(DeviceError):  # no config is legal for these sizes
            choice, second = explain_tiles(sized, device)
            found[_C.get_analytic_config(sized, device), None] = None
            found[choice.config, None] = found[choice.config, second] = None
    return [tiles for tiles in found if _C.is_legal(problem, tiles[0], device)]


def _vary_sizes(problem: "_C.Problem") -> Iterator["_C.Problem"]:
    fields = problem.as_dict()
    for rows, n, k in itertools.chain(itertools.product(_ROWS, _WIDTHS, _DEPTHS), _spread_sizes()):
        with contextlib.suppress(ProblemError):  # sizes that this op kind does not have
            sized = _C.Problem(**fields | fit_rows(problem, rows) | {"n": n, "k": k})
            yield sized.with_signals() if problem.has_signals else sized


def _spread_sizes() -> Iterator[tuple[int, int, int]]:
    """Yield (rows, n, k) that fill a box evenly, small sizes as often as large ones: a Kronecker sequence, whose steps
    are the powers of 1 / g with g ** 4 == g + 1.
    """
    steps = [1.2207440846057596**-power for power in (1, 2, 3)]
    for i in range(1, _NUM_SPREAD + 1):
        x, y, z = ((0.5 + i * step) % 1.0 for step in steps)
        n, k = (_MOST_COLUMNS // _COLUMN_UNIT) ** y, (_MOST_DEPTH // _DEPTH_UNIT) ** z
        yield round(_MOST_ROWS**x), _COLUMN_UNIT * round(n), _DEPTH_UNIT * round(k)


def make_jobs(kernels: Iterable[tuple], compiler: str | None) -> list[Job]:
    """Return the jobs of kernels, (problem, config) or (problem, config, second config), each once."""
    return list(dict.fromkeys(Job.of_config(*kernel, compiler=compiler) for kernel in kernels))


def compile_all(kernels: Iterable[tuple], compiler: str | None = "nvrtc", cores: int = 0) -> list[str]:
    """Compile the kernels, as for make_jobs, on `cores` cores (0: all); return the failures."""
    return list_failures(run_jobs(make_jobs(kernels, compiler), cores))


def list_failures(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the failures among `outcomes`, as text."""
    return [f"{outcome.error}: {outcome.message[:300]}" for outcome in outcomes if outcome.error]


class Background:
    """A pool that compiles while this process goes on; one core is left to it."""

    def __init__(self, jobs: list[Job]):
        self.failures: list[str] = []
        self.num_kernels = len(jobs)
        self._pool = CompilePool(jobs, max(get_num_cores() - 1, 1))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        done = dict(self._pool.outcomes())
        self.failures = list_failures(done.values())
        if len(done) < self.num_kernels:  # what is missing is compiled when it is first needed
            self.failures.append(f"compiling ahead stopped after {len(done)} of {self.num_kernels} kernels")

    def wait(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` seconds for the pool, which goes on."""
        self._thread.join(timeout_s)

    def finish(self, timeout_s: float) -> list[str]:
        """Wait at most `timeout_s` seconds for the pool, end it and return its failures."""
        self._thread.join(timeout_s)
        self._pool.kill()
        self._thread.join()
        return self.failures
