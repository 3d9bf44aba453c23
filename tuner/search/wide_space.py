"""The wide space: every legal config on a grid around what the kernels can do, for searches beyond the default space.

The grid: 64, 128 or 256 rows of the MMA, its columns in steps of 8, clusters, splits of K, the order of the operands
and three depths of the ring. What is obviously pointless for a problem is left out, by looser rules than the default
space has. The default space comes first and whole.
"""

from collections.abc import Iterator
from functools import lru_cache

from deep_gemm import _C
from tuner.problems.fields import get_group_rows, is_fp8, kernel_problem, replace_problem

SPACES = ("default", "wide")
#: Configs beyond the default space that a search measures at most when nothing else is asked for: four batches.
WIDE_TRIALS = 96
ROWS = (64, 128, 256)
COLUMNS = tuple(range(8, 257, 8))
#: How the blocks of a cluster share the work, as fields of a config. Swapped operands go without clusters of two.
SPLITS = tuple({"split_k": split} for split in (1, 2, 4, 8))
PAIRS = ({"cluster_m": 2}, {"cluster_n": 2})
MAX_STAGES = 32
#: A grid of more waves keeps all SMs busy without a split.
MAX_SPLIT_WAVES = 3
#: Variants of problems whose grids are kept; a sweep meets a handful.
NUM_CACHED = 64


def get_wide_space(problem, device) -> list:
    """Return the default space's candidates of `problem`, then the rest of the grid that is legal and not pointless,
    all different.
    """
    space = get_grid(kernel_problem(replace_problem(problem, compiled_dims="")), device)
    fitting = (
        config for config in space if _C.is_legal(problem, config, device) and not is_pointless(problem, config, device)
    )
    return list(dict.fromkeys([*_C.get_candidates(problem, device), *fitting]))


@lru_cache(NUM_CACHED)
def get_grid(variant, device) -> tuple:
    """Return every config of the grid that is legal for some problem of this variant, as fields.kernel_problem makes
    it.
    """
    return tuple(config for tile in make_tiles(variant) for config in fit_rings(variant, tile, device))


def make_tiles(variant) -> Iterator[dict]:
    """Yield the fields of every config of the grid but its stages."""
    block_k = 128 if is_fp8(variant.op) else 64
    for rows in ROWS:
        for columns in COLUMNS:
            for shared in (*SPLITS, *PAIRS):
                yield {"block_m": rows, "block_n": columns, "block_k": block_k, **shared}
            for shared in SPLITS:
                yield {"block_m": columns, "block_n": rows, "block_k": block_k, "swap_ab": 1, **shared}


def fit_rings(variant, tile: dict, device) -> list:
    """Return the tile with the deepest legal ring, the deepest that lets two blocks share an SM, and half of the
    deepest; none if illegal.
    """
    stage_bytes = 128 * (tile["block_m"] + tile["block_n"])
    rings = [
        _C.Config(**tile, num_stages=stages)
        for stages in range(min(device.smem_bytes // stage_bytes, MAX_STAGES), 1, -1)
    ]
    legal = [config for config in rings if _C.is_legal(variant, config, device)]
    shared = [config for config in legal if _C.blocks_per_sm(variant, config) > 1]
    return list(dict.fromkeys([*legal[:1], *shared[:1], *legal[len(legal) // 2 :][:1]]))


def is_pointless(problem, config, device) -> bool:
    """Return whether a smaller tile, cluster or split does the same work: the config has a side of over twice the
    problem's, or idle blocks.
    """
    if any(
        side > max(2 * size, COLUMNS[0])
        for side, size in ((config.block_m, get_group_rows(problem)), (config.block_n, problem.n))
    ):
        return True
    tiles_m, tiles_n = -(-get_group_rows(problem) // config.block_m), -(-problem.n // config.block_n)
    if config.cluster_m > tiles_m or config.cluster_n > tiles_n:
        return True
    is_thin = 2 * config.split_k * config.block_k > problem.k
    return config.split_k > 1 and (is_thin or tiles_m * tiles_n > MAX_SPLIT_WAVES * device.sm_count)
