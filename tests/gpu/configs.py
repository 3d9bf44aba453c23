"""Every legal config of the default space: config-derived shapes, exact integers, equal bits, NVRTC against NVCC."""

from functools import partial

import torch

from .operands import GuardedOutput, Shape
from .world import NUM_NVCC_SAMPLES, SCALE_LAYOUTS, World, compare, describe, sample

#: Run by every config, so that all configs meet on equal bits: one row; tails in every dimension; more tiles than SMs.
COMMON_SHAPES = (Shape(1, 136, 7168), Shape(77, 328, 1168), Shape(300, 520, 2048), Shape(513, 1032, 400))
#: With six CTAs every one of them walks many tiles, whatever the tile's size (a multiple of both cluster sizes).
FEW_SMS = 6


def derive_shapes(config) -> list[Shape]:
    """Return the shapes that a config's own tile and ring make delicate, K rotating over m and n.

    m, n: 1, tile - 1, tile, tile + 1, and three tiles with a tail (an odd count for clusters). K: a single tail, the ring
    not filled, just filled, wrapped, wrapped with a tail, wrapped twice with a K that needs a padded pitch.
    """
    block_m, block_n, stages, block_k = config.block_m, config.block_n, config.num_stages, config.block_k
    ms = (1, block_m - 1, block_m, block_m + 1, 2 * block_m + 3)
    ns = (1, block_n - 1, block_n, block_n + 1, 2 * block_n + 5)
    ks = (16, block_k * (stages - 1), block_k * stages, block_k * (stages + 1), block_k * stages + 16, block_k * (2 * stages + 1) + 41)
    pairs = [(m, n) for m in ms for n in ns]
    return [Shape(m, n, ks[index % len(ks)]) for index, (m, n) in enumerate(pairs)]


def run_config(world: World, config) -> tuple[int, list[str]]:
    """Run one config on all its shapes; return the number of cases and the failures in words."""
    runs = [(shape, False, 0) for shape in derive_shapes(config)]
    runs += [(shape, False, num_sms) for shape in COMMON_SHAPES for num_sms in (0, FEW_SMS)]
    runs.append((Shape(config.block_m + 5, 2 * config.block_n + 3, 128 * (config.num_stages + 1) + 16), True, 0))
    runs.append((Shape(300, 520, 2048), True, FEW_SMS))
    counts = [_run_case(world, config, index, *run) for index, run in enumerate(runs)]
    failures = _check_resources(world, config)
    for (shape, integers, num_sms), row in zip(runs, torch.stack(counts).tolist(), strict=True):
        if any(row):
            kind = "integers" if integers else "normal"
            failures.append(f"{config} {tuple(shape)} {kind} num_sms={num_sms}: {describe(row)} (first: {world.case(shape, integers).first_config})")
    return len(runs) + 1, failures


def _run_case(world: World, config, index: int, shape: Shape, integers: bool, num_sms: int) -> torch.Tensor:
    case = world.case(shape, integers)
    output = GuardedOutput(shape.m, shape.n, world.torch_device)
    world.launch(config, case, output, layout=SCALE_LAYOUTS[index % len(SCALE_LAYOUTS)], num_sms=num_sms)
    return compare(case, config, output)


def _check_resources(world: World, config) -> list[str]:
    result, kernel = world.compile_result(config), world.kernel(config)
    if result.spill_bytes or kernel.local_bytes:
        return [f"{config}: {result.spill_bytes} bytes spilled, {kernel.local_bytes} bytes of local memory"]
    return []


def run_nvcc(world: World, config) -> tuple[int, list[str]]:
    """Compare one config built by NVCC with the same built by NVRTC, bit by bit, on the common shapes."""
    failures = []
    for shape in COMMON_SHAPES:
        case, bits = world.case(shape), {}
        for compiler in ("nvrtc", "nvcc"):
            output = GuardedOutput(shape.m, shape.n, world.torch_device)
            world.launch(config, case, output, compiler=compiler)
            bits[compiler] = output.bits
        unlike = int((bits["nvrtc"] != bits["nvcc"]).sum())
        if unlike or int(compare(case, config, output)[0]):
            failures.append(f"{config} {tuple(shape)}: NVCC differs from NVRTC in {unlike} elements")
    return len(COMMON_SHAPES), failures


def config_jobs(world: World) -> list:
    """Return one job for each config of the default space."""
    return [(str(config), partial(run_config, world, config)) for config in world.configs]


def nvcc_jobs(world: World) -> list:
    """Return one job for each config of the NVCC sample."""
    return [(str(config), partial(run_nvcc, world, config)) for config in sample(world.configs, NUM_NVCC_SAMPLES)]
