"""What FP8 does to the logits of a model with random weights, and which part of it does how much.

Example: python -m benchmarks.model_error

The model is that of examples/llama.py in FP32: on a GPU six layers of Llama 3.1 8B, on a CPU smaller ones, where the
reference computes the layers. Each variant rounds other operands: all of the layers, weights alone, activations alone,
or all but some layers. `bf16` is the model in BF16 without FP8. Embeddings have a standard deviation of 0.02, where
nearly all that blocks read is what blocks before them wrote, or of 1, where it is the embedding.

Result: {"meta": ..., "linear": cosine of one layer's output on random numbers, "rows": [{"embedding_std", "variant",
    "cosine": mean over tokens of the logits' cosine}], "blocks": [{"embedding_std", "block", "branch": cosine of what
    the block adds, on exact inputs, "stream": of its output, on exact inputs, "accumulated": of its output behind the
    FP8 blocks before it}]}.
"""

import argparse
import copy
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from deep_gemm import per_block_cast_to_fp8, per_token_cast_to_fp8
from deep_gemm.nn import Fp8Linear, is_suitable, quantize_
from deep_gemm.numerics import widen
from examples.llama import LLAMA_8B, Llama, Sizes, make_model

from .stamp import write_json

GPU_SIZES = LLAMA_8B._replace(layers=6)
CPU_SIZES = Sizes(hidden=512, intermediate=1792, layers=6, heads=4, kv_heads=2, vocabulary=1024)
#: Tokens of the one sequence, on a GPU and on a CPU.
TOKENS = (2048, 96)
EMBEDDING_STDS = (0.02, 1.0)


def get_cosine(x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the mean cosine of rows."""
    return round(float(torch.cosine_similarity(x.double(), y.double(), dim=-1).mean()), 6)


def round_rows(x: torch.Tensor) -> torch.Tensor:
    """Return x as FP8 activations hold it."""
    return widen(*per_token_cast_to_fp8(x.reshape(-1, x.shape[-1]), use_ue8m0=False)).view(x.shape).to(x.dtype)


def round_weights(model: Llama) -> Llama:
    """Round the weights of all layers that would be FP8, and nothing else. Returns the model."""
    for layer in find_layers(model):
        layer.weight.copy_(widen(*per_block_cast_to_fp8(layer.weight, use_ue8m0=False)))
    return model


def round_activations(model: Llama) -> Llama:
    """Round the inputs of all layers that would be FP8, and nothing else. Returns the model."""
    for layer in find_layers(model):
        layer.register_forward_pre_hook(lambda _, inputs: (round_rows(inputs[0]),))
    return model


def find_layers(model: Llama) -> list[torch.nn.Linear]:
    """Return the layers that quantize_ would replace."""
    return [layer for name, layer in model.named_modules() if is_suitable(layer, name)]


def leave_out(*parts: str) -> Callable[[Llama], torch.nn.Module]:
    """Return what makes all layers FP8 but those with a part of their name among `parts`."""

    def is_wanted(module: torch.nn.Module, name: str) -> bool:
        return is_suitable(module, name) and not any(part in name for part in parts)

    return lambda model: quantize_(model, is_wanted)


VARIANTS: dict[str, Callable[[Llama], torch.nn.Module]] = {
    "bf16": lambda model: model.to(torch.bfloat16),
    "all": quantize_,
    "weights alone": round_weights,
    "activations alone": round_activations,
    "all but down_proj": leave_out("down_proj"),
    "all but gate_up_proj": leave_out("gate_up_proj"),
    "all but attention": leave_out("qkv_proj", "o_proj"),
    "all but the first block": leave_out("blocks.0."),
}


def make_exact(sizes: Sizes, device: str, embedding_std: float) -> Llama:
    """Return the model in FP32 with embeddings of a standard deviation."""
    model = make_model(sizes, device, torch.float32).eval().requires_grad_(False)
    model.embedding.weight.mul_(embedding_std / model.embedding.weight.std())
    return model


def measure_linear(features: int, device: str) -> float:
    """Return the cosine of one layer's output on random numbers."""
    x, weight = (torch.randn(features, features, device=device) for _ in range(2))
    layer = Fp8Linear.from_checkpoint(*per_block_cast_to_fp8(weight, use_ue8m0=False))
    return get_cosine(layer(x), x @ weight.T)


def measure_blocks(model: Llama, tokens: torch.Tensor) -> list[dict]:
    """Return the cosines of every block: on exact inputs, and behind the FP8 blocks before it."""
    rounded, step = quantize_(copy.deepcopy(model)), model.begin(tokens, None, None)
    exact = behind = model.embedding(tokens)
    rows = []
    for index, (block, other) in enumerate(zip(model.blocks, rounded.blocks, strict=True)):
        wanted, alone, behind = block(exact, step, None), other(exact, step, None), other(behind, step, None)
        rows.append(
            {
                "block": index,
                "branch": get_cosine(alone - exact, wanted - exact),
                "stream": get_cosine(alone, wanted),
                "accumulated": get_cosine(behind, wanted),
            }
        )
        exact = wanted
    return rows


@torch.no_grad()
def measure(sizes: Sizes, tokens: int, device: str) -> dict:
    """Return the result without `meta`."""
    torch.manual_seed(0)
    result: dict = {"linear": measure_linear(sizes.hidden, device), "rows": [], "blocks": []}
    text = torch.randint(sizes.vocabulary, (1, tokens), device=device)
    for std in EMBEDDING_STDS:
        model = make_exact(sizes, device, std)
        logits = model(text)
        for name, change in VARIANTS.items():
            cosine = get_cosine(change(copy.deepcopy(model))(text), logits)
            result["rows"].append({"embedding_std": std, "variant": name, "cosine": cosine})
        result["blocks"] += [{"embedding_std": std, **row} for row in measure_blocks(model, text)]
    return result


def format_table(rows: list[dict]) -> str:
    """Return the cosines of the logits as a table in Markdown."""
    lines = [f"| what is FP8 | {' | '.join(f'embeddings of {std}' for std in EMBEDDING_STDS)} |", "| --- | --- | --- |"]
    for name in VARIANTS:
        found = [f"{row['cosine']:.5f}" for row in rows if row["variant"] == name]
        lines.append(f"| {name} | {' | '.join(found)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; write the result where asked. Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="where the result goes")
    args, is_gpu = parser.parse_args(arguments), torch.cuda.is_available()
    sizes, tokens = (GPU_SIZES, TOKENS[0]) if is_gpu else (CPU_SIZES, TOKENS[1])
    result = measure(sizes, tokens, "cuda" if is_gpu else "cpu")
    print(f"one layer: {result['linear']:.5f}\n\n{format_table(result['rows'])}\n")
    for row in result["blocks"]:
        print(*(f"{name} {value}" for name, value in row.items()), sep="  ")
    if args.out:
        device = torch.cuda.get_device_name() if is_gpu else "CPU reference"
        write_json(args.out, {"meta": {"device": device, "sizes": sizes._asdict(), "tokens": tokens}, **result})
    return 0


if __name__ == "__main__":
    sys.exit(main())
