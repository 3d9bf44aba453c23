"""Run the GPU correctness suite and write its record.

Example: python -m tests.gpu.run --time-budget 500
Example: python -m tests.gpu.run --gpus all --spread 48 --workers 3 --out gpu_record.json

A child process runs the jobs one after the other (jobs.py, parent.py), so that a crash or a hang costs one job; with
`--workers 2` two of them share the jobs, because their work on the CPU takes longer than that on the GPU. Kernels are
compiled by a pool in the order of the jobs, alone for a share of the time: beside the jobs and the sanitizer's children
it built five kernels a second on 16 cores, which takes a third of a second of one core each.
`--gpus` runs a shard on each GPU (spread_run.py).

Exit codes: 0 all right, 1 a failure, 2 no GPU or a wrong argument, 3 not everything ran within the time budget.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from tuner.measure.stamp import name_model_here

from .jobs import ALONE_SECTIONS, DENSE_SECTIONS, GROUPED_SECTIONS, OP_SECTIONS, SECTIONS, run_child
from .parent import join, list_parents, run_together, select_sections
from .processes import ending_on_sigterm

#: Of the time budget, at most, before jobs and sanitizer begin.
COMPILE_SHARE = 0.4
#: Faults of each kind in measuring processes: beside the other sections, and in a run of their own (some six minutes).
FEW_FAULTS, MANY_FAULTS = 2, 20


def run_parent(args: argparse.Namespace) -> int:
    """Compile and run the jobs and the sanitizer, write the record, print a summary."""
    from deep_gemm import _C
    from deep_gemm.errors import DeviceError
    from deep_gemm.jit.ahead import Background
    from tuner.measure.stamp import write_json

    from . import sanitizer
    from .kernels import list_kernels
    from .record import make_origin, make_record

    start, ops = time.monotonic(), choose_watched_ops(args)
    try:
        kernels = list_kernels(_C.get_device(), args.sections, args.compilers, args.spread, args.sanitizer, ops)
        pool = Background(put_share_first(kernels, args.shard))
    except DeviceError as error:
        print(f"the GPU suite needs an SM90 GPU: {error}", file=sys.stderr)
        return 2
    pool.wait(COMPILE_SHARE * (args.deadline - time.time()))
    beside, alone = select_sections(args, False), select_sections(args, True)
    with sanitizer.Tools() as tools:
        if args.sanitizer and ops:
            sanitizer.start_tools(tools, args.deadline, ops, shard=args.shard)
        parents = [run_together(list_parents(beside))] if beside.sections or not alone.sections else []
        watched, reasons = sanitizer.finish_tools(tools)
    broken = pool.finish(max(1.0, args.deadline - time.time()))  # the jobs that needed them have failed, too
    parents += [run_together(list_parents(alone))] if alone.sections else []
    parent = join(parents)
    sections, failures = parent.sections | watched, parent.failures + reasons
    failures += [failure for failure in broken if failure.startswith("compiling ahead")]
    notes = {
        **parent.notes,
        "kernels": pool.num_kernels,
        "compile_failures": len(broken),
        "wall_s": round(time.monotonic() - start, 1),
    }
    record = make_record(
        make_origin(args.compilers),
        sections,
        failures,
        shard="{}/{}".format(*args.shard),
        is_complete=parent.is_complete,
        notes=notes,
    )
    write_json(args.out, record)
    return print_summary(record)


def put_share_first(kernels: list, shard: tuple[int, int]) -> list:
    """Return the kernels, those of a shard first: shards that share a cache do not wait for each other's kernels."""
    index, total = shard
    return kernels[index - 1 :: total] + [kernel for i, kernel in enumerate(kernels) if i % total != index - 1]


def choose_watched_ops(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the op kinds whose kernels a run needs: those of `--ops`, or of its sections."""
    from .grouped_variants import GROUPED_OPS
    from .world import ALL_OPS, OPS

    of_all = set(args.sections) & set(OP_SECTIONS)
    grouped = set(args.sections) & {*GROUPED_SECTIONS, "nvcc"}
    dense = set(args.sections) & {*DENSE_SECTIONS, "nvcc"}
    psum = set(args.sections) & {"grouped_semantics"}
    others = set(args.sections) & {"logits", "einsum"}
    needs = dict.fromkeys(OPS, dense) | dict.fromkeys(GROUPED_OPS, grouped)
    needs |= {op: psum if op.endswith("_psum") else others for op in ALL_OPS if op not in OPS}
    return tuple(op for op in args.ops or ALL_OPS if of_all or needs[op])


def print_summary(record: dict) -> int:
    """Print one line for each section and return the exit code."""
    for name, section in record["sections"].items():
        print(
            f"{name:22} {section['jobs']:5} jobs {section['cases']:8} cases {section['failed_jobs']:4} failed"
            f" {section['seconds']:8.1f} s"
        )
    for failure in record["failures"][:20]:
        print(failure[:400])
    verdict = (
        f"{len(record['failures'])} failures"
        if record["failures"]
        else "all right"
        if record["complete"]
        else "not complete"
    )
    print(f"{record['cases']} cases on {record['device']}: {verdict} ({record['notes']})", flush=True)
    return 1 if record["failures"] else 0 if record["complete"] else 3


def merge(paths: list[Path], out: Path) -> int:
    """Join the records of the shards."""
    from tuner.measure.stamp import write_json

    from .record import merge_records

    record = merge_records([json.loads(path.read_text(encoding="utf-8")) for path in paths])
    write_json(out, record)
    return print_summary(record)


def parse_shard(text: str) -> tuple[int, int]:
    """Parse `i/n` with 1 <= i <= n."""
    index, total = (int(part) for part in text.split("/"))
    if not 1 <= index <= total:
        raise argparse.ArgumentTypeError(f"{text}: expected i/n with 1 <= i <= n")
    return index, total


def parse_sections(text: str) -> list[str]:
    """Parse a comma-separated list of sections."""
    names = text.split(",")
    if set(names) - set(SECTIONS):
        raise argparse.ArgumentTypeError(f"{text}: known sections are {', '.join(SECTIONS)}")
    return [name for name in SECTIONS if name in names]


def parse_op_kinds(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of op kinds or parts of their names."""
    from .world import parse_ops

    try:
        return parse_ops(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    epilog = "Exit codes: 0 all right, 1 failures, 2 no GPU or wrong arguments, 3 not complete."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=epilog)
    path = Path("benchmarks/results") / name_model_here() / "gpu_record.json"
    parser.add_argument("--out", type=Path, default=path, help="where the record goes (default: by GPU model)")
    parser.add_argument(
        "--time-budget", type=float, default=500.0, help="seconds; what has not begun by then is left out"
    )
    parser.add_argument(
        "--shard", type=parse_shard, default=(1, 1), help="i/n: run every n-th job, beginning with the i-th"
    )
    parser.add_argument(
        "--sections",
        type=parse_sections,
        nargs="+",
        default=[list(SECTIONS)],
        help="separated by commas or spaces; default: all",
    )
    parser.add_argument(
        "--ops",
        type=parse_op_kinds,
        default=(),
        help="comma-separated op kinds or parts of their names, e.g. masked; default: all",
    )
    parser.add_argument(
        "--compilers", type=lambda text: tuple(text.split(",")), default=("nvrtc", "nvcc"), help="default: nvrtc,nvcc"
    )
    parser.add_argument(
        "--spread", type=int, default=4, help="of variants near a main one every n-th config, of all others every 4n-th"
    )
    parser.add_argument(
        "--workers", type=int, choices=range(1, 9), default=1, help="processes that run jobs; default: 1"
    )
    parser.add_argument(
        "--worker-faults",
        type=int,
        help="how often each fault is planted in a measuring process; default: 2, or 20 where no other section runs",
    )
    parser.add_argument(
        "--gpus",
        default="",
        help="all, or numbers such as 0,1: a shard on each of these GPUs, side by side; default: one GPU runs all",
    )
    parser.add_argument("--no-sanitizer", dest="sanitizer", action="store_false", help="leave compute-sanitizer out")
    parser.add_argument("--merge", type=Path, nargs="+", help="join these records of shards into --out and run nothing")
    parser.add_argument("--report", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--skip", type=lambda text: text.split("|"), default=[], help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, default=0.0, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.gpus and args.shard != (1, 1):
        parser.error("--gpus makes shards of its own; leave --shard out")
    args.deadline = args.deadline or time.time() + args.time_budget
    args.sections = [section for section in SECTIONS if any(section in names for names in args.sections)]
    if args.worker_faults is None:
        args.worker_faults = FEW_FAULTS if set(args.sections) - set(ALONE_SECTIONS) else MANY_FAULTS
    if "nvcc" not in args.compilers:
        args.sections = [section for section in args.sections if section != "nvcc"]
    return args


def main(arguments: list[str] | None = None) -> int:
    """Run the suite, one child of it, or the merge."""
    args = parse_arguments(arguments)
    if args.merge:
        return merge(args.merge, args.out)
    if args.report is not None:
        run_child(args)
        return 0
    with ending_on_sigterm():
        if args.gpus:
            from .spread_run import run_on_gpus

            return run_on_gpus(args, sys.argv[1:] if arguments is None else arguments)
        return run_parent(args)


if __name__ == "__main__":
    sys.exit(main())
