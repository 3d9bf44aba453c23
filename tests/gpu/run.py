"""Run the GPU correctness suite and write its record.

Example: python -m tests.gpu.run --out benchmarks/results/h200/gpu_record.json --time-budget 500

The parent holds no GPU: a child runs the jobs one after the other and reports each on a pipe. A job that crashes the
child, loses the CUDA context or says nothing for JOB_TIMEOUT_S is recorded as failed, and a new child goes on with the
next one, so that a hanging config costs one job (its jobs of later sections are left out). After MAX_DEATHS such jobs
of one group, which is what stands before the colon of a job's name, the rest of that group is left out, too: every
section gets its turn.
Protocol: one JSON object a line, `{"event": "begin"|"end"|"idle"|"done", ...}`.
Kernels are compiled by a pool meanwhile, in the order of the jobs.

Exit codes: 0 all right, 1 a failure, 2 no GPU or a wrong argument, 3 not everything ran within the time budget.
"""

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

GROUPED_SECTIONS = ("grouped_configs", "grouped_repeats", "grouped_semantics")
SECTIONS = ("configs", *GROUPED_SECTIONS, "nvcc", "portfolio_repeats", "space_repeats", "semantics", "calls")
JOB_TIMEOUT_S = 25.0
#: The first message needs the imports, the CUDA context and the portfolio.
START_TIMEOUT_S = 120.0
MAX_CHILDREN = 40
MAX_DEATHS = 2
#: Exit status of a child whose CUDA context is lost; the next one goes on with the following job.
CONTEXT_LOST = 4


def get_jobs(
    world, sections: list[str], shard: tuple[int, int], ops: tuple[str, ...] = ()
) -> list[tuple[str, str, object]]:
    """Return (section, name, callable) of every job of this shard, in a fixed order; with `ops` those of these op kinds
    alone.
    """
    makers, (index, total) = get_makers(), shard
    jobs = [
        (section, name, job)
        for section in sections
        for name, job in make_jobs(makers[section], world)[index - 1 :: total]
    ]
    return [job for job in jobs if not ops or is_of_ops(job[1], ops)]


def get_makers() -> dict:
    """Return what makes the jobs of each section."""
    from .calls import call_jobs
    from .configs import config_jobs, nvcc_jobs
    from .grouped_configs import grouped_config_jobs, grouped_nvcc_jobs
    from .grouped_repeats import grouped_repeat_jobs
    from .grouped_semantics import grouped_semantics_jobs
    from .repeats import portfolio_jobs, space_jobs
    from .semantics import semantics_jobs

    def both_nvcc_jobs(world) -> list:
        return nvcc_jobs(world) + grouped_nvcc_jobs(world)

    return {
        "configs": config_jobs,
        "grouped_configs": grouped_config_jobs,
        "grouped_repeats": grouped_repeat_jobs,
        "grouped_semantics": grouped_semantics_jobs,
        "nvcc": both_nvcc_jobs,
        "portfolio_repeats": portfolio_jobs,
        "space_repeats": space_jobs,
        "semantics": semantics_jobs,
        "calls": call_jobs,
    }


def is_of_ops(name: str, ops: tuple[str, ...]) -> bool:
    """Return whether a job is of one of the op kinds, by its name; a section that cannot be planned is of all."""
    return name.startswith("planning") or bool(set(name.replace(":", " ").split()) & set(ops))


def make_jobs(maker, world) -> list:
    """Return a section's jobs; a section that cannot be planned is one job that fails with the reason."""
    try:
        return maker(world)
    except Exception as error:  # the other sections still run
        reason = f"{type(error).__name__}: {error}"
        return [("planning: all", lambda: (0, [reason, traceback.format_exc(limit=-3)[-600:]]))]


def get_group(name: str) -> str:
    """Return the group of a job: what stands before the colon of its name."""
    return name.partition(":")[0]


def run_child(args: argparse.Namespace) -> None:
    """Run the jobs from `args.first` on, reporting on the file descriptor `args.report`."""
    import torch

    from .world import World

    torch.backends.cuda.matmul.allow_tf32 = False
    parent = os.getppid()
    with os.fdopen(args.report, "w", buffering=1) as report:

        def send(event: str, **fields) -> None:
            report.write(json.dumps({"event": event, **fields}) + "\n")

        world = World(spread=args.spread)
        jobs = get_jobs(world, args.sections, args.shard, args.ops)
        send("idle", total=len(jobs), portfolio={op: source for op, (_, source) in world.portfolios.items()})
        for index, (section, name, job) in enumerate(jobs):
            if index < args.first or name in args.skip or get_group(name) in args.skip:
                continue
            if time.time() > args.deadline or os.getppid() != parent:
                return
            send("begin", index=index, section=section, name=name)
            result = run_job(job)
            send("end", index=index, section=section, **result)
            if result["lost"]:
                os._exit(CONTEXT_LOST)
        send("done")


def run_job(job) -> dict:
    """Run one job; an exception is a failure, and one that lost the CUDA context ends this process."""
    import torch

    start = time.monotonic()
    try:
        cases, failures = job()
    except Exception as error:  # the job's failure is data; the suite goes on
        cases, failures = 0, [f"{type(error).__name__}: {error}", traceback.format_exc(limit=-3)[-600:]]
    seconds = round(time.monotonic() - start, 4)
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        failures = [*failures, f"CUDA context lost: {error}"[:300]]
        return {"cases": cases, "failures": failures, "seconds": seconds, "lost": True}
    return {"cases": cases, "failures": failures[:5], "seconds": seconds, "lost": False}


class Parent:
    """Starts children, reads their reports and adds them up."""

    def __init__(self, args: argparse.Namespace):
        from .record import make_section

        self.args, self.first, self.is_complete = args, 0, False
        self.sections = {section: make_section() for section in args.sections}
        self.failures: list[str] = []
        self.died: list[str] = []
        self.notes: dict = {}
        self.current: dict | None = None

    def run(self) -> None:
        """Run children until the jobs are done, the budget is spent, or too many children died."""
        for _ in range(MAX_CHILDREN):
            if self._run_one_child() or time.time() > self.args.deadline:
                return
        self.failures.append(f"gave up after {MAX_CHILDREN} child processes")

    def _start_child(self) -> tuple[subprocess.Popen, int]:
        reader, writer = os.pipe()
        command = [
            sys.executable,
            "-m",
            "tests.gpu.run",
            "--report",
            str(writer),
            "--first",
            str(self.first),
            "--deadline",
            str(self.args.deadline),
            "--shard",
            "{}/{}".format(*self.args.shard),
            "--sections",
            ",".join(self.args.sections),
            "--skip",
            "|".join(self._list_skipped()),
            "--spread",
            str(self.args.spread),
            *(["--ops", ",".join(self.args.ops)] if self.args.ops else []),
        ]
        child = subprocess.Popen(command, pass_fds=[writer], start_new_session=True)
        os.close(writer)
        return child, reader

    def _list_skipped(self) -> list[str]:
        """Return the jobs that died, and the groups that are given up."""
        deaths = Counter(get_group(name) for name in self.died)
        return [*dict.fromkeys(self.died), *(group for group, count in deaths.items() if count >= MAX_DEATHS)]

    def _run_one_child(self) -> bool:
        """Return whether no further child is needed: the jobs are done, the budget is spent, or nothing can run here."""
        child, reader = self._start_child()
        pending, timeout, start = b"", START_TIMEOUT_S, self.first
        try:
            while select.select([reader], [], [], timeout)[0]:
                data = os.read(reader, 1 << 16)
                if not data:
                    break
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))
                timeout = JOB_TIMEOUT_S
        finally:
            os.close(reader)
            status = self._reap(child)
        if self.current is not None:
            self._add_failure(f"the process died or hung (exit status {status})")
        elif status not in (0, CONTEXT_LOST) and not self.is_complete:
            self.failures.append(f"a child ended with status {status} between jobs")
        return self.is_complete or status == 0 or self.first == start

    def _reap(self, child: subprocess.Popen) -> int:
        """Wait for a child that has closed its pipe or gone silent; kill it where it does not end by itself."""
        try:
            return child.wait(1.0 if self.current is not None else 10.0)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return child.wait()

    def _take(self, message: dict) -> None:
        """Add one message up."""
        if message["event"] == "begin":
            self.current, self.first = message, message["index"] + 1
        elif message["event"] == "end":
            self._add_end(message)
        elif message["event"] == "idle":
            self.notes.update(jobs=message["total"], portfolio=message["portfolio"])
        else:
            self.is_complete = True

    def _add_end(self, message: dict) -> None:
        section = self.sections[message["section"]]
        section["jobs"] += 1
        section["cases"] += message["cases"]
        section["seconds"] = round(section["seconds"] + message["seconds"], 3)
        section["failed_jobs"] += bool(message["failures"])
        if message["lost"]:
            self.died.append(self.current["name"])
        self.failures += [f"{message['section']} {self.current['name']}: {failure}" for failure in message["failures"]]
        for failure in message["failures"][:2]:
            print(f"FAILED {message['section']} {self.current['name']}: {failure}", flush=True)
        self.current = None

    def _add_failure(self, reason: str) -> None:
        section = self.sections[self.current["section"]]
        section["jobs"] += 1
        section["failed_jobs"] += 1
        self.failures.append(f"{self.current['section']} {self.current['name']}: {reason}")
        self.died.append(self.current["name"])
        self.current = None
        print(f"FAILED {self.failures[-1]}", flush=True)


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
        pool = Background(
            list_kernels(_C.get_device(), args.sections, args.compilers, args.spread, args.sanitizer, ops)
        )
    except DeviceError as error:
        print(f"the GPU suite needs an SM90 GPU: {error}", file=sys.stderr)
        return 2
    tools = sanitizer.start_tools(args.deadline, ops) if args.sanitizer and args.shard[0] == 1 else []
    parent = Parent(args)
    parent.run()
    sections, failures = {**parent.sections}, parent.failures
    for tool in tools:
        sections[f"sanitizer_{tool.name}"], reasons = tool.finish()
        failures += reasons
    broken = pool.finish(max(1.0, args.deadline - time.time()))  # the jobs that needed them have failed, too
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


def choose_watched_ops(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the op kinds whose kernels a run needs: those of `--ops`, or of its sections."""
    from .grouped_variants import GROUPED_OPS
    from .world import OPS

    grouped = set(args.sections) & {*GROUPED_SECTIONS, "nvcc"}
    dense = set(args.sections) - set(GROUPED_SECTIONS)
    return tuple(op for op in args.ops or OPS if (grouped if op in GROUPED_OPS else dense))


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
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/h200/gpu_record.json"), help="where the record goes"
    )
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
    parser.add_argument("--no-sanitizer", dest="sanitizer", action="store_false", help="leave compute-sanitizer out")
    parser.add_argument("--merge", type=Path, nargs="+", help="join these records of shards into --out and run nothing")
    parser.add_argument("--report", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--skip", type=lambda text: text.split("|"), default=[], help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, default=0.0, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    args.deadline = args.deadline or time.time() + args.time_budget
    args.sections = [section for section in SECTIONS if any(section in names for names in args.sections)]
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
    return run_parent(args)


if __name__ == "__main__":
    sys.exit(main())
