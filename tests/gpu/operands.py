"""Operands, references and guarded outputs of the GPU suite.

Operands and references are built here from torch alone, so that a wrong quantiser or reference in the library cannot
hide itself; only the bounds are the library's (deep_gemm.numerics). The reference is the product of the *dequantised*
operands in float64, alpha * A @ B^T + beta * C.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from deep_gemm.numerics import get_max_diff, get_sums_error, make_bound

from .memory import INTEGERS, PITCH_BYTES, PoisonedOutput, align, make_operand
from .variants import Variant

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
BLOCK = 128
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
#: calc_diff's bound is statistical; with fewer elements, cancellation in a single sum decides it.
MIN_ELEMENTS_FOR_DIFF = 4096
#: (alpha, beta) of the general C mode, by shape: powers of two, so that integers stay exact.
FACTORS = ((1.0, 1.0), (0.5, -2.0), (-1.0, 0.25), (2.0, 1.0))


class Shape(NamedTuple):
    """Sizes of one product D[m, n] = A[m, k] @ B[n, k].T."""

    m: int
    n: int
    k: int


def ceil_div(value: int, unit: int) -> int:
    """Divide, rounding up."""
    return -(-value // unit)


@dataclass
class Case:
    """Operands of one product with its reference; `first` holds, by class of configs, the D of the first that ran, bit
    by bit.

    a [m, k], b [n, k]: nt views, FP8 or BF16, pitches multiples of 16 bytes. Scales FP32: [m, ceil(k/128)], [n or
    ceil(n/128), ceil(k/128)], [m] and [n] (per row) or None (BF16). c: [m, n] of D's dtype or None. reference, bound:
    float64 [m, n]; bound 0 means exact after rounding.
    """

    variant: Variant
    a: torch.Tensor
    scale_a: torch.Tensor | None
    b: torch.Tensor
    scale_b: torch.Tensor | None
    reference: torch.Tensor
    bound: torch.Tensor
    c: torch.Tensor | None = None
    alpha: float = 1.0
    beta: float = 1.0
    head_splits: tuple[int, int, int] | None = None
    exact: bool = False
    first: dict[str, tuple[str, torch.Tensor]] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        """Sizes of the product."""
        return Shape(self.a.shape[0], self.b.shape[0], self.a.shape[1])

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of D and C."""
        return DTYPES[self.variant.d_dtype]


class GuardedOutput(PoisonedOutput):
    """D [m, n] in the middle of a larger buffer; everything starts as NaN (all bits one), rows included their gaps.

    columns: the columns of D that the op writes (int64 [n of the product]), None for all.
    """

    GUARD_ROWS = 16

    def __init__(
        self, m: int, n: int, device: object, dtype: torch.dtype = torch.bfloat16, columns: torch.Tensor | None = None
    ):
        unit = PITCH_BYTES // dtype.itemsize
        pitch = align(n, unit) + unit
        self.buffer = torch.full(
            ((m + 2 * self.GUARD_ROWS) * pitch,), -1, dtype=INTEGERS[dtype.itemsize], device=device
        )
        self._bits = self.buffer.as_strided((m, n), (pitch, 1), self.GUARD_ROWS * pitch)
        self.d = self.buffer.view(dtype).as_strided((m, n), (pitch, 1), self.GUARD_ROWS * pitch)
        self.columns = columns

    @property
    def bits(self) -> torch.Tensor:
        """The written part of D as integers."""
        return self._bits if self.columns is None else self._bits[:, self.columns]

    @property
    def values(self) -> torch.Tensor:
        """The written part of D."""
        return self.d if self.columns is None else self.d[:, self.columns]

    def num_dirty(self) -> torch.Tensor:
        """Count the written elements outside D (a tensor, so that nothing synchronises)."""
        return (self.buffer != -1).sum() - (self.bits != -1).sum()


def make_output(case: Case) -> GuardedOutput:
    """Return a poisoned D for a case."""
    m, n, _ = case.shape
    if case.head_splits is None:
        return GuardedOutput(m, n, case.a.device, case.dtype)
    left, middle, right = case.head_splits
    columns = torch.arange(n, device=case.a.device)
    columns += (columns + right) // (left + right) * middle
    return GuardedOutput(m, n // (left + right) * sum(case.head_splits), case.a.device, case.dtype, columns)


def choose_heads(n: int) -> tuple[int, int, int]:
    """Return (left, middle, right) for n columns: as many of two heads as n allows, unequal parts, an odd gap."""
    width = n // 2 if n % 2 == 0 and n > 2 else n
    left = max(width // 3, 1) if width > 1 else 1
    return left, 24, width - left


def quantise_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise [rows, k] per row and 128 elements of k: FP8 [rows, k], FP32 scales [rows, ceil(k/128)]."""
    rows, k = x.shape
    num_blocks = ceil_div(k, BLOCK)
    blocks = torch.nn.functional.pad(x, (0, -k % BLOCK)).view(rows, num_blocks, BLOCK)
    scale = blocks.abs().amax(-1).clamp(min=1e-4) / FP8_MAX
    return (blocks / scale[..., None]).reshape(rows, num_blocks * BLOCK)[:, :k].to(FP8), scale


def quantise_blocks(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise [n, k] per 128x128 block: FP8 [n, k], FP32 scales [ceil(n/128), ceil(k/128)]."""
    n, k = x.shape
    padded = torch.nn.functional.pad(x, (0, -k % BLOCK, 0, -n % BLOCK))
    blocks = padded.view(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)
    scale = blocks.abs().amax((1, 3)).clamp(min=1e-4) / FP8_MAX
    return (blocks / scale[:, None, :, None]).reshape(padded.shape)[:n, :k].to(FP8), scale


def quantise_whole_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise [rows, k] per row: FP8 [rows, k], FP32 scales [rows]."""
    scale = torch.nn.functional.pad(x, (0, 1)).abs().amax(1).clamp(min=1e-4) / FP8_MAX
    return (x / scale[:, None]).to(FP8), scale


def widen(values: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Return [rows, k] in float64 with its scales applied: per row, per row and 128, per 128 x 128, or none."""
    wide = values.float().double()
    if scale is None:
        return wide
    if scale.dim() == 1:
        return wide * scale.double()[:, None]
    rows, k = values.shape
    per_row = scale.double() if scale.shape[0] == rows else scale.double().repeat_interleave(BLOCK, 0)[:rows]
    return wide * per_row.repeat_interleave(BLOCK, 1)[:, :k]


def make_reference(a, scale_a, b, scale_b) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (A @ B^T, |A| @ |B|^T) of the dequantised operands, both float64 [m, n]."""
    wide_a, wide_b = widen(a, scale_a), widen(b, scale_b)
    return wide_a @ wide_b.T, wide_a.abs() @ wide_b.abs().T


def bound_product(
    reference: torch.Tensor, magnitude: torch.Tensor, dtype: torch.dtype, a: torch.Tensor
) -> torch.Tensor:
    """Return the largest error of each element of a D of `dtype`; magnitude: |alpha| * (|A| |B|^T) for A [m, k]."""
    return make_bound(reference, get_sums_error(a.dtype, a.shape[1]) * magnitude, dtype)


def set_reference(case: Case) -> Case:
    """Compute reference and bound from what the case holds now; return the case."""
    product, magnitude = make_reference(case.a, case.scale_a, case.b, case.scale_b)
    case.reference = case.alpha * product
    if case.c is not None:
        case.reference = case.reference + case.beta * case.c.double()
    case.bound = bound_product(case.reference, abs(case.alpha) * magnitude, case.dtype, case.a)
    if case.exact:
        case.reference, case.bound = case.reference.to(case.dtype).double(), torch.zeros_like(case.bound)
    return case


def _quantise(x: torch.Tensor, variant: Variant, is_b: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    if not variant.is_fp8:
        return x.bfloat16(), None
    if variant.recipe == "per_row":
        return quantise_whole_rows(x)
    return quantise_blocks(x) if is_b and variant.recipe == "1d2d" else quantise_rows(x)


def _make_integers(
    shape: Shape, variant: Variant, generator: torch.Generator, device: str, is_b: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    rows = shape.n if is_b else shape.m
    values = torch.randint(-4, 5, (rows, shape.k), generator=generator, device=device).float()
    if not variant.is_fp8:
        return values.bfloat16(), None
    sizes = {"per_row": (rows,), "1d2d": (ceil_div(rows, BLOCK) if is_b else rows, ceil_div(shape.k, BLOCK))}
    size = sizes.get(variant.recipe, (rows, ceil_div(shape.k, BLOCK)))
    return values.to(FP8), torch.randint(-1, 2, size, generator=generator, device=device).float().exp2()


def make_case(
    shape: Shape,
    device: str,
    variant: Variant = Variant(),  # noqa: B008 - immutable
    integers: bool = False,
) -> Case:
    """Make random normal operands with real scales, or integers.

    Integers: |x| <= 4 with power-of-two scales, factors and small integers as C: every FP32 sum is exact, so D is the
        rounded reference exactly.
    """
    generator = torch.Generator(device=device).manual_seed(shape.m * 1_000_003 + shape.n * 1_009 + shape.k)
    if integers:
        (a, scale_a), (b, scale_b) = (_make_integers(shape, variant, generator, device, is_b) for is_b in (False, True))
    else:
        a, scale_a = _quantise(torch.randn(shape.m, shape.k, generator=generator, device=device), variant, False)
        b, scale_b = _quantise(torch.randn(shape.n, shape.k, generator=generator, device=device), variant, True)
    empty = torch.empty(0, device=device)
    case = Case(
        variant,
        make_operand(a, variant.a_major),
        scale_a,
        make_operand(b, variant.b_major),
        scale_b,
        empty,
        empty,
        exact=integers,
    )
    _add_output_mode(case, generator)
    return set_reference(case)


def _add_output_mode(case: Case, generator: torch.Generator) -> None:
    """Add what the variant's C mode needs: C with its factors, or the heads' split."""
    (m, n, k), mode, device = case.shape, case.variant.c_mode, case.a.device
    if mode == "general":
        case.alpha, case.beta = FACTORS[(m + n + k) % len(FACTORS)]
    if mode in ("general", "accumulate"):
        c = torch.randn(m, n, generator=generator, device=device) * (k**0.5 / 2)
        case.c = (c.clamp(-64, 64).round() if case.exact else c).to(case.dtype)
    if mode == "head_split":
        case.head_splits = choose_heads(n)


def count_wrong(case: Case, d: torch.Tensor) -> torch.Tensor:
    """Count the elements of D outside their bound, NaN included (a tensor, so that nothing synchronises)."""
    return (~((d.double() - case.reference).abs() <= case.bound)).sum()


def max_diff(case: Case) -> float:
    """Return the bound of calc_diff on random normal data."""
    return get_max_diff(case.dtype, case.variant.is_fp8)


def has_large_diff(case: Case, d: torch.Tensor) -> torch.Tensor:
    """Return 1 (a tensor) where calc_diff against the reference exceeds its bound, 0 where it does not apply."""
    if case.exact or d.numel() < MIN_ELEMENTS_FOR_DIFF:
        return torch.zeros((), dtype=torch.int64, device=d.device)
    x, y = d.double(), case.reference
    total = (x.square() + y.square()).sum()
    diff = torch.where(total == 0, 0.0, 1.0 - 2.0 * (x * y).sum() / total)
    return (~(diff <= max_diff(case))).to(torch.int64)
