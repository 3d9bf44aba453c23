"""Time the compilation of every config of the default space on one CPU core, by NVRTC and NVCC (target P12).

Example: python -m benchmarks.compile_time --compilers nvrtc nvcc

Method: the process, and with it every child, is bound to one core; one compilation beforehand loads the compiler; each config is
compiled once, without any cache, and the time is that of `compile_source`: source text in, checked cubin out. CPU seconds (of
children, too) stand beside wall seconds: where they differ, the machine was busy with something else.
Result: {"meta": ..., "summary": {compiler: {"count", "median_s", "p95_s", "max_s", "cpu_median_s", "cpu_p95_s"}},
"rows": [{"compiler", "config", "seconds", "cpu_seconds", "registers", "spill_bytes", "local_bytes", "warnings"}]}.
"""

import argparse
import math
import os
import platform
import statistics
import sys
import time
from pathlib import Path

from deep_gemm import _C
from deep_gemm.errors import CompileError, DeviceError
from deep_gemm.jit import compile, generator

from .stamp import OP, RESULTS, make_stamp, write_json


def cpu_seconds() -> float:
    """Return the CPU time that this process and its ended children have used."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def get_percentile(values: list[float], percent: float) -> float:
    """Return the smallest value that at least `percent` % of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def time_config(config: "_C.Config", compiler: str) -> dict:
    """Compile one config and return its row. Raises: CompileError."""
    source = generator.generate_source(_C.Problem(OP, 1, 1, 1), config)
    cpu, start = cpu_seconds(), time.perf_counter()
    result = compile.compile_source(source, generator.kernel_name(OP), compiler)
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    return {
        "compiler": compiler, "config": str(config), "seconds": round(seconds, 4), "cpu_seconds": round(cpu, 3), "registers": result.registers,
        "spill_bytes": result.spill_bytes, "local_bytes": result.local_bytes, "warnings": len(result.warnings),
    }


def time_compiler(compiler: str, space: list) -> list[dict]:
    """Return the rows of one compiler, with a line of progress every ten configs."""
    time_config(space[0], compiler)
    rows = []
    for config in space:
        rows.append(time_config(config, compiler))
        if len(rows) % 10 == 0 or len(rows) == len(space):
            print(f"{compiler}: {len(rows)} of {len(space)}, median {statistics.median(row['seconds'] for row in rows):.3f} s", flush=True)
    return rows


def summarise(rows: list[dict]) -> dict:
    """Return the summary of one compiler's rows."""
    wall, cpu = [row["seconds"] for row in rows], [row["cpu_seconds"] for row in rows]
    return {
        "count": len(rows), "median_s": round(statistics.median(wall), 4), "p95_s": get_percentile(wall, 95), "max_s": max(wall),
        "cpu_median_s": round(statistics.median(cpu), 3), "cpu_p95_s": get_percentile(cpu, 95),
    }


def make_meta(device: "_C.Device", compilers: list[str], core: int, num_left_out: int) -> dict:
    """Return what the result ran on and of; without a GPU the device is that whose default space was compiled."""
    versions = {compiler: compile.get_toolchain(compiler).version_text for compiler in compilers}
    return {**make_stamp(device), "cpu": get_cpu_name(), "core": core, "compilers": versions, "num_left_out": num_left_out, "complete": num_left_out == 0}


def get_cpu_name() -> str:
    """Return the CPU's name as Linux tells it, or its architecture."""
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


def run(args: argparse.Namespace) -> int:
    """Time the compilers and write the result; return the exit code."""
    os.sched_setaffinity(0, {args.core})
    device = get_device()
    space = _C.get_default_space(device)
    chosen = space[:: args.every]
    try:
        rows = {compiler: time_compiler(compiler, chosen) for compiler in args.compilers}
    except CompileError as error:
        print(error, file=sys.stderr)
        return 1
    summary = {compiler: summarise(found) for compiler, found in rows.items()}
    meta = make_meta(device, args.compilers, args.core, len(space) - len(chosen))
    write_json(args.out, {"meta": meta, "summary": summary, "rows": [row for found in rows.values() for row in found]})
    for compiler, found in summary.items():
        print(f"{compiler} {meta['compilers'][compiler]}: {found['count']} kernels, median {found['median_s']:.3f} s, p95 {found['p95_s']:.3f} s")
    print(args.out)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Exit codes: 0 all right, 1 a config did not compile.")
    parser.add_argument("--out", type=Path, default=RESULTS / "compile_time.json", help="where the result goes")
    parser.add_argument("--compilers", nargs="+", choices=("nvrtc", "nvcc"), default=["nvrtc", "nvcc"], help="which compilers to time")
    parser.add_argument("--core", type=int, default=min(os.sched_getaffinity(0)), help="the CPU core to use")
    parser.add_argument("--every", type=int, default=1, help="take every n-th config only")
    return run(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
