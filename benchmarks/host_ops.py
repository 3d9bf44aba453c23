"""Time the host in calls of decode size of the ops that are no plain products: attention logits, einsum, the product
before a norm, casts and layouts of scales.

Example: python -m benchmarks.host_ops --out host_ops.json

Blocks of back-to-back calls, one block of each op in turn (stopwatch.py). No profiler may have run in the process: what
it leaves behind slows every launch down. `floor_us`: what torch and the driver take by themselves, namely as many empty
tensors taken and freed as the call returns or takes for itself, and its launches, timed with a plain kernel of two
tensors that ends at once (host_profile.py).

Result: {"meta": ..., "rows": [{"op", "best_us", "median_us", "calls", "target_us", "floor_us"}]}.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

import deep_gemm
from deep_gemm import _C, quantize, stream
from deep_gemm.jit.hashing import name_plain

from .harness import WARM_UP_S, warm_up
from .host_profile import make_launch
from .stamp import find_results, make_stamp, write_json
from .stopwatch import time_in_turn

BF16, FP8, FP32, INT32 = torch.bfloat16, torch.float8_e4m3fn, torch.float32, torch.int32
SEQUENCES, HEADS, HEAD_DIM, CONTEXT, BLOCK_KV = 64, 64, 128, 4096, 64
OP_US, CAST_US = 6.0, 5.0
LAUNCH = "launch"
#: Kernels of these calls, whose hashes the result carries.
KERNELS = (
    "fp8_mqa_logits", "fp8_paged_mqa_logits", "batched_bf16_gemm", "batched_fp8_gemm",
    *map(name_plain, ("mqa_metadata", "hc_prenorm", "cast_rows", "cast_blocks", "scale_layout")),
)  # fmt: skip


class Case(NamedTuple):
    """A call, the most microseconds that it shall take, and how many tensors it takes and kernels it launches."""

    call: Callable[[], object]
    target_us: float
    tensors: int
    launches: int


def empty(*shape: int, dtype: torch.dtype = FP32) -> torch.Tensor:
    """Return a tensor on the GPU, whose numbers do not matter; integers are 0."""
    return torch.zeros(shape, dtype=dtype, device="cuda")


def make_logits_cases() -> dict[str, Case]:
    """Return the calls of attention logits: a schedule, pages and one matrix of keys."""
    lengths, table = empty(SEQUENCES, dtype=INT32), empty(SEQUENCES, CONTEXT // BLOCK_KV, dtype=INT32)
    q, weights = empty(SEQUENCES, HEADS, HEAD_DIM, dtype=FP8), empty(SEQUENCES, HEADS)
    cache = empty(64, BLOCK_KV, 1, HEAD_DIM + 4, dtype=torch.uint8)
    schedule = deep_gemm.get_paged_mqa_logits_metadata(lengths, BLOCK_KV, deep_gemm.get_num_sms())
    paged = empty(SEQUENCES, 1, HEADS, HEAD_DIM, dtype=FP8), cache, weights, lengths, table, schedule, CONTEXT
    keys = empty(CONTEXT, HEAD_DIM, dtype=FP8), empty(CONTEXT)
    whole = q, keys, weights, lengths, lengths, False
    num_sms = deep_gemm.get_num_sms()
    return {
        "fp8_paged_mqa_logits": Case(lambda: deep_gemm.fp8_paged_mqa_logits(*paged), OP_US, 1, 1),
        "fp8_mqa_logits": Case(lambda: deep_gemm.fp8_mqa_logits(*whole), OP_US, 1, 1),
        "get_paged_mqa_logits_metadata": Case(
            lambda: deep_gemm.get_paged_mqa_logits_metadata(lengths, BLOCK_KV, num_sms), OP_US, 1, 1
        ),
    }


def make_product_cases() -> dict[str, Case]:
    """Return the calls of einsum, fp8_einsum and tf32_hc_prenorm_gemm."""
    x, y, z = empty(4, 8, 512, dtype=BF16), empty(8, 128, 512, dtype=BF16), empty(4, 8, 128, dtype=BF16)
    q, w = (empty(4, 8, 512, dtype=FP8), empty(4, 8, 4)), (empty(8, 128, 512, dtype=FP8), empty(8, 1, 4))
    u, v, s = empty(32, 64, 128, dtype=BF16), empty(32, 128, 128, dtype=BF16), empty(64, 128)
    a, b, d, squares = empty(13, 7168, dtype=BF16), empty(24, 7168), empty(16, 13, 24), empty(16, 13)
    whole, whole_squares = empty(13, 24), empty(13)
    return {
        "einsum bhr,hdr->bhd": Case(lambda: deep_gemm.einsum("bhr,hdr->bhd", x, y, z), OP_US, 0, 1),
        "fp8_einsum bhr,hdr->bhd": Case(lambda: deep_gemm.fp8_einsum("bhr,hdr->bhd", q, w, z), OP_US, 0, 1),
        "einsum bmk,bnk->mn": Case(lambda: deep_gemm.einsum("bmk,bnk->mn", u, v, s), OP_US, 0, 1),
        "tf32_hc_prenorm_gemm": Case(
            lambda: deep_gemm.tf32_hc_prenorm_gemm(a, b, d, squares, 16), OP_US, 0, 1
        ),
        "tf32_hc_prenorm_gemm, whole": Case(
            lambda: deep_gemm.tf32_hc_prenorm_gemm(a, b, whole, whole_squares), OP_US, 0, 1
        ),
    }  # fmt: skip


def make_cast_cases() -> dict[str, Case]:
    """Return the casts, and the layouts of scales."""
    x, tall, sf = empty(64, 7168, dtype=BF16), empty(128, 7168, dtype=BF16), empty(64, 56)
    groups, counts = empty(4, 64, 7168, dtype=BF16), empty(4, dtype=INT32)
    keys = empty(64, HEAD_DIM, dtype=BF16)
    layout, pack = (
        deep_gemm.get_mn_major_tma_aligned_tensor,
        deep_gemm.get_mn_major_tma_aligned_packed_ue8m0_tensor,
    )
    return {
        "per_token": Case(lambda: quantize.per_token_cast_to_fp8(x, False), CAST_US, 2, 1),
        "per_token, masked": Case(
            lambda: quantize.per_token_cast_to_fp8(groups, True, masked_m=counts, scales="mn_major"), CAST_US, 2, 1
        ),
        "swiglu": Case(lambda: quantize.swiglu_per_token_cast_to_fp8(x, False), CAST_US, 2, 1),
        "per_block": Case(lambda: quantize.per_block_cast_to_fp8(x, False), CAST_US, 2, 1),
        "per_channel": Case(lambda: quantize.per_channel_cast_to_fp8(tall, False), CAST_US, 2, 1),
        "per_custom_dims": Case(lambda: quantize.per_custom_dims_cast_to_fp8(keys, (0,), False), CAST_US, 2, 1),
        "MN-major scales": Case(lambda: layout(sf), CAST_US, 1, 1),
        "packed scales": Case(lambda: pack(sf), CAST_US, 1, 1),
        "transformed scales": Case(
            lambda: deep_gemm.transform_sf_into_required_layout(sf, 64, 7168, (1, 128)), CAST_US, 1, 1
        ),
    }


def take_memory(count: int) -> Callable[[], object]:
    """Return what takes and frees `count` tensors, as the native module does."""
    allocate, shape, strides = stream.find_allocator(), (64, 64), (64, 1)
    return lambda: [allocate(shape, strides, FP32) for _ in range(count)]


def measure() -> list[dict]:
    """Return a row for each call."""
    cases = make_logits_cases() | make_product_cases() | make_cast_cases()
    counts = sorted({case.tensors for case in cases.values()})
    warm_up(WARM_UP_S)
    calls = {name: case.call for name, case in cases.items()} | {f"{count}": take_memory(count) for count in counts}
    times = time_in_turn(calls | {LAUNCH: make_launch()}, torch.cuda.synchronize)
    best = {name: timed["best_us"] for name, timed in times.items()}
    return [
        {
            "op": name, **times[name], "target_us": case.target_us,
            "floor_us": round(best[f"{case.tensors}"] + case.launches * best[LAUNCH], 3),
        }
        for name, case in cases.items()
    ]  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Measure and write the rows; return 1 where a call takes longer than it shall."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=find_results() / "host_ops.json", help="where the result goes")
    out = parser.parse_args(arguments).out
    rows = measure()
    for row in rows:
        mark = "" if row["best_us"] <= row["target_us"] else "  above"
        print(
            f"{row['op']:32} {row['best_us']:7.2f} us best, {row['median_us']:7.2f} median, floor"
            f" {row['floor_us']:6.2f}, target {row['target_us']}{mark}"
        )
    meta = {**make_stamp(_C.get_device(), KERNELS), "complete": True}
    write_json(out, {"meta": meta, "rows": rows})
    return int(any(row["best_us"] > row["target_us"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
