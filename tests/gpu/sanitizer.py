"""memcheck, synccheck and racecheck on a small set of configs of every variant, and on a call of every public function.

Example: python -m tests.gpu.sanitizer --ops masked --tools memcheck,synccheck
Example: python -m tests.gpu.sanitizer --tools racecheck --time-budget 190 --out racecheck.json

Kernels are compiled first, on all cores. Each tool then runs this module again as its children (sanitizer_tools.py),
each on one GPU, which take the programs one after the other from a common list. A child prepares and judges nearly
everything on the CPU, so that the tool watches our kernels and little else.

racecheck instruments every access to shared memory, so each config is launched once there: on tails in every dimension,
with a ring that wraps and several tiles a CTA. It takes long, so it is no part of the suite. A program that has not
begun by the end of the time budget is left out, and the run is not complete. That racecheck is silent says something
only while it sees a race: one that is planted must be reported. What it reports says something only where it is silent
of right kernels: the record says which of those that are right, by the forms of ours, it reports.
Result: {"meta": origin, options, whether complete, "controls": {kernel: whether reported, null where that is not
    known}; "sections": {"sanitizer_<tool>": counts}, "failures": [text]; "reports": [{"tool", "kernel", "text",
    "count", "beside": programs}] of what the tools found, each once; "rows": [{"tool", "op", "program", "seconds",
    "failures"} of everything that was watched, slowest first]}.
Exit codes: 0 all right, 1 a finding, a wrong result or a failure, 2 no GPU or no tool, 3 not complete.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

from deep_gemm import _C
from deep_gemm.errors import DeviceError
from deep_gemm.jit.ahead import Background, make_jobs
from deep_gemm.jit.build import get_cubin
from deep_gemm.jit.hashing import name_plain
from deep_gemm.jit.plain_kernels import PLAIN_KERNELS
from tuner.errors import TunerError
from tuner.measure.stamp import make_stamp, write_json

from . import fault_kernels, grouped_sanitizer, op_jobs, sanitizer_calls, watched
from .configs import ALL_SMS
from .gpus import list_gpus
from .grouped_psum import with_ends
from .operands import GuardedOutput, Shape, count_wrong, make_case, make_output
from .processes import ending_on_sigterm, holding_signals, kill_groups
from .record import get_compiler_versions
from .sanitizer_calls import choose_logits_pairs, choose_psum_pairs
from .sanitizer_tools import (
    DEFAULT_TOOLS,
    TIMEOUT_S,
    TOOLS,
    Output,
    Tool,
    Tools,
    find_tool,
    finish_tools,
    merge_reports,
    say,
    start_tools,
)
from .variants import MAIN, Variant, get_space, list_variants
from .watched import Program, get_knobs
from .world import ALL_OPS, OPS, launch_options, lay_out_scale, parse_ops, prepare_c

__all__ = ["DEFAULT_TOOLS", "Tools", "finish_tools", "start_tools"]

#: Children on one GPU: their work is on the CPU for the most part.
PARTS_PER_GPU = 12
#: Of the time budget, at most, before the tools begin.
COMPILE_SHARE = 0.3
#: What the child that launches kernels whose verdict is known has in place of a part.
CONTROL = "control"
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


def run_config(variant: Variant, config, is_brief: bool = False) -> list[str]:
    """Run one config on tails, those of main variants also on several tiles a CTA; return what was wrong.

    is_brief: once, on tails with several tiles a CTA.
    """
    result = get_cubin(variant.problem(), config, None)
    kernel = _C.Kernel(result.cubin, result.kernel_name, variant.problem(), config, 0)
    tail = Shape(
        config.block_m + 1, 2 * config.block_n + 3, config.block_k * (config.num_stages + 1) * config.split_k + 16
    )
    few = ALL_SMS if config.split_k > 1 else FEW_SMS
    failures = []
    runs = [(tail, False, few if is_brief else ALL_SMS), (Shape(200, 328, 272), True, few)]
    for index, (shape, integers, num_sms) in enumerate(runs if variant in MAIN and not is_brief else runs[:1]):
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
    """Return every (problem, config), with a second tile or not, of those op kinds that the tools watch."""
    pairs = [*choose_pairs(device), *grouped_sanitizer.choose_grouped_pairs(device)]
    pairs += [(with_ends(variant), config) for variant, config in choose_psum_pairs(device)]
    found = [(variant.problem(), config) for variant, config in pairs] + choose_logits_pairs(device)
    found += [(variant.problem(), *tiles) for variant, *tiles in grouped_sanitizer.choose_tiles(device)]
    return [pair for pair in found if pair[0].op in ops]


def list_watched(device, ops: tuple[str, ...] = ALL_OPS, is_brief: bool = False) -> list[Program]:
    """Return everything that the tools watch, in the order in which it runs; plain kernels where no op kind is left
    out.
    """
    run_grouped = grouped_sanitizer.run_grouped
    found = [_make_program(pair, partial(run_config, *pair, is_brief)) for pair in choose_pairs(device)]
    found += [
        _make_program(pair, partial(run_grouped, *pair, is_brief))
        for pair in grouped_sanitizer.choose_grouped_pairs(device)
    ]
    found += [
        _make_program((variant, first), partial(run_grouped, variant, first, is_brief, second), f" or {second}")
        for variant, first, second in grouped_sanitizer.choose_tiles(device)
    ]
    found += sanitizer_calls.list_watched(device)
    return watched.order_programs(one for one in found if one.op in ops or (not one.op and ops == ALL_OPS))


def _make_program(pair: tuple, run: partial, more: str = "") -> Program:
    variant, config = pair
    return Program(variant.op, f"{variant}: {config}{more}", run, str(variant), watched.estimate_cost(config))


def run_child(programs: Sequence[Program], claims: str = "", deadline: float = float("inf")) -> int:
    """Run those programs of a list that no other child has taken, until the deadline, and say what was done."""
    say("start", total=len(programs))
    is_wrong = False
    for index, program in enumerate(programs):
        if time.time() > deadline:
            break
        if watched.claim(claims, index):
            is_wrong = bool(run_program(program)) or is_wrong
    say("done")
    return 1 if is_wrong else 0


def run_program(program: Program) -> list[str]:
    """Run one program and say so; return what was wrong."""
    say("begin", program=program.name, at=time.time())
    start = time.monotonic()
    try:
        failures = program.run()
    except Exception as error:  # one config's fault; the others are still watched
        failures = [f"{program.name}: {type(error).__name__}: {str(error)[:300]}"]
    seconds = round(time.monotonic() - start, 2)
    say("end", program=program.name, op=program.op, seconds=seconds, failures=failures)
    return failures


def launch_control(name: str) -> list[str]:
    """Launch one of the kernels whose verdict is known."""
    import torch

    torch.zeros(1, device="cuda")  # makes the context
    fault_kernels.launch(name)
    return []


def parse_tools(text: str) -> tuple[str, ...]:
    """Return the tools of a comma-separated list. Raises: argparse.ArgumentTypeError."""
    names = tuple(text.split(","))
    if set(names) - set(TOOLS):
        raise argparse.ArgumentTypeError(f"{text}: known tools are {', '.join(TOOLS)}")
    return names


def choose_programs(args: argparse.Namespace) -> list[Program]:
    """Return the programs of a child."""
    if args.child == CONTROL:
        return [Program("", name, partial(launch_control, name)) for name in fault_kernels.CONTROLS]
    index, total = map(int, args.child.split("/"))
    return watched.choose_part(list_watched(_C.get_device(), args.ops, args.brief), index, total)


def compile_ahead(device, ops: tuple[str, ...], timeout_s: float) -> list[str]:
    """Compile every kernel on all cores, those of the calls by a child that makes them; return the failures."""
    command = [sys.executable, "-m", "tests.gpu.sanitizer", "--compile-calls", "--ops", ",".join(ops)]
    start, children = time.monotonic(), []
    try:
        with holding_signals():
            children.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True))
        failed = Background(make_jobs(choose_all_pairs(device, ops), "nvrtc")).finish(timeout_s)
        with suppress(subprocess.TimeoutExpired):  # what is missing is compiled by whoever needs it
            children[0].wait(max(1.0, timeout_s - (time.monotonic() - start)))
    finally:
        kill_groups(children)
    return [failure for failure in failed if failure.startswith("compiling ahead")]


def start_children(tools: Tools, args: argparse.Namespace, deadline: float, claims: Path) -> None:
    """Start all children of the tools, and at last one with the controls where racecheck is among them."""
    gpus = list_gpus()
    parts = args.parts or max(1, min(PARTS_PER_GPU * len(gpus), len(os.sched_getaffinity(0)) - 1))
    threads, turns = max(1, len(os.sched_getaffinity(0)) // (parts * len(args.tools))), cycle(gpus)
    for name in args.tools:
        folder = claims / name
        folder.mkdir()
        for _ in range(parts):
            with holding_signals():  # whoever has been started is in the list that is ended
                tools.append(Tool(name, deadline, args.ops, claims=str(folder), gpu=next(turns), threads=threads))
    if "racecheck" in args.tools:
        with holding_signals():
            tools.append(Tool("racecheck", deadline, args.ops, CONTROL, gpu=next(turns), threads=1))


def check_controls(control: Tool) -> tuple[list[str], dict[str, bool | None]]:
    """Wait for the child with the controls; return the failures, and of each control whether racecheck reported it,
    None where that is not known. What must not be: such a control, a child that did not end by itself, and a planted
    race that was not reported.
    """
    control.finish()
    reported = {name: is_reported(control, name) for name in fault_kernels.CONTROLS}
    failures = [f"with the controls: {control.fault}"] if control.fault else []
    failures += [f"control {name} was not run to its end" for name, is_it in reported.items() if is_it is None]
    if reported[fault_kernels.RACE] is False:
        failures.append("did not report the planted race")
    return [f"{control.name}: {failure}" for failure in failures], reported


def is_reported(control: Tool, name: str) -> bool | None:
    """Return whether racecheck reported a control, None where it did not and could not: the program did not end without
    an error, or the tool did not come to its end.
    """
    if any(name in text for text, _ in control.found.reports):
        return True
    has_ended = any(row["program"] == name and not row["failures"] for row in control.found.rows)
    return False if has_ended and control.found.has_summed_up and not control.is_killed else None


def run_spread(args: argparse.Namespace) -> int:
    """Run the tools in children that are spread over the GPUs, write the record and return the exit code."""
    start, deadline, device = time.monotonic(), time.time() + args.time_budget, _C.get_device()
    failures = compile_ahead(device, args.ops, COMPILE_SHARE * args.time_budget)
    compile_s = round(time.monotonic() - start, 1)
    with tempfile.TemporaryDirectory() as claims, Tools() as started:
        start_children(started, args, deadline, Path(claims))
        tools = [tool for tool in started if tool.part != CONTROL]
        sections, found = finish_tools(tools)
        blind, controls = check_controls(started[-1]) if len(started) > len(tools) else ([], {})
    failures += found + blind
    num_left = sum(count_left([tool.found for tool in tools if tool.name == name]) for name in args.tools)
    is_complete = num_left == 0 and not any(tool.is_killed for tool in tools)  # what a tool says at its end may lack
    kernels = (*args.ops, *(map(name_plain, PLAIN_KERNELS) if args.ops == ALL_OPS else ()))
    meta = make_stamp(device, kernels) | {"compilers": get_compiler_versions(("nvrtc",))}
    meta |= {"options": {name: TOOLS[name] for name in args.tools}}
    meta |= {"complete": is_complete, "left": num_left, "children": len(tools), "gpus": len(list_gpus())}
    meta |= {"controls": controls, "killed": sum(tool.is_killed for tool in tools)}
    meta |= {"compile_s": compile_s, "wall_s": round(time.monotonic() - start, 1)}
    record = {"meta": meta, "sections": sections, "failures": failures, **list_findings(tools)}
    if args.out:
        write_json(args.out, record)
    return print_verdicts(record)


def count_left(outputs: list[Output]) -> int:
    """Return how many programs of a tool did not end; at least one where a child did not say how many there are."""
    return max(1, *(output.total for output in outputs)) - sum(len(output.rows) for output in outputs)


def list_findings(tools: list[Tool]) -> dict[str, list[dict]]:
    """Return what the children reported, and what they ran; a program in which a child was killed has no seconds."""
    outputs: dict[str, list[Output]] = {}
    for tool in tools:
        outputs.setdefault(tool.name, []).append(tool.found)
    rows = [{"tool": tool.name, **row} for tool in tools for row in tool.found.rows]
    rows.sort(key=lambda row: -row["seconds"])
    cut = [{"tool": tool.name, "program": tool.found.running, "seconds": None} for tool in tools if tool.found.running]
    return {"reports": merge_reports(outputs), "rows": cut + rows}


def print_verdicts(record: dict) -> int:
    """Print a line for each tool, and what it found; return the exit code."""
    for name, section in record["sections"].items():
        print(f"{name}: {section['cases']} watched, {section['failed_jobs']} unclean ({section['seconds']} s)")
    for report in record["reports"][:10]:
        print(f"{report['count']} x {report['text'][:600]}\n    during {report['beside']}")
    for row in record["rows"][:10]:
        print(f"{row['seconds']} s: {row['program']}")
    print("\n".join(failure[-600:] for failure in record["failures"][:10]))
    meta = record["meta"]
    verdict = f"{len(record['failures'])} failures" if record["failures"] else "no failure"
    print(
        f"{verdict}, {meta['left']} programs left ({meta['wall_s']} s, of them {meta['compile_s']} compiling)",
        flush=True,
    )
    return 1 if record["failures"] else 0 if meta["complete"] else 3


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--ops", type=parse_ops, default=ALL_OPS, help="comma-separated op kinds, or parts of their names; default: all"
    )
    parser.add_argument(
        "--tools", type=parse_tools, default=DEFAULT_TOOLS, help=f"of {', '.join(TOOLS)}; default: the first two"
    )
    parser.add_argument(
        "--parts",
        type=int,
        default=0,
        help=f"children of each tool; default: {PARTS_PER_GPU} for each GPU that it sees",
    )
    parser.add_argument(
        "--time-budget", type=float, default=TIMEOUT_S, help=f"seconds for all; default: {TIMEOUT_S:.0f}"
    )
    parser.add_argument("--out", type=Path, help="where the record goes; default: none is written")
    for name in ("--child", "--claims"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)
    for name in ("--brief", "--compile-calls"):
        parser.add_argument(name, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, default=float("inf"), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the tools and print their verdicts, or be a child of this program."""
    args = parse_arguments(arguments)
    if args.child:
        return run_child(choose_programs(args), args.claims, args.deadline)
    if args.compile_calls:
        calls = [call for call in sanitizer_calls.choose_calls() if call.kind in args.ops or args.ops == ALL_OPS]
        op_jobs.compile_calls(SimpleNamespace(torch_device="cuda"), calls)
        return 0
    try:
        if not find_tool():
            raise TunerError("there is no compute-sanitizer; it comes with the CUDA toolkit (CUDA_HOME)")
        with ending_on_sigterm():
            return run_spread(args)
    except (DeviceError, TunerError) as error:
        print(f"the tools need an SM90 GPU and compute-sanitizer: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
