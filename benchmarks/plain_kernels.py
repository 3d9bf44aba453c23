"""Time the quantising and layout kernels against a copy, the torch formula and the compiled torch formula.

Example: python -m benchmarks.plain_kernels --time-budget 120

`gbps` counts the bytes that must be read and written once; `of_copy` is that rate over the rate of torch's copy of the
same bytes in the same run. Times are medians between two events, of rounds in which every contender runs in turn on one
of several buffers, so that no input is left in the L2 cache. Host times: host_ops.py.
Result: {"meta": ..., "rows": [{"case", "shape", "dtype", "bytes", "us": {contender: median}, "gbps", "of_copy"}]}.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import torch

from deep_gemm import _C, layout, planned, quantize
from deep_gemm.jit.hashing import name_plain
from tuner.measure.statistics import median

from .stamp import find_results, make_stamp, write_json

#: Kernels that are timed, whose hashes the result carries.
KERNELS = tuple(map(name_plain, ("cast_rows", "cast_blocks", "scale_layout")))
ROUNDS = 15
FLUSH_BYTES = 256 << 20
BF16, FP32 = torch.bfloat16, torch.float32
#: Name, function of x, shape, dtype, and whether the compiled formula is a peer.
CASES = (
    ("per_token", lambda x: quantize.per_token_cast_to_fp8(x, False), (32768, 7168), BF16, True),
    ("per_token 4k", lambda x: quantize.per_token_cast_to_fp8(x, False), (4096, 7168), BF16, False),
    ("per_token ue8m0", lambda x: quantize.per_token_cast_to_fp8(x, True), (32768, 7168), BF16, False),
    (
        "per_token mn_major",
        lambda x: quantize.per_token_cast_to_fp8(x, False, scales="mn_major"), (32768, 7168), BF16, False,
    ),
    ("per_token gran_k=32", lambda x: quantize.per_token_cast_to_fp8(x, False, 32), (32768, 7168), BF16, False),
    ("per_token float32", lambda x: quantize.per_token_cast_to_fp8(x, False), (16384, 7168), FP32, False),
    ("per_block", lambda x: quantize.per_block_cast_to_fp8(x, False), (32768, 7168), BF16, True),
    ("per_block float32", lambda x: quantize.per_block_cast_to_fp8(x, False), (16384, 7168), FP32, False),
    ("per_channel", lambda x: quantize.per_channel_cast_to_fp8(x, False), (32768, 7168), BF16, True),
    (
        "per_custom_dims", lambda x: quantize.per_custom_dims_cast_to_fp8(x, (0,), False), (1 << 20, 128), BF16, False,
    ),
    ("swiglu", lambda x: quantize.swiglu_per_token_cast_to_fp8(x, False), (32768, 4096), BF16, True),
    (
        "swiglu mn_major", lambda x: quantize.swiglu_per_token_cast_to_fp8(x, False, scales="mn_major"), (32768, 4096),
        BF16, False,
    ),
    ("lay_out_scales", lambda x: layout.get_mn_major_tma_aligned_tensor(x), (1 << 20, 56), FP32, False),
    ("pack_scales", lambda x: layout.get_mn_major_tma_aligned_packed_ue8m0_tensor(x), (1 << 20, 56), FP32, False),
)  # fmt: skip


def count_bytes(tensors: object) -> int:
    """Return the bytes of a tensor, or of a tuple of them."""
    return sum(x.numel() * x.element_size() for x in (tensors if isinstance(tensors, tuple) else (tensors,)))


@contextlib.contextmanager
def using_formula() -> Iterator[None]:
    """Let the public functions run the torch formula."""
    with contextlib.ExitStack() as stack:
        for name in [name for name, value in vars(quantize).items() if value in planned.CALLS]:
            stack.enter_context(mock.patch.object(quantize, name, planned.decline))
        yield


def in_torch(function: Callable) -> Callable:
    """Return the function with the formula in place of the kernel."""

    def call(x: torch.Tensor) -> object:
        with using_formula():
            return function(x)

    return call


def time_in_turn(contenders: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median microseconds of each."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    for _ in range(ROUNDS + 1):
        for name, call in contenders.items():
            flush.zero_()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(100_000)  # the host is ahead when the events are reached
            start.record()
            call()
            end.record()
            end.synchronize()
            times[name].append(1e3 * start.elapsed_time(end))
    return {name: median(found[1:]) for name, found in times.items()}


def measure(name: str, function: Callable, shape: tuple, dtype: torch.dtype, is_compiled: bool) -> dict:
    """Return the row of one case."""
    x = torch.randn(shape, device="cuda", dtype=dtype)
    num_bytes = count_bytes(x) + count_bytes(function(x))
    source = torch.empty(num_bytes // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    contenders = {"kernel": lambda: function(x), "copy": lambda: target.copy_(source)}
    if "scales" not in name:
        contenders["torch"] = lambda: in_torch(function)(x)
    if is_compiled:
        compiled = torch.compile(function, fullgraph=True)
        contenders["torch.compile"] = lambda: compiled(x)
    times = time_in_turn(contenders)
    return {
        "case": name, "shape": list(shape), "dtype": str(dtype)[6:], "bytes": num_bytes,
        "us": {key: round(value, 2) for key, value in times.items()},
        "gbps": round(num_bytes / times["kernel"] / 1e3), "of_copy": round(times["copy"] / times["kernel"], 3),
    }  # fmt: skip


def print_row(row: dict) -> None:
    """Print one line."""
    times = "  ".join(f"{name} {value:9.1f}" for name, value in row["us"].items())
    print(f"{row['case']:22s} {row['gbps']:5d} GB/s  {row['of_copy']:6.3f} of copy  {times}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Measure every case and write the result. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Exit codes: 0 all, 3 not complete.")
    parser.add_argument("--out", type=Path, default=find_results() / "plain_kernels.json", help="where the result goes")
    parser.add_argument("--time-budget", type=float, default=300.0, help="seconds; what has not begun is left out")
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    start, rows = time.perf_counter(), []
    with torch.no_grad():
        for case in CASES:
            if time.perf_counter() - start > args.time_budget:
                break
            rows.append(measure(*case))
            print_row(rows[-1])
    meta = {**make_stamp(_C.get_device(), KERNELS), "complete": len(rows) == len(CASES), "rounds": ROUNDS}
    write_json(args.out, {"meta": meta, "rows": rows})
    print(f"{len(rows)} of {len(CASES)} cases in {time.perf_counter() - start:.1f} s: {args.out}")
    return 0 if meta["complete"] else 3


if __name__ == "__main__":
    sys.exit(main())
