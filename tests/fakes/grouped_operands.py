"""Operands of the grouped ops on the CPU as callers pass them, and the FP64 products that results are compared with."""

from dataclasses import dataclass

import torch

from deep_gemm.numerics import get_starts, make_m_indices, widen
from deep_gemm.quantize import align, ceil_div

FP8, BF16, FP32 = torch.float8_e4m3fn, torch.bfloat16, torch.float32
NAN = float("nan")
RECIPES = {"1d2d": (1, 128, 128), "1d1d": (1, 1, 128)}
#: The public ops.
OPS = (
    "m_grouped_fp8_gemm_nt_contiguous",
    "m_grouped_fp8_gemm_nn_contiguous",
    "m_grouped_bf16_gemm_nt_contiguous",
    "m_grouped_bf16_gemm_nn_contiguous",
    "m_grouped_fp8_gemm_nt_masked",
    "m_grouped_bf16_gemm_nt_masked",
    "k_grouped_fp8_gemm_nt_contiguous",
    "k_grouped_fp8_gemm_tn_contiguous",
    "k_grouped_bf16_gemm_tn_contiguous",
)


@dataclass
class Grouped:
    """A call's operands; `groups` is m_indices, masked_m or ks; `exact` is the FP64 product of D's shape and
    `magnitude` that of magnitudes.
    """

    a: object
    b: object
    groups: object
    exact: torch.Tensor
    magnitude: torch.Tensor


def make_scaled(is_fp8: bool, shape: tuple, scale_rows: int, generator: torch.Generator) -> tuple:
    """Return random (values, scales or None, dequantised FP64) of a matrix, or of one for each group."""
    values = torch.randn(shape, generator=generator).to(FP8 if is_fp8 else BF16)
    scales = (
        torch.rand(*shape[:-2], scale_rows, ceil_div(shape[-1], 128), generator=generator) + 0.5 if is_fp8 else None
    )
    return values, scales, widen(values, scales, torch.float64)


def lay_out(values: torch.Tensor, is_transposed: bool = False) -> torch.Tensor:
    """Return the same values, the last two dims exchanged where wanted, in rows that are 16 bytes and more apart."""
    values = values.mT if is_transposed else values
    memory = torch.zeros(*values.shape[:-1], align(values.shape[-1], 16) + 16).to(values.dtype)
    memory[..., : values.shape[-1]] = values
    return memory[..., : values.shape[-1]]


def pair(values: torch.Tensor, scales: torch.Tensor | None, is_transposed: bool = False) -> object:
    """Return an operand as a caller passes it: (values, scales) of FP8, else the values."""
    laid_out = lay_out(values, is_transposed)
    return laid_out if scales is None else (laid_out, scales.mT if is_transposed else scales)


def make_output(shape: tuple, dtype: torch.dtype, fill: float = NAN) -> torch.Tensor:
    """Return a D of one value inside guard columns of NaN."""
    memory = torch.full((*shape[:-1], align(shape[-1], 8) + 8), NAN, dtype=dtype)
    memory[..., : shape[-1]] = fill
    return memory[..., : shape[-1]]


def make_indices(rows: list[int], alignment: int) -> torch.Tensor:
    """Return m_indices of groups with so many rows each, every one padded to the alignment."""
    return make_m_indices(get_starts(rows, alignment), rows, sum(align(count, alignment) for count in rows))


def spoil(values: torch.Tensor, scales: torch.Tensor | None, rows: torch.Tensor) -> None:
    """Make some rows NaN, and their scales."""
    if scales is None:
        values[rows] = NAN
    else:
        values.view(torch.uint8)[rows] = 0x7F  # float8_e4m3fn's NaN
        scales[rows] = NAN


def make_contiguous(
    kind: str, layout: str, rows: list[int], n: int, k: int, recipe: str = "1d2d", alignment: int = 128
) -> Grouped:
    """Return operands whose groups have `rows` rows; padding of A and of its scales is NaN."""
    generator = torch.Generator().manual_seed(n * k + sum(rows))
    indices = make_indices(rows, alignment)
    is_padding = indices < 0
    a, scale_a, x = make_scaled(kind == "fp8", (len(indices), k), len(indices), generator)
    b, scale_b, y = make_scaled(
        kind == "fp8", (len(rows), n, k), n if recipe == "1d1d" else ceil_div(n, 128), generator
    )
    spoil(a, scale_a, is_padding)
    exact, magnitude = (torch.zeros(len(indices), n, dtype=torch.float64) for _ in range(2))
    for group in range(len(rows)):
        own = indices == group
        exact[own], magnitude[own] = x[own] @ y[group].t(), x[own].abs() @ y[group].abs().t()
    return Grouped(pair(a, scale_a), pair(b, scale_b, layout == "nn"), indices, exact, magnitude)


def make_masked(kind: str, counts: list[int], max_m: int, n: int, k: int, recipe: str = "1d2d") -> Grouped:
    """Return operands of groups with room for `max_m` rows, of which `counts` are there; the others are NaN, in the
    products, too.
    """
    generator = torch.Generator().manual_seed(n * k + sum(counts))
    is_missing = torch.arange(max_m)[None, :] >= torch.tensor(counts)[:, None]
    a, scale_a, x = make_scaled(kind == "fp8", (len(counts), max_m, k), max_m, generator)
    b, scale_b, y = make_scaled(
        kind == "fp8", (len(counts), n, k), n if recipe == "1d1d" else ceil_div(n, 128), generator
    )
    exact, magnitude = x @ y.mT, x.abs() @ y.abs().mT
    spoil(a, scale_a, is_missing)
    exact[is_missing] = NAN
    return Grouped(pair(a, scale_a), pair(b, scale_b), torch.tensor(counts, dtype=torch.int32), exact, magnitude)


def to_blocks(values: torch.Tensor, ks: list[int]) -> torch.Tensor:
    """Return the 1-D concatenation of the [rows, k_g] blocks of a [rows, sum_k]."""
    return torch.cat([part.reshape(-1) for part in values.split(ks, 1)])


def make_k_grouped(kind: str, layout: str, ks: list[int], m: int, n: int) -> Grouped:
    """Return operands of groups of K; "nt" (FP8) are blocks in 1-D tensors, "tn" are [sum_k, m] and [sum_k, n]."""
    generator = torch.Generator().manual_seed(m * n + sum(ks))
    a, scale_a, x = make_scaled(kind == "fp8", (m, sum(ks)), m, generator)
    b, scale_b, y = make_scaled(kind == "fp8", (n, sum(ks)), n, generator)
    parts = list(zip(x.split(ks, 1), y.split(ks, 1), strict=True))
    exact, magnitude = (
        torch.stack([left @ right.t() for left, right in parts]),
        torch.stack([left.abs() @ right.abs().t() for left, right in parts]),
    )
    if layout == "nt":
        return Grouped((to_blocks(a, ks), scale_a), (to_blocks(b, ks), scale_b), ks, exact, magnitude)
    return Grouped(pair(a, scale_a, True), pair(b, scale_b, True), ks, exact, magnitude)


def make_call(name: str) -> Grouped:
    """Return small operands of a public op, of two groups."""
    kind, layout = ("fp8" if "fp8" in name else "bf16"), ("nn" if "_nn_" in name else "tn" if "_tn_" in name else "nt")
    if name.startswith("k_"):
        return make_k_grouped(kind, layout, [128, 256], 24, 40)
    if name.endswith("masked"):
        return make_masked(kind, [3, 16], 16, 40, 144)
    return make_contiguous(kind, layout, [5, 100], 40, 144)
