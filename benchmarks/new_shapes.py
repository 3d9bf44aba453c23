"""Time the first call of shapes that never occurred before, with the kernels of the portfolio loaded (target P13).

For every shape, a config is chosen, planned and launched once; compilations meanwhile are counted. `choose_us` is the
median time of the first choice alone (called from Python), `first_call_us` that of the whole first call, which also
loads source and cubin from memory.
"""

import random
import time

import torch

import deep_gemm
from deep_gemm import _C, selection
from deep_gemm.errors import DeepGemmError
from deep_gemm.jit import build
from deep_gemm.jit.ahead import list_choices
from deep_gemm.layout import get_mn_major_tma_aligned_tensor
from deep_gemm.quantize import per_block_cast_to_fp8, per_token_cast_to_fp8
from tuner.measure.statistics import median

from .variants import BF16, PLAIN, list_dense_problems

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


class CompileCounter:
    """Counts what the JIT compiles while it is entered."""

    def __enter__(self):
        self.count, self._original = 0, build.compile_source
        build.compile_source = self._compile
        return self

    def _compile(self, *arguments, **options):
        self.count += 1
        return self._original(*arguments, **options)

    def __exit__(self, *_):
        build.compile_source = self._original


def load_portfolio(op: str, device) -> int:
    """Compile and load every config of the portfolio; return how many."""
    problem, loaded = PLAIN[op].problem(), 0
    for config in list_choices(op, list_dense_problems(op), device)[0]:
        if _C.is_legal(problem, config, device):
            result = build.get_cubin(problem, config)
            _C.Kernel(result.cubin, result.kernel_name, problem, config, 0)
            loaded += 1
    return loaded


def time_op(op: str, device) -> dict:
    """Return counts and times of one op kind's new shapes."""
    loaded, choose, first = load_portfolio(op, device), [], []
    sources: dict[str, int] = {}
    with CompileCounter() as counter:
        for shape in make_shapes(op):
            problem, call = PLAIN[op].problem(*shape), make_call(op, *shape)
            torch.cuda.synchronize()
            start = time.perf_counter()
            choice = selection.explain(problem, device)
            chosen = time.perf_counter()
            call()
            first.append((time.perf_counter() - chosen) * 1e6)
            choose.append((chosen - start) * 1e6)
            sources[choice.source] = sources.get(choice.source, 0) + 1
    torch.cuda.synchronize()
    return {
        "problems": len(first),
        "portfolio": loaded,
        "compiles": counter.count,
        "sources": sources,
        "choose_us": round(median(choose), 2),
        "first_call_us": round(median(first), 1),
        "first_call_max_us": round(max(first), 1),
    }


def time_new_shapes(device) -> dict[str, dict]:
    """Return {op kind: figures}; an op kind that fails is left out with a line."""
    found = {}
    for op in PLAIN:
        try:
            found[op] = time_op(op, device)
        except (DeepGemmError, RuntimeError) as error:  # the other op kind still counts
            print(f"new shapes of {op}: {type(error).__name__}: {str(error)[:300]}")
    return found
