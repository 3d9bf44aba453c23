"""Time the first call of shapes that never occurred before, after a warm-up for any size (target P13).

For every shape, a config is chosen, planned and launched once; compilations meanwhile are counted, but not those of the
casts and scale layouts that make its operands, whose plain kernels no warm-up of products prepares. `choose_us` is the
median time of the first choice alone (called from Python), `first_call_us` that of the whole first call, which also
loads source and cubin from memory.
"""

import contextlib
import os
import random
import tempfile
import time
from collections.abc import Iterator

import torch

import deep_gemm
from deep_gemm import _C, plan, selection
from deep_gemm.errors import DeepGemmError
from deep_gemm.jit import build
from deep_gemm.layout import get_mn_major_tma_aligned_tensor
from deep_gemm.quantize import per_block_cast_to_fp8, per_token_cast_to_fp8
from tuner.measure.statistics import median

from .variants import BF16, PLAIN

NUM_SHAPES = 40


def make_shapes(op: str) -> list[tuple[int, int, int]]:
    """Return shapes of many sizes that no benchmark or sweep has: odd multiples of 8."""
    rng = random.Random(op)
    return [
        (rng.choice((3, 19, 77, 333, 1234, 3001)), 8 * rng.randrange(9, 1200, 2), 16 * rng.randrange(9, 500, 2))
        for _ in range(NUM_SHAPES)
    ]


def make_call(op: str, m: int, n: int, k: int):
    """Return the op on random operands."""
    d = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    a, b = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
    if op == BF16:
        a, b = a.bfloat16(), b.bfloat16()
        return lambda: deep_gemm.bf16_gemm_nt(a, b, d)
    (a, scale_a), b = per_token_cast_to_fp8(a, False), per_block_cast_to_fp8(b, False)
    a = (a, get_mn_major_tma_aligned_tensor(scale_a))
    return lambda: deep_gemm.fp8_gemm_nt(a, b, d)


def time_op(op: str, device) -> dict:
    """Return counts and times of one op kind's new shapes."""
    report = deep_gemm.warmup([PLAIN[op].problem()], any_size=True)
    choose: list[float] = []
    first: list[float] = []
    sources: dict[str, int] = {}
    compiles = 0
    for shape in make_shapes(op):
        problem, call = PLAIN[op].problem(*shape), make_call(op, *shape)
        torch.cuda.synchronize()
        before = build.count_compilations()
        start = time.perf_counter()
        choice = selection.explain(problem, device)
        chosen = time.perf_counter()
        call()
        first.append((time.perf_counter() - chosen) * 1e6)
        choose.append((chosen - start) * 1e6)
        compiles += build.count_compilations() - before
        sources[choice.source] = sources.get(choice.source, 0) + 1
    torch.cuda.synchronize()
    return {
        "problems": len(first),
        "kernels": report.kernels,
        "compiled_ahead": report.compiled,
        "compiles": compiles,
        "sources": sources,
        "choose_us": round(median(choose), 2),
        "first_call_us": round(median(first), 1),
        "first_call_max_us": round(max(first), 1),
    }


def time_new_shapes(device) -> dict[str, dict]:
    """Return {op kind: figures}, measured with an empty kernel cache; an op kind that fails is left out with a line."""
    found = {}
    with empty_cache():
        for op in PLAIN:
            try:
                found[op] = time_op(op, device)
            except (DeepGemmError, RuntimeError) as error:  # the other op kind still counts
                print(f"new shapes of {op}: {type(error).__name__}: {str(error)[:300]}")
    return found


@contextlib.contextmanager
def empty_cache() -> Iterator[None]:
    """Give this process an empty folder for compiled kernels, and none in memory, so that compilations count."""
    before = os.environ.get("DG_JIT_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DG_JIT_CACHE_DIR"] = folder
        build.clear_memory()
        plan.forget()
        _C.dispatch_clear()
        try:
            yield
        finally:
            os.environ.pop("DG_JIT_CACHE_DIR")
            if before is not None:
                os.environ["DG_JIT_CACHE_DIR"] = before
