"""Time the host: one call of the op beside torch.mm(out=), and the selection of a config.

Example: python -m benchmarks.host_time

Calls: back-to-back calls of a (64, 128, 128) product in blocks of 200, synchronised between blocks; best and median of the
blocks, in microseconds a call. The GPU keeps up with such small products, so the host's time is what shows.
Selection, over the problems of data/dense_fp8.json: `seen` is the dispatch table's answer, in native code; `new` is a selector's
choice without the exact table, and `analytic` the heuristic alone, both called from Python and with that cost.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import deep_gemm
from deep_gemm import _C
from deep_gemm.jit.hashing import kernel_hash
from deep_gemm.selection import get_selector
from tests.gpu.operands import make_scales_mn_major, quantise_blocks, quantise_rows
from tuner.statistics import median

from .stamp import DATA, OP, RESULTS, make_stamp, read_json, write_json

SIZES = (64, 128, 128)
BLOCKS = 20
CALLS_PER_BLOCK = 200
SELECTION_REPEATS = 200


def time_blocks(call: Callable[[], object], synchronize: Callable[[], None]) -> dict[str, float]:
    """Return best and median microseconds a call over the blocks."""
    for _ in range(CALLS_PER_BLOCK):
        call()
    synchronize()
    blocks = []
    for _ in range(BLOCKS):
        start = time.perf_counter()
        for _ in range(CALLS_PER_BLOCK):
            call()
        blocks.append((time.perf_counter() - start) / CALLS_PER_BLOCK * 1e6)
        synchronize()
    return {"best_us": round(min(blocks), 3), "median_us": round(median(blocks), 3), "calls": BLOCKS * CALLS_PER_BLOCK}


def make_calls(device: str) -> dict[str, Callable[[], object]]:
    """Return the op with both layouts of A's scales, and torch.mm(out=) in BF16, on `device`."""
    m, n, k = SIZES
    a, row_major = quantise_rows(torch.randn(m, k, device=device))
    b = quantise_blocks(torch.randn(n, k, device=device))
    d = torch.empty(m, n, dtype=torch.bfloat16, device=device)
    mn_major = make_scales_mn_major(row_major)
    x, y = torch.randn(m, k, dtype=torch.bfloat16, device=device), torch.randn(k, n, dtype=torch.bfloat16, device=device)
    return {
        "fp8_gemm_nt, row-major scales": lambda: deep_gemm.fp8_gemm_nt((a, row_major), b, d),
        "fp8_gemm_nt, MN-major scales": lambda: deep_gemm.fp8_gemm_nt((a, mn_major), b, d),
        "torch.mm(out=)": lambda: torch.mm(x, y, out=d),
    }


def time_host() -> dict:
    """Return the host time of every call on the GPU, and of the op on CPU tensors."""
    gpu = {name: time_blocks(call, torch.cuda.synchronize) for name, call in make_calls("cuda").items()}
    cpu = {name: time_blocks(call, lambda: None) for name, call in make_calls("cpu").items() if "row-major" in name}
    return {"cuda": gpu, "cpu": cpu}


def time_each(choose: Callable[[object], object], problems: list) -> float:
    """Return the median over the problems of the microseconds that one choice takes."""
    times = []
    for problem in problems:
        choose(problem)
        start = time.perf_counter()
        for _ in range(SELECTION_REPEATS):
            choose(problem)
        times.append((time.perf_counter() - start) / SELECTION_REPEATS * 1e6)
    return round(median(times), 3)


def time_selection(device) -> dict:
    """Return the selection times of seen and new problems."""
    problems = [_C.Problem(OP, row["m"], row["n"], row["k"]) for row in read_json(DATA / "dense_fp8.json")["rows"]]
    selector, current = get_selector(device), kernel_hash(OP)
    analytic_us = time_each(lambda problem: _C.get_analytic_config(problem, device), problems)
    new_us = time_each(lambda problem: selector.choose(problem, device, "model", current), problems) if selector else analytic_us
    seen_us = round(_C.time_dispatch_hits(problems, SELECTION_REPEATS) * 1e6, 4)
    return {"seen_us": seen_us, "new_us": new_us, "analytic_us": analytic_us, "has_selector": selector is not None, "problems": len(problems)}


def main(arguments: list[str] | None = None) -> int:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS / "host_time.json", help="where the result goes")
    args = parser.parse_args(arguments)
    device = _C.get_device()
    result = {"meta": make_stamp(device), "sizes": SIZES, "host": time_host(), "selection": time_selection(device)}
    write_json(args.out, result)
    for place, calls in result["host"].items():
        for name, times in calls.items():
            print(f"{place:5} {name:32} {times['best_us']:8.2f} us best, {times['median_us']:8.2f} us median")
    print(f"selection: {result['selection']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
