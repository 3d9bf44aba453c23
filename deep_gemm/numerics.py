"""What results are judged by, and on what sizes: dequantised operands, error bounds and group sizes.

The tuner, the benchmarks and the tests share these; quantising is in quantize.py. A result D of alpha * A @ B^T +
beta * C is compared with the product of the *dequantised* operands, element by element:

    |D - reference| <= u * |reference| + t * |alpha| * (|A| |B|^T)

u is the rounding of D (`ROUNDING`), t the error of the sums (`get_sums_error`).
"""

import random
from collections.abc import Sequence

import torch

from deep_gemm.quantize import SCALE_BLOCK, align

#: u: half a unit in the last place of BF16; for FP32 a few roundings more than one.
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-22}
#: FP8 tensor cores cut each product to about 14 bits of the largest of its sum. Up to this K there are too few steps of
#: 128 for such cuts to average out: cuBLASLt's own FP8 product reaches 2^-11.4 at k = 128 (120 random problems, H200).
SHORT_K = 512
SHORT_FP8_SUMS, LONG_FP8_SUMS = 2.0**-11, 2.0**-12
#: BF16 products are exact and are added in FP32.
BF16_SUMS = 2.0**-18
#: Operands that need not be random normal data: the largest product may dwarf all others.
ANY_SUMS = 2.0**-9
#: Bounds of calc_diff on random normal data: BF16 D, FP32 D of FP8 operands, FP32 D of BF16 operands.
MAX_DIFF_BF16_D, MAX_DIFF_FP8, MAX_DIFF_BF16 = 5e-6, 5e-8, 1e-9
#: Half the width of a spread load: groups between 1 - SPREAD and 1 + SPREAD times their mean, as a router that is
#: trained to balance its experts leaves them.
SPREAD = 0.3


def widen(values: torch.Tensor, scales: torch.Tensor | None, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return FP8 or BF16 values [..., rows, k] times their scales, in `dtype`.

    Args:
        scales: float32 [..., rows] (per row), [..., rows, ceil(k / 128)], [..., ceil(rows / 128), ceil(k / 128)]
            (blocks of 128 x 128), or None for unscaled values.
    """
    wide = values.float().to(dtype)
    if scales is None:
        return wide
    scales = scales.to(dtype)
    if scales.dim() < values.dim():
        return wide.mul_(scales.unsqueeze(-1))
    rows, k = values.shape[-2:]
    if scales.shape[-2] != rows:
        scales = scales.repeat_interleave(SCALE_BLOCK, -2)[..., :rows, :]
    return wide.mul_(scales.repeat_interleave(SCALE_BLOCK, -1)[..., :k])


def get_sums_error(operand_dtype: torch.dtype, k: int, is_any_data: bool = False) -> float:
    """Return t for operands of `operand_dtype` with sums over k elements.

    is_any_data: the operands need not be random normal data.
    """
    if is_any_data:
        return ANY_SUMS
    if operand_dtype == torch.bfloat16:
        return BF16_SUMS
    return LONG_FP8_SUMS if k > SHORT_K else SHORT_FP8_SUMS


def make_bound(reference: torch.Tensor, sums_error: torch.Tensor, d_dtype: torch.dtype) -> torch.Tensor:
    """Return the largest error that each element of a D of `d_dtype` may have.

    Args:
        reference: D before its rounding.
        sums_error: t * |alpha| * (|A| |B|^T), of the same shape.
    """
    return ROUNDING[d_dtype] * reference.abs() + sums_error


def get_max_diff(d_dtype: torch.dtype, is_fp8: bool) -> float:
    """Return the bound of calc_diff between D and its reference on random normal data."""
    if d_dtype == torch.bfloat16:
        return MAX_DIFF_BF16_D
    return MAX_DIFF_FP8 if is_fp8 else MAX_DIFF_BF16


def draw_factors(count: int, generator: random.Random) -> list[float]:
    """Return the sizes of `count` groups of a spread load in units of their mean."""
    return [generator.uniform(1.0 - SPREAD, 1.0 + SPREAD) for _ in range(count)]


def divide(total: int, weights: Sequence[float]) -> list[int]:
    """Divide `total` by weight into whole numbers that add up to it; the largest remainders are rounded up."""
    exact = [total * weight / sum(weights) for weight in weights]
    shares = [int(share) for share in exact]
    order = sorted(range(len(shares)), key=lambda index: shares[index] - exact[index])
    for index in order[: total - sum(shares)]:
        shares[index] += 1
    return shares


def get_starts(sizes: Sequence[int], unit: int = 1) -> list[int]:
    """Return where each of consecutive groups begins when every group is padded to a multiple of `unit`."""
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += align(size, unit)
    return starts


def make_m_indices(starts: Sequence[int], sizes: Sequence[int], m: int) -> torch.Tensor:
    """Return int32 [m] on the CPU: the group of each row of a contiguous layout, -1 for padding."""
    indices = torch.full((m,), -1, dtype=torch.int32)
    for group, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        indices[start : start + size] = group
    return indices
