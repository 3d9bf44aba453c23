"""Show where the host time of one call goes, by differences between calls that stop ever later (stopwatch.py).

loop       a Python function that does nothing: the cost of the measurement itself
arguments  the op on m = 0 rows: arguments bound, tensors viewed, dtypes and shapes checked; layouts and devices not yet
dispatch   a lookup in the dispatch table, timed in native code
launch     the rest of the call: layouts and overlap checked, stream, tensor maps, context, the driver's launch
driver     a part of `launch`: a plain kernel that ends at once, launched through the native module; reading its two
           tensors is in it
"""

from collections.abc import Callable

import torch

import deep_gemm
from deep_gemm import _C, planned
from deep_gemm.quantize import per_block_cast_to_fp8, per_token_cast_to_fp8

from .stopwatch import time_blocks, time_in_turn

DISPATCH_ROUNDS = 2000


def make_fp8_call(m: int, n: int, k: int, device: str) -> Callable[[], object]:
    """Return fp8_gemm_nt on operands of `device`."""
    a, b = (
        tuple(part.to(device) for part in cast(torch.randn(rows, k), False))
        for rows, cast in ((m, per_token_cast_to_fp8), (n, per_block_cast_to_fp8))
    )
    d = torch.empty(m, n, dtype=torch.bfloat16, device=device)
    return lambda: deep_gemm.fp8_gemm_nt(a, b, d)


def make_bf16_call(m: int, n: int, k: int, device: str) -> Callable[[], object]:
    """Return bf16_gemm_nt on operands of `device`."""
    a, b = (torch.randn(rows, k, dtype=torch.bfloat16).to(device) for rows in (m, n))
    d = torch.empty(m, n, dtype=torch.bfloat16, device=device)
    return lambda: deep_gemm.bf16_gemm_nt(a, b, d)


MAKERS = {"fp8_gemm": make_fp8_call, "bf16_gemm": make_bf16_call}


def time_parts(sizes: tuple[int, int, int], device: str = "cuda") -> dict[str, dict]:
    """Return {op kind: {"calls_us": the calls that were timed, "parts_us": their differences}}."""
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    driver_us = time_driver() if device == "cuda" else 0.0
    return {op: split_call(make, op, sizes, device, synchronize, driver_us) for op, make in MAKERS.items()}


def split_call(
    make: Callable, op: str, sizes: tuple[int, int, int], device: str, synchronize: Callable, driver_us: float
) -> dict[str, dict]:
    """Time the calls of one op kind and take their differences."""
    m, n, k = sizes
    calls = {"loop": lambda: None, "no rows": make(0, n, k, device), "whole": make(m, n, k, device)}
    times = {name: timed["best_us"] for name, timed in time_in_turn(calls, synchronize).items()}
    dispatch_us = _C.time_dispatch_hits([_C.Problem(op, m, n, k)], DISPATCH_ROUNDS) * 1e6 if device == "cuda" else 0.0
    parts = {
        "loop": times["loop"], "arguments": times["no rows"] - times["loop"], "dispatch": dispatch_us,
        "launch": times["whole"] - times["no rows"] - dispatch_us, "driver": driver_us,
    }  # fmt: skip
    return {"calls_us": times, "parts_us": {name: round(value, 3) for name, value in parts.items()}}


def make_launch() -> Callable[[], object]:
    """Return the launch of the cheapest plain kernel, which finds nothing to transpose."""
    source, target = (torch.zeros(16, dtype=torch.uint8, device="cuda") for _ in range(2))
    kernel = planned.get_kernel("transpose_fp8", 256)
    return lambda: kernel(1, source, target, *(0,) * 16)


def time_driver() -> float:
    """Return the best time of such a launch in microseconds."""
    return time_blocks(make_launch(), torch.cuda.synchronize)["best_us"]
