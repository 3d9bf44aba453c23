"""What compute-sanitizer watches of the grouped kernels: every variant, and of the main ones every path. See
sanitizer.py.
"""

from functools import partial

from deep_gemm import _C
from deep_gemm.jit.build import get_cubin

from . import watched
from .configs import ALL_SMS
from .grouped_operands import (
    GroupedShape,
    contiguous_alignment,
    count_grouped_wrong,
    list_launch_operands,
    make_grouped_case,
    make_grouped_output,
    prepare_grouped_c,
)
from .grouped_shapes import K_UNIT, Contiguous, KGroups, Masked, get_tile
from .grouped_tiles import VARIANTS, find_shapes, list_tiles
from .grouped_variants import (
    CONTIGUOUS_OPS,
    MAIN_GROUPED,
    MASKED_OPS,
    GroupedVariant,
    get_grouped_space,
    list_grouped_variants,
)
from .memory import align
from .watched import get_knobs

FEW_SMS = 4
#: Kernels of two tiles that are watched of each main variant.
WATCHED_TILES = 3


def get_signature(variant: GroupedVariant, config) -> tuple:
    """Return what makes two configs of a variant take other paths of a kernel."""
    is_staged = _C.is_staged(variant.problem(), config)
    return config.swap_ab, is_staged, config.cluster_m, config.cluster_n, get_knobs(config)


def choose_grouped_pairs(device) -> list[tuple[GroupedVariant, object]]:
    """Return every grouped (variant, config) that the tools watch."""
    get_space = partial(get_grouped_space, device=device)
    return watched.choose_pairs(list_grouped_variants(), MAIN_GROUPED, get_space, get_signature)


def list_watched_shapes(variant: GroupedVariant, config) -> list[GroupedShape]:
    """Return shapes with tails in every dimension, empty groups and padding, then several tiles of several groups a
    CTA.
    """
    (height, width), k = get_tile(config), config.block_k * (config.num_stages + 1) + 16
    if variant.op in CONTIGUOUS_OPS:
        height = config.block_m  # the tiles of a pair may be of two groups
        tail = Contiguous(width + 3, k, 4, height, ((0, 0, height + 1), (1, height, 0), (3, 1, height // 2)))
        return [tail, Contiguous(200, 272, 3, align(128, height), ((2, 0, 100), (0, 0, 1), (1, 3, 60)))]
    if variant.op in MASKED_OPS:
        return [Masked(width + 3, k, height + 3, (height + 1, 0, 1 << 30)), Masked(200, 272, 70, (70, 1, 0, 33, -1))]
    ring = align(config.block_k * config.num_stages, K_UNIT)
    return [KGroups(height + 1, width + 3, (ring + K_UNIT, 0, K_UNIT)), KGroups(70, 200, (K_UNIT, 2 * K_UNIT, 0) * 4)]


def choose_tiles(device) -> list[tuple]:
    """Return (variant, first, second) of every kernel with a second tile that the tools watch."""
    return [
        (variant, *tiles)
        for variant in VARIANTS
        for tiles in list_tiles(variant, device)[: WATCHED_TILES if variant in MAIN_GROUPED else 1]
    ]


def run_grouped(variant: GroupedVariant, config, is_brief: bool = False, second=None) -> list[str]:
    """Run one config on tails, those of main variants also on several tiles a CTA, or a kernel of two on rows by which
    it takes either; return what was wrong.

    is_brief: once, on tails with several tiles a CTA.
    """
    result = get_cubin(variant.problem(), config, second=second)
    kernel = _C.Kernel(result.cubin, result.kernel_name, variant.problem(), config, 0, second)
    failures, shapes = [], list_watched_shapes(variant, config)
    shapes = shapes if variant in MAIN_GROUPED and not is_brief else shapes[:1]
    if second is not None:
        shapes = list(find_shapes(variant, config, second, _C.get_device()))
    for index, shape in enumerate(shapes):
        case = make_grouped_case(shape, "cpu", variant, integers=index == 1)
        host = make_grouped_output(case)
        is_few = second is None and (index or is_brief)  # the rows found are for all SMs
        launch_on_copies(kernel, variant, case, host, index, FEW_SMS if is_few else ALL_SMS)
        if int(count_grouped_wrong(case, host)) or int(host.num_dirty()):
            failures.append(f"{variant}: {config} {shape}: wrong result")
    return failures


def launch_on_copies(kernel, variant: GroupedVariant, case, host, index: int, num_sms: int) -> None:
    """Launch on copies of the case's tensors; D and what surrounds it come back."""
    c = prepare_grouped_c(case, host, is_aliased=variant.c_mode == "accumulate")
    operands = list_launch_operands(variant, case, index)
    with contiguous_alignment(case.alignment):
        watched.launch_on_copies(kernel, operands, host, c, groups=case.groups, num_sms=num_sms)
