"""Quantise tensors to FP8 (E4M3) with scale factors of several granularities.

Every cast clamps the largest magnitude of a group at 1e-4, takes scale = amax / 448 (the largest E4M3 number), rounds
the scale up to a power of two where asked, and returns (x / scale in float8_e4m3fn, scale in float32). What shares a
scale with infinity or NaN has the scale 1 where powers of two are asked, else infinity or NaN.

The torch formula of this file is the definition. CUDA tensors of SM90 run a one-pass kernel where there is one
(cast_kernels.py): its results are equal to the bit to the formula on the same GPU. The formula divides by a number,
which torch does by its reciprocal on GPUs: scales of CPU and GPU may differ in the last bit.
"""

import contextlib
import struct
from typing import Any

import torch

from deep_gemm import cast_kernels, environment, planned
from deep_gemm.arguments import check_flag, check_integer, check_integers, shorten
from deep_gemm.errors import ArgumentError, DeviceError, DtypeError, LayoutError, ShapeError
from deep_gemm.operands import check_tensor, is_fake
from deep_gemm.packing import PER_WORD, check_are_rounded, join_exponents
from deep_gemm.recorded_calls import record

#: Elements of K, and for B rows of N, that share one scale.
SCALE_BLOCK = 128
#: Largest E4M3 number, and the magnitude to which the largest one of a group is raised: no scale is 0.
FP8_MAX = 448.0
MIN_AMAX = 1e-4
_FP32_MAX = torch.finfo(torch.float32).max


def ceil_div(x: int, y: int) -> int:
    """Return x / y rounded up. Raises: ArgumentError for what cannot be added and divided so."""
    try:  # nothing is asked before: symbolic sizes and tensors, which callers pass too, have it
        return (x + y - 1) // y
    except (TypeError, ZeroDivisionError):
        raise ArgumentError(f"x, y = {shorten(x)}, {shorten(y)}: must be ints, y not 0; pass such numbers.") from None


def align(x: int, y: int) -> int:
    """Return the smallest multiple of y that is at least x. Raises: as ceil_div."""
    return ceil_div(x, y) * y


def round_up_to_power_of_two(x: torch.Tensor) -> torch.Tensor:
    """Return the smallest powers of two that are at least x (float32, positive), exactly; 1 for infinity and NaN."""
    mantissa, exponent = torch.frexp(x)  # x = mantissa * 2**exponent, mantissa in [0.5, 1)
    return torch.where(mantissa == 0.5, x, torch.ldexp(torch.ones_like(x), exponent))


def per_token_cast_to_fp8(
    x: torch.Tensor,
    use_ue8m0: bool,
    gran_k: int = SCALE_BLOCK,
    use_packed_ue8m0: bool = False,
    *,
    masked_m: torch.Tensor | None = None,
    scales: str = "row_major",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise x [..., m, n], a matrix or groups of matrices, with one scale per row and `gran_k` columns.

    Args:
        x: any floating dtype, any strides.
        use_ue8m0: round scales up to powers of two.
        gran_k: columns that share a scale.
        use_packed_ue8m0: pack the scales for SM100 (packing.py), which takes use_ue8m0, row-major scales, and a
            multiple of 4 of them in a row.
        masked_m: int32 [groups], contiguous, on x's device, for x [groups, m, n]: only the first rows of each group
            are quantised, and the results of the others are undefined. A kernel reads and writes nothing of them.
        scales: "row_major", or "mn_major": the TMA-aligned layout that the GEMMs prefer.

    Returns: float8_e4m3fn [..., m, n] and float32 scales [..., m, ceil(n / gran_k)], or int32 with 4 scales in each.
    Raises: ShapeError for a vector or a scalar, or for scales of a row that fill no words; DtypeError unless x is
        floating point; ArgumentError for another layout or gran_k, or for scales that cannot be packed; all of them,
        LayoutError and DeviceError for another masked_m.
    """
    cast = _token_cast(x, masked_m, use_ue8m0, gran_k, scales, use_packed_ue8m0, None)
    if cast is not NotImplemented:
        return cast
    is_mn_major, gran_k = _check_options(x, use_ue8m0, gran_k, scales), int(gran_k)
    check_flag("use_packed_ue8m0", use_packed_ue8m0)
    if use_packed_ue8m0:
        _check_packed(x, use_ue8m0, gran_k, is_mn_major)
        data, unpacked = per_token_cast_to_fp8(x, use_ue8m0, gran_k, masked_m=masked_m)
        return data, join_exponents(unpacked)
    _check_rows(x, masked_m)
    return _per_token(x, use_ue8m0, gran_k, is_mn_major)


def swiglu_per_token_cast_to_fp8(
    x: torch.Tensor,
    use_ue8m0: bool,
    gran_k: int = SCALE_BLOCK,
    *,
    masked_m: torch.Tensor | None = None,
    scales: str = "row_major",
    limit: float | None = None,
    is_interleaved: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise silu(gate) * up of x [..., m, 2n], whose rows are [gate, up], as per_token_cast_to_fp8 does.

    The activation is computed in float32 and not rounded before it is quantised: the formula is
    `silu(gate.float()) * up.float()`. Other arguments and errors are those of per_token_cast_to_fp8.

    Args:
        limit: gates are limited to at most this, and ups to its magnitude, before that; None: not limited.
        is_interleaved: gates and ups are interleaved, 8 of each; n is a multiple of 8.

    Returns: float8_e4m3fn [..., m, n] and float32 scales [..., m, ceil(n / gran_k)].
    Raises: as per_token_cast_to_fp8, ShapeError for an odd number of columns, or one that is_interleaved excludes, and
        ArgumentError for a limit that is no number of at least 0.
    """
    form = _make_swiglu(limit, is_interleaved)
    cast = _token_cast(x, masked_m, use_ue8m0, gran_k, scales, False, form)
    if cast is not NotImplemented:
        return cast
    is_mn_major, gran_k = _check_options(x, use_ue8m0, gran_k, scales), int(gran_k)
    _check_pairs(x, masked_m, form)
    if not torch.compiler.is_compiling() and not is_fake(x):
        _note(x, use_ue8m0, gran_k, masked_m is not None, is_mn_major, form)
    gate, up = _split_pairs(x.detach().float(), is_interleaved)
    if limit is not None:
        most = float(limit)  # torch takes no large integers
        gate, up = gate.clamp(max=most), up.clamp(-most, most)
    return _per_token(torch.nn.functional.silu(gate) * up, use_ue8m0, gran_k, is_mn_major)


def per_channel_cast_to_fp8(
    x: torch.Tensor, use_ue8m0: bool, gran_k: int = SCALE_BLOCK
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise x [..., m, n], a matrix or groups of matrices, m a multiple of `gran_k`, with one scale per `gran_k`
    rows and one column.

    Returns: float8_e4m3fn [..., m, n] and float32 scales [..., m / gran_k, n].
    Raises: ShapeError for a vector, a scalar or another m, DtypeError unless x is floating point, ArgumentError for
        gran_k.
    """
    cast = _channel_cast(x, use_ue8m0, gran_k)
    if cast is not NotImplemented:
        return cast
    check_flag("use_ue8m0", use_ue8m0)
    gran_k = _check_channels(x, gran_k)
    data, scales = _cast(x.unflatten(-2, (x.shape[-2] // gran_k, gran_k)), (-2,), use_ue8m0)
    return data.flatten(-3, -2).contiguous(), scales.squeeze(-2).contiguous()


def per_block_cast_to_fp8(
    x: torch.Tensor, use_ue8m0: bool, gran_k: int = SCALE_BLOCK
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise x [..., m, n], a matrix or groups of matrices, with one scale per gran_k x gran_k block; no block spans
    two groups.

    Returns: float8_e4m3fn [..., m, n] and float32 scales [..., ceil(m / gran_k), ceil(n / gran_k)].
    Raises: ShapeError for a vector or a scalar, DtypeError unless x is floating point, ArgumentError for gran_k.
    """
    cast = _block_cast(x, use_ue8m0, gran_k)
    if cast is not NotImplemented:
        return cast
    _, gran_k = _check_options(x, use_ue8m0, gran_k), int(gran_k)
    _check_matrices(x)
    *leading, m, n = x.shape
    rows, columns = ceil_div(m, gran_k), ceil_div(n, gran_k)
    # Each group by itself: the rows that fill a last block are its own.
    padded = _pad(x, rows * gran_k, columns * gran_k)
    data, scales = _cast(padded.view(*leading, rows, gran_k, columns, gran_k), (-3, -1), use_ue8m0)
    return data.view(padded.shape)[..., :m, :n].contiguous(), scales.view(*leading, rows, columns)


def per_custom_dims_cast_to_fp8(
    x: torch.Tensor, dims: tuple[int, ...], use_ue8m0: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise x with one scale per index of `dims`, shared along all other dims.

    Args:
        x: any floating dtype, any strides. On SM90 a kernel does it for BF16, FP16 and FP32 where x has at most four
            dims, `dims` are the first ones (dims of size 1 aside), the first two of three evenly spaced, and the
            numbers that share a scale lie beside each other and are at most 256 (FP32: 128): keys of attention.
        dims: a list or tuple of ints.
        use_ue8m0: round scales up to powers of two.

    Returns: float8_e4m3fn of x's shape and float32 scales of the sizes of `dims`, size-1 dims dropped; contiguous.
    Raises: ShapeError for a dim that x does not have, or x without numbers; DtypeError unless x is floating point;
        ArgumentError for other dims or flags.
    """
    # A planned call knows tuples only.
    cast = _dims_cast(x, tuple(dims) if isinstance(dims, list) else dims, use_ue8m0)
    if cast is not NotImplemented:
        return cast
    kept = _check_dims(x, dims, use_ue8m0)
    data, scales = _cast(x, tuple(dim for dim in range(x.dim()) if dim not in kept), use_ue8m0)
    return data.contiguous(), scales.squeeze().contiguous()


def _per_token(x: torch.Tensor, use_ue8m0: bool, gran_k: int, is_mn_major: bool) -> tuple[torch.Tensor, torch.Tensor]:
    m, n = x.shape[-2:]
    groups = _pad(x, m, align(n, gran_k)).unflatten(-1, (ceil_div(n, gran_k), gran_k))
    data, scales = _cast(groups, (-1,), use_ue8m0)
    scales = scales.squeeze(-1)
    return data.flatten(-2)[..., :n].contiguous(), make_mn_major(scales) if is_mn_major else scales


def make_mn_major(scales: torch.Tensor) -> torch.Tensor:
    """Return a copy of scales [..., m, k], of a dtype of 4 bytes, in the MN-major, TMA-aligned layout."""
    shape, strides = cast_kernels.scale_layout(tuple(scales.shape), True)
    if not torch.compiler.is_compiling() and not is_fake(scales):
        return scales.new_empty_strided(shape, strides).copy_(scales)
    # For copy_ a graph would ask whether m is aligned, and serve no other m.
    return _pad(scales.mT.contiguous(), shape[-1], strides[-1]).as_strided(shape, strides)


def _cast(groups: torch.Tensor, dims: tuple[int, ...], use_ue8m0: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise with one scale shared along `dims`; the scales keep these dims at size 1. No graph is recorded."""
    magnitudes = groups.detach().abs().float()
    amax = magnitudes.amax(dim=dims, keepdim=True) if dims else magnitudes  # amax over no dims would reduce all
    scales = _divide_by_max(amax.clamp(MIN_AMAX))
    if use_ue8m0:
        scales = round_up_to_power_of_two(scales)
    return (groups.detach().float() * (1.0 / scales)).to(torch.float8_e4m3fn), scales


def _divide_by_max(amax: torch.Tensor) -> torch.Tensor:
    return amax / FP8_MAX


def _pad(x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Return x [..., m, n] padded with zeros to [..., rows, columns], contiguous."""
    # torch 2.9 takes 0 for a negative padding then. Sizes that are only known by their values are not asked.
    if any(type(size) is int and size == 0 for size in x.shape):
        return x.new_zeros(*x.shape[:-2], rows, columns)
    return torch.nn.functional.pad(x, (0, columns - x.shape[-1], 0, rows - x.shape[-2])).contiguous()


def _check_options(x: torch.Tensor, use_ue8m0: bool, gran_k: int, scales: str = "row_major") -> bool:
    """Return whether the scales are to be MN-major."""
    check_tensor("x", x)
    check_flag("use_ue8m0", use_ue8m0)
    check_integer("gran_k", gran_k, 1)
    if type(scales) is not str or scales not in ("row_major", "mn_major"):
        raise ArgumentError(f"scales = {shorten(scales)}: must be 'row_major' or 'mn_major'; pass one of them.")
    return scales == "mn_major"


def _check_packed(x: torch.Tensor, use_ue8m0: bool, gran_k: int, is_mn_major: bool) -> None:
    _check_matrices(x)
    check_are_rounded(use_ue8m0)
    if is_mn_major:
        raise ArgumentError(
            "scales = 'mn_major': packed scales are row-major; leave use_packed_ue8m0 out and pack them with"
            " get_mn_major_tma_aligned_packed_ue8m0_tensor."
        )
    per_row = ceil_div(x.shape[-1], gran_k)
    if per_row % PER_WORD:
        raise ShapeError(
            f"x.shape[-1] = {x.shape[-1]}: gives {per_row} scales in a row, and packed ones are a multiple of 4; pad x."
        )


def _check_rows(x: torch.Tensor, masked_m: torch.Tensor | None) -> None:
    _check_matrices(x)
    if masked_m is None:
        return
    check_tensor("masked_m", masked_m)
    if x.dim() != 3 or masked_m.shape != x.shape[:1]:
        raise ShapeError(
            f"masked_m.shape = {list(masked_m.shape)} with x.shape = {list(x.shape)}: x must be [groups, m, n] and"
            " masked_m [groups]; reshape them."
        )
    if masked_m.dtype != torch.int32:
        raise DtypeError(f"masked_m.dtype = {masked_m.dtype}: must be torch.int32; convert it with .int().")
    if not masked_m.is_contiguous():
        raise LayoutError(f"masked_m.stride() = {masked_m.stride()}: must be contiguous; pass masked_m.contiguous().")
    if masked_m.device != x.device:
        raise DeviceError(f"masked_m.device = {masked_m.device}: x is on {x.device}; move masked_m there.")


def check_limit(name: str, limit: Any) -> None:
    """Raise ArgumentError unless `limit` is a number that FP32 holds, at least 0, or None."""
    if limit is not None and (type(limit) not in (int, float) or not 0 <= limit <= _FP32_MAX):
        raise ArgumentError(f"{name} = {shorten(limit)}: must be a number >= 0 of FP32's range, or None; pass such.")


def _make_swiglu(limit: float | None, is_interleaved: bool) -> cast_kernels.Swiglu:
    check_flag("is_interleaved", is_interleaved)
    check_limit("limit", limit)
    return int(bool(is_interleaved)), -1 if limit is None else struct.unpack("<i", struct.pack("<f", abs(limit)))[0]


def _split_pairs(x: torch.Tensor, is_interleaved: bool) -> tuple[torch.Tensor, ...]:
    """Return gates and ups [..., n] of rows [..., 2n]."""
    if not is_interleaved:
        return x.chunk(2, dim=-1)
    return tuple(part.flatten(-2) for part in x.unflatten(-1, (-1, 2, cast_kernels.RUN)).unbind(-2))


def _check_pairs(x: torch.Tensor, masked_m: torch.Tensor | None, swiglu: cast_kernels.Swiglu) -> None:
    _check_rows(x, masked_m)
    if x.shape[-1] % 2:
        raise ShapeError(f"x.shape[-1] = {x.shape[-1]}: rows are [gate, up] of equal size; pass an even number.")
    if swiglu[0] and x.shape[-1] % (2 * cast_kernels.RUN):
        raise ShapeError(
            f"x.shape[-1] = {x.shape[-1]}: gates and ups are interleaved, {cast_kernels.RUN} of each; pass a"
            f" multiple of {2 * cast_kernels.RUN} columns."
        )


def _check_dims(x: torch.Tensor, dims: tuple[int, ...], use_ue8m0: bool) -> set[int]:
    """Return the dims, counted from 0."""
    _check_floating(x)
    check_flag("use_ue8m0", use_ue8m0)
    dims = check_integers("dims", dims, -x.dim())
    if not all(dim < x.dim() for dim in dims):
        raise ShapeError(f"dims = {dims}: x has dims 0..{x.dim() - 1} only; name existing dims.")
    if not x.numel():
        raise ShapeError(f"x.shape = {list(x.shape)}: holds no numbers; pass a tensor that does.")
    return {dim % x.dim() for dim in dims}


def _check_channels(x: torch.Tensor, gran_k: int) -> int:
    """Return gran_k."""
    _check_matrices(x)
    gran_k = check_integer("gran_k", gran_k, 1)
    if x.shape[-2] % gran_k:
        raise ShapeError(
            f"m = {x.shape[-2]}: per-channel scales cover {gran_k} rows each; pad x to a multiple of {gran_k} rows."
        )
    return gran_k


def _check_matrices(x: torch.Tensor) -> None:
    _check_floating(x)
    if x.dim() < 2:
        raise ShapeError(
            f"x.ndim = {x.dim()}: must be a matrix [m, n] or groups of them [..., m, n]; reshape it, a row to [1, n]."
        )


def _check_floating(x: torch.Tensor) -> None:
    check_tensor("x", x)
    if not x.is_floating_point() or x.element_size() == 1:
        raise DtypeError(
            f"x.dtype = {x.dtype}: must be a floating-point dtype of 16 bits or more; convert it with .float()."
        )


def _plan_token_cast(
    x: torch.Tensor,
    masked_m: torch.Tensor | None,
    use_ue8m0: bool,
    gran_k: int,
    scales: str,
    is_packed: bool,
    swiglu: cast_kernels.Swiglu | None,
) -> planned.Plan | None:
    if is_packed:
        return None
    is_mn_major = _check_options(x, use_ue8m0, gran_k, scales)
    if swiglu:
        _check_pairs(x, masked_m, swiglu)
        _note(x, use_ue8m0, gran_k, masked_m is not None, is_mn_major, swiglu)
    else:
        _check_rows(x, masked_m)
    return cast_kernels.plan_rows(x, gran_k, bool(use_ue8m0), masked_m is not None, is_mn_major, swiglu)


def _note(
    x: torch.Tensor, use_ue8m0: bool, gran_k: int, is_masked: bool, is_mn_major: bool, swiglu: cast_kernels.Swiglu
) -> None:
    """Record a SwiGLU's cast that a kernel runs, of which no problem tells."""
    if not environment.get_string("DG_RECORD_SHAPES"):
        return
    with contextlib.suppress(RuntimeError):  # x has no memory, as within torch.func
        if call := cast_kernels.describe_swiglu(x, gran_k, use_ue8m0, is_masked, is_mn_major, swiglu):
            record(call)


def _plan_block_cast(x: torch.Tensor, use_ue8m0: bool, gran_k: int) -> planned.Plan | None:
    _check_options(x, use_ue8m0, gran_k)
    _check_matrices(x)
    return cast_kernels.plan_blocks(x, gran_k, bool(use_ue8m0), False)


def _plan_channel_cast(x: torch.Tensor, use_ue8m0: bool, gran_k: int) -> planned.Plan | None:
    check_flag("use_ue8m0", use_ue8m0)
    _check_channels(x, gran_k)
    return cast_kernels.plan_blocks(x, gran_k, bool(use_ue8m0), True)


def _plan_dims_cast(x: torch.Tensor, dims: tuple[int, ...], use_ue8m0: bool) -> planned.Plan | None:
    kept = {dim for dim in _check_dims(x, dims, use_ue8m0) if x.shape[dim] != 1}  # of size 1: scales drop it
    num_kept = max(kept, default=-1) + 1
    if any(x.shape[dim] != 1 for dim in set(range(num_kept)) - kept):
        return None
    return cast_kernels.plan_whole_rows(x, num_kept, bool(use_ue8m0))


_token_cast = planned.make_call("per_token_cast_to_fp8", _plan_token_cast)
_block_cast = planned.make_call("per_block_cast_to_fp8", _plan_block_cast)
_channel_cast = planned.make_call("per_channel_cast_to_fp8", _plan_channel_cast)
_dims_cast = planned.make_call("per_custom_dims_cast_to_fp8", _plan_dims_cast)
