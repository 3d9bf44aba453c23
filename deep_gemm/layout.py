"""Layouts of FP32 scale factors, and the alignment of the rows of contiguous groups.

The kernels read scales with any strides. For A's scales they prefer the MN-major layout whose leading dimension is
padded to 16 bytes ("TMA-aligned"): [mn, k] with strides (1, align(mn, 4)).
"""

import torch

from deep_gemm import _C, cast_kernels
from deep_gemm.errors import ArgumentError, DtypeError, ShapeError
from deep_gemm.quantize import align, ceil_div

_TMA_ALIGNMENT_BYTES = 16
_DEFAULT_RECIPE = (1, 128, 128)

set_mk_alignment_for_contiguous_layout = _C.set_mk_alignment_for_contiguous_layout
get_mk_alignment_for_contiguous_layout = _C.get_mk_alignment_for_contiguous_layout
# Rows and K share one alignment; these are DeepGEMM's names for it.
get_m_alignment_for_contiguous_layout = get_k_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout


def get_tma_aligned_size(x: int, element_size: int = 4) -> int:
    """Return x rounded up so that x elements of `element_size` bytes fill whole 16-byte units."""
    return align(x, _TMA_ALIGNMENT_BYTES // element_size)


def get_mn_major_tma_aligned_tensor(sf, dtype: torch.dtype | None = None, device=None) -> torch.Tensor:
    """Return scales in the MN-major, TMA-aligned layout.

    Args:
        sf: float32 scales [mn, k] or [groups, mn, k], any strides; or such a shape, for an empty tensor.
        dtype, device: those of the empty tensor; by default float32 and torch's default device.

    Returns: a tensor of sf's shape with strides (1, aligned_mn) in its last two dims; sf itself where it has this
        layout. Zero sizes give an empty tensor of the shape.

    Raises: ShapeError for another rank, DtypeError for scales that are not float32.
    """
    if not isinstance(sf, torch.Tensor):
        return _make_mn_major(tuple(sf), dtype or torch.float32, device)
    if sf.dtype != torch.float32:
        raise DtypeError(f"sf.dtype = {sf.dtype}: scales on SM90 are torch.float32; convert them with .float().")
    _check_rank(sf.shape)
    if _is_mn_major(sf):
        return sf
    made = cast_kernels.lay_out_scales(sf) if sf.is_cuda else None
    return _make_mn_major(tuple(sf.shape), sf.dtype, sf.device).copy_(sf) if made is None else made


def transform_sf_into_required_layout(
    sf: torch.Tensor,
    mn: int | None = None,
    k: int | None = None,
    recipe: tuple[int, int, int] | None = None,
    num_groups: int | None = None,
    is_sfa: bool = False,
    disable_ue8m0_cast: bool = False,
    *,
    target: str | None = None,
) -> torch.Tensor:
    """Return FP32 scales in the layout that the SM90 kernels prefer; the values never change.

    Args:
        sf: float32 [mn / gran, ceil(k / 128)], with a leading [num_groups] where that is given.
        mn, k: sizes of the operand, for the shape check (skipped when omitted).
        recipe: granularity (gran_m, gran_n, gran_k), default (1, 128, 128); A uses gran_m (`is_sfa`), B gran_n.
        disable_ue8m0_cast: accepted for compatibility; scales stay FP32 on SM90.
        target: must be None; packed UE8M0 scales are not available.

    Returns: MN-major TMA-aligned scales for granularity 1, sf itself for blocks of 128.
    Raises: ArgumentError for an unknown recipe or target, ShapeError, DtypeError.
    """
    if target is not None:
        raise ArgumentError(f"target = {target!r}: only FP32 scales for SM90 are available; pass None.")
    gran_mn, gran_k = _granularity(recipe or _DEFAULT_RECIPE, is_sfa)
    if mn is not None and k is not None:
        _check_shape(sf, (ceil_div(mn, gran_mn), ceil_div(k, gran_k)), num_groups)
    return get_mn_major_tma_aligned_tensor(sf) if gran_mn == 1 else sf


def _granularity(recipe: tuple[int, int, int], is_sfa: bool) -> tuple[int, int]:
    if tuple(recipe) not in ((1, 128, 128), (1, 1, 128)):
        raise ArgumentError(f"recipe = {recipe}: must be (1, 128, 128) or (1, 1, 128); pass one of them or None.")
    return (recipe[0] if is_sfa else recipe[1]), recipe[2]


def _check_shape(sf: torch.Tensor, matrix: tuple[int, int], num_groups: int | None) -> None:
    expected = matrix if num_groups is None else (num_groups, *matrix)
    if tuple(sf.shape) != expected:
        raise ShapeError(
            f"sf.shape = {list(sf.shape)}: must be {list(expected)} for these sizes; check mn, k and recipe."
        )


def _check_rank(shape) -> None:
    if len(shape) not in (2, 3):
        raise ShapeError(f"sf.ndim = {len(shape)}: scales are [mn, k] or [groups, mn, k]; reshape them.")


def _strides(shape, element_size: int) -> tuple[int, ...]:
    *groups, mn, k = shape
    leading = get_tma_aligned_size(mn, element_size)
    return (leading * k, 1, leading) if groups else (1, leading)


def _make_mn_major(shape, dtype: torch.dtype, device) -> torch.Tensor:
    _check_rank(shape)
    return torch.empty_strided(shape, _strides(shape, dtype.itemsize), dtype=dtype, device=device)


def _is_mn_major(sf: torch.Tensor) -> bool:
    """Return whether sf has this layout at an aligned address; the strides of dims of size 1 do not count."""
    strides = zip(sf.shape, sf.stride(), _strides(sf.shape, sf.element_size()))
    # While a graph is compiled, no address is known; one that is not aligned is only slower.
    is_aligned = sf.is_meta or torch.compiler.is_compiling() or sf.data_ptr() % _TMA_ALIGNMENT_BYTES == 0
    return is_aligned and all(size == 1 or have == want for size, have, want in strides)
