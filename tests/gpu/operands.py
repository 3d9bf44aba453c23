"""Operands, references and guarded outputs of the GPU suite.

Everything is built here from torch alone, so that a wrong quantiser or reference in the library cannot hide itself.
The reference is the product of the *dequantised* operands in float64; a result is right when every element obeys

    |D - reference| <= u * |reference| + t * (|A| |B|^T),   u = 2^-8 (BF16 rounding), t = 2^-12 (14-bit partial sums).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
BLOCK = 128
ROUNDING = 2.0**-8
PARTIAL_SUMS = 2.0**-12
#: calc_diff's bound is statistical; with fewer elements one cancelled sum decides it.
MIN_ELEMENTS_FOR_DIFF = 4096
MAX_DIFF = 5e-6
#: FP8 NaN: fills whatever lies between rows of A and B, so that a read beyond k shows.
FP8_NAN = 0x7F


class Shape(NamedTuple):
    """Sizes of one product D[m, n] = A[m, k] @ B[n, k].T."""

    m: int
    n: int
    k: int


def align(value: int, unit: int) -> int:
    """Round `value` up to a multiple of `unit`."""
    return -(-value // unit) * unit


def ceil_div(value: int, unit: int) -> int:
    """Divide, rounding up."""
    return -(-value // unit)


@dataclass
class Case:
    """Operands of one product with its reference; `first` is the D of the first config that ran, bit by bit.

    a: FP8 [m, k]; b: FP8 [n, k], pitches multiples of 16 bytes; scale_a: FP32 [m, ceil(k/128)];
    scale_b: FP32 [ceil(n/128), ceil(k/128)]; reference, bound: float64 [m, n]; bound 0 means exact after rounding.
    """

    a: torch.Tensor
    scale_a: torch.Tensor
    b: torch.Tensor
    scale_b: torch.Tensor
    reference: torch.Tensor
    bound: torch.Tensor
    first: torch.Tensor | None = None
    first_config: str = ""
    exact: bool = field(default=False)

    @property
    def shape(self) -> Shape:
        """Sizes of the product."""
        return Shape(self.a.shape[0], self.b.shape[0], self.a.shape[1])


class GuardedOutput:
    """D [m, n] BF16 in the middle of a larger buffer; everything starts as the NaN 0xFFFF, rows included their gaps."""

    GUARD_ROWS = 16

    def __init__(self, m: int, n: int, device: str):
        pitch = align(n, 8) + 8
        self.buffer = torch.full(((m + 2 * self.GUARD_ROWS) * pitch,), -1, dtype=torch.int16, device=device)
        self.bits = self.buffer.as_strided((m, n), (pitch, 1), self.GUARD_ROWS * pitch)
        self.d = self.buffer.view(torch.bfloat16).as_strided((m, n), (pitch, 1), self.GUARD_ROWS * pitch)

    def poison(self) -> None:
        """Fill D and its red zones with NaN again."""
        self.buffer.fill_(-1)

    def num_dirty(self) -> torch.Tensor:
        """Count the written elements outside D (a tensor, so that nothing synchronises)."""
        return (self.buffer != -1).sum() - (self.bits != -1).sum()


def make_rows(values: torch.Tensor, pitch: int = 0) -> torch.Tensor:
    """Copy FP8 [rows, k] into rows of `pitch` bytes (default: k rounded up to 16) with NaN in between."""
    rows, k = values.shape
    pitch = pitch or align(max(k, 1), 16)
    buffer = torch.full((rows, pitch), FP8_NAN, dtype=torch.uint8, device=values.device)
    buffer[:, :k] = values.view(torch.uint8)
    return buffer.view(FP8)[:, :k]


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


def dequantise_a(a: torch.Tensor, scale_a: torch.Tensor) -> torch.Tensor:
    """Return A [m, k] in float64 with its scales applied."""
    return a.float().double() * scale_a.double().repeat_interleave(BLOCK, 1)[:, : a.shape[1]]


def dequantise_b(b: torch.Tensor, scale_b: torch.Tensor) -> torch.Tensor:
    """Return B [n, k] in float64 with its scales applied."""
    n, k = b.shape
    return b.float().double() * scale_b.double().repeat_interleave(BLOCK, 0)[:n].repeat_interleave(BLOCK, 1)[:, :k]


def make_reference(a, scale_a, b, scale_b) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (reference, bound), both float64 [m, n], for the dequantised operands."""
    wide_a, wide_b = dequantise_a(a, scale_a), dequantise_b(b, scale_b)
    reference = wide_a @ wide_b.T
    return reference, ROUNDING * reference.abs() + PARTIAL_SUMS * (wide_a.abs() @ wide_b.abs().T)


def _generator(shape: Shape, device: str) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(shape.m * 1_000_003 + shape.n * 1_009 + shape.k)


def make_case(shape: Shape, device: str) -> Case:
    """Make random normal operands with real scales."""
    generator = _generator(shape, device)
    a, scale_a = quantise_rows(torch.randn(shape.m, shape.k, generator=generator, device=device))
    b, scale_b = quantise_blocks(torch.randn(shape.n, shape.k, generator=generator, device=device))
    return Case(make_rows(a), scale_a, make_rows(b), scale_b, *make_reference(a, scale_a, b, scale_b))


def make_integer_case(shape: Shape, device: str) -> Case:
    """Make integers |x| <= 4 with power-of-two scales: every FP32 sum is exact, so D is the rounded reference exactly."""
    generator = _generator(shape, device)

    def integers(rows: int) -> torch.Tensor:
        return torch.randint(-4, 5, (rows, shape.k), generator=generator, device=device).float().to(FP8)

    def powers(rows: int) -> torch.Tensor:
        return torch.randint(-1, 2, (rows, ceil_div(shape.k, BLOCK)), generator=generator, device=device).float().exp2()

    a, scale_a, b, scale_b = integers(shape.m), powers(shape.m), integers(shape.n), powers(ceil_div(shape.n, BLOCK))
    reference = (dequantise_a(a, scale_a) @ dequantise_b(b, scale_b).T).float().bfloat16().double()
    return Case(make_rows(a), scale_a, make_rows(b), scale_b, reference, torch.zeros_like(reference), exact=True)


def make_scales_mn_major(scale: torch.Tensor, pitch: int = 0) -> torch.Tensor:
    """Copy scales [mn, kb] into MN-major memory of `pitch` elements (default: mn rounded up to 4), NaN in between."""
    mn, num_blocks = scale.shape
    buffer = torch.full((num_blocks, pitch or align(max(mn, 1), 4)), float("nan"), device=scale.device)
    buffer[:, :mn] = scale.T
    return buffer.T[:mn]


def make_scales_pitched(scale: torch.Tensor, pitch: int) -> torch.Tensor:
    """Copy scales [mn, kb] into row-major memory of `pitch` elements, NaN in between."""
    buffer = torch.full((scale.shape[0], pitch), float("nan"), device=scale.device)
    buffer[:, : scale.shape[1]] = scale
    return buffer[:, : scale.shape[1]]


def count_wrong(case: Case, d: torch.Tensor) -> torch.Tensor:
    """Count the elements of D outside their bound, NaN included (a tensor, so that nothing synchronises)."""
    return (~((d.double() - case.reference).abs() <= case.bound)).sum()


def has_large_diff(case: Case, d: torch.Tensor) -> torch.Tensor:
    """Return 1 (a tensor) where calc_diff against the reference exceeds its bound, 0 where it does not apply."""
    if case.exact or d.numel() < MIN_ELEMENTS_FOR_DIFF:
        return torch.zeros((), dtype=torch.int64, device=d.device)
    x, y = d.double(), case.reference
    diff = 1.0 - 2.0 * (x * y).sum() / (x.square() + y.square()).sum()
    return (~(diff <= MAX_DIFF)).to(torch.int64)
