"""A mixture-of-experts layer on grouped products, checked and timed against a loop over its experts.

    python -m examples.moe_layer                    # on a GPU one GPU's share of DeepSeek-V3, else a small layer
    python -m examples.moe_layer --out moe.json

Every token goes to the `top_k` experts that the router scores highest; an expert is a SwiGLU network of two products:

    y[t] = sum over the chosen experts e of weight[t, e] * down[e] @ (silu(gate[e] @ x[t]) * (up[e] @ x[t]))

The layer runs all experts' products as two grouped ones. What differs between its two forms is where the tokens of an
expert lie:

* contiguous (prefill): one after the other in a matrix; each expert's tokens start at a multiple of the library's
  alignment. `m_indices` names the expert of every row, -1 for padding. The matrix is as long as any routing can need.
* masked (decode): every expert has room for all tokens, and `masked_m` says how many it has. All shapes are fixed and
  all sizes are read on the GPU, so that the whole layer is one CUDA graph.

Neither form asks the GPU for a size, so the host runs ahead. FP8 activations have a scale for each token and 128
features, weights one for each 128 x 128 block; the scales of A stay row-major, as quantising leaves them, and the
products read them as they are.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

import deep_gemm
from deep_gemm import _C
from deep_gemm.group_rows import rank_choices
from deep_gemm.jit.hashing import kernel_hash
from deep_gemm.testing import bench
from tuner.measure.stamp import describe_selector

#: A tensor, or FP8 values with their FP32 scales.
Operand = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
#: Of the worst token, between two orders of summation: BF16 roundings, and the FP8 values of hidden features that they
#: move to the next one. One wrong choice of eight gives more than 1e-2.
MAX_DIFF = 1e-3
#: What a form is for, as it is printed.
FORM_NAMES = {"contiguous": "contiguous (prefill)", "masked": "masked (decode)"}
FORMS = (("", ""), ("m_grouped_", "_contiguous"), ("m_grouped_", "_masked"))
OPS = [f"{grouping}{dtype}_gemm{suffix}" for dtype in ("fp8", "bf16") for grouping, suffix in FORMS]


class Sizes(NamedTuple):
    """Features of a token and inside an expert, experts, experts of a token, and the tokens of a call of each form."""

    hidden: int
    intermediate: int
    experts: int
    top_k: int
    prefill_tokens: int
    decode_tokens: int


#: 32 of DeepSeek-V3's 256 experts, as one GPU of eight holds them; and what a CPU does in a second.
DEEPSEEK_SHARE = Sizes(hidden=7168, intermediate=2048, experts=32, top_k=8, prefill_tokens=4096, decode_tokens=64)
SMALL = Sizes(hidden=256, intermediate=128, experts=4, top_k=2, prefill_tokens=48, decode_tokens=8)


class Layer(NamedTuple):
    """Weights: router BF16 [experts, hidden]; gate_up [experts, 2 * intermediate, hidden], gate first; down [experts,
    hidden, intermediate].
    """

    router: torch.Tensor
    gate_up: Operand
    down: Operand
    top_k: int


class Placement(NamedTuple):
    """Where the tokens lie among the rows of the grouped products.

    rows: int64 [tokens, top_k], row of a token's choice, the leading dims of `shape` counted as one. shape: (rows,) or
        (experts, room).
    groups: m_indices int32 [rows], or masked_m int32 [experts] where expected_m, the mean rows of an expert, is given.
    """

    rows: torch.Tensor
    shape: tuple[int, ...]
    groups: torch.Tensor
    expected_m: int | None = None


def route(x: torch.Tensor, layer: Layer) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (weights FP32 [tokens, top_k] that add up to 1, experts int64 [tokens, top_k]) for BF16 x [tokens,
    hidden].
    """
    scores = (x @ layer.router.t()).float().softmax(-1)
    weights, experts = scores.topk(layer.top_k, dim=-1)
    return weights / weights.sum(-1, keepdim=True), experts


def place_contiguous(experts: torch.Tensor, num_experts: int) -> Placement:
    """Place every expert's tokens from a multiple of the alignment on; as many rows as any routing could need."""
    alignment = deep_gemm.get_mk_alignment_for_contiguous_layout()
    ranks, counts = rank_choices(experts, num_experts)
    lengths = (counts + alignment - 1) // alignment * alignment
    rows = (lengths.cumsum(0) - lengths)[experts] + ranks
    most = experts.numel() + min(num_experts, experts.numel()) * (alignment - 1)
    m_indices = torch.full((most // alignment * alignment,), -1, dtype=torch.int32, device=experts.device)
    m_indices[rows] = experts.int()
    return Placement(rows, tuple(m_indices.shape), m_indices)


def place_masked(experts: torch.Tensor, num_experts: int) -> Placement:
    """Give every expert room for all tokens, more than which no routing sends to one."""
    ranks, counts = rank_choices(experts, num_experts)
    room = experts.shape[0]
    expected_m = deep_gemm.ceil_div(experts.numel(), num_experts)
    return Placement(experts * room + ranks, (num_experts, room), counts.int(), expected_m)


def quantise(x: torch.Tensor, layer: Layer) -> Operand:
    """Return BF16 [..., features] as the layer's products take it: as it is, or FP8 with a scale for each token and 128
    features.
    """
    if not isinstance(layer.down, tuple):
        return x
    return deep_gemm.per_token_cast_to_fp8(x, use_ue8m0=False)


def spread(x: Operand, placement: Placement) -> Operand:
    """Copy every token's row to the rows of its choices: [tokens, features] to [*shape, features].

    What lies between stays as it is.
    """
    if isinstance(x, tuple):
        return spread(x[0], placement), spread(x[1], placement)
    if x.dtype == torch.float8_e4m3fn:  # bytes: torch indexes no FP8 on some devices
        return spread(x.view(torch.uint8), placement).view(x.dtype)
    out = x.new_empty(*placement.shape, x.shape[-1])
    out.view(-1, x.shape[-1])[placement.rows] = x[:, None]
    return out


def multiply(a: Operand, b: Operand, placement: Placement) -> torch.Tensor:
    """Return the grouped product BF16 [*shape, n] of A [*shape, k] and every expert's B [n, k]."""
    name, values = ("fp8", b[0]) if isinstance(b, tuple) else ("bf16", b)
    d = torch.empty(*placement.shape, values.shape[1], dtype=torch.bfloat16, device=values.device)
    if placement.expected_m is None:
        getattr(deep_gemm, f"m_grouped_{name}_gemm_nt_contiguous")(a, b, d, placement.groups)
    else:
        getattr(deep_gemm, f"m_grouped_{name}_gemm_nt_masked")(a, b, d, placement.groups, placement.expected_m)
    return d


def swiglu(x: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up in BF16 for [..., 2 * features], gate first."""
    gate, up = x.float().chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).bfloat16()


def combine(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the weighted sum BF16 [tokens, hidden] of the choices' rows [tokens, top_k, hidden]."""
    return (rows.float() * weights[..., None]).sum(1).bfloat16()


def run_grouped(x: torch.Tensor, layer: Layer, place: Callable[[torch.Tensor, int], Placement]) -> torch.Tensor:
    """Return the layer's output BF16 [tokens, hidden] for x BF16 [tokens, hidden]; `place` is the form."""
    weights, experts = route(x, layer)
    placement = place(experts, layer.router.shape[0])
    hidden = multiply(spread(quantise(x, layer), placement), layer.gate_up, placement)
    out = multiply(quantise(swiglu(hidden), layer), layer.down, placement)
    return combine(out.view(-1, x.shape[1])[placement.rows], weights)


def pick(x: Operand, index: torch.Tensor | int) -> Operand:
    """Return rows, or one matrix, of an operand."""
    if isinstance(x, tuple):
        return pick(x[0], index), pick(x[1], index)
    return x.view(torch.uint8)[index].view(x.dtype) if x.dtype == torch.float8_e4m3fn else x[index]


def multiply_dense(a: Operand, b: Operand) -> torch.Tensor:
    """Return the product BF16 [m, n] of A [m, k] and one expert's B [n, k]."""
    op, (x, y) = (deep_gemm.fp8_gemm_nt, (a[0], b[0])) if isinstance(b, tuple) else (deep_gemm.bf16_gemm_nt, (a, b))
    d = torch.empty(x.shape[0], y.shape[0], dtype=torch.bfloat16, device=x.device)
    op(a, b, d)
    return d


def run_loop(x: torch.Tensor, layer: Layer) -> torch.Tensor:
    """Return the layer's output by dense products, one expert after the other, to compare the grouped forms with."""
    weights, experts = route(x, layer)
    a, out = quantise(x, layer), torch.zeros(x.shape, device=x.device)
    for expert in range(layer.router.shape[0]):
        tokens, choices = (experts == expert).nonzero(as_tuple=True)  # the host waits for the GPU here
        if tokens.numel() == 0:
            continue
        hidden = multiply_dense(pick(a, tokens), pick(layer.gate_up, expert))
        rows = multiply_dense(quantise(swiglu(hidden), layer), pick(layer.down, expert))
        out.index_add_(0, tokens, rows.float() * weights[tokens, choices, None])
    return out.bfloat16()


def make_weights(sizes: Sizes, n: int, k: int, is_fp8: bool, device: str) -> Operand:
    """Return random weights [experts, n, k] that keep the variance of their input, made one expert at a time."""
    dtype = torch.float8_e4m3fn if is_fp8 else torch.bfloat16
    values = torch.empty(sizes.experts, n, k, dtype=dtype, device=device)
    scales = torch.empty(sizes.experts, deep_gemm.ceil_div(n, 128), deep_gemm.ceil_div(k, 128), device=device)
    for expert in range(sizes.experts):
        weight = torch.randn(n, k, device=device) / k**0.5
        if is_fp8:
            weight, scales[expert] = deep_gemm.per_block_cast_to_fp8(weight, use_ue8m0=False)
        values[expert].copy_(weight)
    return (values, scales) if is_fp8 else values


def make_layer(sizes: Sizes, dtype: str, device: str) -> Layer:
    """Return a layer with random weights; dtype: "fp8" or "bf16"."""
    router = torch.randn(sizes.experts, sizes.hidden, dtype=torch.bfloat16, device=device) / sizes.hidden**0.5
    gate_up = make_weights(sizes, 2 * sizes.intermediate, sizes.hidden, dtype == "fp8", device)
    return Layer(
        router, gate_up, make_weights(sizes, sizes.hidden, sizes.intermediate, dtype == "fp8", device), sizes.top_k
    )


def capture(call: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
    """Return (a CUDA graph's replay, the output that it writes) of one call."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()  # compiles what is missing, which a capture cannot
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        out = call()
    return graph.replay, out


def get_worst_diff(x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the largest |x - y|^2 / (|x|^2 + |y|^2) of a row: calc_diff of the worst token; NaN where there is one."""
    x, y = x.double(), y.double()
    return float(((x - y).square().sum(-1) / (x.square() + y.square()).sum(-1)).max())


def time_us(call: Callable[[], object], device: str) -> float:
    """Return microseconds of one call: the mean of ten on a GPU, of one on a CPU."""
    if device == "cuda":
        return bench(call) * 1e6
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def compare(layer: Layer, x: torch.Tensor, form: str) -> dict:
    """Return the row of one form: its time, the loop's, and how far their outputs differ."""
    place, device = {"contiguous": place_contiguous, "masked": place_masked}[form], x.device.type
    run, out = (lambda: run_grouped(x, layer, place)), None
    if form == "masked" and device == "cuda":
        run, out = capture(run)
    grouped_us, loop_us = time_us(run, device), time_us(lambda: run_loop(x, layer), device)
    diff = get_worst_diff(run() if out is None else out, run_loop(x, layer))
    return {
        "form": form,
        "tokens": x.shape[0],
        "grouped_us": round(grouped_us, 1),
        "loop_us": round(loop_us, 1),
        "diff": diff,
        "is_right": diff <= MAX_DIFF,
    }


def run_all(sizes: Sizes, device: str) -> list[dict]:
    """Return the rows of both dtypes and forms."""
    rows = []
    for dtype in ("fp8", "bf16"):
        layer = make_layer(sizes, dtype, device)
        for form, tokens in (("contiguous", sizes.prefill_tokens), ("masked", sizes.decode_tokens)):
            x = torch.randn(tokens, sizes.hidden, dtype=torch.bfloat16, device=device)
            rows.append({"dtype": dtype, **compare(layer, x, form)})
    return rows


def show(rows: list[dict], sizes: Sizes, place: str, device: str) -> None:
    """Print a line for each row; a speed-up only where kernels ran."""
    has_kernels = device == "cuda"
    print(
        f"{place}: {sizes.experts} experts, {sizes.top_k} of them for a token, hidden {sizes.hidden}, intermediate"
        f" {sizes.intermediate}"
    )
    if not has_kernels:
        print("The times are those of the reference on the CPU: they say nothing of the kernels.")
    speedup = f"{'speed-up':>10}" if has_kernels else ""
    print(f"{'dtype':6}{'form':22}{'tokens':>7}{'grouped us':>12}{'loop us':>12}{speedup}{'worst diff':>12}")
    for row in rows:
        speedup, note = (
            f"{row['loop_us'] / row['grouped_us']:>9.2f}x" if has_kernels else "",
            "" if row["is_right"] else "  WRONG",
        )
        times = f"{row['grouped_us']:>12.1f}{row['loop_us']:>12.1f}{speedup}"
        print(f"{row['dtype']:6}{FORM_NAMES[row['form']]:22}{row['tokens']:>7}{times}{row['diff']:>12.1e}{note}")


def main(arguments: list[str] | None = None) -> int:
    """Run both forms in both dtypes; return 1 where an output is not the loop's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experts", type=int, help="experts of the layer")
    parser.add_argument("--out", type=Path, help="write the figures here")
    args = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = DEEPSEEK_SHARE if device == "cuda" else SMALL
    sizes = sizes._replace(experts=args.experts or sizes.experts)
    rows, place = run_all(sizes, device), torch.cuda.get_device_name() if device == "cuda" else "CPU reference"
    show(rows, sizes, place, device)
    if args.out:
        meta = {"device": place, "sizes": sizes._asdict(), "kernel_hash": {op: kernel_hash(op) for op in OPS}}
        meta |= describe_selector(_C.get_device().sku, OPS) if device == "cuda" else {}
        args.out.write_text(json.dumps({"meta": meta, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["is_right"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
