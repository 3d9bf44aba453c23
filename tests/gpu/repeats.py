"""Run-to-run equality of bits: each config many times on one input, alone, beside a busy stream, and as a CUDA graph.

On all SMs a CTA mostly has one tile; on a few SMs each has several, so that a D tile in shared memory is used again, the ring
goes on from tile to tile and loads overlap an epilogue. A missing fence or barrier shows here and nowhere else: no tool reports it.
"""

from functools import partial

import torch

from deep_gemm import _C

from .configs import FEW_SMS
from .operands import GuardedOutput, Shape
from .world import World

#: Tails in every dimension. On all SMs most configs have one tile for each CTA; on FEW_SMS all have several, and every ring wraps.
SHAPE = Shape(333, 1096, 2064)
ALL_SMS = 0
#: Repeats by number of SMs; all of them must give the same bits. Fewer where a launch takes longer.
PORTFOLIO_REPEATS = {ALL_SMS: 800, FEW_SMS: 200}
SPACE_REPEATS = {ALL_SMS: 30, FEW_SMS: 30}
#: Launches of one graph, on all SMs and on FEW_SMS in turn.
GRAPH_LAUNCHES = 20
GRAPH_SMS = (ALL_SMS, FEW_SMS) * (GRAPH_LAUNCHES // 2)
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


def run_repeats(world: World, config, repeats: dict[int, int]) -> tuple[int, list[str]]:
    """Launch one config `repeats[num_sms]` times, the second half beside a busy stream, then the same from a replayed graph."""
    case = world.case(SHAPE)
    output = GuardedOutput(SHAPE.m, SHAPE.n, world.torch_device)
    busy = BusyStream(world.torch_device)
    world.launch(config, case, output)
    first = output.buffer.clone()  # with the red zones, so that every launch shows what it writes there
    unlike = {num_sms: torch.zeros((), dtype=torch.int64, device=world.torch_device) for num_sms in repeats}
    for num_sms, count in repeats.items():
        for index in range(count):
            if 2 * index >= count and index % 2:
                busy.push()
            world.launch(config, case, output, num_sms=num_sms)
            unlike[num_sms] += (output.buffer != first).any()
    replays = max(1, sum(repeats.values()) // (10 * GRAPH_LAUNCHES))
    for num_sms, count in _replay(world, config, case, output, first, replays).items():
        unlike[num_sms] += count
    failures = []
    for num_sms, count in unlike.items():
        if int(count):
            runs = repeats[num_sms] + replays * GRAPH_SMS.count(num_sms)
            failures.append(f"{config} {tuple(SHAPE)} num_sms={num_sms}: {int(count)} runs of {runs} gave other bits")
    dirty = int(output.num_dirty())
    if dirty:
        failures.append(f"{config} {tuple(SHAPE)}: {dirty} elements written outside D")
    return sum(repeats.values()) + replays * GRAPH_LAUNCHES + 1, failures + _check_tiles(world, config)


def _check_tiles(world: World, config) -> list[str]:
    """Check that a CTA walks several tiles on FEW_SMS SMs: otherwise the repeats there show nothing more."""
    max_clusters = world.kernel(config).max_clusters
    geometry = _C.launch_geometry(config, SHAPE.m, SHAPE.n, num_sms=FEW_SMS, sm_count=world.device.sm_count, max_clusters=max_clusters)
    tiles, ctas = geometry["num_m_tiles"] * geometry["num_n_tiles"], geometry["num_ctas"]
    return [] if tiles > ctas else [f"{config} {tuple(SHAPE)} num_sms={FEW_SMS}: {tiles} tiles for {ctas} CTAs"]


def _replay(world: World, config, case, output: GuardedOutput, first: torch.Tensor, replays: int) -> dict[int, torch.Tensor]:
    """Capture a graph of several launches, replay it, and count the launches whose D differs, by number of SMs."""
    unlike = {num_sms: torch.zeros((), dtype=torch.int64, device=world.torch_device) for num_sms in GRAPH_SMS}
    kernel = world.kernel(config)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for num_sms in GRAPH_SMS:
            output.poison()
            kernel.launch(case.a, case.scale_a, case.b, case.scale_b, output.d, num_sms=num_sms)
            unlike[num_sms] += (output.buffer != first).any()
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
