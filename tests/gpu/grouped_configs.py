"""The configs of every grouped variant's default space: shapes and group sizes derived from the config, exact integers,
equal bits.
"""

from functools import partial

import torch

from .configs import ALL_SMS, FEW_SMS, check_resources, compare_compilers, describe_wrong, name_job
from .grouped_memory import GUARD_ROWS
from .grouped_operands import (
    GroupedCase,
    GroupedShape,
    compare_grouped,
    launch_grouped,
    make_grouped_case,
    make_grouped_output,
)
from .grouped_shapes import (
    choose_common_alignment,
    derive_contiguous,
    derive_k_groups,
    derive_masked,
    list_common_contiguous,
    list_common_k_groups,
    list_common_masked,
)
from .grouped_variants import (
    CONTIGUOUS_OPS,
    MAIN_GROUPED,
    MASKED_OPS,
    GroupedVariant,
    choose_grouped_configs,
    list_grouped_variants,
)
from .world import World, sample

#: Configs of the other variants run only every third of the derived shapes.
DERIVED_SHARE = 3
#: Configs of each main variant that NVCC compiles, too.
NUM_NVCC_SAMPLES = 2


def derive_grouped_shapes(variant: GroupedVariant, config, index: int) -> list[GroupedShape]:
    """Return the shapes at the edges of a config's own tile and ring."""
    derive = (
        derive_contiguous
        if variant.op in CONTIGUOUS_OPS
        else derive_masked
        if variant.op in MASKED_OPS
        else derive_k_groups
    )
    return derive(config, index)


def list_common_shapes(variant: GroupedVariant, config) -> list[GroupedShape]:
    """Return the shapes that all configs of an op kind run whose tiles fit one common alignment."""
    if variant.op in CONTIGUOUS_OPS:
        return list_common_contiguous(choose_common_alignment(config))
    return list_common_masked() if variant.op in MASKED_OPS else list_common_k_groups()


def list_grouped_runs(variant: GroupedVariant, config, index: int) -> list[tuple[GroupedShape, bool, int]]:
    """Return (shape, integers, num_sms) of every case of a config."""
    derived, common = derive_grouped_shapes(variant, config, index), list_common_shapes(variant, config)
    own = derived if variant in MAIN_GROUPED else derived[index % DERIVED_SHARE :: DERIVED_SHARE]
    runs = [(shape, False, FEW_SMS if position % 4 == 3 else ALL_SMS) for position, shape in enumerate(own)]
    runs += [(shape, False, ALL_SMS) for shape in common]
    runs += [(common[position], False, FEW_SMS) for position in (0, 2, len(common) - 1)]
    return [
        *runs,
        (derived[(index + 1) % len(derived)], True, ALL_SMS),
        (common[0], True, ALL_SMS),
        (common[2], True, FEW_SMS),
    ]


def get_grouped_case(world: World, variant: GroupedVariant, shape: GroupedShape, integers: bool = False) -> GroupedCase:
    """Return operands and reference of a shape, the same for every config, scale layout and memory of the groups."""
    own = variant._replace(scale_layout="mn_major", group_layout="joint")
    return world.grouped_cases.get(
        (own, shape, integers), lambda: make_grouped_case(shape, world.torch_device, own, integers)
    )


def run_grouped_config(world: World, variant: GroupedVariant, config, index: int) -> tuple[int, list[str]]:
    """Run one config on all its shapes; return the number of cases and the failures in words."""
    runs = list_grouped_runs(variant, config, index)
    counts = [run_case(world, variant, config, index + position, *run) for position, run in enumerate(runs)]
    wrong = describe_wrong(runs, counts, partial(get_grouped_case, world, variant))
    return len(runs) + 1, check_resources(world, variant, config) + wrong


def run_case(
    world: World,
    variant: GroupedVariant,
    config,
    index: int,
    shape: GroupedShape,
    integers: bool,
    num_sms: int,
    second=None,
) -> torch.Tensor:
    """Run one case by a config, or by a kernel of two; every third time D's groups lie side by side, else with red
    zones in between.
    """
    case = get_grouped_case(world, variant, shape, integers)
    output = make_grouped_output(case, gap=0 if index % 3 == 2 else GUARD_ROWS)
    kernel = world.kernel(variant, config, second=second)
    launch_grouped(kernel, variant, case, output, index=index, num_sms=num_sms)
    return compare_grouped(case, config, output)


def run_grouped_nvcc(world: World, variant: GroupedVariant, config) -> tuple[int, list[str]]:
    """Compare one config built by NVCC with the same built by NVRTC, bit by bit, on the common shapes."""

    def launch(index: int, shape: GroupedShape, compiler: str) -> tuple:
        case = get_grouped_case(world, variant, shape)
        output = make_grouped_output(case)
        launch_grouped(world.kernel(variant, config, compiler), variant, case, output, index=index)
        return output.bits, compare_grouped(case, config, output)

    return compare_compilers(list_common_shapes(variant, config), launch)


def grouped_config_jobs(world: World) -> list:
    """Return one job for each config of each variant."""
    return [
        (name_job(variant, config), partial(run_grouped_config, world, variant, config, index))
        for variant in list_grouped_variants()
        for index, config in enumerate(choose_grouped_configs(variant, world.device, world.spread))
    ]  # fmt: skip


def choose_grouped_nvcc(device, spread: int) -> list[tuple[GroupedVariant, object]]:
    """Return the (variant, config) that NVCC compiles, too."""
    return [
        (variant, config)
        for variant in MAIN_GROUPED
        for config in sample(choose_grouped_configs(variant, device, spread), NUM_NVCC_SAMPLES)
    ]


def grouped_nvcc_jobs(world: World) -> list:
    """Return one job for each config of the NVCC sample."""
    return [
        (name_job(*pair), partial(run_grouped_nvcc, world, *pair))
        for pair in choose_grouped_nvcc(world.device, world.spread)
    ]
