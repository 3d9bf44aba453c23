"""Run-to-run equality of bits: each config many times on one input, alone, beside a busy stream, and as a CUDA graph.

On all SMs a CTA mostly has one tile. On a few SMs each has several, so that a D tile in shared memory is reused, the
ring continues from tile to tile and loads overlap an epilogue. A missing fence or barrier shows only here: no tool
reports it. In a config that splits K every CTA has one share of one tile, whatever the number of SMs.
"""

from collections.abc import Callable
from functools import partial

import torch

from deep_gemm import _C

from .configs import ALL_SMS, FEW_SMS, name_job
from .operands import Shape, count_wrong, make_output
from .variants import BF16, MAIN, Variant, list_variants
from .world import World, launch_options, lay_out_scale, prepare_c

#: Tails in every dimension. On all SMs most configs have one tile for each CTA; on FEW_SMS all have several, and every
#: ring wraps.
SHAPE = Shape(333, 1096, 2064)
#: Repeats by number of SMs; all of them must give the same bits. Fewer where a launch takes longer.
PORTFOLIO_REPEATS = {ALL_SMS: 800, FEW_SMS: 200}
SPACE_REPEATS = {ALL_SMS: 30, FEW_SMS: 30}
#: Many tiles for each CTA of all SMs, so that shared memory is as busy as it gets: reads of scales that a refill
#: overtakes show only here.
LARGE_SHAPE, LARGE_REPEATS = Shape(5120, 4096, 1536), 12
#: Launches of one graph, on all SMs and on FEW_SMS in turn.
GRAPH_LAUNCHES = 20
#: Bytes that the second stream copies again and again, so that memory traffic and CTAs of another kernel interfere.
BUSY_BYTES = 32 << 20
#: What the portfolio is repeated on: the main variants, and the other ways in which scales, operands and C reach the
#: kernel.
PORTFOLIO_VARIANTS = (
    *MAIN,
    Variant(scale_layout="any"),
    Variant(recipe="per_row"),
    Variant(d_dtype="fp32", c_mode="general"),
    Variant(BF16, d_dtype="fp32", c_mode="accumulate", a_major="mn", b_major="mn"),
    Variant(BF16, c_mode="general", b_major="mn"),
)


#: Variants that are repeated on LARGE_SHAPE: every way in which scales reach the kernel.
LARGE_VARIANTS = (
    *MAIN,
    Variant(scale_layout="any"),
    Variant(recipe="1d1d"),
    Variant(recipe="1d1d", scale_layout="any"),
    Variant(recipe="per_row"),
)


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


class Repeater:
    """One config on one case: launches, and counts the launches whose D or red zones differ from the first.

    output: D with its red zones. launch: num_sms -> None, into a poisoned D. watched: a mask of the output's buffer,
        False where a launch may leave anything; None: all of it is watched.
    """

    def __init__(self, output, launch: Callable[[int], None], watched: torch.Tensor | None = None):
        self.output, self.launch, self.watched = output, launch, watched
        self.launch(ALL_SMS)
        self.first = output.buffer.clone()  # with the red zones, so that every launch shows what it writes there
        self.unlike = {
            num_sms: torch.zeros((), dtype=torch.int64, device=self.first.device) for num_sms in (ALL_SMS, FEW_SMS)
        }

    def count(self, num_sms: int) -> None:
        """Launch once and count a difference."""
        self.launch(num_sms)
        changed = self.output.buffer != self.first
        self.unlike[num_sms] += (changed if self.watched is None else changed & self.watched).any()


def make_repeater(world: World, variant: Variant, config, shape: Shape = SHAPE) -> Repeater:
    """Return the repeater of one config on a dense case."""
    case, kernel = world.case(variant, shape), world.kernel(variant, config)
    output, scale_a = make_output(case), lay_out_scale(case.scale_a, variant, 1, True)
    scale_b, options = lay_out_scale(case.scale_b, variant, 1, False), launch_options(case)

    def launch(num_sms: int) -> None:
        c = prepare_c(case, output, is_aliased=True)
        kernel.launch(case.a, scale_a, case.b, scale_b, output.d, c, num_sms=num_sms, **options)

    return Repeater(output, launch)


def list_sms(config) -> tuple[int, ...]:
    """Return the numbers of SMs that a config is repeated on."""
    return (ALL_SMS,) if config.split_k > 1 else (ALL_SMS, FEW_SMS)


def run_repeats(world: World, variant: Variant, config, repeats: dict[int, int]) -> tuple[int, list[str]]:
    """Launch one config `repeats[num_sms]` times, the second half beside a busy stream, then the same from a replayed
    graph.
    """
    repeater = make_repeater(world, variant, config)
    counts = repeats if len(list_sms(config)) > 1 else {ALL_SMS: sum(repeats.values())}
    launches, failures = repeat(repeater, counts, tuple(SHAPE), BusyStream(world.torch_device))
    return launches, failures + _check_tiles(world, variant, config)


def repeat(repeater: Repeater, counts: dict[int, int], name: object, busy: BusyStream) -> tuple[int, list[str]]:
    """Launch a repeater `counts[num_sms]` times and from a graph; return the number of launches and what was unlike the
    first.
    """
    for num_sms, count in counts.items():
        for index in range(count):
            if 2 * index >= count and index % 2:
                busy.push()
            repeater.count(num_sms)
    replays = max(1, sum(counts.values()) // (10 * GRAPH_LAUNCHES))
    _replay(repeater, tuple(counts), replays)
    launches = sum(counts.values()) + replays * GRAPH_LAUNCHES
    failures = [
        f"{name} num_sms={num_sms}: {int(count)} of {launches} runs gave other bits"
        for num_sms, count in repeater.unlike.items()
        if int(count)
    ]
    dirty = int(repeater.output.num_dirty())
    failures += [f"{name}: {dirty} elements written outside D"] if dirty else []
    return launches + 1, failures


def run_large(world: World, variant: Variant, config) -> tuple[int, list[str]]:
    """Launch one config LARGE_REPEATS times on a grid of many tiles; all Ds must be alike, and the last one right."""
    repeater, case = make_repeater(world, variant, config, LARGE_SHAPE), world.case(variant, LARGE_SHAPE)
    return repeat_large(repeater, lambda: count_wrong(case, repeater.output.d))


def repeat_large(repeater: Repeater, count_faults: Callable[[], torch.Tensor]) -> tuple[int, list[str]]:
    """Launch a repeater of a large shape LARGE_REPEATS times; return the number of launches and what was wrong.

    count_faults: returns how many elements of the last D lie outside their bound.
    """
    for _ in range(LARGE_REPEATS):
        repeater.count(ALL_SMS)
    unlike, wrong = int(repeater.unlike[ALL_SMS]), int(count_faults())
    failures = [f"large: {unlike} of {LARGE_REPEATS} runs gave other bits"] if unlike else []
    return LARGE_REPEATS + 1, failures + ([f"large: {wrong} elements outside their bound"] if wrong else [])


def _check_tiles(world: World, variant: Variant, config) -> list[str]:
    """Check that the grid keeps to FEW_SMS and a CTA walks several tiles there: otherwise the repeats show nothing
    more.
    """
    if config.split_k > 1:
        return []
    geometry = get_geometry(world, variant, config, FEW_SMS)
    tiles, ctas = geometry["num_m_tiles"] * geometry["num_n_tiles"], geometry["num_ctas"]
    return (
        [] if ctas <= FEW_SMS and tiles > ctas else [f"{tuple(SHAPE)} num_sms={FEW_SMS}: {tiles} tiles for {ctas} CTAs"]
    )


def get_geometry(world: World, variant: Variant, config, num_sms: int) -> dict:
    """Return the geometry of a launch of SHAPE on `num_sms` SMs."""
    max_clusters = world.kernel(variant, config).max_clusters
    problem = variant.problem(*SHAPE, num_sms=num_sms)
    return _C.launch_geometry(problem, config, sm_count=world.device.sm_count, max_clusters=max_clusters)


def _replay(repeater: Repeater, sms: tuple[int, ...], replays: int) -> None:
    """Capture a graph of several launches and replay it."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(GRAPH_LAUNCHES):
            repeater.count(sms[index % len(sms)])
    for _ in range(replays):
        graph.replay()
    torch.cuda.synchronize()


def portfolio_jobs(world: World) -> list:
    """Return one job for each config that the selector can choose and each of its variants."""
    return [
        (name_job(variant, config), partial(run_repeats, world, variant, config, PORTFOLIO_REPEATS))
        for variant in PORTFOLIO_VARIANTS for config in world.portfolio(variant)
    ]  # fmt: skip


def space_jobs(world: World) -> list:
    """Return one job for each further config that the suite runs."""
    chosen = {(variant, config) for variant in PORTFOLIO_VARIANTS for config in world.portfolio(variant)}
    pairs = [(variant, config) for variant in list_variants() for config in world.configs(variant)]
    jobs = [
        (name_job(*pair), partial(run_repeats, world, *pair, SPACE_REPEATS)) for pair in pairs if pair not in chosen
    ]
    large = [pair for pair in pairs if pair[0] in LARGE_VARIANTS and not is_small(pair[1])]
    return jobs + [(f"{name_job(*pair)} large", partial(run_large, world, *pair)) for pair in large]


def is_small(config) -> bool:
    """Return whether a config is for few tokens: it would take long on LARGE_SHAPE and never runs there."""
    return config.swap_ab or config.block_m * config.block_n < 64 * 64
