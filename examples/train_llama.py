"""Trains a small transformer twice, with BF16 and with FP8 layers, and compares the loss curves.

    python -m examples.train_llama              # on a GPU 300 steps of 0.1 billion parameters, else a tiny model
    python -m examples.train_llama --out losses.json --plot losses.png

Both runs begin with the same weights and see the same tokens. Weights are FP32 and autocast computes in BF16; the
second model's linear layers, but the head, are FP8 (examples/llama.py). The corpus is a random Markov chain: every
token has few successors, so that the best possible loss is known. Before and after the first run its weights are stored
in FP8, too, and the logits for new text compared. Then both take a few steps in the sizes of large models, which are
timed alone. Exit status 1 where the FP8 curve leaves the band.
"""

import argparse
import copy
import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch

from deep_gemm import _C
from deep_gemm.jit.hashing import kernel_hash
from deep_gemm.nn import quantize_
from examples.llama import LLAMA_8B, SMALL, TINY, Llama, Sizes, make_model
from tuner.measure.stamp import describe_selector

#: The mean loss of the last tenth of the steps may differ by so much, relative to BF16's.
BAND = 0.02
#: Successors of a token, and how likely they are.
SUCCESSORS = torch.tensor([0.5, 0.25, 0.15, 0.1])
OPS = ("fp8_gemm",)


class Plan(NamedTuple):
    """How long to train, on how much, and how fast to learn."""

    sizes: Sizes
    steps: int
    sequences: int
    length: int
    rate: float


GPU_PLAN = Plan(SMALL, steps=300, sequences=16, length=1024, rate=6e-4)
CPU_PLAN = Plan(TINY, steps=40, sequences=8, length=32, rate=3e-3)
#: Steps that are timed: four layers of Llama 3.1 8B, 0.9 billion parameters, and on a CPU the tiny model.
GPU_WIDE = Plan(LLAMA_8B._replace(layers=4, vocabulary=4096), steps=20, sequences=8, length=1025, rate=1e-4)
CPU_WIDE = CPU_PLAN._replace(steps=2)


class Corpus:
    """An endless text of a Markov chain, the same one for the same seed."""

    def __init__(self, vocabulary: int, device: str, seed: int = 1):
        self.generator = torch.Generator(device).manual_seed(seed)
        draws = torch.rand(vocabulary, vocabulary, generator=self.generator, device=device)
        self.successors = draws.topk(len(SUCCESSORS)).indices
        self.chances = SUCCESSORS.to(device)

    def draw(self, sequences: int, length: int) -> torch.Tensor:
        """Return tokens int64 [sequences, length]."""
        device = self.chances.device
        choices = torch.multinomial(self.chances, sequences * length, True, generator=self.generator)
        token = torch.randint(len(self.successors), (sequences,), generator=self.generator, device=device)
        text = [token]
        for choice in choices.view(length, sequences)[1:]:
            text.append(self.successors[text[-1], choice])
        return torch.stack(text, 1)


def get_floor() -> float:
    """Return the loss of a model that knows the chain."""
    return float(-(SUCCESSORS * SUCCESSORS.log()).sum())


def get_loss(model: Llama, tokens: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of the next tokens."""
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
        logits = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def train(model: Llama, plan: Plan, device: str) -> tuple[list[float], float]:
    """Return (the loss of every step, milliseconds of a step without the first tenth)."""
    text = Corpus(plan.sizes.vocabulary, device).draw(plan.steps * plan.sequences, plan.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.rate, weight_decay=0.1, betas=(0.9, 0.95))
    warm_up = max(plan.steps // 10, 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warm_up))
    losses, start = [], time.perf_counter()
    for step in range(plan.steps):
        if step == warm_up:
            wait(device)
            start = time.perf_counter()
        loss = get_loss(model, text[step * plan.sequences : (step + 1) * plan.sequences])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.detach())
    wait(device)
    milliseconds = (time.perf_counter() - start) * 1e3 / max(plan.steps - warm_up, 1)
    return torch.stack(losses).tolist(), milliseconds


def wait(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


@torch.no_grad()
def compare_logits(model: Llama, plan: Plan, device: str) -> float:
    """Return the mean cosine of logits on new text of the chain: of the model in BF16, and with weights in FP8."""
    corpus = Corpus(plan.sizes.vocabulary, device)
    corpus.generator.manual_seed(2)
    text = corpus.draw(plan.sequences, plan.length)
    plain = copy.deepcopy(model).to(torch.bfloat16).eval()
    logits = [one(text).double() for one in (plain, quantize_(copy.deepcopy(plain)))]
    return float(torch.cosine_similarity(*logits, dim=-1).mean())


def compare(plan: Plan, device: str) -> dict:
    """Return the losses and step times of both runs, how far the curves end from each other, and the cosine of logits
    between weights in BF16 and in FP8 before and after the first run.
    """
    result: dict = {}
    for name in ("bf16", "fp8"):
        model = make_model(plan.sizes, device, torch.float32)
        if name == "fp8":
            quantize_(model)
        before = compare_logits(model, plan, device) if name == "bf16" else 0.0
        losses, milliseconds = train(model, plan, device)
        if name == "bf16":
            result["cosine"] = {"initial": before, "trained": compare_logits(model, plan, device)}
        result[name] = {"losses": [round(loss, 5) for loss in losses], "step_ms": round(milliseconds, 3)}
    last = max(plan.steps // 10, 1)
    ends = [sum(result[name]["losses"][-last:]) / last for name in ("bf16", "fp8")]
    gap = ends[1] / ends[0] - 1
    return result | {"ends": ends, "gap": gap, "is_right": abs(gap) <= BAND}


def time_steps(plan: Plan, device: str) -> dict:
    """Return the milliseconds of a step of both models."""
    times = {}
    for name in ("bf16", "fp8"):
        model = make_model(plan.sizes, device, torch.float32)
        if name == "fp8":
            quantize_(model)
        times[f"{name}_ms"] = round(train(model, plan, device)[1], 3)
    return {"plan": plan._asdict(), **times}


def plot(result: dict, floor: float, path: Path) -> None:
    """Draw both curves into a file."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for name, colour in (("bf16", "tab:gray"), ("fp8", "tab:green")):
        axes.plot(result[name]["losses"], label=name.upper(), color=colour, linewidth=1.2)
    axes.axhline(floor, color="black", linestyle=":", linewidth=1, label="best possible")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.legend()
    figure.savefig(path, dpi=150, bbox_inches="tight")
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> int:
    """Train both models; return 1 where the curves end too far from each other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, help="steps of each run")
    parser.add_argument("--out", type=Path, help="write losses and times here")
    parser.add_argument("--plot", type=Path, help="draw the curves here; needs matplotlib")
    args = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    plan, wide = (GPU_PLAN, GPU_WIDE) if device == "cuda" else (CPU_PLAN, CPU_WIDE)
    plan = plan._replace(steps=args.steps or plan.steps)
    place = torch.cuda.get_device_name() if device == "cuda" else "CPU reference"
    result, floor = compare(plan, device), get_floor()
    result["wide"] = time_steps(wide, device)
    for name in ("bf16", "fp8"):
        run = result[name]
        print(f"{name}: loss {run['losses'][0]:.3f} -> {run['losses'][-1]:.3f}, {run['step_ms']:.1f} ms a step")
    print(f"width {wide.sizes.hidden}: {result['wide']['bf16_ms']:.1f} and {result['wide']['fp8_ms']:.1f} ms a step")
    cosine = result["cosine"]
    print(f"cosine of logits with weights in FP8: {cosine['initial']:.5f} -> {cosine['trained']:.5f}")
    print(f"{place}: FP8 ends {result['gap']:+.2%} from BF16 (band {BAND:.0%}); the best possible loss is {floor:.3f}")
    if args.out:
        meta: dict = describe_selector(_C.get_device().sku, OPS) if device == "cuda" else {}
        meta |= {
            "device": place,
            "plan": plan._asdict(),
            "floor": floor,
            "kernel_hash": {op: kernel_hash(op) for op in OPS},
        }
        args.out.write_text(json.dumps({"meta": meta, **result}, indent=1) + "\n", encoding="utf-8")
    if args.plot:
        plot(result, floor, args.plot)
    return 0 if result["is_right"] else 1


if __name__ == "__main__":
    sys.exit(main())
