"""FP4 (E2M1) in plain torch: two numbers in an int8, the first in the lower four bits.

Products of FP4 are SM100 only. These helpers prepare and check weights on any device.
"""

import itertools

import torch

from deep_gemm.arguments import check_flag, check_integer
from deep_gemm.dequantize import spread_scales
from deep_gemm.errors import DtypeError, ShapeError
from deep_gemm.operands import check_tensor
from deep_gemm.packing import ceil_to_ue8m0, check_are_rounded, pack_ue8m0_to_int
from deep_gemm.quantize import MIN_AMAX, SCALE_BLOCK, align, ceil_div

#: The magnitudes of E2M1, by the three lower bits; the fourth is the sign.
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_FP4_MAX = _MAGNITUDES[-1]
_SIGN, _CODE = 8, 15


def per_token_cast_to_fp4(
    x: torch.Tensor, use_ue8m0: bool, gran_k: int = SCALE_BLOCK, use_packed_ue8m0: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise x [m, n], n even, to FP4 with one scale per row and `gran_k` columns.

    The scale is amax / 6, with amax at least 1e-4; x / scale goes to the nearest number of E2M1, from the middle of two
    to the smaller magnitude.

    Args:
        use_ue8m0: round the scales up to powers of two.
        use_packed_ue8m0: pack them (pack_ue8m0_to_int), which takes use_ue8m0 and a multiple of 4 of them in a row.

    Returns: int8 [m, n / 2], and scales float32 [m, ceil(n / gran_k)] or packed.
    Raises: ShapeError, DtypeError; ArgumentError for use_packed_ue8m0 alone.
    """
    check_tensor("x", x)
    _check_even_matrix(x, 1)
    if not x.is_floating_point() or x.element_size() == 1:
        raise DtypeError(
            f"x.dtype = {x.dtype}: must be a floating-point dtype of 16 bits or more; convert it with .float()."
        )
    gran_k = check_integer("gran_k", gran_k, 1)
    for name, flag in (("use_ue8m0", use_ue8m0), ("use_packed_ue8m0", use_packed_ue8m0)):
        check_flag(name, flag)
    if use_packed_ue8m0:
        check_are_rounded(use_ue8m0)
    m, n = x.shape
    padded = torch.nn.functional.pad(x.detach(), (0, align(n, gran_k) - n)).float()
    groups = padded.view(m, ceil_div(n, gran_k), gran_k)
    scales = groups.abs().amax(dim=2).clamp(MIN_AMAX) / _FP4_MAX
    if use_ue8m0:
        scales = ceil_to_ue8m0(scales)
    codes = _to_codes(groups * (1.0 / scales.unsqueeze(2))).view(m, padded.shape[1])[:, :n]
    return _join(codes), pack_ue8m0_to_int(scales) if use_packed_ue8m0 else scales


def cast_back_from_fp4(
    packed: torch.Tensor, sf: torch.Tensor, gran_k: int = SCALE_BLOCK, use_packed_ue8m0: bool = False
) -> torch.Tensor:
    """Return the numbers of packed FP4 as float32 [m, n].

    Args:
        packed: int8 [m, n / 2]. sf: its scales, as per_token_cast_to_fp4 gives them.

    Raises: ArgumentError, DeviceError, DtypeError, ShapeError.
    """
    _check_packed(packed)
    m, pairs = packed.shape
    scales = spread_scales("packed", (m, 2 * pairs), packed.device, sf, gran_k, use_packed_ue8m0)
    codes = _split(packed)
    magnitudes = torch.tensor(_MAGNITUDES, dtype=torch.float32, device=packed.device)[(codes % _SIGN).int()]
    values = torch.where((codes >= _SIGN) & (magnitudes > 0), -magnitudes, magnitudes)
    return values * scales


def transpose_packed_fp4(a: torch.Tensor) -> torch.Tensor:
    """Return the transposed matrix of packed FP4: int8 [m, n / 2], m even, to int8 [n, m / 2].

    Raises: DtypeError, ShapeError.
    """
    _check_packed(a)
    _check_even_matrix(a, 0)
    return _join(_split(a).T)


def _to_codes(x: torch.Tensor) -> torch.Tensor:
    """Return the codes of the nearest E2M1 numbers, uint8; a number that becomes 0 has no sign."""
    middles = [(low + high) / 2 for low, high in itertools.pairwise(_MAGNITUDES)]
    magnitudes = x.abs().contiguous()  # torch warns of others
    codes = torch.bucketize(magnitudes, torch.tensor(middles, device=x.device)).to(torch.uint8)
    return torch.where((x < 0) & (codes > 0), codes + _SIGN, codes)


def _join(codes: torch.Tensor) -> torch.Tensor:
    """Return uint8 codes [m, n] as pairs, int8 [m, n / 2]."""
    return (codes[:, 0::2] | (codes[:, 1::2] << 4)).contiguous().view(torch.int8)


def _split(packed: torch.Tensor) -> torch.Tensor:
    """Return the uint8 codes [m, n] of pairs."""
    pairs = packed.contiguous().view(torch.uint8)
    return torch.stack((pairs & _CODE, pairs >> 4), dim=-1).flatten(-2)


def _check_packed(packed: torch.Tensor) -> None:
    check_tensor("packed", packed)
    if packed.dtype != torch.int8:
        raise DtypeError(f"packed.dtype = {packed.dtype}: two FP4 numbers are a torch.int8; view it as that.")
    if packed.dim() != 2:
        raise ShapeError(f"packed.ndim = {packed.dim()}: must be a matrix; reshape it.")


def _check_even_matrix(x: torch.Tensor, dim: int) -> None:
    if x.dim() != 2 or x.shape[dim] % 2:
        raise ShapeError(f"x.shape = {list(x.shape)}: must be a matrix, dim {dim} of it even; pad it.")
