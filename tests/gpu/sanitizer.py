"""memcheck, synccheck and racecheck on a small set of configs of every variant, and on a call of every public function.

Example: python -m tests.gpu.sanitizer --ops masked --tools memcheck,racecheck
Example: python -m tests.gpu.sanitizer --tools racecheck --parts 24 --time-budget 200 --out racecheck.json

Each tool runs this module again as its children, which share what is watched. A child prepares and judges nearly
everything on the CPU, so that the tool watches our kernels and little else, and takes every tensor from the driver
directly, so that each has its own bounds.
`--report-api-errors no`: torch probes the driver for features it may not have; kernels are what is checked here.
racecheck takes long, so it is no part of the suite, and its children stop at the end of the time budget: what they had
done by then is reported, and the run is not complete.
Result: {"meta": origin, time, whether complete; "sections": {"sanitizer_<tool>": counts}, "failures": [text]; "rows":
    [{"program", "seconds"} of everything that was watched, slowest first]}.
Exit codes: 0 all right, 1 a finding, a wrong result or a failure, 3 not complete.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import cycle
from pathlib import Path

import torch

from deep_gemm import _C
from deep_gemm.jit.ahead import Background, make_jobs
from deep_gemm.jit.build import get_cubin
from deep_gemm.jit.hashing import name_plain
from deep_gemm.jit.plain_kernels import PLAIN_KERNELS
from tuner.measure.stamp import make_stamp, write_json

from . import grouped_sanitizer, sanitizer_calls, watched
from .configs import ALL_SMS
from .grouped_psum import with_ends
from .operands import GuardedOutput, Shape, count_wrong, make_case, make_output
from .record import make_section
from .sanitizer_calls import choose_logits_pairs, choose_psum_pairs
from .variants import MAIN, Variant, get_space, list_variants
from .watched import get_knobs
from .world import ALL_OPS, OPS, launch_options, lay_out_scale, parse_ops, prepare_c

TOOLS = {"memcheck": ["--report-api-errors", "no"], "synccheck": [], "racecheck": []}
#: Those that the suite runs. racecheck knows no asynchronous copies: what it reports of them must be judged.
DEFAULT_TOOLS = ("memcheck", "synccheck")
#: Children of a tool in the suite: each has a CPU core's worth of preparing to do.
PARTS = 3
#: A tool that takes longer hangs.
TIMEOUT_S = 400.0
#: What a child begins each program's line with, and what it says at its end: how many it ran, and how many are left.
PROGRAM, CHILD_RAN = "program: ", "child ran "
#: A child begins no program when less than this is left: one may take some seconds, and then the tool sums up.
LAST_S = 40.0
#: What a tool says at the end when it found nothing.
CLEAN = {"memcheck": "ERROR SUMMARY: 0 errors", "synccheck": "ERROR SUMMARY: 0 errors",
         "racecheck": "RACECHECK SUMMARY: 0 hazards"}  # fmt: skip
FEW_SMS = 4


def get_signature(variant: Variant, config) -> tuple:
    """Return what makes two configs take other paths of a kernel: for the main variants also the tile's height, cluster
    and B scales.
    """
    paths = (config.swap_ab, config.split_k > 1, _C.is_staged(variant.problem(), config), get_knobs(config))
    if variant not in MAIN:
        return paths
    height = config.block_n if config.swap_ab else config.block_m
    has_two_scales = variant.recipe == "1d2d" and variant.is_fp8 and not config.swap_ab and bool(128 % config.block_n)
    return (*paths, height, config.cluster_m, config.cluster_n, config.split_k, has_two_scales)


def choose_pairs(device) -> list[tuple[Variant, object]]:
    """Return every dense (variant, config) that the tools watch."""
    return watched.choose_pairs(list_variants(), MAIN, partial(get_space, device=device), get_signature)


def run_config(variant: Variant, config) -> list[str]:
    """Run one config on tails, those of main variants also on several tiles a CTA; return what was wrong."""
    result = get_cubin(variant.problem(), config, None)
    kernel = _C.Kernel(result.cubin, result.kernel_name, variant.problem(), config, 0)
    tail = Shape(
        config.block_m + 1, 2 * config.block_n + 3, config.block_k * (config.num_stages + 1) * config.split_k + 16
    )
    few = ALL_SMS if config.split_k > 1 else FEW_SMS
    failures = []
    runs = ((tail, False, ALL_SMS), (Shape(200, 328, 272), True, few))
    for index, (shape, integers, num_sms) in enumerate(runs if variant in MAIN else runs[:1]):
        case = make_case(shape, "cpu", variant, integers)
        host = make_output(case)
        _launch(kernel, case, host, index, num_sms)
        if int(count_wrong(case, host.values)) or int(host.num_dirty()):
            failures.append(f"{variant}: {config} {tuple(shape)}: wrong result")
    return failures


def _launch(kernel, case, host: GuardedOutput, index: int, num_sms: int) -> None:
    scale_a, scale_b = (
        lay_out_scale(scale, case.variant, index, is_a) for scale, is_a in ((case.scale_a, True), (case.scale_b, False))
    )
    c = prepare_c(case, host, is_aliased=index % 2 == 1)
    operands = (case.a, scale_a, case.b, scale_b)
    watched.launch_on_copies(kernel, operands, host, c, num_sms=num_sms, **launch_options(case))


def choose_all_pairs(device, ops: tuple[str, ...] = OPS) -> list[tuple]:
    """Return every (problem, config) of those op kinds that the tools watch."""
    pairs = [*choose_pairs(device), *grouped_sanitizer.choose_grouped_pairs(device)]
    pairs += [(with_ends(variant), config) for variant, config in choose_psum_pairs(device)]
    found = [(variant.problem(), config) for variant, config in pairs] + choose_logits_pairs(device)
    return [pair for pair in found if pair[0].op in ops]


def list_watched(device, ops: tuple[str, ...] = ALL_OPS) -> list[tuple[str, Callable[[], list[str]]]]:
    """Return (name, function that runs it and returns what was wrong) of everything that the tools watch; plain kernels
    where no op kind is left out.
    """
    found = [(variant.op, f"{variant}: {config}", partial(run_config, variant, config)) for variant, config in
             choose_pairs(device)]  # fmt: skip
    found += [
        (variant.op, f"{variant}: {config}", partial(grouped_sanitizer.run_grouped, variant, config))
        for variant, config in grouped_sanitizer.choose_grouped_pairs(device)
    ]
    found += sanitizer_calls.list_watched(device)
    return [(name, run) for op, name, run in found if op in ops or (not op and ops == ALL_OPS)]


def run_child(ops: tuple[str, ...], part: tuple[int, int] = (1, 1), deadline: float = float("inf")) -> int:
    """Run a part of everything, a line each; the last line of output gives their number, the failures, and how many
    the deadline left.
    """
    every = list_watched(_C.get_device(), ops)
    mixed = random.Random(0).sample(every, len(every))  # what a deadline leaves is of no kind alone
    chosen, failures, ran = mixed[part[0] - 1 :: part[1]], [], 0
    for name, run in chosen:
        if time.time() > deadline:
            break
        start = time.monotonic()
        try:
            failures += run()
        except Exception as error:  # one config's fault; the others are still watched
            failures.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
        ran += 1
        print(f"{PROGRAM}{json.dumps({'program': name, 'seconds': round(time.monotonic() - start, 2)})}", flush=True)
    print(f"{CHILD_RAN}{ran} configs, {len(failures)} wrong {failures[:3]}; {len(chosen) - ran} left", flush=True)
    return 1 if failures else 0


def find_tool() -> str | None:
    """Return the path of compute-sanitizer, None where there is none."""
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    return shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=f"{home}/bin:{home}/compute-sanitizer"
    )


class Tool:
    """One child of a tool running in the background, its output in a temporary file."""

    def __init__(
        self,
        name: str,
        deadline: float,
        ops: tuple[str, ...] = ALL_OPS,
        part: str = "1/1",
        *,
        gpu: str | None = None,
        stops: bool = False,
    ):
        self.name, self.start, self.num_left, self.programs = name, time.monotonic(), 0, []
        self.timeout_s = max(30.0, min(TIMEOUT_S, deadline - time.time()))
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115 (read by finish(), which closes it)
        command = [
            find_tool() or "compute-sanitizer",
            "--tool",
            name,
            "--launch-timeout",
            "120",
            "--print-limit",
            "20",
            *TOOLS[name],
        ]
        environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        environment |= {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        child = ["--child", part, "--ops", ",".join(ops), *(["--deadline", str(deadline - LAST_S)] if stops else [])]
        self.process: subprocess.Popen | None = None
        try:
            self.process = subprocess.Popen(
                [*command, sys.executable, "-m", "tests.gpu.sanitizer", *child],
                stdout=self.output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            self.output.write(str(error))

    def finish(self) -> tuple[dict, list[str]]:
        """Wait for the child; return its section of the record and its failures."""
        if self.process is not None:
            try:
                self.process.wait(max(1.0, self.timeout_s - (time.monotonic() - self.start)))
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, 9)
                self.process.wait()
        self.output.seek(0)
        text = self.output.read()
        self.num_left, self.programs = parse_num_left(text), parse_programs(text)
        cases = parse_num_configs(text)
        is_clean = judge(self.name, text)
        section = {
            "jobs": 1,
            "cases": cases,
            "failed_jobs": int(not is_clean),
            "seconds": round(time.monotonic() - self.start, 1),
        }
        return section, [] if is_clean else [f"{self.name}: {text[-1500:]}"]


def judge(name: str, text: str) -> bool:
    """Return whether a tool's child ran to its end, with right results, and the tool found nothing."""
    return CLEAN[name] in text and parse_num_configs(text) > 0 and ", 0 wrong" in text


def parse_num_configs(text: str) -> int:
    """Return how many configs the child reports as run; 0 if it did not get that far."""
    words = text.partition(CHILD_RAN)[2].split()
    return int(words[0]) if words else 0


def parse_num_left(text: str) -> int:
    """Return how many programs the deadline left, as the child reports; 0 if it did not get that far."""
    words = text.partition(CHILD_RAN)[2].partition("\n")[0].rpartition("; ")[2].split()
    return int(words[0]) if words else 0


def parse_programs(text: str) -> list[dict]:
    """Return what ran and how long it took, as the child reports line by line."""
    return [json.loads(line.removeprefix(PROGRAM)) for line in text.splitlines() if line.startswith(PROGRAM)]


def start_tools(
    deadline: float,
    ops: tuple[str, ...] = ALL_OPS,
    names: Iterable[str] = DEFAULT_TOOLS,
    parts: int = PARTS,
    shard: tuple[int, int] = (1, 1),
) -> list[Tool]:
    """Start every child of the tools on a shard's share of what is watched of those op kinds, in the background."""
    first, total = (shard[0] - 1) * parts + 1, shard[1] * parts
    return [Tool(name, deadline, ops, f"{part}/{total}") for name in names for part in range(first, first + parts)]


def finish_tools(tools: list[Tool]) -> tuple[dict[str, dict], list[str]]:
    """Wait for all children; return a section of the record for each tool, and the failures."""
    sections: dict[str, dict] = {}
    failures = []
    for tool in tools:
        section, reasons = tool.finish()
        total = sections.setdefault(f"sanitizer_{tool.name}", make_section())
        for key in ("jobs", "cases", "failed_jobs"):
            total[key] += section[key]
        total["seconds"] = max(total["seconds"], section["seconds"])  # they run side by side
        failures += reasons
    return sections, failures


def parse_tools(text: str) -> tuple[str, ...]:
    """Return the tools of a comma-separated list. Raises: argparse.ArgumentTypeError."""
    names = tuple(text.split(","))
    if set(names) - set(TOOLS):
        raise argparse.ArgumentTypeError(f"{text}: known tools are {', '.join(TOOLS)}")
    return names


def parse_part(text: str) -> tuple[int, int]:
    """Return (i, n) of "i/n"."""
    index, total = text.split("/")
    return int(index), int(total)


def run_spread(args: argparse.Namespace) -> int:
    """Run the tools in `--parts` children each, spread over the GPUs, write the record and return the exit code."""
    start = time.monotonic()
    deadline, device = time.time() + args.time_budget, _C.get_device()
    failed = Background(make_jobs(choose_all_pairs(device, args.ops), "nvrtc")).finish(args.time_budget)
    gpus = cycle(list_gpus())
    tools = [
        Tool(name, deadline, args.ops, f"{part}/{args.parts}", gpu=next(gpus), stops=True)
        for name in args.tools
        for part in range(1, args.parts + 1)
    ]
    sections, failures = finish_tools(tools)
    failures += [failure for failure in failed if failure.startswith("compiling ahead")]
    num_left = sum(tool.num_left for tool in tools)
    rows = sorted((row for tool in tools for row in tool.programs), key=lambda row: -row["seconds"])
    kernels = (*args.ops, *(map(name_plain, PLAIN_KERNELS) if args.ops == ALL_OPS else ()))
    meta = {**make_stamp(device, kernels), "complete": num_left == 0, "left": num_left, "parts": args.parts}
    meta["wall_s"] = round(time.monotonic() - start, 1)
    if args.out:
        write_json(args.out, {"meta": meta, "sections": sections, "failures": failures, "rows": rows})
    print_verdicts(sections, failures, num_left)
    return 1 if failures else 3 if num_left else 0


def list_gpus() -> list[str]:
    """Return the GPUs of this process as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(index) for index in range(torch.cuda.device_count())]


def print_verdicts(sections: dict[str, dict], failures: list[str], num_left: int = 0) -> None:
    """Print a line for each tool, and what it found."""
    for name, section in sections.items():
        print(f"{name}: {section['cases']} watched, {section['failed_jobs']} unclean ({section['seconds']} s)")
    if num_left:
        print(f"not complete: the time budget left {num_left} programs")
    print("\n".join(failure[-600:] for failure in failures[:10]), flush=True)


def main() -> int:
    """Run the tools and print their verdicts, or be the child of one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--ops", type=parse_ops, default=ALL_OPS, help="comma-separated op kinds, or parts of their names; default: all"
    )
    parser.add_argument(
        "--tools", type=parse_tools, default=DEFAULT_TOOLS, help=f"of {', '.join(TOOLS)}; default: the first two"
    )
    parser.add_argument("--parts", type=int, default=PARTS, help=f"children of each tool; default {PARTS}")
    parser.add_argument(
        "--time-budget", type=float, default=TIMEOUT_S, help=f"seconds; default {TIMEOUT_S:.0f}, which is the most"
    )
    parser.add_argument("--out", type=Path, help="where the record goes; default: none is written")
    parser.add_argument("--child", type=parse_part, help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, default=float("inf"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return run_child(args.ops, args.child, args.deadline)
    return run_spread(args)


if __name__ == "__main__":
    sys.exit(main())
