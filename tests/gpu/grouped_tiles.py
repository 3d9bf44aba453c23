"""Kernels with a second tile for masked groups, of which each launch takes one by the rows that the groups have: right
with any rows, by either tile, with equal bits in repeats, and in graphs whose rows change between replays.
"""

import random
from dataclasses import replace
from functools import partial
from itertools import cycle, islice, product

import torch

from deep_gemm import _C
from deep_gemm.selection import explain_tiles

from .configs import ALL_SMS, FEW_SMS, check_resources, describe_wrong, name_job
from .grouped_configs import get_grouped_case, run_case
from .grouped_operands import launch_grouped, make_grouped_output
from .grouped_repeats import run_grouped_repeats
from .grouped_shapes import Masked, derive_masked, list_common_masked
from .grouped_variants import BF16_MASKED, FP8_MASKED, MAIN_GROUPED, GroupedVariant
from .world import World, sample

VARIANTS = (
    GroupedVariant(FP8_MASKED),
    GroupedVariant(BF16_MASKED),
    GroupedVariant(FP8_MASKED, scale_layout="any"),
    GroupedVariant(FP8_MASKED, "1d1d", "fp32"),
    GroupedVariant(BF16_MASKED, d_dtype="fp32"),
)
#: Kernels of each main variant, and of each other one.
MAIN_KERNELS, FEW_KERNELS = 12, 3
#: Where second tiles are looked for: numbers of groups, rows expected, (n, k).
GROUPS, ROWS = (1, 2, 4, 6), (64, 128, 256, 512, 1024)
WEIGHTS = ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048), (7168, 2048))
MAX_M = 4096
REPEATS = {ALL_SMS: 60, FEW_SMS: 40}
#: Of what is launched: groups, in turn by the kernel, and widths and rooms in which either tile may take less.
NUM_GROUPS, DEPTHS, WIDTHS, ROOMS = (4, 1, 8), (656, 4112), (1544, 2056, 4104, 8200), (300, 700, 1500)
NUM_DRAWS = 200
#: Rows that come to a graph of four groups besides those by which it takes either tile: none, a few, all, too many,
#: less than none. Graphs of more groups repeat them.
GRAPH_ROWS = ((0, 0, 0, 0), (64, 0, 0, 1), (-1, 3, 0, 9), (1 << 30, 256, 65, 129))
GRAPH_ROUNDS = 4


def list_tiles(variant: GroupedVariant, device) -> list[tuple]:
    """Return (first, second) of kernels that calls of a variant run."""
    found = {}
    for groups, rows, (n, k) in product(GROUPS, ROWS, WEIGHTS):
        choice, second = explain_tiles(variant.problem(MAX_M, n, k, groups, expected_m=rows), device)
        if second is not None:
            found[choice.config, second] = None
    return sample(list(found), MAIN_KERNELS if variant in MAIN_GROUPED else FEW_KERNELS)


def list_tile_kernels(device) -> list[tuple]:
    """Return (problem, first, second) of every kernel here, and (problem, first) of those that it is compared with."""
    kernels = [(variant.problem(), tiles) for variant in VARIANTS for tiles in list_tiles(variant, device)]
    return [(problem, *chosen) for problem, tiles in kernels for chosen in (tiles, tiles[:1])]


def takes_second(variant: GroupedVariant, shape: Masked, first, second, device, num_sms: int = 0) -> bool:
    """Return whether a launch of the kernel on `num_sms` SMs (0: all) takes its second tile: the rule of
    sm90/scheduler/tile_choice.cuh.
    """
    problem = variant.problem(shape.max_m, shape.n, shape.k, shape.num_groups)
    rows = [min(max(size, 0), shape.max_m) for size in shape.sizes]
    return weigh_rounds(problem, rows, first, second, device, num_sms or device.sm_count)


def weigh_rounds(problem, rows, first, second, device, sm_count: int) -> bool:
    """Return whether groups of so many rows take fewer rounds of the second tile, as these are weighed."""
    grids = [_C.launch_geometry(problem, tile, sm_count=sm_count) for tile in (first, second)]
    ctas = max(grid["num_ctas"] for grid in grids)
    rounds = [
        -(-sum(-(-size // tile.block_m) for size in rows) * grid["num_n_tiles"] // ctas)
        for tile, grid in zip((first, second), grids, strict=True)
    ]
    return rounds[1] * _C.second_tile_weight(problem, first, second, device) < rounds[0]


def find_shapes(
    variant: GroupedVariant, first, second, device, num_groups: int = NUM_GROUPS[0]
) -> tuple[Masked, Masked]:
    """Return shapes that differ in the rows of the groups alone, by which a kernel takes its first and second tile.

    Raises: ValueError where none are found.
    """
    for k, n, max_m in product(DEPTHS, WIDTHS, ROOMS):
        rng, found = random.Random(n * max_m), {}
        for _ in range(NUM_DRAWS):
            shape = Masked(n, k, max_m, tuple(int((max_m + 1) * rng.random() ** 3) for _ in range(num_groups)))
            found.setdefault(takes_second(variant, shape, first, second, device), shape)
            if len(found) == 2:
                return found[False], found[True]
    raise ValueError(
        f"{variant}: {_C.name_tiles(first, second)} takes one of its tiles in every shape of {num_groups} groups"
    )


def run_tiles(world: World, variant: GroupedVariant, first, second, index: int) -> tuple[int, list[str]]:
    """Run one kernel on shapes around both tiles, repeat it by either, and change the rows of a graph; return the
    number of launches and the failures.
    """
    either = find_shapes(variant, first, second, world.device, NUM_GROUPS[index % len(NUM_GROUPS)])
    parts = [
        run_shapes(world, variant, first, second, index, either),
        *(run_grouped_repeats(world, variant, first, REPEATS, second, shape) for shape in either),
        run_changed_rows(world, variant, first, second, either),
    ]
    return sum(launches for launches, _ in parts), [failure for _, failures in parts for failure in failures]


def run_shapes(
    world: World, variant: GroupedVariant, first, second, index: int, either: tuple[Masked, Masked]
) -> tuple[int, list[str]]:
    """Run one kernel on shapes around both tiles; return the number of cases and the failures."""
    shapes = [*either, *derive_masked(first, index), *derive_masked(second, index), *list_common_masked()]
    runs = [(shape, False, FEW_SMS if place % 3 == 2 else ALL_SMS) for place, shape in enumerate(shapes)]
    runs += [(shape, True, ALL_SMS) for shape in either]
    counts = [run_case(world, variant, first, index + place, *run, second) for place, run in enumerate(runs)]
    wrong = describe_wrong(runs, counts, partial(get_grouped_case, world, variant))
    return len(runs) + 1, check_resources(world, variant, first, second) + wrong


def list_graph_rows(either: tuple[Masked, Masked]) -> list[tuple[int, ...]]:
    """Return what comes to a graph, with as many groups as the shapes have."""
    num_groups = either[0].num_groups
    others = [tuple(islice(cycle(rows), num_groups)) for rows in GRAPH_ROWS]
    return [shape.sizes for shape in either] + others


def run_changed_rows(
    world: World, variant: GroupedVariant, first, second, either: tuple[Masked, Masked]
) -> tuple[int, list[str]]:
    """Replay one graph with other rows each time; D must have the bits of the first tile's kernel."""
    full = either[0]._replace(sizes=(either[0].max_m,) * either[0].num_groups)  # rows beyond those of a case are NaN
    case = get_grouped_case(world, variant, full)
    case = replace(case, groups=case.groups.clone())
    both, alone = world.kernel(variant, first, second=second), world.kernel(variant, first)  # loaded before the capture
    output, single = make_grouped_output(case), make_grouped_output(case)
    launch_grouped(both, variant, case, output, index=1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch_grouped(both, variant, case, output, index=1)
    failures, all_rows = [], list_graph_rows(either)
    for rows in all_rows * GRAPH_ROUNDS:
        case.groups.copy_(torch.tensor(rows, dtype=torch.int32))
        graph.replay()
        launch_grouped(alone, variant, case, single, index=1)
        valid = [slice(0, min(max(count, 0), either[0].max_m)) for count in rows]
        bits = [(output.all_bits[group, part], single.all_bits[group, part]) for group, part in enumerate(valid)]
        unlike = sum(not torch.equal(*both_bits) for both_bits in bits)
        failures += [f"rows {rows}: {unlike} groups unlike those of one tile"] if unlike else []
    return len(all_rows) * GRAPH_ROUNDS, list(dict.fromkeys(failures))


def tile_jobs(world: World) -> list:
    """Return one job for each kernel."""
    return [
        (f"{name_job(variant, first)} or {second}", partial(run_tiles, world, variant, first, second, index))
        for variant in VARIANTS
        for index, (first, second) in enumerate(list_tiles(variant, world.device))
    ]
