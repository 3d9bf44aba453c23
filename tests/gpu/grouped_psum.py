"""Groups that are described by their ends (psum layout): products with poison between the groups, explicit configs and
the public ops, zeroed padding, ends that are wrong, graphs whose groups change; and sizes on which other libraries hang
or crash.

A case of rows is one of the contiguous suite with ends for its groups; one of K has gaps of NaN behind every group.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

import deep_gemm

from .configs import check_resources
from .grouped_configs import get_grouped_case
from .grouped_op import call_grouped, run_grouped_op
from .grouped_operands import (
    GroupedCase,
    contiguous_alignment,
    count_grouped_wrong,
    list_launch_operands,
    make_blocks,
    make_grouped_case,
    make_grouped_output,
    prepare_grouped_c,
    set_k_reference,
)
from .grouped_semantics_runtime import capture
from .grouped_shapes import K_UNIT, Contiguous, KGroups, Masked, get_tile
from .grouped_variants import (
    BF16_K_GROUPED,
    CONTIGUOUS_OPS,
    FP8_K_GROUPED,
    FP8_MASKED,
    GROUPED_OPS,
    K_GROUPED_OPS,
    GroupedVariant,
    choose_grouped_configs,
    list_hinted_configs,
)
from .memory import NAN_BYTE, align, as_integers, make_operand
from .public_op import Checks
from .world import World, sample

#: Explicit configs of each variant.
NUM_CONFIGS = 8
#: Variants as the public ops take them, whose kernels are those of their op kind's twin with ends.
_K = GroupedVariant(FP8_K_GROUPED, "1d1d", "fp32")
_BF16_K = GroupedVariant(BF16_K_GROUPED, d_dtype="fp32", a_major="mn", b_major="mn")
PSUM_VARIANTS = (
    GroupedVariant(CONTIGUOUS_OPS[0]),
    GroupedVariant(CONTIGUOUS_OPS[0], "1d1d", "fp32", scale_layout="any"),
    GroupedVariant(CONTIGUOUS_OPS[1]),
    GroupedVariant(CONTIGUOUS_OPS[1], d_dtype="fp32", b_major="mn"),
    _K,
    _K._replace(c_mode="accumulate", group_layout="blocks"),
    _K._replace(c_mode="general", group_layout="blocks", scale_layout="any"),
    _BF16_K,
    _BF16_K._replace(c_mode="accumulate"),
)


@dataclass(frozen=True)
class PsumRows:
    """Groups of `sizes` rows, each from the next multiple of the alignment on, and `extra` rows of padding behind the
    last one. has_aligned_ends: an empty group ends where it starts, else where the one before ends.
    """

    n: int
    k: int
    sizes: tuple[int, ...]
    alignment: int = 128
    extra: int = 0
    has_aligned_ends: bool = True

    @property
    def contiguous(self) -> Contiguous:
        """The same rows as the contiguous suite describes them."""
        segments = [(group, 0, rows) for group, rows in enumerate(self.sizes)]
        return Contiguous(self.n, self.k, len(self.sizes), self.alignment, (*segments, (0, self.extra, 0)))


@dataclass(frozen=True)
class PsumK:
    """Groups of K of `sizes`, each from the next multiple of 128 on, and `extra` columns behind the last one."""

    m: int
    n: int
    sizes: tuple[int, ...]
    extra: int = 0
    has_aligned_ends: bool = True
    alignment: int = K_UNIT

    @property
    def padded(self) -> KGroups:
        """Groups as wide as the memory that they take up, the last one with what is left."""
        sizes = [align(size, K_UNIT) for size in self.sizes]
        sizes[-1] += align(self.extra, K_UNIT)
        return KGroups(self.m, self.n, tuple(sizes))


PsumShape = PsumRows | PsumK


def list_ends(shape: PsumShape) -> list[int]:
    """Return where each group ends."""
    ends, before = [], 0
    for size in shape.sizes:
        start = align(before, shape.alignment)
        before = start + size if size or shape.has_aligned_ends else before
        ends.append(before)
    return ends


def find_groups(shape: PsumShape) -> Iterator[tuple[int, slice]]:
    """Yield each group that is not empty, and where it lies."""
    for group, (end, size) in enumerate(zip(list_ends(shape), shape.sizes, strict=True)):
        if size:
            yield group, slice(end - size, end)


#: Ragged groups; ends that are multiples of the alignment; empty groups first, last and in between; padding alone.
ROWS = (
    PsumRows(328, 912, (100, 256, 0, 37, 1), extra=70),
    PsumRows(520, 2064, (128, 256, 128)),
    PsumRows(136, 400, (0, 0, 5, 0, 130, 0, 0), extra=300, has_aligned_ends=False),
    PsumRows(136, 272, (0, 0, 0), extra=200),
    PsumRows(264, 128, (3, 0, 60, 64, 65, 1), alignment=64),
    PsumRows(40, 144, tuple(group % 9 for group in range(70)), alignment=8, has_aligned_ends=False),
    PsumRows(24, 128, tuple(5 * (group % 8 == 3) for group in range(1100)), extra=1000),
)
COLUMNS = (
    PsumK(136, 328, (256, 0, 384, 128)),
    PsumK(300, 72, (130, 1000, 1, 127, 129)),
    PsumK(77, 136, (0, 5, 0, 0, 255, 0), extra=256, has_aligned_ends=False),
    PsumK(40, 24, (0, 0, 0), extra=128),
    PsumK(24, 40, tuple(37 * group % 300 for group in range(150))),
)


def list_psum_shapes(variant: GroupedVariant) -> tuple[PsumShape, ...]:
    """Return the shapes on which the promises of a variant are checked."""
    return COLUMNS if variant.op in K_GROUPED_OPS else ROWS


def derive_psum_shapes(variant: GroupedVariant, config) -> list[PsumShape]:
    """Return shapes around a config's tile and ring."""
    (height, width), k = get_tile(config), config.block_k * (config.num_stages + 1) + 16
    if variant.op in K_GROUPED_OPS:
        ring = config.block_k * config.num_stages
        return [PsumK(height + 3, width + 8, (ring, 0, ring + 1, 1, 3 * ring - 1)), PsumK(height, width, (k, K_UNIT))]
    height = config.block_m  # the tiles of a pair may be of two groups
    sizes = (height - 1, height, 0, height + 1, 3 * height + 5)
    return [
        PsumRows(width + 8, k, sizes, height, extra=2 * height),
        PsumRows(2 * width + 3, 128, (0, 2 * height, 1), 2 * height, has_aligned_ends=False),
    ]


def make_psum_case(world: World, variant: GroupedVariant, shape: PsumShape, integers: bool = False) -> GroupedCase:
    """Return operands whose padding is NaN, with ends for groups; reference and bound cover the groups alone."""
    make = _make_columns if isinstance(shape, PsumK) else _make_rows
    case = make(world, variant, shape, integers)
    return replace(case, groups=torch.tensor(list_ends(shape), dtype=torch.int32, device=case.a.device))


def _make_rows(world: World, variant: GroupedVariant, shape: PsumRows, integers: bool) -> GroupedCase:
    case = get_grouped_case(world, variant, shape.contiguous, integers)
    rows = (case.groups >= 0).nonzero().flatten()
    return replace(
        case,
        variant=variant,
        rows=(rows,),
        reference=case.reference[rows],
        bound=case.bound[rows],
        padding=(case.groups < 0).nonzero().flatten(),
        first={},
        laid_out={},
    )


def _make_columns(world: World, variant: GroupedVariant, shape: PsumK, integers: bool) -> GroupedCase:
    """Take the case whose groups fill their memory: its reference is that of zeros between the groups, which are NaN
    in its operands and in the scales that cover nothing else.
    """
    joint = variant._replace(group_layout="joint")
    whole = make_grouped_case(shape.padded, world.torch_device, joint, integers)
    is_gap = torch.ones(whole.a.shape[1], dtype=torch.bool, device=whole.a.device)
    for _, columns in find_groups(shape):
        is_gap[columns] = False
    zeroed = set_k_reference(replace(whole, a=put(whole.a, is_gap, 0), b=put(whole.b, is_gap, 0)))
    a, b = (put(operand, is_gap, NAN_BYTE) for operand in (whole.a, whole.b))
    widths = (*(align(size, K_UNIT) for size in shape.sizes), align(shape.extra, K_UNIT))
    blocks = {("a", "blocks"): make_blocks(a, widths), ("b", "blocks"): make_blocks(b, widths)}
    spoiled = {"a": a, "b": b}
    if whole.scale_a is not None:
        is_unused = is_gap.view(-1, K_UNIT).all(dim=1)
        spoiled |= {name: put(getattr(whole, name), is_unused, NAN_BYTE) for name in ("scale_a", "scale_b")}
    return replace(zeroed, variant=variant, exact=integers, first={}, laid_out=blocks, **spoiled)


def put(values: torch.Tensor, columns: torch.Tensor, byte: int) -> torch.Tensor:
    """Return a copy of [rows, k] in memory of the same major, some columns of which have this byte everywhere."""
    major = "mn" if values.stride(0) == 1 and values.shape[1] > 1 else "k"
    found = make_operand(values, major)
    bits = as_integers(found)
    bits[:, columns] = byte if bits.dtype == torch.uint8 else int(byte == 0) - 1
    return found


def call_psum(case: GroupedCase, output, **options) -> torch.Tensor:
    """Run the public op into a freshly poisoned D; return the bits of the rows that must be right."""
    c = prepare_grouped_c(case, output, is_aliased=case.variant.c_mode == "accumulate")
    given: dict = {"ks_tensor": case.groups, "ks": None}
    if case.variant.op in CONTIGUOUS_OPS:
        given = {"m_indices": case.groups}
    call_grouped(case, output.d, c, **{"use_psum_layout": True, **given, **options})
    return output.bits.clone()


def has_zeros(case: GroupedCase, output) -> bool:
    """Return whether the rows of padding are +0, bit by bit."""
    return not bool(output.all_bits[case.padding].any())


def without_padding(case: GroupedCase) -> GroupedCase:
    """Return a case whose padding may hold anything afterwards."""
    return replace(case, padding=None)


def run_psum_products(world: World, variant: GroupedVariant, shape: PsumShape) -> tuple[int, list[str]]:
    """Random operands within the bound and integers exactly, whatever lies between the groups; padding as asked."""
    checks = Checks()
    for integers in (False, True):
        case = make_psum_case(world, variant, shape, integers)
        output, loose = make_grouped_output(case), without_padding(case)
        bits = call_psum(case, output)
        checks.expect(not int(count_grouped_wrong(loose, output)), f"integers={integers}: wrong elements")
        checks.expect(not int(output.num_dirty()), f"integers={integers}: wrote outside D")
        checks.expect((call_psum(case, output) == bits).all(), f"integers={integers}: other bits the second time")
        if variant.op in K_GROUPED_OPS:
            ks = [shape.padded.k, *[0] * (len(shape.sizes) - 1)]
            checks.expect((call_psum(case, output, ks=ks) == bits).all(), "ks of the host: other bits")
            continue
        zeroed = call_psum(case, output, ensure_zero_padding=True, expected_m_for_psum_layout=7)
        checks.expect((zeroed == bits).all(), f"integers={integers}: other bits with zeroed padding")
        checks.expect(has_zeros(case, output), f"integers={integers}: padding is not +0")
        checks.expect(not int(output.num_dirty()), f"integers={integers}: wrote outside D with zeroed padding")
    return checks.outcome()


def run_psum_siblings(world: World, variant: GroupedVariant, shape: PsumRows) -> tuple[int, list[str]]:
    """The bits of rows are those of the contiguous op, whose config they take."""
    checks, case = Checks(), make_psum_case(world, variant, shape)
    output = make_grouped_output(case)
    bits = call_psum(case, output)
    indices = get_grouped_case(world, variant, shape.contiguous).groups
    got = call_psum(case, output, use_psum_layout=False, m_indices=indices)
    checks.expect((got == bits).all(), "other bits than the contiguous op")
    return checks.outcome()


#: What ends may wrongly hold, repeated over the groups.
CORRUPT_ENDS = {
    "descending": (700, 300, 5, 0),
    "negative": (-1, 200, -(2**31)),
    "too large": (2**31 - 1, 1 << 20),
    "all zero": (0,),
}


def run_corrupt_ends(world: World, variant: GroupedVariant, shape: PsumShape) -> tuple[int, list[str]]:
    """Whatever the ends are, the kernel finishes and writes nothing outside D, and the next call is right."""
    checks, clean = Checks(), make_psum_case(world, variant, shape)
    output = make_grouped_output(clean)
    bits = call_psum(clean, output)
    options: list[dict] = [{}] if variant.op in K_GROUPED_OPS else [{}, {"ensure_zero_padding": True}]
    for name, ends in CORRUPT_ENDS.items():
        count = len(clean.groups)
        wrong = torch.tensor((ends * count)[:count], dtype=torch.int32, device=clean.groups.device)
        for option in options:
            call_psum(replace(clean, groups=wrong), output, **option)
            checks.expect(not int(output.num_dirty()), f"{name} {option}: wrote outside D")
    checks.expect((call_psum(clean, output) == bits).all(), "right ends afterwards: other bits")
    return checks.outcome()


def run_psum_graph(world: World, variant: GroupedVariant) -> tuple[int, list[str]]:
    """A captured call follows the ends that the device holds at each replay."""
    checks, shapes = Checks(), list_psum_shapes(variant)[:1]
    case = make_psum_case(world, variant, shapes[0])
    output, ends = make_grouped_output(case), case.groups.clone()
    bits = call_psum(case, output)
    replay = capture(lambda: call_psum(case, output))
    for empty in (False, True, False):
        case.groups.copy_(torch.zeros_like(ends) if empty else ends)
        replay()
        torch.cuda.synchronize()
        checks.expect(empty or bool((output.bits == bits).all()), "a replay has other bits")
        checks.expect(not int(output.num_dirty()), "a replay wrote outside D")
    return checks.outcome()


def run_psum_config(
    world: World, variant: GroupedVariant, config, shapes: Sequence[PsumShape] = ()
) -> tuple[int, list[str]]:
    """An explicit config on `shapes`, or on some around its tile, with and without zeroed padding."""
    checks, kernel = Checks(), world.kernel(with_ends(variant), config)
    for index, shape in enumerate(shapes or derive_psum_shapes(variant, config)):
        case = make_psum_case(world, variant, shape)
        output = make_grouped_output(case)
        for is_zeroed in (False, True) if variant.op in CONTIGUOUS_OPS else (False,):
            c = prepare_grouped_c(case, output, is_aliased=variant.c_mode == "accumulate")
            operands = list_launch_operands(variant, case, index)
            with contiguous_alignment(shape.alignment):
                kernel.launch(*operands, output.d, c, groups=case.groups, ensure_zero_padding=is_zeroed)
            judged = case if is_zeroed else without_padding(case)
            checks.expect(not int(count_grouped_wrong(judged, output)), f"{shape} zeroed={is_zeroed}: wrong elements")
            checks.expect(not int(output.num_dirty()), f"{shape} zeroed={is_zeroed}: wrote outside D")
    cases, failures = checks.outcome()
    return cases, failures + check_resources(world, with_ends(variant), config)


#: Sizes on which other libraries deadlock, crash or read beyond their operands.
DEFECTS = (
    (_BF16_K._replace(c_mode="accumulate"), KGroups(1408, 1408, (384, 256))),
    (_K._replace(c_mode="accumulate", group_layout="blocks"), KGroups(192, 3072, (128, 256))),
    (_K._replace(c_mode="accumulate", group_layout="blocks"), KGroups(192, 768, (128, 256))),
    (GroupedVariant(FP8_MASKED), Masked(512, 512, 40, (40, 0, 7, 33))),
    (GroupedVariant(FP8_MASKED), Masked(512, 512, 1, (1, 0, 1))),
)
#: (m, n, k) of dense weight gradients, which add onto FP32.
DENSE_DEFECTS = ((512, 1024, 147456), (1536, 256, 2048))


def run_defect(world: World, variant: GroupedVariant, shape: KGroups | Masked) -> tuple[int, list[str]]:
    """A size that other libraries cannot do is right."""
    checks, case = Checks(), make_grouped_case(shape, world.torch_device, variant)
    output = make_grouped_output(case)
    run_grouped_op(case, output)
    checks.expect(not int(count_grouped_wrong(case, output)), "wrong elements")
    checks.expect(not int(output.num_dirty()), "wrote outside D")
    return checks.outcome()


def run_dense_defect(world: World, m: int, n: int, k: int) -> tuple[int, list[str]]:
    """A weight gradient of a size that other libraries cannot do is right: groups of K with one group, and the dense
    op with the same operands.
    """
    checks, variant = Checks(), _K._replace(c_mode="accumulate")
    case = make_grouped_case(KGroups(m, n, (k,)), world.torch_device, variant)
    d = case.c[0].clone()
    deep_gemm.fp8_gemm_nt((case.a, case.scale_a), (case.b, case.scale_b), d, c=d, recipe=(1, 1, 128))
    checks.expect(((d.double() - case.reference[0]).abs() <= case.bound[0]).all(), "wrong elements")
    return checks.outcome()


def with_ends(variant: GroupedVariant) -> GroupedVariant:
    """Return the variant of the kernels that a call with ends runs."""
    return variant._replace(op=variant.op.replace("_contiguous", "_psum"))


def choose_psum_pairs(device, ops: tuple[str, ...]) -> list[tuple[GroupedVariant, object]]:
    """Return every (variant as the public op takes it, config) that is launched by itself."""
    return [
        (variant, config)
        for variant in PSUM_VARIANTS
        if variant.op in ops
        for space in (
            choose_grouped_configs(variant, device, 1),
            list_hinted_configs(with_ends(variant).problem(), device),
        )
        for config in sample(space, NUM_CONFIGS)
    ]


def psum_jobs(world: World) -> list:
    """Return one job for each promise, variant and shape."""
    shaped = [(run, variant) for run in (run_psum_products, run_corrupt_ends) for variant in PSUM_VARIANTS]
    shaped += [(run_psum_siblings, variant) for variant in PSUM_VARIANTS if variant.op in CONTIGUOUS_OPS]
    jobs = [
        (f"{run.__name__} {variant}: {number}", partial(run, world, variant, shape))
        for run, variant in shaped for number, shape in enumerate(list_psum_shapes(variant))
    ]  # fmt: skip
    jobs += [(f"run_psum_graph {variant}: all", partial(run_psum_graph, world, variant)) for variant in PSUM_VARIANTS]
    jobs += [
        (f"run_psum_config {variant}: {config}", partial(run_psum_config, world, variant, config))
        for variant, config in choose_psum_pairs(world.device, GROUPED_OPS)
    ]
    jobs += [
        (f"run_defect {variant}: {number}", partial(run_defect, world, variant, shape))
        for number, (variant, shape) in enumerate(DEFECTS)
    ]
    return jobs + [
        (f"run_dense_defect fp8_gemm: {m}x{n}x{k}", partial(run_dense_defect, world, m, n, k))
        for m, n, k in DENSE_DEFECTS
    ]
