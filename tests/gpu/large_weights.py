"""Products of few rows with so much weight that each group's passes through L2 (GroupWalk::kMayReadOnce): right by
every tile that lets it, with masked groups and with groups with ends.
"""

from functools import partial

from deep_gemm import _C

from .configs import ALL_SMS, FEW_SMS, describe_wrong
from .grouped_configs import get_grouped_case, run_case
from .grouped_psum import PsumRows, run_psum_config, with_ends
from .grouped_shapes import Masked
from .grouped_variants import BF16_CONTIGUOUS, BF16_MASKED, FP8_CONTIGUOUS, FP8_MASKED, GroupedVariant
from .memory import align
from .world import World, sample

#: Masked groups, and those with ends, of each type of operands.
PAIRS = (
    (GroupedVariant(FP8_MASKED), GroupedVariant(FP8_CONTIGUOUS)),
    (GroupedVariant(BF16_MASKED), GroupedVariant(BF16_CONTIGUOUS)),
)
#: Tiles with more tokens, or rows of the weight, load it as ever, and so do kernels for three of which an SM has the
#: memory.
MOST_TOKENS, MOST_WEIGHT_ROWS = 64, 128
SM_BYTES, RESERVED_BYTES = _C.SM_SMEM_BYTES, _C.SMEM_RESERVED_BYTES
#: n and k of groups, of which 26 have rows: 436 MB in FP8.
LARGE = (4096, 4096)
ROWS = tuple(group * 7 % 19 for group in range(28))
MAX_M = 21
#: Kernels of groups with ends that are launched, of each type.
NUM_PSUM_CONFIGS = 4


def list_configs(masked: GroupedVariant, device) -> list:
    """Return the configs of masked groups that let a weight pass."""
    problem = masked.problem()
    return [config for config in _C.get_default_space(problem, device) if may_let_pass(problem, config)]


def may_let_pass(problem, config) -> bool:
    """Return whether a config's kernel lets weights pass where they are large and one tile reads each."""
    is_single = config.cluster_m * config.cluster_n == 1
    is_small = config.block_m <= MOST_TOKENS and config.block_n <= MOST_WEIGHT_ROWS
    return bool(config.swap_ab) and is_single and is_small and not fits_three(problem, config)


def fits_three(problem, config) -> bool:
    """Return whether an SM has the memory for three CTAs, as the kernel counts it: without the tile queue."""
    return 3 * (_C.smem_bytes(problem, config) - _C.TILE_QUEUE_BYTES + RESERVED_BYTES) <= SM_BYTES


def list_psum_configs(masked: GroupedVariant, contiguous: GroupedVariant, device) -> list:
    """Return the configs of masked groups that are launched on groups with ends, too."""
    problem = with_ends(contiguous).problem()
    legal = [config for config in list_configs(masked, device) if _C.is_legal(problem, config, device)]
    return sample(legal, NUM_PSUM_CONFIGS)


def list_launches(device) -> list[tuple]:
    """Return (what runs it, variant, problem, config) of every kernel here."""
    return [
        (run, variant, problem, config)
        for masked, contiguous in PAIRS
        for run, variant, problem, configs in (
            (run_masked, masked, masked.problem(), list_configs(masked, device)),
            (run_psum, contiguous, with_ends(contiguous).problem(), list_psum_configs(masked, contiguous, device)),
        )
        for config in configs
    ]


def list_large_kernels(device) -> list[tuple]:
    """Return (problem, config) of every kernel here."""
    return [(problem, config) for _, _, problem, config in list_launches(device)]


def list_rows(config) -> list[tuple[int, ...]]:
    """Return the rows of the groups: one tile holds those of each; and as they are, where some need two, so that no
    weight passes.
    """
    fitting = tuple(min(rows, config.block_m) for rows in ROWS)
    return list(dict.fromkeys((fitting, ROWS)))


def run_masked(world: World, variant: GroupedVariant, config, size: tuple[int, int]) -> tuple[int, list[str]]:
    """Run one config on masked groups of weights of `size`; return the number of cases and the failures."""
    shapes = [Masked(*size, MAX_M, rows) for rows in list_rows(config)]
    runs = [(shape, False, num_sms) for shape in shapes for num_sms in (ALL_SMS, FEW_SMS)]
    counts = [run_case(world, variant, config, place, *run) for place, run in enumerate(runs)]
    return len(runs), describe_wrong(runs, counts, partial(get_grouped_case, world, variant))


def run_psum(world: World, variant: GroupedVariant, config, size: tuple[int, int]) -> tuple[int, list[str]]:
    """Run one config on groups with ends, with and without zeroed padding."""
    alignment = align(MAX_M, config.block_m)  # which tiles must divide
    shapes = [PsumRows(*size, rows, alignment, extra=70) for rows in list_rows(config)]
    return run_psum_config(world, variant, config, shapes)


def large_jobs(world: World) -> list:
    """Return one job for each kernel."""
    return [
        (f"large weights {variant}: {config}", partial(run, world, variant, config, LARGE))
        for run, variant, _, config in list_launches(world.device)
    ]
