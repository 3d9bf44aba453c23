"""The wide space: every legal config on a grid of what the kernels can do, for searches beyond the default space.

The grid has tiles of 64, 128 or 256 rows of the MMA and of columns in steps of 8, clusters, splits of K, both orders of
the operands, and three depths of the ring. Configs that cannot pay off for a problem are left out, by looser rules
than in the default space. The whole default space comes first.
"""

from collections.abc import Iterator
from functools import lru_cache

from deep_gemm import _C
from tuner.problems.fields import get_group_rows, kernel_identity, replace_problem

#: A search measures at most this many configs beyond the default space unless it is told otherwise: four batches.
WIDE_TRIALS = 96
ROWS = (64, 128, 256)
COLUMNS = tuple(range(8, 257, 8))
#: How CTAs share the work, as fields of a config. Clusters of two exist only without swapped operands.
SPLITS = tuple({"split_k": split} for split in (1, 2, 4, 8))
PAIRS = ({"cluster_m": 2}, {"cluster_n": 2})
#: Columns up to which a tile may gain by TMA that adds onto C.
MAX_ADD_COLUMNS = 160
#: A grid of more waves than this keeps all SMs busy without a split of K.
MAX_SPLIT_WAVES = 3
#: Columns from which a tile of 128 rows may gain by TMA that adds onto C and, with two scale vectors, by the unrolled
#: loop.
MIN_LOOP_COLUMNS = _C.MIN_VECTOR_LOOP_COLUMNS
#: How many variants' grids are kept; a sweep has a handful.
NUM_CACHED = 64


def get_wide_space(problem, device) -> list:
    """Return the candidates of `problem` from the default space, then the legal rest of the grid without the pointless.

    All are different.
    """
    space = get_grid(kernel_identity(replace_problem(problem, compiled_dims="")), device)
    fitting = (
        config for config in space if _C.is_legal(problem, config, device) and not is_pointless(problem, config, device)
    )
    return list(dict.fromkeys([*_C.get_candidates(problem, device), *fitting]))


@lru_cache(NUM_CACHED)
def get_grid(variant, device) -> tuple:
    """Return every config of the grid that is legal for a variant: a problem made by fields.kernel_identity."""
    return tuple(config for tile in make_tiles(variant) for config in fit_rings(variant, tile, device))


def make_tiles(variant) -> Iterator[dict]:
    """Yield the fields of every config of the grid except num_stages."""
    block_k = _C.stage_k(variant.op)
    for rows in ROWS:
        for columns in COLUMNS:
            for shared in (*SPLITS, *PAIRS):
                yield {"block_m": rows, "block_n": columns, "block_k": block_k, **shared}
            for shared in SPLITS:
                yield {"block_m": columns, "block_n": rows, "block_k": block_k, "swap_ab": 1, **shared}


def fit_rings(variant, tile: dict, device) -> list:
    """Return the tile with three rings: the deepest legal one, the deepest with two CTAs per SM, half the deepest.

    The list is empty where no ring is legal.
    """
    stage_bytes = _C.STAGE_K_BYTES * (tile["block_m"] + tile["block_n"])
    rings = [_C.Config(**tile, num_stages=stages) for stages in range(device.smem_bytes // stage_bytes, 1, -1)]
    legal = [config for config in rings if _C.is_legal(variant, config, device)]
    shared = [config for config in legal if _C.blocks_per_sm(variant, config) > 1]
    return list(dict.fromkeys([*legal[:1], *shared[:1], *legal[len(legal) // 2 :][:1]]))


def is_pointless(problem, config, device) -> bool:
    """Return whether a smaller config does the same work.

    A side of the tile is then more than twice the problem's, or CTAs of a cluster or split have nothing to do.
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


def get_loop_space(problem, device) -> list:
    """Return the default space, and its configs with the knobs of the main loop that the heuristic would give them.

    Two scale vectors gain up to 15 % by the unrolled loop with some tiles and lose up to 4 % with others, so
    both are measured of the tiles that may gain; and so are TMA that adds onto C and C that is loaded, up to
    MAX_ADD_COLUMNS.
    """
    space = _C.get_candidates(problem, device)
    knobs = [_C.with_loop_knobs(problem, config, device) for config in space]
    looped = [_C.Config(**config.as_dict() | {"loop": 1}) for config in knobs if _may_gain_by_loop(problem, config)]
    added = [
        _C.Config(**config.as_dict() | {"reduce_add": 1})
        for config in (*knobs, *looped) if _is_large(config) and config.block_n <= MAX_ADD_COLUMNS
    ]  # fmt: skip
    legal = [config for config in (*looped, *added) if _C.is_legal(problem, config, device)]
    return list(dict.fromkeys([*space, *knobs, *legal]))


def _may_gain_by_loop(problem, config) -> bool:
    return problem.recipe == "1d1d" and _is_large(config)


def _is_large(config) -> bool:
    is_large = config.block_m == 256 or (config.block_m == 128 and config.block_n >= MIN_LOOP_COLUMNS)
    return config.swap_ab == 0 and is_large


#: What lists the configs of a problem, by the name of its space.
SPACES = {"default": _C.get_candidates, "loops": get_loop_space, "wide": get_wide_space}
