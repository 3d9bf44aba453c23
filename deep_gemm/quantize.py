"""Quantise tensors to FP8 (E4M3) with scale factors of several granularities.

Every cast clamps the largest magnitude of a group at 1e-4, takes scale = amax / 448 (the largest E4M3 number), rounds
the scale up to a power of two where asked, and returns (x / scale in float8_e4m3fn, scale in float32).
"""

import torch

from deep_gemm.errors import DtypeError, ShapeError

#: Elements of K, and for B rows of N, that share one scale.
SCALE_BLOCK = 128
#: Largest E4M3 number, and the magnitude to which the largest one of a group is raised: no scale is 0.
FP8_MAX = 448.0
MIN_AMAX = 1e-4


def ceil_div(x: int, y: int) -> int:
    """Return x / y rounded up."""
    return (x + y - 1) // y


def align(x: int, y: int) -> int:
    """Return the smallest multiple of y that is at least x."""
    return ceil_div(x, y) * y


def round_up_to_power_of_two(x: torch.Tensor) -> torch.Tensor:
    """Return the smallest powers of two that are at least x (float32, positive), exactly."""
    mantissa, exponent = torch.frexp(x)  # x = mantissa * 2**exponent, mantissa in [0.5, 1)
    return torch.where(mantissa == 0.5, x, torch.ldexp(torch.ones_like(x), exponent))


def per_token_cast_to_fp8(
    x: torch.Tensor, use_ue8m0: bool, gran_k: int = SCALE_BLOCK
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise x [..., m, n], a matrix or groups of matrices, with one scale per row and `gran_k` columns.

    Returns: float8_e4m3fn [..., m, n] and float32 scales [..., m, ceil(n / gran_k)].
    Raises: ShapeError for a vector or a scalar, DtypeError unless x is floating point.
    """
    _check_matrices(x)
    m, n = x.shape[-2:]
    groups = _pad(x, m, align(n, gran_k)).unflatten(-1, (ceil_div(n, gran_k), gran_k))
    data, scales = _cast(groups, (-1,), use_ue8m0)
    return data.flatten(-2)[..., :n].contiguous(), scales.squeeze(-1)


def per_channel_cast_to_fp8(x: torch.Tensor, use_ue8m0: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise x [m, n], m a multiple of 128, with one scale per 128 rows and one column.

    Returns: float8_e4m3fn [m, n] and float32 scales [m / 128, n].
    Raises: ShapeError unless x is such a matrix, DtypeError unless it is floating point.
    """
    _check_matrix(x)
    m = x.shape[0]
    if m % SCALE_BLOCK:
        raise ShapeError(f"m = {m}: per-channel scales cover 128 rows each; pad x to a multiple of 128 rows.")
    data, scales = _cast(x.unflatten(0, (m // SCALE_BLOCK, SCALE_BLOCK)), (1,), use_ue8m0)
    return data.flatten(0, 1), scales.squeeze(1)


def per_block_cast_to_fp8(x: torch.Tensor, use_ue8m0: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise x [..., m, n], a matrix or groups of matrices, with one scale per 128 x 128 block; no block spans two
    groups.

    Returns: float8_e4m3fn [..., m, n] and float32 scales [..., ceil(m / 128), ceil(n / 128)].
    Raises: ShapeError for a vector or a scalar, DtypeError unless x is floating point.
    """
    _check_matrices(x)
    *leading, m, n = x.shape
    rows, columns = ceil_div(m, SCALE_BLOCK), ceil_div(n, SCALE_BLOCK)
    # Each group by itself: the rows that fill a last block are its own.
    padded = _pad(x, rows * SCALE_BLOCK, columns * SCALE_BLOCK)
    data, scales = _cast(padded.view(*leading, rows, SCALE_BLOCK, columns, SCALE_BLOCK), (-3, -1), use_ue8m0)
    return data.view(padded.shape)[..., :m, :n].contiguous(), scales.view(*leading, rows, columns)


def per_custom_dims_cast_to_fp8(
    x: torch.Tensor, dims: tuple[int, ...], use_ue8m0: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise x with one scale per index of `dims`, shared along all other dims.

    Returns: float8_e4m3fn of x's shape and float32 scales of the sizes of `dims`, size-1 dims dropped.
    Raises: ShapeError for a dim that x does not have, DtypeError unless x is floating point.
    """
    _check_floating(x)
    if not all(-x.dim() <= dim < x.dim() for dim in dims):
        raise ShapeError(f"dims = {tuple(dims)}: x has dims 0..{x.dim() - 1} only; name existing dims.")
    kept = {dim % x.dim() for dim in dims}
    data, scales = _cast(x, tuple(dim for dim in range(x.dim()) if dim not in kept), use_ue8m0)
    return data, scales.squeeze()


def _cast(groups: torch.Tensor, dims: tuple[int, ...], use_ue8m0: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise with one scale shared along `dims`; the scales keep these dims at size 1."""
    magnitudes = groups.abs().float()
    amax = magnitudes.amax(dim=dims, keepdim=True) if dims else magnitudes  # amax over no dims would reduce all
    scales = amax.clamp(MIN_AMAX) / FP8_MAX
    if use_ue8m0:
        scales = round_up_to_power_of_two(scales)
    return (groups.float() * (1.0 / scales)).to(torch.float8_e4m3fn), scales


def _pad(x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Return x [..., m, n] padded with zeros to [..., rows, columns], contiguous."""
    return torch.nn.functional.pad(x, (0, columns - x.shape[-1], 0, rows - x.shape[-2])).contiguous()


def _check_matrix(x: torch.Tensor) -> None:
    _check_floating(x)
    if x.dim() != 2:
        raise ShapeError(f"x.ndim = {x.dim()}: must be a matrix [m, n]; reshape it.")


def _check_matrices(x: torch.Tensor) -> None:
    _check_floating(x)
    if x.dim() < 2:
        raise ShapeError(
            f"x.ndim = {x.dim()}: must be a matrix [m, n] or groups of them [..., m, n]; reshape it, a row to [1, n]."
        )


def _check_floating(x: torch.Tensor) -> None:
    if not x.is_floating_point():
        raise DtypeError(f"x.dtype = {x.dtype}: must be a floating-point dtype; convert it with .float().")
