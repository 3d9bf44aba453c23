"""memcheck and synccheck on a small set of configs (F-L8).

Example: python -m tests.gpu.sanitizer

Each tool runs this module again as its child. The child prepares and judges everything on the CPU, so that the GEMM kernels
are all that the tool watches, and takes every tensor from the driver directly, so that each has its own bounds.
`--report-api-errors no`: torch probes the driver for features it may not have; kernels are what is checked here.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time

import torch

from deep_gemm import _C
from deep_gemm.jit.build import get_cubin

from .operands import GuardedOutput, Shape, count_wrong, make_case, make_integer_case
from .world import ANY_PROBLEM, make_problem, make_scale_layout

TOOLS = {"memcheck": ["--report-api-errors", "no"], "synccheck": []}
#: A child that says nothing by then has met a hang; 12 configs take well under a minute.
TIMEOUT_S = 240.0
CLEAN = "ERROR SUMMARY: 0 errors"
FEW_SMS = 4


def choose_configs(space: list) -> list:
    """Return about a dozen configs: each block_m with each cluster, tiles inside one B scale and tiles across two."""
    chosen = []
    for block_m in sorted({config.block_m for config in space}):
        for cluster in ((1, 1), (2, 1), (1, 2)):
            group = [config for config in space if config.block_m == block_m and (config.cluster_m, config.cluster_n) == cluster]
            two_scales = [config for config in group if 128 % config.block_n]
            chosen += group[len(chosen) % max(1, len(group)) :][:1] + two_scales[len(chosen) % max(1, len(two_scales)) :][:1]
    return list(dict.fromkeys(chosen))


def run_config(config) -> list[str]:
    """Run one config on tails, with all SMs and with a few; return what was wrong."""
    result = get_cubin(make_problem(*ANY_PROBLEM), config, None)
    kernel = _C.Kernel(result.cubin, result.kernel_name, config, 0)
    failures = []
    tail = Shape(config.block_m + 1, 2 * config.block_n + 3, 128 * (config.num_stages + 1) + 16)
    for case, num_sms, layout in ((make_case(tail, "cpu"), 0, "mn_major"), (make_integer_case(Shape(200, 328, 272), "cpu"), FEW_SMS, "odd_pitch")):
        m, n, _ = case.shape
        host = GuardedOutput(m, n, "cpu")
        buffer = host.buffer.cuda()
        d = buffer.view(torch.bfloat16).as_strided((m, n), host.d.stride(), host.d.storage_offset())
        operands = (case.a, make_scale_layout(case.scale_a, layout), case.b, case.scale_b)
        kernel.launch(*(_to_gpu(tensor) for tensor in operands), d, num_sms=num_sms)
        torch.cuda.synchronize()
        host.buffer.copy_(buffer)
        if int(count_wrong(case, host.d)) or int(host.num_dirty()):
            failures.append(f"{config} {tuple(case.shape)}: wrong result")
    return failures


def _to_gpu(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor with its strides: the whole storage travels, so that padding stays as it is and no kernel runs."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    flat = tensor.as_strided((size,), (1,), 0)
    return flat.cuda().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def run_child() -> int:
    """Run all configs; the last line says how many and what was wrong."""
    configs = choose_configs(list(_C.get_default_space(_C.get_device())))
    failures = [failure for config in configs for failure in run_config(config)]
    print(f"child ran {len(configs)} configs, {len(failures)} wrong {failures[:3]}", flush=True)
    return 1 if failures else 0


def find_tool() -> str | None:
    """Return the path of compute-sanitizer, None where there is none."""
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=f"{home}/bin:{home}/compute-sanitizer")


class Tool:
    """One tool running in the background, its output in a temporary file."""

    def __init__(self, name: str, deadline: float):
        self.name, self.start = name, time.monotonic()
        self.timeout_s = max(30.0, min(TIMEOUT_S, deadline - time.time()))
        self.output = tempfile.TemporaryFile("w+")
        command = [find_tool() or "compute-sanitizer", "--tool", name, "--launch-timeout", "120", "--print-limit", "20", *TOOLS[name]]
        environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        self.process: subprocess.Popen | None = None
        try:
            self.process = subprocess.Popen(
                [*command, sys.executable, "-m", "tests.gpu.sanitizer", "--child"],
                stdout=self.output, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
            )
        except OSError as error:
            self.output.write(str(error))

    def finish(self) -> tuple[dict, list[str]]:
        """Wait for the tool; return its section of the record and its failures."""
        if self.process is not None:
            try:
                self.process.wait(max(1.0, self.timeout_s - (time.monotonic() - self.start)))
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, 9)
                self.process.wait()
        self.output.seek(0)
        text = self.output.read()
        cases = parse_num_configs(text)
        is_clean = CLEAN in text and cases > 0 and ", 0 wrong" in text
        section = {"jobs": 1, "cases": cases, "failed_jobs": int(not is_clean), "seconds": round(time.monotonic() - self.start, 1)}
        return section, [] if is_clean else [f"{self.name}: {text[-1500:]}"]


def parse_num_configs(text: str) -> int:
    """Return how many configs the child says it ran, 0 where it did not come that far."""
    words = text.partition("child ran ")[2].split()
    return int(words[0]) if words else 0


def start_tools(deadline: float) -> list[Tool]:
    """Start every tool in the background."""
    return [Tool(name, deadline) for name in TOOLS]


def main() -> int:
    """Run the tools and print their verdicts, or be the child of one."""
    if "--child" in sys.argv[1:]:
        return run_child()
    failures = []
    for tool in start_tools(time.time() + TIMEOUT_S):
        section, reasons = tool.finish()
        print(f"{tool.name}: {section['cases']} configs, {'clean' if not reasons else reasons[0]} ({section['seconds']} s)", flush=True)
        failures += reasons
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
