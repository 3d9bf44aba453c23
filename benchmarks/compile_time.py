"""Time how long NVRTC and NVCC take to compile every config of the default spaces of two op kinds.

Target P12 refers to these times. Every compilation runs on one CPU core.

Example: python -m benchmarks.compile_time --compilers nvrtc nvcc --jobs 8

Method: the process and its children are bound to one core. One compilation beforehand loads the compiler. Then each
    config is compiled once, without any cache; timed is `compile_source`: source text in, checked cubin out. CPU
    seconds (children included) stand beside wall seconds: where they differ, the machine was busy with something
    else. With `--jobs n`, n such processes on n cores take every n-th config each.
Result: {"meta": ..., "summary": {compiler: {"count", "median_s", "p95_s", "max_s", "cpu_median_s", "cpu_p95_s"}},
    "by_variant": {variant: the same}, "rows": [{"compiler", "variant", "config", "seconds", "cpu_seconds", "registers",
    "spill_bytes", "local_bytes", "warnings"}]}.
"""

import argparse
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from deep_gemm import _C
from deep_gemm.errors import CompileError, DeviceError
from deep_gemm.jit import compile, generator

from .stamp import find_results, make_stamp, read_json, write_json
from .variants import MAIN, Variant


def cpu_seconds() -> float:
    """Return the CPU time that this process and its ended children have used."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def get_percentile(values: list[float], percent: float) -> float:
    """Return the smallest value that at least `percent` % of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def time_config(variant: Variant, config: "_C.Config", compiler: str) -> dict:
    """Compile one config and return its row. Raises: CompileError."""
    source = generator.generate_source(variant.problem(1, 1, 1), config)
    cpu, start = cpu_seconds(), time.perf_counter()
    result = compile.compile_source(source, generator.kernel_name(variant.op), compiler)
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    return {
        "compiler": compiler,
        "variant": str(variant),
        "config": str(config),
        "seconds": round(seconds, 4),
        "cpu_seconds": round(cpu, 3),
        "registers": result.registers,
        "spill_bytes": result.spill_bytes,
        "local_bytes": result.local_bytes,
        "warnings": len(result.warnings),
    }


def time_compiler(compiler: str, pairs: list) -> list[dict]:
    """Return the rows of one compiler, with a line of progress every ten configs; a config that does not compile is a
    row with `failed`.
    """
    rows: list[dict] = []
    for index, (variant, config) in enumerate([*pairs[:1], *pairs]):
        try:
            row = time_config(variant, config, compiler)
        except CompileError as error:  # the others still count, and the exit code tells
            row = {"compiler": compiler, "variant": str(variant), "config": str(config), "failed": str(error)[:500]}
        rows += [row] if index else []  # the first compilation loads the compiler
        if (len(rows) % 10 == 0 and rows) or len(rows) == len(pairs):
            print(f"{compiler}: {len(rows)} of {len(pairs)}", flush=True)
    return rows


def summarise(rows: list[dict]) -> dict:
    """Return the summary of one compiler's rows; those that failed are left out."""
    rows = [row for row in rows if "failed" not in row]
    if not rows:
        return {"count": 0}
    wall, cpu = [row["seconds"] for row in rows], [row["cpu_seconds"] for row in rows]
    return {
        "count": len(rows),
        "median_s": round(statistics.median(wall), 4),
        "p95_s": get_percentile(wall, 95),
        "max_s": max(wall),
        "cpu_median_s": round(statistics.median(cpu), 3),
        "cpu_p95_s": get_percentile(cpu, 95),
    }


def make_meta(device: "_C.Device", compilers: list[str], cores: list[int], num_left_out: int) -> dict:
    """Return the `meta` of the result; without a GPU the device is the one whose default space was compiled."""
    versions = {compiler: compile.get_toolchain(compiler).version_text for compiler in compilers}
    return {
        **make_stamp(device),
        "cpu": get_cpu_name(),
        "cores": cores,
        "compilers": versions,
        "num_left_out": num_left_out,
        "complete": num_left_out == 0,
    }


def get_cpu_name() -> str:
    """Return the CPU's name as Linux reports it, or else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def get_device() -> "_C.Device":
    """Return the GPU at hand, or the H200 where there is none: compiling needs no GPU."""
    try:
        return _C.get_device()
    except DeviceError:
        return _C.Device.known("h200")


def list_pairs(device: "_C.Device") -> list[tuple[Variant, "_C.Config"]]:
    """Return every (variant, config) of the main variants' default spaces."""
    return [(variant, config) for variant in MAIN for config in _C.get_default_space(variant.problem(), device)]


def time_share(args: argparse.Namespace) -> list[dict]:
    """Time this process's share on its core."""
    os.sched_setaffinity(0, {args.core})
    index, total = (int(part) for part in args.shard.split("/"))
    pairs = list_pairs(get_device())[:: args.every][index - 1 :: total]
    return [row for compiler in args.compilers for row in time_compiler(compiler, pairs)]


def start_share(args: argparse.Namespace, core: int, shard: str, out: Path) -> subprocess.Popen:
    """Start a process that times one share and writes its rows."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.compile_time",
        "--core",
        str(core),
        "--shard",
        shard,
        "--rows",
        str(out),
        "--every",
        str(args.every),
    ]
    return subprocess.Popen([*command, "--compilers", *args.compilers])


def time_shares(args: argparse.Namespace, cores: list[int]) -> list[dict]:
    """Time all shares at once, each on its own core. Raises: RuntimeError where one did not end well."""
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / f"{index}.json" for index in range(len(cores))]
        children = [
            start_share(args, core, f"{index + 1}/{len(cores)}", outs[index]) for index, core in enumerate(cores)
        ]
        codes = [child.wait() for child in children]
        if any(codes):
            raise RuntimeError("a share ended early")
        return [row for out in outs for row in read_json(out)["rows"]]


def run(args: argparse.Namespace) -> int:
    """Time the compilers and write the result; return the exit code."""
    device = get_device()
    cores = sorted(os.sched_getaffinity(0))[: args.jobs] if args.jobs > 1 else [args.core]
    rows = time_shares(args, cores) if len(cores) > 1 else time_share(args)
    summary = {compiler: summarise([row for row in rows if row["compiler"] == compiler]) for compiler in args.compilers}
    by_variant = {
        str(variant): {
            compiler: summarise([row for row in rows if (row["compiler"], row["variant"]) == (compiler, str(variant))])
            for compiler in args.compilers
        }
        for variant in MAIN
    }
    failed = [row for row in rows if "failed" in row]
    num_left_out = len(list_pairs(device)) * len(args.compilers) - len(rows) + len(failed)
    meta = make_meta(device, args.compilers, cores, num_left_out)
    write_json(args.out, {"meta": meta, "summary": summary, "by_variant": by_variant, "rows": rows})
    for compiler, found in summary.items():
        print(
            f"{compiler} {meta['compilers'][compiler]}: "
            + ", ".join(f"{name} {value}" for name, value in found.items())
        )
    for row in failed[:5]:
        print(row, file=sys.stderr)
    print(args.out)
    return 1 if failed else 0


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="Exit codes: 0 all right, 1 a config did not compile."
    )
    parser.add_argument("--out", type=Path, default=find_results() / "compile_time.json", help="where the result goes")
    parser.add_argument(
        "--compilers", nargs="+", choices=("nvrtc", "nvcc"), default=["nvrtc", "nvcc"], help="which compilers to time"
    )
    parser.add_argument("--core", type=int, default=min(os.sched_getaffinity(0)), help="the CPU core to use")
    parser.add_argument("--jobs", type=int, default=1, help="as many processes, each on its own core")
    parser.add_argument("--every", type=int, default=1, help="take every n-th config only")
    parser.add_argument("--shard", default="1/1", help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.rows is None:
        return run(args)
    write_json(args.rows, {"rows": time_share(args)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
