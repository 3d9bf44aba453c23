"""Operands, references and outputs of grouped products, as operands.py has them for dense ones: built from torch alone.

Every group's product is that of its *dequantised* operands in float64, and every element of D obeys the bound of
operands.py with t after the group's own K. Rows of A that belong to no group, and their scales, are NaN: none of it may
reach D, whose rows of padding are +0.
"""

import contextlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

import deep_gemm

from .grouped_memory import GUARD_ROWS, GroupedOutput, is_mn_major_of_groups, make_groups, make_scale_layout_of_groups
from .grouped_shapes import Block, Contiguous, KGroups, Masked
from .grouped_variants import GroupedVariant
from .memory import ANY_LAYOUTS, MN_MAJOR_LAYOUTS, as_integers, make_nan, make_operand
from .operands import (
    BLOCK,
    DTYPES,
    FP8,
    bound_product,
    ceil_div,
    count_wrong,
    quantise_blocks,
    quantise_rows,
)
from .world import compare

GroupedShape = Contiguous | Masked | KGroups


@dataclass
class GroupedCase:
    """Operands of one grouped product with its reference, as `_C.Kernel.launch` takes them; `first` as in
    operands.Case.

    a: [m, k], [groups, max_m, k] or [m, sum_k]; b: [groups, n, k] or [n, sum_k]; scales FP32 alike, or None. groups:
        int32 m_indices [m], masked_m [groups] or ks [groups]. c: [groups, m, n] or None. reference, bound: float64, of
        the rows of D that must be right: those of the index `rows`, or all. padding: indices of the rows of padding
        (contiguous).
    """

    variant: GroupedVariant
    shape: GroupedShape
    a: torch.Tensor
    scale_a: torch.Tensor | None
    b: torch.Tensor
    scale_b: torch.Tensor | None
    groups: torch.Tensor
    reference: torch.Tensor
    bound: torch.Tensor
    d_shape: tuple[int, ...]
    c: torch.Tensor | None = None
    rows: tuple | None = None
    padding: torch.Tensor | None = None
    exact: bool = False
    first: dict[str, tuple[str, torch.Tensor]] = field(default_factory=dict)
    laid_out: dict[tuple, torch.Tensor] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of D and C."""
        return DTYPES[self.variant.d_dtype]

    @property
    def alignment(self) -> int:
        """The alignment of the groups' first rows; the library's default if the layout has none."""
        return self.shape.alignment if isinstance(self.shape, Contiguous) else 128

    def operand(self, name: str, is_blocks: bool) -> torch.Tensor:
        """Return operand `a` or `b`; as blocks: 1-D, the [rows, K_g] of one group after the other."""
        values = getattr(self, name)
        if not is_blocks:
            return values
        if (name, "blocks") not in self.laid_out:
            self.laid_out[name, "blocks"] = make_blocks(values, self.shape.ks)
        return self.laid_out[name, "blocks"]

    def scale(self, name: str, scale_layout: str, index: int) -> torch.Tensor | None:
        """Return `scale_a` or `scale_b` in one of the layouts of its class; B's block scales may have any."""
        if getattr(self, name) is None:
            return None
        is_free = name == "scale_b" and self.variant.recipe == "1d2d"
        names = (
            MN_MAJOR_LAYOUTS + ANY_LAYOUTS
            if is_free
            else MN_MAJOR_LAYOUTS
            if scale_layout == "mn_major"
            else ANY_LAYOUTS
        )
        layout = names[index % len(names)]
        key = (name, layout, scale_layout)
        if key not in self.laid_out:
            self.laid_out[key] = _lay_out(getattr(self, name), layout, is_free or scale_layout == "mn_major")
        return self.laid_out[key]


def _lay_out(scale: torch.Tensor, layout: str, may_be_mn_major: bool) -> torch.Tensor:
    found = make_scale_layout_of_groups(scale, layout)
    return (
        found if may_be_mn_major or not is_mn_major_of_groups(found) else make_scale_layout_of_groups(scale, "shifted")
    )


def make_blocks(values: torch.Tensor, ks: tuple[int, ...]) -> torch.Tensor:
    """Return [rows, sum_k] as the 1-D concatenation of the contiguous [rows, K_g] of each group."""
    memory = as_integers(values)
    parts = [part.reshape(-1) for part in memory.split(list(ks), dim=1)]
    return torch.cat([memory.new_empty(0), *parts]).view(values.dtype)


def make_grouped_output(case: GroupedCase, gap: int = GUARD_ROWS) -> GroupedOutput:
    """Return a poisoned D for a case."""
    return GroupedOutput(case.d_shape, case.a.device, case.dtype, case.rows, gap)


def prepare_grouped_c(case: GroupedCase, output: GroupedOutput, is_aliased: bool) -> torch.Tensor | None:
    """Poison D and return the C to pass: none, D itself holding C, or another tensor."""
    if case.c is None:
        output.poison()
        return None
    if is_aliased:
        output.poison(case.c)
        return output.d
    output.poison()
    other = GroupedOutput(case.d_shape, output.d.device, output.d.dtype)
    other.d.copy_(case.c)
    return other.d


@contextlib.contextmanager
def contiguous_alignment(alignment: int) -> Iterator[None]:
    """Set the alignment of contiguous layouts inside a `with`: a launch checks that its tiles divide it."""
    before = deep_gemm.get_mk_alignment_for_contiguous_layout()
    deep_gemm.set_mk_alignment_for_contiguous_layout(alignment)
    try:
        yield
    finally:
        deep_gemm.set_mk_alignment_for_contiguous_layout(before)


def list_launch_operands(variant: GroupedVariant, case: GroupedCase, index: int) -> list[torch.Tensor | None]:
    """Return a, scale_a, b, scale_b as a kernel of the variant takes them; `index` picks the layout of the scales."""
    a, b = (case.operand(name, variant.is_blocks) for name in ("a", "b"))
    return [
        a,
        case.scale("scale_a", variant.scale_layout, index),
        b,
        case.scale("scale_b", variant.scale_layout, index // 2),
    ]


def launch_grouped(
    kernel, variant: GroupedVariant, case: GroupedCase, output: GroupedOutput, *, index: int = 0, num_sms: int = 0
) -> None:
    """Launch a kernel of the variant on a case, into a freshly poisoned D, on the current stream."""
    c = prepare_grouped_c(case, output, is_aliased=variant.c_mode == "accumulate")
    with contiguous_alignment(case.alignment):
        kernel.launch(*list_launch_operands(variant, case, index), output.d, c, groups=case.groups, num_sms=num_sms)


def compare_grouped(case: GroupedCase, config, output: GroupedOutput) -> torch.Tensor:
    """Return what world.compare returns; a bit that is set in a row of padding makes its element wrong."""
    found = compare(case, config, output)
    found[0] += count_padding(case, output)
    return found


def count_padding(case: GroupedCase, output: GroupedOutput) -> torch.Tensor:
    """Count the elements of rows of padding that are not +0."""
    if case.padding is None:
        return torch.zeros((), dtype=torch.int64, device=output.d.device)
    return (output.all_bits[case.padding] != 0).sum()


def count_grouped_wrong(case: GroupedCase, output: GroupedOutput) -> torch.Tensor:
    """Count the elements of D that are not what they must be (a tensor, so that nothing synchronises)."""
    return count_wrong(case, output.values) + count_padding(case, output)


def make_values(
    size: tuple[int, ...], variant: GroupedVariant, generator: torch.Generator, *, is_b: bool, integers: bool
) -> tuple:
    """Return random ([..., rows, k], scales or None): quantised normal values, or integers up to 4 with scales that are
    powers of two.
    """
    *groups, rows, k = size
    is_scaled_by_block = is_b and variant.recipe == "1d2d"
    if integers:
        values = torch.randint(-4, 5, size, generator=generator, device=generator.device).float()
        scale_size = (*groups, ceil_div(rows, BLOCK) if is_scaled_by_block else rows, ceil_div(k, BLOCK))
        scale = torch.randint(-1, 2, scale_size, generator=generator, device=generator.device).float().exp2()
    else:
        values, scale = torch.randn(size, generator=generator, device=generator.device), None
    if not variant.is_fp8:
        return values.bfloat16(), None
    return (values.to(FP8), scale) if integers else _quantise(values, is_scaled_by_block)


def _quantise(values: torch.Tensor, is_scaled_by_block: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise [..., rows, k] per row and 128 of k, or per block of 128 x 128 of each matrix."""
    *groups, rows, _ = values.shape
    padded = torch.nn.functional.pad(values, (0, 0, 0, -rows % BLOCK)) if is_scaled_by_block else values
    data, scale = (quantise_blocks if is_scaled_by_block else quantise_rows)(padded.flatten(0, -2))
    scale_rows = padded.shape[-2] // BLOCK if is_scaled_by_block else rows
    data = as_integers(data).view(padded.shape)[..., :rows, :].contiguous().view(FP8)
    return data, scale.view(*groups, scale_rows, scale.shape[1])


def widen_groups(values: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Return [..., rows, k] in float64 with its scales applied: per row and 128, per 128 x 128, or none."""
    wide = values.float().double()
    if scale is None:
        return wide
    rows, k = values.shape[-2:]
    per_row = scale.double() if scale.shape[-2] == rows else scale.double().repeat_interleave(BLOCK, -2)[..., :rows, :]
    return wide * per_row.repeat_interleave(BLOCK, -1)[..., :k]


def make_grouped_case(shape: GroupedShape, device: str, variant: GroupedVariant, integers: bool = False) -> GroupedCase:
    """Make random normal operands with real scales, or integers whose sums are exact in FP32."""
    generator = torch.Generator(device=device).manual_seed(zlib.crc32(repr(shape).encode()))
    make = _make_k_grouped if isinstance(shape, KGroups) else _make_m_grouped
    case = make(shape, variant, generator, integers)
    if integers:
        case.exact, case.reference, case.bound = (
            True,
            case.reference.to(case.dtype).double(),
            torch.zeros_like(case.bound),
        )
    return case


def _make_m_grouped(
    shape: Contiguous | Masked, variant: GroupedVariant, generator: torch.Generator, integers: bool
) -> GroupedCase:
    blocks, device = [block for block in shape.blocks() if block.rows], generator.device
    count = sum(block.rows for block in blocks)
    a, scale_a = make_values((count, shape.k), variant, generator, is_b=False, integers=integers)
    b, scale_b = make_values((shape.num_groups, shape.n, shape.k), variant, generator, is_b=True, integers=integers)
    product, magnitude = multiply_rows(blocks, widen_groups(a, scale_a), widen_groups(b, scale_b))
    bound = bound_product(product, magnitude, DTYPES[variant.d_dtype], a)
    places = torch.tensor(
        [row for block in blocks for row in range(block.first, block.first + block.rows)],
        dtype=torch.int64,
        device=device,
    )
    a, scale_a = spread_rows(a, places, shape.m), spread_rows(scale_a, places, shape.m)
    b = make_groups(b, variant.b_major, gap=GUARD_ROWS)
    if isinstance(shape, Masked):
        return _finish_masked(GroupedCase(variant, shape, a, scale_a, b, scale_b, places, product, bound, ()))
    owners = torch.tensor(
        [block.group for block in blocks for _ in range(block.rows)], dtype=torch.int32, device=device
    )
    groups = torch.full((shape.m,), -1, dtype=torch.int32, device=device)
    groups[places] = owners
    padding = (groups < 0).nonzero().flatten()
    reference, bound = (
        torch.zeros(shape.m, shape.n, dtype=torch.float64, device=device).index_copy_(0, places, rows)
        for rows in (product, bound)
    )
    return GroupedCase(
        variant,
        shape,
        make_operand(a, "k"),
        scale_a,
        b,
        scale_b,
        groups,
        reference,
        bound,
        (shape.m, shape.n),
        padding=padding,
    )


def _finish_masked(case: GroupedCase) -> GroupedCase:
    """Divide the rows of a case among its groups; its `groups` are the places of the rows until then."""
    shape, places = case.shape, case.groups
    size = (shape.num_groups, shape.max_m)
    case.a = make_groups(as_integers(case.a).view(*size, shape.k).view(case.a.dtype), gap=GUARD_ROWS)
    case.scale_a = None if case.scale_a is None else case.scale_a.view(*size, case.scale_a.shape[1])
    case.groups = torch.tensor(shape.sizes, dtype=torch.int32, device=places.device)
    case.rows, case.d_shape = (places // shape.max_m, places % shape.max_m), (*size, shape.n)
    return case


def spread_rows(values: torch.Tensor | None, places: torch.Tensor, count: int) -> torch.Tensor | None:
    """Return [count, k] that holds `values` at the rows `places` and NaN elsewhere."""
    if values is None:
        return None
    spread = make_nan(count * values.shape[1], values.dtype, values.device).view(count, values.shape[1])
    as_integers(spread).index_copy_(0, places, as_integers(values))
    return spread


def multiply_rows(blocks: list[Block], wide_a: torch.Tensor, wide_b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (A @ B^T, |A| @ |B|^T) [rows, n] of A's rows, block after block, each with its group's matrix of B
    [groups, n, k].
    """
    size, start = (wide_a.shape[0], wide_b.shape[1]), 0
    product, magnitude = wide_a.new_zeros(size), wide_a.new_zeros(size)
    absolute_a, absolute_b = wide_a.abs(), wide_b.abs()
    for group, _, rows in blocks:
        part = slice(start, start + rows)
        torch.matmul(wide_a[part], wide_b[group].T, out=product[part])
        torch.matmul(absolute_a[part], absolute_b[group].T, out=magnitude[part])
        start += rows
    return product, magnitude


def _make_k_grouped(shape: KGroups, variant: GroupedVariant, generator: torch.Generator, integers: bool) -> GroupedCase:
    a, scale_a = make_values((shape.m, shape.k), variant, generator, is_b=False, integers=integers)
    b, scale_b = make_values((shape.n, shape.k), variant, generator, is_b=True, integers=integers)
    size = (shape.num_groups, shape.m, shape.n)
    c = None
    if variant.c_mode != "none":
        c = torch.randn(size, generator=generator, device=generator.device) * (max(shape.k, 1) ** 0.5 / 4)
        c = c.clamp(-64, 64).round() if integers else c
    groups = torch.tensor(shape.ks, dtype=torch.int32, device=generator.device)
    a, b = make_operand(a, variant.a_major), make_operand(b, variant.b_major)
    empty = torch.empty(0, device=generator.device)
    return set_k_reference(GroupedCase(variant, shape, a, scale_a, b, scale_b, groups, empty, empty, size, c))


def set_k_reference(case: GroupedCase) -> GroupedCase:
    """Compute reference and bound of groups of K from what the case holds now; return the case."""
    wide_a, wide_b = widen_groups(case.a, case.scale_a), widen_groups(case.b, case.scale_b)
    case.reference = wide_a.new_zeros(case.d_shape) if case.c is None else case.c.double()
    case.bound, start = wide_a.new_zeros(case.d_shape), 0
    for group, k in enumerate(case.shape.ks):
        part = slice(start, start + k)
        start += k
        if k == 0:  # D is C, or 0, exactly
            continue
        case.reference[group] += wide_a[:, part] @ wide_b[:, part].T
        magnitude = wide_a[:, part].abs() @ wide_b[:, part].abs().T
        case.bound[group] = bound_product(case.reference[group], magnitude, case.dtype, case.a[:, part])
    return case
