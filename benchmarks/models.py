"""Time a model with FP8 layers beside the same model in BF16: prefill and decoding.

Example: python -m benchmarks.models
Example: python -m benchmarks.models --model qwen3_30b --layers 12 --transformers
Example: python -m benchmarks.models --model deepseek_v3 --layers 3

The model is that of examples/llama.py with random weights in the sizes of Llama 3.1 8B, or of Qwen3 30B-A3B, a mixture
of experts; with --transformers, the one of that library in these sizes. Or it is that of examples/deepseek.py, whose
first layer is dense here; the others have experts, 23 GB each in BF16. Its index logits are FP8 in both models, and its
prompts and contexts are twice as long as the positions that it chooses. The other one is made of a copy, with weights
stored in FP8 and the head in BF16. BF16 layers are torch.nn.Linear, BF16 experts the grouped products of this package,
or what transformers takes. With --torchao a third model has the FP8 layers of that library. Every call is captured in a
CUDA graph; replays of both models alternate, so that both see the same clocks. With --compile both are compiled first.
Prefill computes the logits of the last token of each sequence; decoding computes one token of each over a cache of
`--context` positions.

Result: {"meta": ..., "rows": [{"phase", "sequences", "tokens" of a call, "bf16_ms", "fp8_ms": [of each round],
    "bf16_tokens_s", "fp8_tokens_s", "speedup": median bf16 / fp8, "cosine": mean over tokens of the logits' cosine,
    "bf16_peak_mb", "fp8_peak_mb": weights and what a call takes beside them, "share": of the FP8 model's kernel time
    {"products", "casts", "logits" (of the index), "others"}, "failed"}]}; with --torchao also "torchao_ms" and so on,
    its "torchao_speedup" over BF16 and "torchao_cosine".
"""

import argparse
import copy
import importlib.metadata
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from deep_gemm import _C
from deep_gemm.nn import is_suitable, quantize_
from examples import deepseek, llama
from examples.llama import LLAMA_8B, QWEN3_30B, TINY, TINY_MOE
from tuner.measure.statistics import median, paired_ratios

from .stamp import find_results, make_stamp, write_result

#: The model whose layers are torchao's, beside "bf16" and "fp8".
TORCHAO = "torchao"
#: A model: called with tokens, a cache, a position and is_last_only, as examples.llama.Llama.
Model = torch.nn.Module
#: Takes sizes, a device and a dtype.
Maker = Callable[[NamedTuple, str, torch.dtype], Model]


class Family(NamedTuple):
    """How a model is made, its sizes on a GPU and on a CPU, its op kinds, and the tokens of a prompt and of a cache."""

    make: Maker
    gpu_sizes: NamedTuple
    cpu_sizes: NamedTuple
    ops: tuple[str, ...]
    length: int = 2048
    context: int = 1024


DENSE = ("fp8_gemm",)
WITH_EXPERTS = (
    *DENSE,
    "m_grouped_fp8_gemm_psum",
    "m_grouped_fp8_gemm_masked",
    "m_grouped_bf16_gemm_psum",
    "m_grouped_bf16_gemm_masked",
)
WITH_LOGITS = (*WITH_EXPERTS, "fp8_mqa_logits", "fp8_paged_mqa_logits")
FAMILIES = {
    "llama_8b": Family(llama.make_model, LLAMA_8B, TINY, DENSE),
    "qwen3_30b": Family(llama.make_model, QWEN3_30B, TINY_MOE, WITH_EXPERTS),
    "deepseek_v3": Family(
        deepseek.make_model, deepseek.DEEPSEEK_V3._replace(dense_layers=1), deepseek.TINY, WITH_LOGITS, 4096, 4096
    ),
}
#: Of torch.compile.
BACKEND = "inductor"
PREFILLS, DECODES = (1, 4), (1, 8, 32, 128)
ROUNDS = 15
#: What a kernel does -> parts of its name, in lower case: casts to FP8 with layouts of scales, index logits, products
#: of ours and of cuBLAS.
PARTS = {
    "casts": ("cast_", "fp32_into_ue8m0"),
    "logits": ("mqa_",),
    "products": ("gemm", "nvjet", "cublas", "gemv"),
}


class Case(NamedTuple):
    """What is timed: the phase, sequences, and tokens of each in a call."""

    phase: str
    sequences: int
    length: int

    @property
    def tokens(self) -> int:
        """Tokens of a call."""
        return self.sequences * self.length


def list_cases(prefills: tuple[int, ...], length: int, decodes: tuple[int, ...]) -> list[Case]:
    """Return the cases of a run."""
    return [*(Case("prefill", count, length) for count in prefills), *(Case("decode", count, 1) for count in decodes)]


def make_models(
    make: Maker, sizes: NamedTuple, device: str, is_compiled: bool = False, has_torchao: bool = False
) -> dict[str, Model]:
    """Return the model with BF16 layers, and with FP8 layers made of the same weights: ours, and with has_torchao also
    torchao's; is_compiled: with every block a compiled graph, one for all blocks.
    """
    plain = make(sizes, device, torch.bfloat16).eval().requires_grad_(False)
    models = {"bf16": plain, "fp8": quantize_(copy_layers(plain))}
    if has_torchao:
        models[TORCHAO] = quantize_by_torchao(copy_layers(plain))
    for block in (block for model in models.values() for block in model.blocks if is_compiled):
        block.compile(fullgraph=True, backend=BACKEND)
    return models


def copy_layers(model: Model) -> Model:
    """Return a copy with the parameters of the model itself: the largest models fit only once."""
    return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})


def quantize_by_torchao(model: Model) -> Model:
    """Make the layers that quantize_ would replace FP8 by torchao, with a scale for each row of both operands. Returns
    the model.
    """
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow
    from torchao.quantization import quantize_ as replace_

    replace_(model, Float8DynamicActivationFloat8WeightConfig(granularity=PerRow()), filter_fn=is_suitable)
    return model


def refuse_transformers(parser: argparse.ArgumentParser, model: str, is_from_transformers: bool) -> None:
    """End the program where transformers' model of these sizes cannot be timed."""
    if model == "deepseek_v3" and is_from_transformers:
        parser.error("--transformers: has no fixed cache for deepseek_v3; leave it out")


def refuse_missing(parser: argparse.ArgumentParser, library: str, is_wanted: bool) -> None:
    """End the program where a library that is wanted is not installed."""
    if not is_wanted:
        return
    try:
        importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        parser.error(f"--{library}: that library is not installed; run `pip install {library}`")


def choose_maker(family: Family, is_from_transformers: bool) -> Maker:
    """Return what makes the model; transformers is imported for its own alone."""
    if not is_from_transformers:
        return family.make
    from examples import transformers_models

    return transformers_models.make_model


def make_call(case: Case, vocabulary: int, context: int, device: str) -> Callable[[Model], torch.Tensor]:
    """Return a function that computes the logits [sequences, 1, vocabulary] of a model for the same tokens."""
    tokens = torch.randint(vocabulary, (case.sequences, case.length), device=device)
    if case.phase == "prefill":
        return lambda model: model(tokens, is_last_only=True)
    position = torch.full((1,), context - 1, dtype=torch.int64, device=device)
    caches: dict[str, object] = {}

    def decode(model: Model) -> torch.Tensor:
        if not caches:  # one for both models: each writes its own keys of the last position before it reads them
            caches["shared"] = model.make_cache(case.sequences, context, is_random=True)
        return model(tokens, caches["shared"], position)

    return decode


def get_cosine(x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the mean cosine of the logits of a token."""
    return float(torch.nn.functional.cosine_similarity(x.double().flatten(0, -2), y.double().flatten(0, -2)).mean())


def measure_peak(call: Callable[[], torch.Tensor], model: Model) -> tuple[torch.Tensor, float]:
    """Return (logits, MB of the weights and of what one call takes beside what is there)."""
    call()  # what stays afterwards, kernels and caches, is no part of it
    weights = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    if not torch.cuda.is_available():
        return call(), weights / 1e6
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    logits = call().clone()
    return logits, (weights + torch.cuda.max_memory_allocated() - before) / 1e6


def capture(call: Callable[[], torch.Tensor]) -> Callable[[], object]:
    """Return the replay of a CUDA graph of a call, or the call itself on a CPU."""
    if not torch.cuda.is_available():
        return call
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def time_once(run: Callable[[], object]) -> float:
    """Return the milliseconds of a run."""
    if not torch.cuda.is_available():
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e3
    start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start_event.record()
    run()
    end_event.record()
    end_event.synchronize()
    return start_event.elapsed_time(end_event)


def classify(name: str) -> str:
    """Return what a kernel of this name does."""
    lower = name.lower().removeprefix("deep_gemm_")
    return next((kind for kind, parts in PARTS.items() if any(part in lower for part in parts)), "others")


def attribute(call: Callable[[], object]) -> dict[str, float]:
    """Return the shares of kernel time of one eager call by what the kernels do; empty on a CPU."""
    if not torch.cuda.is_available():
        return {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    times = dict.fromkeys((*PARTS, "others"), 0.0)
    for event in profile.key_averages():
        times[classify(event.key)] += event.self_device_time_total
    total = sum(times.values())
    return {kind: round(value / total, 4) for kind, value in times.items()} if total else {}


@torch.no_grad()
def run_case(case: Case, models: dict[str, Model], context: int, rounds: int, device: str) -> dict:
    """Return the row of a case."""
    step = make_call(case, models["bf16"].sizes.vocabulary, context, device)
    calls = {name: (lambda model=model: step(model)) for name, model in models.items()}
    found = {name: measure_peak(calls[name], model) for name, model in models.items()}
    runs, times = {name: capture(calls[name]) for name in models}, {name: [] for name in models}
    for index in range(rounds + 1):
        for name in models:
            taken = time_once(runs[name])
            times[name] += [taken] if index else []  # the first round warms up
    row = {"phase": case.phase, "sequences": case.sequences, "tokens": case.tokens}
    for name, (_, peak) in found.items():
        row |= {
            f"{name}_ms": [round(taken, 4) for taken in times[name]],
            f"{name}_tokens_s": round(case.tokens / median(times[name]) * 1e3, 1),
            f"{name}_peak_mb": round(peak, 1),
        }
    exact = found["bf16"][0]
    row["speedup"] = round(median(paired_ratios(times["bf16"], times["fp8"])), 4)
    row |= {"cosine": round(get_cosine(exact, found["fp8"][0]), 6), "share": attribute(calls["fp8"])}
    if TORCHAO in models:
        row["torchao_speedup"] = round(median(paired_ratios(times["bf16"], times[TORCHAO])), 4)
        row["torchao_cosine"] = round(get_cosine(exact, found[TORCHAO][0]), 6)
    return row


def run_safely(run: Callable[..., dict], case: Case, *options) -> dict:
    """Return the row that `run` makes of a case; an exception is the row's `failed`."""
    try:
        return run(case, *options)
    except Exception as error:  # one case's fault must not end the run
        return {**case._asdict(), "failed": f"{type(error).__name__}: {str(error)[:300]}"}


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="Exit codes: 0 all right, 1 a case failed, 3 not complete."
    )
    parser.add_argument("--out", type=Path, help="where the result goes; default: the record, on a GPU")
    parser.add_argument("--model", choices=FAMILIES, default="llama_8b", help="the sizes; default: llama_8b")
    parser.add_argument("--transformers", action="store_true", help="the model of transformers in these sizes")
    parser.add_argument("--layers", type=int, help="layers of the model; default: all")
    parser.add_argument("--context", type=int, help="positions of the cache while decoding; default: the model's")
    parser.add_argument("--compile", action="store_true", help="compile the blocks of both models with torch.compile")
    parser.add_argument("--torchao", action="store_true", help="a third model, with torchao's FP8 layers; dense only")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="samples of each model")
    parser.add_argument(
        "--time-budget", type=float, default=200.0, help="seconds; cases that have not begun are left out"
    )
    args = parser.parse_args(arguments)
    if args.compile and args.transformers:
        parser.error("--compile: blocks of transformers share no graph; leave it out, or --transformers")
    refuse_transformers(parser, args.model, args.transformers)
    if args.model != "llama_8b" and args.torchao:
        parser.error("--torchao: leaves experts in BF16, which is no comparison; take --model llama_8b")
    refuse_missing(parser, "transformers", args.transformers)
    refuse_missing(parser, TORCHAO, args.torchao)
    return args


def main(arguments: list[str] | None = None) -> int:
    """Measure every case and write the result. Returns the exit status."""
    args, start, rows = parse_arguments(arguments), time.monotonic(), []
    is_gpu = torch.cuda.is_available()
    family, device = FAMILIES[args.model], "cuda" if is_gpu else "cpu"
    sizes = family.gpu_sizes if is_gpu else family.cpu_sizes
    sizes = sizes._replace(layers=args.layers or sizes.layers)
    cases = list_cases(PREFILLS, family.length, DECODES) if is_gpu else list_cases((1,), 16, (2,))
    context = (args.context or family.context) if is_gpu else 16
    models = make_models(choose_maker(family, args.transformers), sizes, device, args.compile, args.torchao)
    for case in cases:
        if time.monotonic() - start > args.time_budget:
            break
        rows.append(run_safely(run_case, case, models, context, args.rounds, device))
        print({name: value for name, value in rows[-1].items() if not name.endswith("_ms")}, flush=True)
    has_faults, is_complete = any("failed" in row for row in rows), len(rows) == len(cases)
    origin = make_stamp(_C.get_device(), family.ops) if is_gpu else {"device": "CPU reference"}
    meta = {
        **origin,
        "model": args.model,
        "transformers": importlib.metadata.version("transformers") if args.transformers else None,
        "sizes": sizes._asdict(),
        "compiled": args.compile,
        "torchao": importlib.metadata.version(TORCHAO) if args.torchao else None,
        "context": context,
        "rounds": args.rounds,
    }
    result = {"meta": {**meta, "complete": is_complete and not has_faults}, "rows": rows}
    write_result(result, args.out, find_results() / "models.json", is_gpu)
    return 1 if has_faults else 0 if is_complete else 3


if __name__ == "__main__":
    sys.exit(main())
