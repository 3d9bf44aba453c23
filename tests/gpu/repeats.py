"""Run-to-run equality of bits: each config many times on one input, alone, beside a busy stream, and as a CUDA graph.

A missing fence or barrier shows here and nowhere else: no tool reports it.
"""

from functools import partial

import torch

from .operands import GuardedOutput, Shape
from .world import World

#: Several tiles for each CTA, a K tail, and a ring that wraps many times.
SHAPE = Shape(333, 1096, 2064)
PORTFOLIO_REPEATS = 1000
SPACE_REPEATS = 60
GRAPH_LAUNCHES = 20
#: Bytes that the second stream copies again and again, so that memory traffic and CTAs of another kernel interfere.
BUSY_BYTES = 32 << 20


class BusyStream:
    """A second stream that copies memory while the config under test runs."""

    def __init__(self, device: str):
        self.stream = torch.cuda.Stream()
        self.source = torch.ones(BUSY_BYTES, dtype=torch.uint8, device=device)
        self.target = torch.empty_like(self.source)

    def push(self) -> None:
        """Queue one more copy."""
        with torch.cuda.stream(self.stream):
            self.target.copy_(self.source)


def run_repeats(world: World, config, repeats: int) -> tuple[int, list[str]]:
    """Launch one config `repeats` times, the second half beside a busy stream, then the same from a replayed graph."""
    case = world.case(SHAPE)
    output = GuardedOutput(SHAPE.m, SHAPE.n, world.torch_device)
    busy = BusyStream(world.torch_device)
    world.launch(config, case, output)
    first, unlike = output.bits.clone(), torch.zeros((), dtype=torch.int64, device=world.torch_device)
    for index in range(repeats):
        if 2 * index >= repeats and index % 2:
            busy.push()
        world.launch(config, case, output)
        unlike += (output.bits != first).any()
    replays = max(1, repeats // (10 * GRAPH_LAUNCHES))
    unlike += _replay(world, config, case, output, first, replays)
    dirty = int(output.num_dirty())
    failures = [f"{config} {tuple(SHAPE)}: {int(unlike)} runs of {repeats} gave other bits"] if int(unlike) else []
    if dirty:
        failures.append(f"{config} {tuple(SHAPE)}: {dirty} elements written outside D")
    return repeats + replays * GRAPH_LAUNCHES, failures


def _replay(world: World, config, case, output: GuardedOutput, first: torch.Tensor, replays: int) -> torch.Tensor:
    """Capture a graph of several launches, replay it, and count the launches whose D differs."""
    unlike = torch.zeros((), dtype=torch.int64, device=world.torch_device)
    kernel = world.kernel(config)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_LAUNCHES):
            output.poison()
            kernel.launch(case.a, case.scale_a, case.b, case.scale_b, output.d)
            unlike += (output.bits != first).any()
    for _ in range(replays):
        graph.replay()
    torch.cuda.synchronize()
    return unlike


def portfolio_jobs(world: World) -> list:
    """Return one job for each config that the selector can choose."""
    return [(str(config), partial(run_repeats, world, config, PORTFOLIO_REPEATS)) for config in world.portfolio]


def space_jobs(world: World) -> list:
    """Return one job for each further config of the default space."""
    chosen = set(world.portfolio)
    return [(str(config), partial(run_repeats, world, config, SPACE_REPEATS)) for config in world.configs if config not in chosen]
