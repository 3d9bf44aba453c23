"""Kernels of groups with ends that hold a second tile, for groups that fill a part of their alignment: right by either
tile, whatever the ends are, with padding that becomes zero, in repeats, and in graphs whose ends change.
"""

from dataclasses import replace
from functools import partial
from itertools import product

import torch

from deep_gemm import _C
from deep_gemm.selection import explain_tiles

from .configs import check_resources
from .grouped_operands import (
    GroupedCase,
    contiguous_alignment,
    count_grouped_wrong,
    list_launch_operands,
    make_grouped_output,
    prepare_grouped_c,
)
from .grouped_psum import CORRUPT_ENDS, PSUM_VARIANTS, PsumRows, has_zeros, make_psum_case, with_ends, without_padding
from .grouped_semantics_runtime import capture
from .grouped_tiles import weigh_rounds
from .grouped_variants import GroupedVariant
from .public_op import Checks
from .world import World, sample

#: Those whose operands masked products have, too.
VARIANTS = PSUM_VARIANTS[:3]
#: Where second tiles are looked for: groups, rows of each with their padding, (n, k).
GROUPS, ROWS = (4, 8, 32, 128), (128, 140, 180)
WEIGHTS = ((4096, 7168), (7168, 2048), (1536, 4096), (768, 7168), (3072, 2048))
NUM_KERNELS = 4
#: What is launched: groups of few rows, and of as many as fill the alignment, from the same rows on.
FEW, FULL = (3, 1, 20, 7, 16, 9, 2, 5), (128, 101, 128, 128, 127, 128, 110, 128)
DEPTH, WIDTHS = 912, (1544, 2056, 4104, 8200)
REPEATS = 100


def list_tiles(variant: GroupedVariant, device) -> list[tuple]:
    """Return (first, second) of kernels that calls of a variant run."""
    found, empty = {}, with_ends(variant).problem()
    for groups, rows, (n, k) in product(GROUPS, ROWS, WEIGHTS):
        sizes = {"m": groups * rows, "n": n, "k": k, "num_groups": groups, "alignment": 128}
        choice, second = explain_tiles(_C.Problem(**empty.as_dict() | sizes), device)
        if second is not None:
            found[choice.config, second] = None
    return sample(list(found), NUM_KERNELS)


def list_psum_tile_kernels(device) -> list[tuple]:
    """Return (problem, first, second) of every kernel here, and (problem, first) of those that it is compared with."""
    kernels = [(with_ends(variant).problem(), tiles) for variant in VARIANTS for tiles in list_tiles(variant, device)]
    return [(problem, *chosen) for problem, tiles in kernels for chosen in (tiles, tiles[:1])]


def takes_second(variant: GroupedVariant, shape: PsumRows, first, second, device) -> bool:
    """Return whether a launch without zeroed padding takes the second tile."""
    fields = {"m": len(shape.sizes) * 128, "n": shape.n, "k": shape.k, "num_groups": len(shape.sizes), "alignment": 128}
    problem = _C.Problem(**with_ends(variant).problem().as_dict() | fields)
    return weigh_rounds(problem, shape.sizes, first, second, device, device.sm_count)


def find_shapes(variant: GroupedVariant, first, second, device) -> tuple[PsumRows, PsumRows]:
    """Return shapes by which a kernel takes its first and second tile. Raises: ValueError where there are none."""
    for n in WIDTHS:
        shapes = PsumRows(n, DEPTH, FULL), PsumRows(n, DEPTH, FEW)
        if [takes_second(variant, shape, first, second, device) for shape in shapes] == [False, True]:
            return shapes
    raise ValueError(f"{variant}: {_C.name_tiles(first, second)} takes one of its tiles in every shape")


class Launcher:
    """Launches of a kernel on a case, into a D of its own."""

    def __init__(self, kernel, case: GroupedCase):
        self.kernel, self.case, self.output = kernel, case, make_grouped_output(case)
        self.operands = list_launch_operands(case.variant, case, 1)

    def run(self, ends: torch.Tensor | None = None, **options) -> torch.Tensor:
        """Launch into a freshly poisoned D; return the bits of the rows that must be right."""
        c = prepare_grouped_c(self.case, self.output, is_aliased=False)
        groups = self.case.groups if ends is None else ends
        with contiguous_alignment(128):
            self.kernel.launch(*self.operands, self.output.d, c, groups=groups, **options)
        return self.output.bits.clone()


def run_psum_tiles(world: World, variant: GroupedVariant, first, second) -> tuple[int, list[str]]:
    """Run one kernel on shapes of either tile, beside that of its first tile alone."""
    checks, named = Checks(), with_ends(variant)
    kernels = world.kernel(named, first, second=second), world.kernel(named, first)
    for shape in find_shapes(variant, first, second, world.device):
        case = make_psum_case(world, variant, shape)
        both, alone = (Launcher(kernel, case) for kernel in kernels)
        bits = alone.run()
        _check_shape(checks, both, bits, shape.sizes)
    full = make_psum_case(world, variant, find_shapes(variant, first, second, world.device)[0])
    _check_changing_ends(checks, *(Launcher(kernel, full) for kernel in kernels))
    launches, failures = checks.outcome()
    return launches, failures + check_resources(world, named, first, second)


def _check_shape(checks: Checks, both: Launcher, bits: torch.Tensor, sizes: tuple[int, ...]) -> None:
    """Compare with the reference, and with the bits of one tile; padding as asked, and ends that are wrong."""
    case, output = both.case, both.output
    for _ in range(REPEATS):
        checks.expect(torch.equal(both.run(), bits), f"{sizes}: other bits than those of one tile")
    checks.expect(not int(count_grouped_wrong(without_padding(case), output)), f"{sizes}: wrong elements")
    checks.expect(not int(output.num_dirty()), f"{sizes}: wrote outside D")
    zeroed = both.run(ensure_zero_padding=True)
    checks.expect(torch.equal(zeroed, bits) and has_zeros(case, output), f"{sizes}: padding is not +0")
    for name, ends in CORRUPT_ENDS.items():
        wrong = torch.tensor((ends * len(sizes))[: len(sizes)], dtype=torch.int32, device=case.groups.device)
        both.run(wrong)
        checks.expect(not int(output.num_dirty()), f"{sizes}, {name} ends: wrote outside D")


def _check_changing_ends(checks: Checks, both: Launcher, alone: Launcher) -> None:
    """Replay one graph with groups of few rows and of many in turn."""
    ends = both.case.groups.clone()
    both.case = replace(both.case, groups=ends.clone())
    starts = torch.arange(len(FULL), device=ends.device, dtype=torch.int32) * 128
    replay = capture(both.run)
    for sizes in (FEW, FULL, FEW, tuple(reversed(FEW)), FULL):
        given = starts + torch.tensor(sizes, device=ends.device, dtype=torch.int32)
        both.case.groups.copy_(given)
        replay()
        torch.cuda.synchronize()
        alone.run(given)
        rows = [slice(128 * group, 128 * group + min(size, FULL[group])) for group, size in enumerate(sizes)]
        same = all(torch.equal(both.output.all_bits[part], alone.output.all_bits[part]) for part in rows)
        checks.expect(same, f"a graph with {sizes}: rows unlike those of one tile")


def psum_tile_jobs(world: World) -> list:
    """Return one job for each kernel."""
    return [
        (f"run_psum_tiles {variant}: {first} or {second}", partial(run_psum_tiles, world, variant, first, second))
        for variant in VARIANTS
        for first, second in list_tiles(variant, world.device)
    ]
