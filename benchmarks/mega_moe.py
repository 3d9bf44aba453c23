"""Check and time a layer of experts across the GPUs of this host (deep_gemm.mega), a process for each.

Example: python -m benchmarks.mega_moe --gpus 2

Sizes are those of DeepSeek-V3, with 32 of its experts on each GPU. Every step is checked against the layer with all
experts on one GPU (deep_gemm.nn) first, then captured as a graph with the cast of its tokens, and timed between two
events over STEPS replays, one number of tokens after the other in ROUNDS rounds. `products_us`: both grouped products
and the activation between them alone, on as many rows, whose time no dispatch can save. Caches are as the step leaves
them.

Before that one GPU alone comes to a step, and must give up after its time (SymmBuffer.timeout_s).

Result: {"meta": ..., "alone_s": the seconds until then, null with one GPU, "rows": [{"gpus", "tokens": of each GPU,
"room": of its buffer, "layer_us", "products_us": medians of the slowest GPU, "calc_diff": the largest}]}.
"""

import argparse
import os
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

import deep_gemm
from deep_gemm import _C
from deep_gemm.jit.hashing import name_plain
from deep_gemm.mega import dispatch, layer
from deep_gemm.mega.buffer import MADE
from deep_gemm.nn import Fp8Experts, Fp8GroupedLinear
from deep_gemm.quantize import per_block_cast_to_fp8
from deep_gemm.testing import calc_diff
from tuner.measure.statistics import median

from .stamp import find_results, make_stamp, write_json

HIDDEN, INTERMEDIATE, TOP_K, LOCAL_EXPERTS = 7168, 2048, 8, 32
#: Tokens of each GPU, and the room of its buffer.
TOKENS = ((1, 128), (16, 128), (128, 128), (1024, 1024))
STEPS, ROUNDS = 20, 9
#: calc_diff from the layer on one GPU: sums in another order move a few of 10,000 numbers to the next one in FP8.
BOUND = 1e-4
#: Of the GPU that waits alone.
ALONE_S = 0.5
KERNELS = (
    "m_grouped_fp8_gemm_psum", *map(name_plain, ("place_rows", "mega_pull", "mega_combine", "cast_rows")),
)  # fmt: skip


class Step(NamedTuple):
    """A step's tokens, choices and their weights, and its result."""

    x: torch.Tensor
    chosen: torch.Tensor
    factors: torch.Tensor
    y: torch.Tensor


def capture(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Return the graph of a call, after one that compiles what is missing."""
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


def make_products(buffer: deep_gemm.SymmBuffer, weights: tuple, tokens: int) -> Callable[[], None]:
    """Return both products of this GPU, which has so many tokens, on the rows that the buffer's choices give it."""
    routing = dispatch.place(dispatch.read_choices(buffer, 0, buffer.tokens_at_once), 0, buffer.num_experts)
    rows = dispatch.pull(buffer, routing)
    return lambda: layer.multiply_rows(buffer, rows, weights, tokens, None)


def make_layer(experts: int) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], Fp8Experts]:
    """Return the FP8 weights of both products, the same on every GPU, and the layer of all experts on one GPU."""
    torch.manual_seed(7)
    pairs = []
    for shape in ((experts, 2 * INTERMEDIATE, HIDDEN), (experts, HIDDEN, INTERMEDIATE)):
        groups = [
            torch.randn(shape[1:], device="cuda", dtype=torch.bfloat16) * shape[2] ** -0.5 for _ in range(experts)
        ]
        pairs.append(tuple(map(torch.stack, zip(*(per_block_cast_to_fp8(one, False) for one in groups), strict=True))))
    layers = [Fp8GroupedLinear.from_checkpoint(*pair) for pair in pairs]
    return pairs, Fp8Experts.from_layers(*layers)


def fill(buffer: deep_gemm.SymmBuffer, step: Step) -> None:
    """Fill a buffer with the tokens of a step."""
    deep_gemm.mega_moe_pre_dispatch_sm90(
        step.x, step.chosen, step.factors, buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights, len(step.x)
    )


def make_step(tokens: int, experts: int) -> Step:
    """Return random tokens, different experts of each, and their weights."""
    x = torch.randn(tokens, HIDDEN, device="cuda").bfloat16()
    chosen = torch.rand(tokens, experts, device="cuda").topk(TOP_K).indices.int()
    return Step(x, chosen, torch.rand(tokens, TOP_K, device="cuda"), torch.full_like(x, torch.nan))


class Setting:
    """A number of tokens of each GPU: its buffer, and the graphs of a step and of both products alone."""

    def __init__(self, rank: int, tokens: int, room: int, whole: Fp8Experts, weights: tuple):
        experts = whole.gate_up_proj.num_groups
        self.buffer = deep_gemm.get_symm_buffer_for_mega_moe(
            dist.group.WORLD, experts, room, TOP_K, HIDDEN, INTERMEDIATE, use_fp8_dispatch=True, activation="swiglu"
        )
        torch.manual_seed(rank)
        self.step, self.weights = make_step(tokens, experts), weights
        self.run()
        with torch.no_grad():
            wanted = whole(self.step.x, self.step.chosen, self.step.factors)
        y = self.step.y
        self.difference = calc_diff(y, wanted) if bool(y.isfinite().all()) else float("inf")
        self.products = make_products(self.buffer, weights, tokens)
        self.graphs = capture(self.run), capture(self.products)

    def run(self) -> None:
        """Run a step, with the cast of its tokens."""
        fill(self.buffer, self.step)
        deep_gemm.fp8_mega_moe(self.step.y, *self.weights, self.buffer)


def measure(rank: int, gpus: int) -> list[dict]:
    """Return a row for each number of tokens, the same on every GPU."""
    pairs, whole = make_layer(LOCAL_EXPERTS * gpus)
    own = slice(rank * LOCAL_EXPERTS, (rank + 1) * LOCAL_EXPERTS)
    weights = deep_gemm.transform_weights_for_mega_moe_sm90(*(tuple(part[own] for part in pair) for pair in pairs))
    settings = [Setting(rank, tokens, room, whole, weights) for tokens, room in TOKENS]
    times = [[tuple(map(time_steps, one.graphs)) for one in settings] for _ in range(ROUNDS)]
    rows = []
    for index, ((tokens, room), one) in enumerate(zip(TOKENS, settings, strict=True)):
        found = [median([round_[index][part] for round_ in times]) for part in (0, 1)]
        layer_us, products_us, difference = find_largest(*found, one.difference)
        rows.append(
            {
                "gpus": gpus, "tokens": tokens, "room": room, "layer_us": round(layer_us, 2),
                "products_us": round(products_us, 2), "calc_diff": difference,
            }
        )  # fmt: skip
    return rows


def find_largest(*numbers: float) -> list[float]:
    """Return the largest of each number over all GPUs."""
    found = torch.tensor(numbers, device="cuda", dtype=torch.float64)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return found.tolist()


def join(rank: int, gpus: int, port: int) -> None:
    """Let a process take its GPU and meet the others."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=gpus, device_id=torch.device("cuda", rank))


def wait_alone(rank: int, gpus: int, port: int, found: SimpleQueue) -> None:
    """Let the first GPU alone come to a step, and put the seconds until its error; none where nothing is raised."""
    join(rank, gpus, port)
    buffer = deep_gemm.get_symm_buffer_for_mega_moe(dist.group.WORLD, gpus, 1, 1, 128, 128)
    torch.cuda.synchronize()
    dist.barrier()
    if rank == 0:
        buffer.timeout_s, start = ALONE_S, time.monotonic()
        buffer.meet(MADE)
        try:
            torch.cuda.synchronize()
            found.put(None)
        except RuntimeError:
            found.put(time.monotonic() - start)
    else:
        time.sleep(4 * ALONE_S)
    os._exit(0)  # nothing else can be done with the first GPU here


def find_wait(gpus: int) -> float | None:
    """Return the seconds after which a GPU gives up waiting for another; None with one GPU.

    Raises: RuntimeError where it does not within four times its limit.
    """
    if gpus == 1:
        return None
    found = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(wait_alone, (gpus, find_port(), found), nprocs=gpus)
    seconds = None if found.empty() else found.get()
    if seconds is None or not ALONE_S <= seconds < 4 * ALONE_S:
        raise RuntimeError(f"a GPU that waits alone raised after {seconds} s; its limit is {ALONE_S}")
    return seconds


def run_process(rank: int, gpus: int, port: int, out: Path, wait_s: float | None) -> None:
    """Run one GPU's process; the first one writes the result."""
    join(rank, gpus, port)
    rows = measure(rank, gpus)
    if rank == 0:
        meta = {**make_stamp(_C.get_device(), KERNELS), "complete": True}
        write_json(out, {"meta": meta, "alone_s": wait_s and round(wait_s, 3), "rows": rows})
        for row in rows:
            print(
                f"{row['gpus']} GPUs, {row['tokens']:5} tokens: {row['layer_us']:9.1f} us, products alone"
                f" {row['products_us']:9.1f}, calc_diff {row['calc_diff']:.1e}"
            )
    dist.barrier()
    dist.destroy_process_group()
    if any(not row["calc_diff"] < BOUND for row in rows):
        sys.exit(1)


def find_port() -> int:
    """Return a free port of this host."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main(arguments: list[str] | None = None) -> int:
    """Start the processes; return 1 where a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=0, help="how many; by default all of this host")
    parser.add_argument("--out", type=Path, default=find_results() / "mega_moe.json", help="where the result goes")
    args = parser.parse_args(arguments)
    gpus = args.gpus or torch.cuda.device_count()
    if not 1 <= gpus <= torch.cuda.device_count():
        parser.error(f"--gpus {args.gpus}: this host has {torch.cuda.device_count()}")
    try:
        wait_s = find_wait(gpus)
        torch.multiprocessing.spawn(run_process, (gpus, find_port(), args.out, wait_s), nprocs=gpus)
    except (torch.multiprocessing.ProcessExitedException, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
