"""The jobs of deep_gemm.mega on one GPU: its kernels beside their formulas, also for the buffers of several processes,
and the whole layer beside its definition, repeated, and replayed as a graph.
"""

from functools import partial

import torch

import deep_gemm

from .mega_operands import FakeGroup, choose, fill, find_difference, make_weights, multiply_experts, prepare
from .mega_steps import compare_steps
from .nn_references import poisoned
from .public_op import Checks

DEVICE = "cuda"
#: (processes, tokens of each, experts, choices, hidden, the first token).
STEPS = ((1, 1, 1, 1, 128, 0), (2, 100, 8, 2, 512, 28), (3, 300, 96, 8, 7168, 0), (1, 1024, 256, 32, 256, 5))
#: (tokens, room, experts, choices, hidden, intermediate, limit).
LAYERS = ((1, 128, 4, 2, 256, 128, None), (77, 128, 8, 4, 1024, 512, 0.7), (600, 640, 32, 8, 7168, 2048, None))
REPEATS = 50


def check_steps(*sizes: int) -> tuple[int, list[str]]:
    """Compare each kernel with its formula."""
    checks = Checks()
    for wrong in compare_steps(*sizes) or [""]:
        checks.expect(not wrong, f"mega {sizes}: {wrong} differ from the formula")
    return checks.outcome()


def make_step(tokens: int, room: int, experts: int, top_k: int, hidden: int, intermediate: int) -> tuple:
    """Return (buffer, layers, weights as the layer takes them, inputs)."""
    buffer = deep_gemm.get_symm_buffer_for_mega_moe(FakeGroup(0, 1), experts, room, top_k, hidden, intermediate)
    layers = make_weights(experts, hidden, intermediate, DEVICE)
    x = torch.randn(tokens, hidden, device=DEVICE).bfloat16()
    return buffer, layers, prepare(layers), (x, *choose(tokens, experts, top_k, DEVICE))


def check_layer(*sizes) -> tuple[int, list[str]]:
    """Compare the layer with its definition and its repeats with each other; two steps, which meet other choices."""
    checks, limit = Checks(), sizes[-1]
    buffer, layers, weights, (x, *routing) = make_step(*sizes[:-1])
    stats = torch.zeros(sizes[2], dtype=torch.int32, device=DEVICE)
    counted = 0
    for _ in range(2):
        y = torch.full_like(x, torch.nan)
        fill(buffer, x, *routing)
        deep_gemm.fp8_mega_moe(y, *weights, buffer, stats, activation_clamp=limit)
        difference = find_difference(y, multiply_experts(x, *routing, layers, limit))
        checks.expect(not difference, f"mega layer {sizes}: {difference}")
        counted += int((routing[0] >= 0).sum())
        checks.expect(int(stats.sum()) == counted, f"mega layer {sizes}: {int(stats.sum())} tokens are counted")
        for _ in range(REPEATS):
            again = torch.full_like(x, torch.nan)
            deep_gemm.fp8_mega_moe(again, *weights, buffer, activation_clamp=limit)
            checks.expect(torch.equal(y, again), f"mega layer {sizes}: a repeat gives other bits")
        routing = choose(len(x), sizes[2], sizes[3], DEVICE)
    return checks.outcome()


def check_replays() -> tuple[int, list[str]]:
    """Replay a captured step with other tokens and choices."""
    checks, sizes = Checks(), LAYERS[1]
    buffer, _, weights, (x, chosen, factors) = make_step(*sizes[:-1])
    y = torch.empty_like(x)

    def run() -> None:
        fill(buffer, x, chosen, factors)
        deep_gemm.fp8_mega_moe(y, *weights, buffer)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(3):
        x.normal_()
        for kept, new in zip((chosen, factors), choose(len(x), sizes[2], sizes[3], DEVICE), strict=True):
            kept.copy_(new)
        graph.replay()
        replayed = y.clone()
        run()
        checks.expect(torch.equal(y, replayed), "mega graph: a replay gives other bits")
    return checks.outcome()


def within_poison(check, *sizes) -> tuple[int, list[str]]:
    """Run a check in memory that is full of NaN."""
    with poisoned():
        return check(*sizes)


def mega_jobs() -> list[tuple]:
    """Return the jobs."""
    jobs = [(f"nn mega steps: {sizes}", partial(check_steps, *sizes)) for sizes in STEPS]
    jobs += [(f"nn mega layer: {sizes}", partial(within_poison, check_layer, *sizes)) for sizes in LAYERS]
    return [*jobs, ("nn mega graph: replays", check_replays)]
