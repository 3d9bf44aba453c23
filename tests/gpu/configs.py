"""The configs of every variant's default space: shapes derived from the config, exact integers, equal bits, NVCC."""

from collections.abc import Callable, Sequence
from functools import partial

import torch

from deep_gemm import _C

from .operands import Shape, make_output
from .variants import MAIN, Variant, list_variants
from .world import World, compare, describe, sample

#: Every config runs these, so that their bits can be compared: one row; tails in every dimension; more tiles than SMs;
#: more K steps than a buffer of block scales holds.
COMMON_SHAPES = (
    Shape(1, 136, 7168),
    Shape(77, 328, 1168),
    Shape(300, 520, 2048),
    Shape(513, 1032, 400),
    Shape(70, 264, 16656),
)
#: Tiles of the weight, of few tokens. On 132 SMs a ring for three CTAs has grids of two and of three CTAs an SM in one
#: round, then of two and of three in two rounds; one for two has two CTAs an SM but for the second count. With fewer
#: SMs these have more rounds.
CROWDED_TILES = (150, 269, 435, 580)
#: With six CTAs every one of them walks many tiles, whatever the tile's size (a multiple of both cluster sizes).
FEW_SMS = 6
ALL_SMS = 0
#: NVCC takes about a second per kernel; this sample shows that its bits are NVRTC's.
NUM_NVCC_SAMPLES = 10
#: Columns beyond two tiles: n % 8 and n % 4 take every value over a space.
TAILS = (2, 3, 4, 5, 6, 7)


def derive_shapes(config, index: int = 0) -> list[Shape]:
    """Return the shapes that a config's own tile, ring and split make delicate, K rotating over m and n from `index`
    on.

    m, n: 1, tile - 1, tile, tile + 1, and three tiles with a tail (an odd count for clusters). K: a single tail, the
    ring not filled, just filled, wrapped, wrapped with a tail, wrapped twice with a K that needs a padded pitch. Split
    K: as many steps, one less (a share is empty) and one more than there are shares, and the same of shares that fill
    their rings.
    """
    block_m, block_n, stages, block_k, split = (
        config.block_m,
        config.block_n,
        config.num_stages,
        config.block_k,
        config.split_k,
    )
    ms = (1, block_m - 1, block_m, block_m + 1, 2 * block_m + 3)
    ns = (1, block_n - 1, block_n, block_n + 1, 2 * block_n + TAILS[index % len(TAILS)])
    steps = (stages - 1, stages, stages + 1)
    ks = [
        block_k // 8,
        *(block_k * split * count for count in steps),
        block_k * stages * split + 16,
        block_k * (2 * stages + 1) * split + 41,
    ]
    if split > 1:
        ks += [
            block_k * (split - 1),
            block_k * split,
            block_k * (split + 1) - 8,
            block_k * (split * stages + 1),
            block_k * (split * (stages + 1) - 1),
        ]
    pairs = [(m, n) for m in ms for n in ns]
    return [Shape(m, n, ks[(position + index) % len(ks)]) for position, (m, n) in enumerate(pairs)]


def derive_crowded(variant: Variant, config) -> list[Shape]:
    """Return shapes of which several CTAs share an SM, where they can."""
    if config.split_k > 1 or _C.blocks_per_sm(variant.problem(), config) == 1:
        return []
    return [Shape(min(config.block_m, 5), tiles * config.block_n - 3, 400) for tiles in CROWDED_TILES]


def list_runs(variant: Variant, config, index: int) -> list[tuple[Shape, bool, int]]:
    """Return (shape, integers, num_sms) of every case of a config; variants other than the main ones take every third
    derived shape, and all of several CTAs an SM.
    """
    derived = derive_shapes(config, index)
    shapes = derived if variant in MAIN else derived[index % 3 :: 3]
    shapes = [*shapes, *derive_crowded(variant, config)]
    counts = (ALL_SMS,) if config.split_k > 1 else (ALL_SMS, FEW_SMS)  # a split grid is one CTA a share of a tile
    runs = [(shape, False, ALL_SMS) for shape in shapes]
    runs += [(shape, False, num_sms) for shape in COMMON_SHAPES for num_sms in counts]
    runs.append(
        (
            Shape(
                config.block_m + 5,
                2 * config.block_n + 3,
                config.block_k * (config.num_stages + 1) * config.split_k + 16,
            ),
            True,
            ALL_SMS,
        )
    )
    return [*runs, (Shape(300, 520, 2048), True, counts[-1])]


def run_config(world: World, variant: Variant, config, index: int) -> tuple[int, list[str]]:
    """Run one config on all its shapes; return the number of cases and the failures in words."""
    runs = list_runs(variant, config, index)
    counts = [_run_case(world, variant, config, index + position, *run) for position, run in enumerate(runs)]
    wrong = describe_wrong(runs, counts, partial(world.case, variant))
    return len(runs) + 1, check_resources(world, variant, config) + wrong


def describe_wrong(runs: list[tuple], counts: list[torch.Tensor], get_case: Callable) -> list[str]:
    """Return in words which of the runs (shape, integers, num_sms) were wrong, by their comparisons.

    get_case: (shape, integers) -> the case, dense or grouped.
    """
    return [
        f"{name_shape(shape)} {'integers' if integers else 'normal'} num_sms={num_sms}: {describe(row)}"
        f" ({name_first(get_case(shape, integers))})"
        for (shape, integers, num_sms), row in zip(runs, torch.stack(counts).tolist(), strict=True)
        if any(row)
    ]


def name_shape(shape: tuple) -> str:
    """Return a shape as failures name it; grouped ones can be long."""
    return str(shape)[:400]


def name_first(case) -> str:
    """Return which configs a case's bits were compared with."""
    return "first: " + ", ".join(sorted({name for name, _ in case.first.values()}))


def _run_case(
    world: World, variant: Variant, config, index: int, shape: Shape, integers: bool, num_sms: int
) -> torch.Tensor:
    case = world.case(variant, shape, integers)
    output = make_output(case)
    world.launch(variant, config, case, output, index=index, num_sms=num_sms)
    found = compare(case, config, output)
    if config.split_k == 1:
        return found
    # With split K a config must equal its own first run, in any memory layout.
    world.launch(variant, config, case, output, index=index + 1, num_sms=num_sms)
    return torch.maximum(found, compare(case, config, output))


def check_resources(world: World, variant: Variant, config, second=None) -> list[str]:
    """Return what is wrong with a kernel as the compiler and the driver report it."""
    result, kernel = world.compile_result(variant, config, second=second), world.kernel(variant, config, second=second)
    if result.spill_bytes or kernel.local_bytes:
        return [f"{result.spill_bytes} bytes spilled, {kernel.local_bytes} bytes of local memory"]
    return []


def run_nvcc(world: World, variant: Variant, config) -> tuple[int, list[str]]:
    """Compare one config built by NVCC with the same built by NVRTC, bit by bit, on the common shapes."""

    def launch(index: int, shape: Shape, compiler: str) -> tuple:
        case = world.case(variant, shape)
        output = make_output(case)
        world.launch(variant, config, case, output, index=index, compiler=compiler)
        return output.bits, compare(case, config, output)

    return compare_compilers(COMMON_SHAPES, launch)


def compare_compilers(shapes: Sequence[tuple], launch: Callable) -> tuple[int, list[str]]:
    """Compare NVCC's bits with NVRTC's on every shape.

    launch: (index, shape, compiler) -> (bits of D, their comparison with the reference).
    """
    failures = []
    for index, shape in enumerate(shapes):
        nvrtc, _ = launch(index, shape, "nvrtc")
        nvcc, found = launch(index, shape, "nvcc")
        unlike = int((nvrtc != nvcc).sum())
        if unlike or int(found[0]):
            failures.append(f"{name_shape(shape)}: NVCC differs from NVRTC in {unlike} elements")
    return len(shapes), failures


def name_job(variant: Variant, config) -> str:
    """Return a job's name; the part before the colon is the group that is given up if too many of its jobs die."""
    return f"{variant}: {config}"


def config_jobs(world: World) -> list:
    """Return one job for each config of each variant."""
    return [
        (name_job(variant, config), partial(run_config, world, variant, config, index))
        for variant in list_variants() for index, config in enumerate(world.configs(variant))
    ]  # fmt: skip


def choose_nvcc(configs: list) -> list:
    """Return the configs of a main variant that NVCC compiles, too."""
    return sample(configs, NUM_NVCC_SAMPLES)


def nvcc_jobs(world: World) -> list:
    """Return one job for each config of the NVCC sample."""
    return [
        (name_job(variant, config), partial(run_nvcc, world, variant, config))
        for variant in MAIN for config in choose_nvcc(world.configs(variant))
    ]  # fmt: skip
