"""Time the host: one call of each op beside torch.mm(out=), where its microseconds go, the selection of a config, and a
new shape.

Example: python -m benchmarks.host_time

Calls: back-to-back calls of a (64, 128, 128) product in blocks of 200, one block of each op in turn, synchronised
    between blocks; best and median of the blocks, in microseconds a call. 200 launches fit into the queue, so that the
    host alone is timed. One op of each grouping has two groups of these sizes.
Profile: the parts of one call on the GPU, by differences of such calls (host_profile.py).
Selection, over the problems of the dense benchmarks: `seen` is a lookup in the dispatch table, native; `new` is a
    selector's choice without the exact table and `analytic` the heuristic alone, both called from Python, in rounds
    that ask all of them in turn (stopwatch.time_each).
New shapes: the first call of shapes that never occurred before, after a warm-up for any size (new_shapes.py).
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import deep_gemm
from deep_gemm import _C
from deep_gemm.errors import DeepGemmError
from deep_gemm.jit.ahead import compile_all
from deep_gemm.jit.hashing import kernel_hash
from deep_gemm.layout import get_mn_major_tma_aligned_tensor
from deep_gemm.quantize import per_block_cast_to_fp8, per_token_cast_to_fp8
from deep_gemm.selection import explain, get_selector

from .group_sizes import ALIGNMENT
from .grouped_product import FP8, make_matrices
from .harness import WARM_UP_S, warm_up
from .host_profile import time_parts
from .new_shapes import time_new_shapes
from .stamp import OPS, find_results, make_stamp, write_json
from .stopwatch import time_each, time_in_turn
from .variants import list_dense_problems

SIZES = (64, 128, 128)
NUM_GROUPS = 2
GROUPED_OPS = ("m_grouped_fp8_gemm_contiguous", "m_grouped_fp8_gemm_masked", "k_grouped_fp8_gemm_contiguous")
#: Lookups of each problem.
SEEN_REPEATS = 200
#: Choices of each problem in every round.
SELECTION_REPEATS = 20


def make_calls(device: str) -> dict[str, Callable[[], object]]:
    """Return every op, FP8 with both layouts of A's scales, and torch.mm(out=) in BF16, on `device`."""
    m, n, k = SIZES
    a, row_major = per_token_cast_to_fp8(torch.randn(m, k, device=device), False)
    b = per_block_cast_to_fp8(torch.randn(n, k, device=device), False)
    d = torch.empty(m, n, dtype=torch.bfloat16, device=device)
    gradient, wide = torch.zeros(m, n, device=device), per_token_cast_to_fp8(torch.randn(n, k, device=device), False)
    mn_major = get_mn_major_tma_aligned_tensor(row_major)
    x, y = (
        torch.randn(m, k, dtype=torch.bfloat16, device=device),
        torch.randn(k, n, dtype=torch.bfloat16, device=device),
    )
    z = y.T.contiguous()
    return {
        "fp8_gemm_nt, row-major scales": lambda: deep_gemm.fp8_gemm_nt((a, row_major), b, d),
        "fp8_gemm_nt, MN-major scales": lambda: deep_gemm.fp8_gemm_nt((a, mn_major), b, d),
        "fp8_gemm_nt, 1D1D onto FP32 C": lambda: deep_gemm.fp8_gemm_nt(
            (a, row_major), wide, gradient, c=gradient, recipe=(1, 1, 128)
        ),
        "bf16_gemm_nt": lambda: deep_gemm.bf16_gemm_nt(x, z, d),
        "bf16_gemm_nn": lambda: deep_gemm.bf16_gemm_nn(x, y, d),
        **make_grouped_calls(device),
        "torch.mm(out=)": lambda: torch.mm(x, y, out=d),
    }


def make_grouped_calls(device: str) -> dict[str, Callable[[], object]]:
    """Return one FP8 op of each grouping, with MN-major scales, on `device`; m rows count in each group."""
    m, n, k = SIZES
    a, scale_a = make_matrices((NUM_GROUPS, ALIGNMENT), k, FP8, per_token_cast_to_fp8, device)
    b = make_matrices((NUM_GROUPS, n), k, FP8, per_block_cast_to_fp8, device)
    d = torch.empty(NUM_GROUPS, ALIGNMENT, n, dtype=torch.bfloat16, device=device)
    flat, joint, masked = (
        d.view(-1, n),
        (a.view(-1, k), get_mn_major_tma_aligned_tensor(scale_a.flatten(0, 1))),
        (a, get_mn_major_tma_aligned_tensor(scale_a)),
    )
    m_indices = torch.arange(NUM_GROUPS, dtype=torch.int32, device=device).repeat_interleave(ALIGNMENT)
    masked_m = torch.full((NUM_GROUPS,), m, dtype=torch.int32, device=device)
    ks, ks_tensor, gradient = (
        [k] * NUM_GROUPS,
        torch.full_like(masked_m, k),
        torch.zeros(NUM_GROUPS, m, n, device=device),
    )
    wide = [make_matrices((rows,), NUM_GROUPS * k, FP8, per_token_cast_to_fp8, device) for rows in (m, n)]
    blocks = [(values.view(-1), get_mn_major_tma_aligned_tensor(scale)) for values, scale in wide]
    return {
        "m_grouped_fp8_gemm_nt_contiguous": lambda: deep_gemm.m_grouped_fp8_gemm_nt_contiguous(
            joint, b, flat, m_indices
        ),
        "m_grouped_fp8_gemm_nt_masked": lambda: deep_gemm.m_grouped_fp8_gemm_nt_masked(masked, b, d, masked_m, m),
        "k_grouped_fp8_gemm_nt_contiguous": lambda: deep_gemm.k_grouped_fp8_gemm_nt_contiguous(
            *blocks, gradient, ks, ks_tensor, gradient
        ),
    }


def time_calls(device: str, synchronize: Callable[[], None]) -> dict[str, dict]:
    """Return the host time of every call on `device`; a call that fails is its error's text."""
    failed, calls = {}, {}
    for name, call in make_calls(device).items():
        try:
            call()
            calls[name] = call
        except (DeepGemmError, RuntimeError) as error:  # one op's fault; the others are still timed
            failed[name] = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
    return time_in_turn(calls, synchronize) | failed


def time_host() -> dict:
    """Return the host time of every call on the GPU, and of the FP8 and BF16 ops on CPU tensors."""
    cpu = {
        name: times
        for name, times in time_calls("cpu", lambda: None).items()
        if "row-major" in name or name == "bf16_gemm_nt"
    }
    if torch.cuda.is_available():
        warm_up(WARM_UP_S)
    return {"cuda": time_calls("cuda", torch.cuda.synchronize), "cpu": cpu}


def list_choosers(op: str, problems: list, device) -> dict[str, tuple[Callable[[object], object], list]]:
    """Return what chooses for the problems of an op kind: the heuristic, and a selector without the exact table, where
    an artefact covers the op kind.
    """
    found = {f"{op} analytic": (lambda problem: _C.get_analytic_config(problem, device), problems)}
    selector, current = get_selector(device), kernel_hash(op)
    if selector is None:
        return found

    def choose(problem: object) -> object:
        return selector.choose(problem, device, "model", current)

    try:
        choose(problems[0])
    except DeepGemmError:
        return found
    return found | {op: (choose, problems)}


def time_selection(device) -> dict:
    """Return the selection times of seen and new problems over both op kinds: the median of each, the slower op kind's
    where they differ.
    """
    by_op = {op: list_dense_problems(op) for op in OPS}
    problems = [problem for found in by_op.values() for problem in found]
    times = time_each(
        {name: one for op, found in by_op.items() for name, one in list_choosers(op, found, device).items()},
        SELECTION_REPEATS,
    )
    analytic_us = max(times[f"{op} analytic"] for op in OPS)
    new = {op: times.get(op) for op in OPS}
    answered = [value for value in new.values() if value is not None]
    compile_all(
        (problem, explain(problem, device).config) for problem in problems
    )  # on all cores; the table's own misses would take one
    seen_us = round(_C.time_dispatch_hits(problems, SEEN_REPEATS) * 1e6, 4)
    return {
        "seen_us": seen_us,
        "new_us": max(answered, default=analytic_us),
        "new_us_by_op": new,
        "analytic_us": analytic_us,
        "has_selector": {op: value is not None for op, value in new.items()},
        "problems": len(problems),
    }


def print_result(result: dict) -> None:
    """Print one line for each figure."""
    for place, calls in result["host"].items():
        for name, times in calls.items():
            text = times.get("failed") or f"{times['best_us']:8.2f} us best, {times['median_us']:8.2f} us median"
            print(f"{place:5} {name:32} {text}")
    for op, parts in result["profile"].items():
        print(f"{op}: " + ", ".join(f"{name} {value:.2f}" for name, value in parts["parts_us"].items()))
    print(f"selection: {result['selection']}")
    print(f"new shapes: {result['new_shapes']}")


def main(arguments: list[str] | None = None) -> int:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=find_results() / "host_time.json", help="where the result goes")
    args = parser.parse_args(arguments)
    device = _C.get_device()
    host = time_host()
    has_failed = any("failed" in times for calls in host.values() for times in calls.values())
    result = {
        "meta": {**make_stamp(device, OPS + GROUPED_OPS), "complete": not has_failed},
        "sizes": SIZES,
        "host": host,
        "profile": time_parts(SIZES),
        "selection": time_selection(device),
        "new_shapes": time_new_shapes(device),
    }
    write_json(args.out, result)
    print_result(result)
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
