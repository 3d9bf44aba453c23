"""What the sections of the GPU suite share: the device, the config space, loaded kernels and cases by shape."""

import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import torch

from deep_gemm import _C
from deep_gemm.jit.build import get_cubin
from deep_gemm.selection import get_selector

from .operands import Case, GuardedOutput, Shape, count_wrong, has_large_diff, make_case, make_integer_case, make_scales_mn_major, make_scales_pitched

OP = "fp8_gemm"
#: With run-time sizes one cubin serves every problem; this one only names the op.
ANY_PROBLEM = (128, 128, 128)
DENSE_PROBLEMS = Path(__file__).parents[2] / "benchmarks" / "data" / "dense_fp8.json"
NUM_NVCC_SAMPLES = 24
SCALE_LAYOUTS = ("mn_major", "row_major", "odd_pitch")


def make_problem(m: int, n: int, k: int):
    """Return the problem of one product."""
    return _C.Problem(OP, m, n, k)


def compile_config(arguments: tuple) -> str:
    """Compile one (config JSON, compiler) into the disk cache; return the reason of a failure, "" when it is there."""
    text, compiler = arguments
    try:
        get_cubin(make_problem(*ANY_PROBLEM), _C.Config.from_json(text), compiler)
    except Exception as error:  # a compiler's failure is this job's result; the section that needs the kernel reports it
        return f"{text} {compiler}: {type(error).__name__}: {error}"
    return ""


def compile_all(configs: list, compilers: tuple[str, ...]) -> list[str]:
    """Compile every config with every compiler on all cores, NVCC's sample first (it takes longest); return failures."""
    jobs = [(config.to_json(), "nvcc") for config in sample(configs, NUM_NVCC_SAMPLES)] if "nvcc" in compilers else []
    jobs += [(config.to_json(), "nvrtc") for config in configs]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # torch is imported once, not by every process
    try:
        with ProcessPoolExecutor(min(len(os.sched_getaffinity(0)), 32), mp_context=context) as pool:
            return [failure for failure in pool.map(compile_config, jobs) if failure]
    except BrokenProcessPool as error:  # what is missing is compiled when it is first needed, where its config is known
        return [f"compiling ahead stopped: {error}"]


def sample(items: list, count: int) -> list:
    """Return `count` items spread evenly over the list (all of them when there are fewer)."""
    if len(items) <= count:
        return list(items)
    return [items[index * len(items) // count] for index in range(count)]


def make_scale_layout(scale: torch.Tensor, layout: str) -> torch.Tensor:
    """Return scales [mn, kb] in the memory layout of that name; the values are the same."""
    if layout == "mn_major":
        return make_scales_mn_major(scale)
    return scale.contiguous() if layout == "row_major" else make_scales_pitched(scale, scale.shape[1] + 3)


class World:
    """The GPU under test. Kernels and cases are made once and kept: shapes repeat between configs."""

    def __init__(self, device: str = "cuda"):
        self.torch_device = device
        self.device = _C.get_device()
        self.configs = list(_C.get_default_space(self.device))
        self.portfolio, self.portfolio_source = get_portfolio(self.device)
        self._kernels: dict = {}
        self._cases: dict = {}

    def kernel(self, config, compiler: str | None = None):
        """Return the loaded kernel of a config.

        Raises: CompileError, LaunchError, ConfigError.
        """
        key = (config, compiler)
        if key not in self._kernels:
            result = get_cubin(make_problem(*ANY_PROBLEM), config, compiler)
            self._kernels[key] = (_C.Kernel(result.cubin, result.kernel_name, config, 0), result)
        return self._kernels[key][0]

    def compile_result(self, config, compiler: str | None = None):
        """Return the compiler's report of a config."""
        self.kernel(config, compiler)
        return self._kernels[config, compiler][1]

    def case(self, shape: Shape, integers: bool = False) -> Case:
        """Return the operands and reference of a shape, the same for every config."""
        key = (shape, integers)
        if key not in self._cases:
            self._cases[key] = (make_integer_case if integers else make_case)(shape, self.torch_device)
        return self._cases[key]

    def launch(self, config, case: Case, output: GuardedOutput, *, layout: str = "row_major", num_sms: int = 0, compiler: str | None = None) -> None:
        """Launch one config on a case, into a freshly poisoned D, on the current stream."""
        output.poison()
        self.kernel(config, compiler).launch(
            case.a, make_scale_layout(case.scale_a, layout), case.b, case.scale_b, output.d,
            num_sms=num_sms,
        )  # fmt: skip


def compare(case: Case, config, output: GuardedOutput) -> torch.Tensor:
    """Return int64 [4] on the device: wrong elements, dirty red-zone elements, bits unlike the first config's, large diff."""
    if case.first is None:
        case.first, case.first_config = output.bits.clone(), str(config)
    unlike = (output.bits != case.first).sum()
    return torch.stack([count_wrong(case, output.d), output.num_dirty(), unlike, has_large_diff(case, output.d)])


COMPARISONS = ("elements outside their bound", "elements written outside D", "elements unlike the first config's bits", "calc_diff above 5e-6")


def describe(counts: list[int]) -> str:
    """Return the non-zero comparisons in words, "" when all are zero."""
    return ", ".join(f"{count} {what}" for count, what in zip(counts, COMPARISONS, strict=True) if count)


def get_portfolio(device) -> tuple[list, str]:
    """Return every config that the selector can choose on this device, else the heuristic's picks on the dense problems."""
    selector = get_selector(device)
    if selector is not None:
        hidden = set(selector.quarantined(OP))
        return [config for config in selector.configs(OP) if config not in hidden], "artefact"
    rows = json.loads(DENSE_PROBLEMS.read_text(encoding="utf-8"))["rows"]
    picks = {_C.get_analytic_config(make_problem(row["m"], row["n"], row["k"]), device): None for row in rows}
    return list(picks), "heuristic's picks on the 80 dense problems"
