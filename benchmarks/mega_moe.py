"""Check and time a layer of experts across the GPUs of this host (deep_gemm.mega), a process for each.

Example: python -m benchmarks.mega_moe --gpus 2

Sizes are those of DeepSeek-V3, with 32 of its experts on each GPU. Every step is checked against its definition first,
then captured as a graph with the cast of its tokens, and timed between two events over STEPS replays, one number of
tokens after the other in ROUNDS rounds. `products_us`: both grouped products and the activation between them alone, on
as many rows, whose time no dispatch can save. Caches are as the step leaves them.

Result: {"meta": ..., "rows": [{"gpus", "tokens": of each GPU, "room": of its buffer, "layer_us", "products_us": medians
of the slowest GPU, "calc_diff": the largest}]}.
"""

import argparse
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import deep_gemm
from deep_gemm import _C
from deep_gemm.jit.hashing import name_plain
from deep_gemm.mega import dispatch, layer
from deep_gemm.testing import calc_diff
from tests.gpu.mega_layer import BOUND
from tests.gpu.mega_operands import choose, fill, make_weights, multiply_experts, prepare
from tuner.measure.statistics import median

from .stamp import find_results, make_stamp, write_json

HIDDEN, INTERMEDIATE, TOP_K, LOCAL_EXPERTS = 7168, 2048, 8, 32
#: Tokens of each GPU, and the room of its buffer.
TOKENS = ((1, 128), (16, 128), (128, 128), (1024, 1024))
STEPS, ROUNDS, CHECKED_TOKENS = 20, 9, 32
KERNELS = (
    "m_grouped_fp8_gemm_contiguous", *map(name_plain, ("mega_place", "mega_pull", "mega_combine", "cast_rows")),
)  # fmt: skip


def capture(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Return the graph of a call that has run."""
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def time_steps(graph: torch.cuda.CUDAGraph) -> float:
    """Return the microseconds of a replay."""
    dist.barrier()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(STEPS):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3 / STEPS


def make_products(buffer: deep_gemm.SymmBuffer, weights: tuple) -> Callable[[], None]:
    """Return both products of this GPU on the rows that the buffer's choices give it."""
    routing = dispatch.place(dispatch.read_choices(buffer, 0, buffer.tokens_at_once), 0, buffer.num_experts)
    rows = dispatch.pull(buffer, routing)
    first = weights[0][0], layer.spread_scales(weights[0][1])
    return lambda: layer.multiply_rows(buffer, rows, (first, weights[1]), None)


def check(rank: int, buffer: deep_gemm.SymmBuffer, tokens: int, layers: tuple, weights: tuple) -> float:
    """Return calc_diff of a step of some tokens from its definition."""
    torch.manual_seed(rank)
    count = min(tokens, CHECKED_TOKENS)
    x = torch.randn(count, HIDDEN, device="cuda").bfloat16()
    routing = choose(count, buffer.num_experts, TOP_K, "cuda")
    y = torch.full_like(x, torch.nan)
    fill(buffer, x, *routing)
    deep_gemm.fp8_mega_moe(y, *weights, buffer)
    wanted = multiply_experts(x, *routing, layers)
    return calc_diff(y, wanted) if bool(y.isfinite().all()) else float("inf")


def measure(rank: int, gpus: int) -> list[dict]:
    """Return a row for each number of tokens, the same on every GPU."""
    experts = LOCAL_EXPERTS * gpus
    torch.manual_seed(7)
    layers = make_weights(experts, HIDDEN, INTERMEDIATE, "cuda")
    weights = prepare(layers, slice(rank * LOCAL_EXPERTS, (rank + 1) * LOCAL_EXPERTS))
    graphs: list[tuple[torch.cuda.CUDAGraph, ...]] = []
    kept: list[Callable] = []  # with the tensors that graphs read
    rows = []
    for tokens, room in TOKENS:
        buffer = deep_gemm.get_symm_buffer_for_mega_moe(
            dist.group.WORLD, experts, room, TOP_K, HIDDEN, INTERMEDIATE, use_fp8_dispatch=True, activation="swiglu"
        )
        difference = check(rank, buffer, tokens, layers, weights)
        x = torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
        chosen = torch.rand(tokens, experts, device="cuda").topk(TOP_K).indices.int()
        factors, y = torch.rand(tokens, TOP_K, device="cuda"), torch.empty_like(x)

        def step(x=x, chosen=chosen, factors=factors, y=y, buffer=buffer) -> None:
            fill(buffer, x, chosen, factors)
            deep_gemm.fp8_mega_moe(y, *weights, buffer)

        step()
        kept += [step, make_products(buffer, weights)]
        graphs.append(tuple(map(capture, kept[-2:])))
        rows.append({"gpus": gpus, "tokens": tokens, "room": room, "calc_diff": difference})
    times = [[tuple(map(time_steps, pair)) for pair in graphs] for _ in range(ROUNDS)]
    for index, row in enumerate(rows):
        found = torch.tensor([median([one[index][part] for one in times]) for part in (0, 1)], device="cuda")
        worst = torch.tensor([row["calc_diff"]], device="cuda", dtype=torch.float64)
        for tensor in (found, worst):
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        row["layer_us"], row["products_us"] = (round(one, 2) for one in found.tolist())
        row["calc_diff"] = worst.item()
    return rows


def run_process(rank: int, gpus: int, port: int, out: Path) -> None:
    """Run one GPU's process; the first one writes the result."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=gpus, device_id=torch.device("cuda", rank))
    rows = measure(rank, gpus)
    if rank == 0:
        meta = {**make_stamp(_C.get_device(), KERNELS), "complete": True}
        write_json(out, {"meta": meta, "rows": rows})
        for row in rows:
            print(
                f"{row['gpus']} GPUs, {row['tokens']:5} tokens: {row['layer_us']:9.1f} us, products alone"
                f" {row['products_us']:9.1f}, calc_diff {row['calc_diff']:.1e}"
            )
    dist.barrier()
    dist.destroy_process_group()
    if any(not row["calc_diff"] < BOUND for row in rows):
        sys.exit(1)


def main(arguments: list[str] | None = None) -> int:
    """Start the processes; return 1 where a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=0, help="how many; by default all of this host")
    parser.add_argument("--out", type=Path, default=find_results() / "mega_moe.json", help="where the result goes")
    args = parser.parse_args(arguments)
    gpus = args.gpus or torch.cuda.device_count()
    if not 1 <= gpus <= torch.cuda.device_count():
        parser.error(f"--gpus {args.gpus}: this host has {torch.cuda.device_count()}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    try:
        torch.multiprocessing.spawn(run_process, (gpus, port, args.out), nprocs=gpus)
    except torch.multiprocessing.ProcessExitedException as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
