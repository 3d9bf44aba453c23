"""Run-to-run equality of bits of grouped kernels: many launches on one input, alone, beside a busy stream, and as a
CUDA graph.

As repeats.py: on a few SMs a CTA walks many tiles of several groups, so that rings, D tiles and the tensor maps of
blocks go on from group to group.
"""

from functools import partial

from .configs import ALL_SMS, FEW_SMS, name_job
from .grouped_configs import get_grouped_case
from .grouped_operands import GroupedCase, GroupedShape, count_grouped_wrong, launch_grouped, make_grouped_output
from .grouped_shapes import COMMON_ALIGNMENTS, Contiguous, KGroups, Masked, choose_common_alignment
from .grouped_variants import (
    BF16_CONTIGUOUS,
    CONTIGUOUS_OPS,
    FP8_CONTIGUOUS,
    FP8_MASKED,
    MAIN_GROUPED,
    MASKED_OPS,
    GroupedVariant,
    choose_grouped_configs,
    list_grouped_variants,
)
from .repeats import BusyStream, Repeater, is_small, repeat, repeat_large
from .world import World

#: Repeats by number of SMs of what the library chooses, and of every other config.
CHOSEN_REPEATS = {ALL_SMS: 600, FEW_SMS: 400}
SPACE_REPEATS = {ALL_SMS: 20, FEW_SMS: 20}
#: Unequal groups, a tail in every dimension, more tiles than FEW_SMS walks at once; blocks of K change their tensor
#: maps from group to group.
MASKED_SHAPE = Masked(520, 1168, 333, (333, 1, 0, 150, 64, 0, 257, 12))
K_SHAPE = KGroups(333, 520, (384, 128, 0, 1024, 128, 128, 640, 256))
#: Rows of the groups of a contiguous product.
ROWS = (333, 1, 150, 64, 257, 12)
#: Many tiles for each CTA of all SMs, so that shared memory is as busy as it gets: reads of scales that a refill
#: overtakes show only here.
LARGE_ROWS = (1500, 1100, 0, 1536)
LARGE_MASKED, LARGE_K = Masked(4096, 1536, 1536, LARGE_ROWS), KGroups(2048, 2304, (1536, 512, 0, 1152))
#: What the library's choices are repeated on: the main variants, and the other ways in which scales, operands and C
#: reach the kernel.
CHOSEN_VARIANTS = (
    *MAIN_GROUPED,
    GroupedVariant(FP8_CONTIGUOUS, "1d1d", scale_layout="any"),
    GroupedVariant(FP8_CONTIGUOUS, d_dtype="fp32", scale_layout="any"),
    GroupedVariant(BF16_CONTIGUOUS, b_major="mn"),
    GroupedVariant(FP8_MASKED, scale_layout="any"),
    GroupedVariant(FP8_MASKED, "1d1d"),
    MAIN_GROUPED[4]._replace(group_layout="joint"),
    MAIN_GROUPED[4]._replace(scale_layout="any"),
    MAIN_GROUPED[4]._replace(c_mode="none"),
    MAIN_GROUPED[5]._replace(c_mode="general"),
)


def get_repeated_shape(variant: GroupedVariant, config, is_large: bool = False) -> GroupedShape:
    """Return the shape that a config is repeated on."""
    if variant.op in MASKED_OPS:
        return LARGE_MASKED if is_large else MASKED_SHAPE
    if variant.op not in CONTIGUOUS_OPS:
        return LARGE_K if is_large else K_SHAPE
    if is_large:
        return Contiguous(
            4096,
            1536,
            len(LARGE_ROWS),
            COMMON_ALIGNMENTS[-1],
            tuple((group, 0, rows) for group, rows in enumerate(LARGE_ROWS)),
        )
    alignment = choose_common_alignment(config)
    segments = [(group, 3 * (group == 2), rows) for group, rows in enumerate(ROWS)]
    return Contiguous(520, 1168, len(ROWS), alignment, (*segments[:3], (0, alignment, 0), *segments[3:]))


def make_grouped_repeater(
    world: World,
    variant: GroupedVariant,
    config,
    is_large: bool = False,
    second=None,
    shape: GroupedShape | None = None,
) -> tuple[Repeater, GroupedCase]:
    """Return the repeater of one config or of a kernel of two, and its case, of `shape` where that is given; rows that
    may hold anything are not watched.
    """
    case = get_grouped_case(world, variant, shape or get_repeated_shape(variant, config, is_large))
    output, kernel = make_grouped_output(case), world.kernel(variant, config, second=second)

    def launch(num_sms: int) -> None:
        launch_grouped(kernel, variant, case, output, index=1, num_sms=num_sms)

    return Repeater(output, launch, output.make_watched()), case


def run_grouped_repeats(
    world: World,
    variant: GroupedVariant,
    config,
    repeats: dict[int, int],
    second=None,
    shape: GroupedShape | None = None,
) -> tuple[int, list[str]]:
    """Launch one config, or a kernel of two, `repeats[num_sms]` times, the second half beside a busy stream, then from
    a replayed graph; the last D must be right.
    """
    repeater, case = make_grouped_repeater(world, variant, config, second=second, shape=shape)
    name = type(case.shape).__name__
    launches, failures = repeat(repeater, repeats, name, BusyStream(world.torch_device))
    wrong = int(count_grouped_wrong(case, repeater.output))
    return launches, failures + ([f"{name}: {wrong} elements outside their bound"] if wrong else [])


def run_grouped_large(world: World, variant: GroupedVariant, config) -> tuple[int, list[str]]:
    """Launch one config LARGE_REPEATS times on a grid of many tiles; all Ds must be alike, and the last one right."""
    repeater, case = make_grouped_repeater(world, variant, config, is_large=True)
    return repeat_large(repeater, lambda: count_grouped_wrong(case, repeater.output))


def list_chosen_pairs(world: World) -> list[tuple[GroupedVariant, object]]:
    """Return each config that the library can choose with each of its variants."""
    return [(variant, config) for variant in CHOSEN_VARIANTS for config in world.portfolio(variant)]


def grouped_repeat_jobs(world: World) -> list:
    """Return one job for each config that the library can choose, for each further one that the suite runs, and for
    those of wide tiles one more.
    """
    chosen = dict.fromkeys(list_chosen_pairs(world))
    pairs = [
        (variant, config)
        for variant in list_grouped_variants()
        for config in choose_grouped_configs(variant, world.device, world.spread)
    ]
    plans = [(pair, CHOSEN_REPEATS) for pair in chosen] + [
        (pair, SPACE_REPEATS) for pair in pairs if pair not in chosen
    ]
    jobs = [(name_job(*pair), partial(run_grouped_repeats, world, *pair, repeats)) for pair, repeats in plans]
    large = [pair for pair in dict.fromkeys((*chosen, *pairs)) if pair[0] in CHOSEN_VARIANTS and not is_small(pair[1])]
    return jobs + [(f"{name_job(*pair)} large", partial(run_grouped_large, world, *pair)) for pair in large]
