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
#: Tiles with more tokens, or rows of the weight, load it as ever.
MOST_TOKENS, MOST_WEIGHT_ROWS = 64, 128
#: n and k of groups, of which 26 have rows: 436 MB in FP8.
LARGE = (4096, 4096)
ROWS = tuple(group * 7 % 19 for group in range(28))
MAX_M = 21
#: Kernels of groups with ends that are launched, of each type.
NUM_PSUM_CONFIGS = 4


def list_configs(masked: GroupedVariant, device) -> list:
    """Return the configs of masked groups that let a weight pass."""
    space = _C.get_default_space(masked.problem(), device)
    return [config for config in space if may_let_pass(config)]


def may_let_pass(config) -> bool:
    """Return whether a config's kernel lets weights pass where they are large and one tile reads each."""
    is_single = config.cluster_m * config.cluster_n == 1
    return bool(config.swap_ab) and is_single and config.block_m <= MOST_TOKENS and config.block_n <= MOST_WEIGHT_ROWS


def list_psum_configs(contiguous: GroupedVariant, device) -> list:
    """Return those that are launched on groups with ends."""
    problem = with_ends(contiguous).problem()
    (masked,) = (masked for masked, other in PAIRS if other == contiguous)
    legal = [config for config in list_configs(masked, device) if _C.is_legal(problem, config, device)]
    return sample(legal, NUM_PSUM_CONFIGS)


def list_large_kernels(device) -> list[tuple]:
    """Return (problem, config) of every kernel here."""
    pairs = [(masked.problem(), config) for masked, _ in PAIRS for config in list_configs(masked, device)]
    return pairs + [
        (with_ends(contiguous).problem(), config)
        for _, contiguous in PAIRS
        for config in list_psum_configs(contiguous, device)
    ]


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
    plans = [
        plan
        for masked, contiguous in PAIRS
        for plan in ((run_masked, masked, list_configs), (run_psum, contiguous, list_psum_configs))
    ]
    return [
        (f"large weights {variant}: {config}", partial(run, world, variant, config, LARGE))
        for run, variant, choose in plans
        for config in choose(variant, world.device)
    ]
