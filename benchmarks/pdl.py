"""Time back-to-back decode products with and without programmatic dependent launch (deep_gemm.set_pdl).

Example: python -m benchmarks.pdl

A chain is 8 products of one shape, each with its own weight, so that the weights come from memory as in a model. Most
chains' products follow each other but do not use each other's D; in those of BF16 with n = k, each D is the next A, so
that a kernel which read before the one before it had ended would give other bits. Times are microseconds a call between
two events, of replays of a CUDA graph of the chain and of eager calls. Off and on alternate, so that both see the same
drift of the clocks.
Result: {"meta": ..., "rows": [{"op", "m", "n", "k", "mode", "off_us": [of each round], "on_us": [...], "gain": median
    off / on, "wrong"}]}.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import deep_gemm
from deep_gemm import _C
from deep_gemm.layout import get_mn_major_tma_aligned_tensor
from deep_gemm.quantize import per_block_cast_to_fp8, per_token_cast_to_fp8
from tuner.measure.statistics import median, paired_ratios

from .harness import WARM_UP_S, warm_up
from .stamp import find_results, make_stamp, write_json

CHAIN = 8
ROUNDS = 15
CHAINS_PER_ROUND = 20
SHAPES = (
    (1, 2112, 7168),
    (16, 2112, 7168),
    (64, 2112, 7168),
    (1, 576, 7168),
    (16, 7168, 2048),
    (64, 4096, 7168),
    (128, 7168, 2048),
    (1024, 4096, 7168),
    (4096, 7168, 2048),
)
#: Only BF16: D is the next A.
DEPENDENT_SHAPES = ((1, 4096, 4096), (16, 4096, 4096), (128, 4096, 4096), (1024, 4096, 4096))


def make_chain(op: str, m: int, n: int, k: int) -> tuple[list[Callable[[], object]], list[torch.Tensor]]:
    """Return the chain's calls and their Ds."""
    outputs = [torch.empty(m, n, dtype=torch.bfloat16, device="cuda") for _ in range(CHAIN)]
    x = torch.randn(m, k, device="cuda")
    weights = [torch.randn(n, k, device="cuda") * k**-0.5 for _ in range(CHAIN)]
    if op == "bf16_gemm":
        first, halves = x.bfloat16(), [weight.bfloat16() for weight in weights]
        inputs = [first, *outputs[:-1]] if (m, n, k) in DEPENDENT_SHAPES else [first] * CHAIN
        chain = zip(inputs, halves, outputs, strict=True)
        return [lambda a=a, b=b, d=d: deep_gemm.bf16_gemm_nt(a, b, d) for a, b, d in chain], outputs
    values, scale = per_token_cast_to_fp8(x, False)
    a, pairs = (
        (values, get_mn_major_tma_aligned_tensor(scale)),
        [per_block_cast_to_fp8(weight, False) for weight in weights],
    )
    return [lambda b=b, d=d: deep_gemm.fp8_gemm_nt(a, b, d) for b, d in zip(pairs, outputs, strict=True)], outputs


def run_chain(calls: list[Callable[[], object]]) -> None:
    """Call the whole chain once."""
    for call in calls:
        call()


def capture(calls: list[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    """Return a graph of several chains; PDL is as it is set now."""
    run_chain(calls)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CHAINS_PER_ROUND):
            run_chain(calls)
    return graph


def time_once(run: Callable[[], object]) -> float:
    """Return microseconds a call of one run of CHAINS_PER_ROUND chains."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return round(start.elapsed_time(end) * 1e3 / (CHAIN * CHAINS_PER_ROUND), 3)


def make_runs(calls: list[Callable[[], object]], mode: str) -> dict[bool, Callable[[], object]]:
    """Return {PDL on: callable of one round} of one mode; a graph keeps the setting that it was captured with."""
    if mode == "graph":
        graphs = {}
        for is_on in (False, True):
            deep_gemm.set_pdl(is_on)
            graphs[is_on] = capture(calls)
        return {is_on: graph.replay for is_on, graph in graphs.items()}

    def run_eagerly() -> None:
        for _ in range(CHAINS_PER_ROUND):
            run_chain(calls)

    return dict.fromkeys((False, True), run_eagerly)


def time_mode(calls: list[Callable[[], object]], outputs: list[torch.Tensor], mode: str, rounds: int) -> dict:
    """Return the samples of one mode, off and on in turn, and whether both gave the same bits."""
    runs, times, bits = make_runs(calls, mode), {False: [], True: []}, {}
    for index in range(rounds + 1):
        for is_on in (False, True):
            deep_gemm.set_pdl(is_on)
            taken = time_once(runs[is_on])
            times[is_on] += [taken] if index else []  # the first round warms up
            bits[is_on] = [output.clone() for output in outputs]
    wrong = [
        index
        for index, (one, other) in enumerate(zip(bits[False], bits[True], strict=True))
        if not torch.equal(one, other)
    ]
    gain = round(median(paired_ratios(times[False], times[True])), 4)
    return {
        "mode": mode,
        "off_us": times[False],
        "on_us": times[True],
        "gain": gain,
        **({"wrong": wrong} if wrong else {}),
    }


def run_shape(op: str, shape: tuple[int, int, int], rounds: int) -> list[dict]:
    """Return the rows of one shape; an exception is a row's `failed`."""
    key, before = {"op": op, **dict(zip("mnk", shape, strict=True))}, deep_gemm.get_pdl()
    try:
        calls, outputs = make_chain(op, *shape)
        return [key | time_mode(calls, outputs, mode, rounds) for mode in ("graph", "eager")]
    except Exception as error:  # one shape's fault must not end the run
        return [key | {"failed": f"{type(error).__name__}: {str(error)[:300]}"}]
    finally:
        deep_gemm.set_pdl(before)


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, measure and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="Exit codes: 0 all right, 1 a wrong result, 3 not complete."
    )
    parser.add_argument("--out", type=Path, default=find_results() / "pdl.json", help="where the result goes")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="samples of each mode")
    parser.add_argument(
        "--time-budget", type=float, default=120.0, help="seconds; shapes that have not begun by then are left out"
    )
    args = parser.parse_args(arguments)
    start, rows = time.monotonic(), []
    warm_up(WARM_UP_S)
    cases = [(op, shape) for op in ("fp8_gemm", "bf16_gemm") for shape in SHAPES]
    cases = [("bf16_gemm", shape) for shape in DEPENDENT_SHAPES] + cases
    done = 0
    for op, shape in cases:
        if time.monotonic() - start > args.time_budget:
            break
        rows += run_shape(op, shape, args.rounds)
        done += 1
        for row in rows[-2:]:
            print({name: value for name, value in row.items() if not name.endswith("_us")}, flush=True)
    has_faults, is_complete = any({"wrong", "failed"} & set(row) for row in rows), done == len(cases)
    meta = {
        **make_stamp(_C.get_device()),
        "chain": CHAIN,
        "rounds": args.rounds,
        "complete": is_complete and not has_faults,
    }
    write_json(args.out, {"meta": meta, "rows": rows})
    return 1 if has_faults else 0 if is_complete else 3


if __name__ == "__main__":
    sys.exit(main())
