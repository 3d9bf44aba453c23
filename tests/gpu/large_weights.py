"""FP8 products of few rows with so much weight that each group's passes through L2 (GroupWalk::kMayReadOnce): right by
every tile that lets it, with masked groups and with groups with ends.
"""

from functools import partial

from deep_gemm import _C

from .configs import ALL_SMS, FEW_SMS, describe_wrong
from .grouped_configs import get_grouped_case, run_case
from .grouped_psum import PsumRows, run_psum_config, with_ends
from .grouped_shapes import Masked
from .grouped_variants import FP8_CONTIGUOUS, FP8_MASKED, GroupedVariant
from .memory import align
from .world import World, sample

MASKED, CONTIGUOUS = GroupedVariant(FP8_MASKED), GroupedVariant(FP8_CONTIGUOUS)
#: Tiles with more rows of the weight load it as ever.
MOST_WEIGHT_ROWS = 128
#: n and k of groups, of which 26 have rows: 436 MB. Some have rows for two of the smaller tiles, so that both read
#: their weight.
LARGE = (4096, 4096)
ROWS = tuple(group * 7 % 19 for group in range(28))
MAX_M = 21
#: Kernels of groups with ends that are launched.
NUM_PSUM_CONFIGS = 4


def list_configs(device) -> list:
    """Return the configs of masked groups that let a weight pass."""
    space = _C.get_default_space(MASKED.problem(), device)
    return [
        config
        for config in space
        if config.swap_ab and config.block_n <= MOST_WEIGHT_ROWS and config.cluster_m * config.cluster_n == 1
    ]


def list_psum_configs(device) -> list:
    """Return those that are launched on groups with ends."""
    problem = with_ends(CONTIGUOUS).problem()
    return sample([config for config in list_configs(device) if _C.is_legal(problem, config, device)], NUM_PSUM_CONFIGS)


def list_large_kernels(device) -> list[tuple]:
    """Return (problem, config) of every kernel here."""
    pairs = [(MASKED.problem(), config) for config in list_configs(device)]
    return pairs + [(with_ends(CONTIGUOUS).problem(), config) for config in list_psum_configs(device)]


def run_masked(world: World, config, size: tuple[int, int]) -> tuple[int, list[str]]:
    """Run one config on masked groups of weights of `size`; return the number of cases and the failures."""
    shape = Masked(*size, MAX_M, ROWS)
    runs = [(shape, False, num_sms) for num_sms in (ALL_SMS, FEW_SMS)]
    counts = [run_case(world, MASKED, config, place, *run) for place, run in enumerate(runs)]
    return len(runs), describe_wrong(runs, counts, partial(get_grouped_case, world, MASKED))


def run_psum(world: World, config, size: tuple[int, int]) -> tuple[int, list[str]]:
    """Run one config on groups with ends, with and without zeroed padding."""
    alignment = align(MAX_M, config.block_m)  # which tiles must divide
    return run_psum_config(world, CONTIGUOUS, config, [PsumRows(*size, ROWS, alignment, extra=70)])


def large_jobs(world: World) -> list:
    """Return one job for each kernel."""
    plans = ((run_masked, MASKED, list_configs), (run_psum, CONTIGUOUS, list_psum_configs))
    return [
        (f"large weights {variant}: {config}", partial(run, world, config, LARGE))
        for run, variant, choose in plans
        for config in choose(world.device)
    ]
