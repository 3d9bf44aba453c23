"""Numbers of FP8 and FP4 back in float32, in plain torch: what the casts of quantize.py and fp4.py leave, restored."""

from collections.abc import Sequence

import torch

from deep_gemm.arguments import check_flag, check_integer
from deep_gemm.errors import DeviceError, DtypeError, ShapeError
from deep_gemm.operands import check_tensor
from deep_gemm.packing import unpack_ue8m0_from_int
from deep_gemm.quantize import SCALE_BLOCK, ceil_div


def cast_back_from_fp8(
    x_fp8: torch.Tensor, sf: torch.Tensor, gran_k: int = SCALE_BLOCK, use_packed_ue8m0: bool = False
) -> torch.Tensor:
    """Return the numbers of scaled FP8 as float32 [..., m, n]: each times the scale of its row and `gran_k` columns.

    Args:
        x_fp8: float8_e4m3fn [..., m, n], any strides.
        sf: its scales, as per_token_cast_to_fp8 gives them: float32 [..., m, ceil(n / gran_k)], any strides.
        gran_k: columns that share a scale.
        use_packed_ue8m0: sf is int32, with four scales in each (unpack_ue8m0_from_int); the last one of a row may hold
            more than there are groups.

    Raises: ArgumentError, DeviceError, DtypeError, ShapeError.
    """
    check_tensor("x_fp8", x_fp8)
    if x_fp8.dtype != torch.float8_e4m3fn:
        raise DtypeError(f"x_fp8.dtype = {x_fp8.dtype}: must be torch.float8_e4m3fn; pass what a cast to FP8 returned.")
    if x_fp8.dim() < 2:
        raise ShapeError(f"x_fp8.ndim = {x_fp8.dim()}: must be a matrix or groups of matrices; reshape it.")
    return x_fp8.float() * spread_scales("x_fp8", x_fp8.shape, x_fp8.device, sf, gran_k, use_packed_ue8m0)


def spread_scales(
    name: str, shape: Sequence[int], device: torch.device, sf: torch.Tensor, gran_k: int, use_packed_ue8m0: bool
) -> torch.Tensor:
    """Return the scale of each number, float32 of `shape` [..., m, n], from one for each row and `gran_k` columns.

    Args:
        name: what error messages call the data. device: its device.
        sf: float32 [..., m, ceil(n / gran_k)], or with `use_packed_ue8m0` int32 that hold at least as many.

    Raises: ArgumentError, DeviceError, DtypeError, ShapeError.
    """
    check_tensor("sf", sf)
    gran_k = check_integer("gran_k", gran_k, 1)
    check_flag("use_packed_ue8m0", use_packed_ue8m0)
    if sf.device != device:
        raise DeviceError(f"sf.device = {sf.device}: {name} is on {device}; move sf there.")
    scales = unpack_ue8m0_from_int(sf) if use_packed_ue8m0 else sf
    if scales.dtype != torch.float32:
        raise DtypeError(f"sf.dtype = {scales.dtype}: scales are torch.float32, or packed; convert them.")
    *rows, n = shape
    columns = ceil_div(n, gran_k)
    if scales.dim() != len(shape) or list(scales.shape[:-1]) != rows or scales.shape[-1] < columns:
        raise ShapeError(f"sf: scales {list(scales.shape)}, but {name} needs {[*rows, columns]}; pass those of {name}.")
    return scales[..., :columns].repeat_interleave(min(gran_k, n), dim=-1)[..., :n]
