"""Layouts of scale factors, FP32 and packed, and the alignment of the rows of contiguous groups.

The kernels read scales with any strides. For A's scales they prefer the MN-major layout whose leading dimension is
padded to 16 bytes ("TMA-aligned"): [mn, k] with strides (1, align(mn, 4)).
"""

import math

import torch

from deep_gemm import _C, cast_kernels, planned
from deep_gemm.arguments import check_flag, check_integer, check_integers, shorten
from deep_gemm.errors import ArgumentError, DtypeError, ShapeError
from deep_gemm.operands import check_device, check_tensor, is_fake
from deep_gemm.packing import PER_WORD, check_scales, exponents_of
from deep_gemm.quantize import align, ceil_div, make_mn_major

_TMA_ALIGNMENT_BYTES = 16
_QUANTIZED_DTYPES = (torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4)
#: More than any process can address; far beyond them torch has no number for a size.
_MAX_BYTES = 1 << 56
_DEFAULT_RECIPE = (1, 128, 128)
_DEFAULT_ALIGNMENT = next(field.default for field in _C.PROBLEM_FIELDS if field.name == "alignment")

set_mk_alignment_for_contiguous_layout = _C.set_mk_alignment_for_contiguous_layout
get_mk_alignment_for_contiguous_layout = _C.get_mk_alignment_for_contiguous_layout
# Rows and K share one alignment; these are DeepGEMM's names for it.
get_m_alignment_for_contiguous_layout = get_k_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout


def get_tma_aligned_size(x: int, element_size: int = 4) -> int:
    """Return x rounded up so that x elements of `element_size` bytes, a divisor of 16, fill whole 16-byte units.

    Raises: ArgumentError.
    """
    x, element_size = check_integer("x", x), check_integer("element_size", element_size, 1)
    if _TMA_ALIGNMENT_BYTES % element_size:
        raise ArgumentError(f"element_size = {element_size}: must be 1, 2, 4, 8 or 16 bytes; pass that of a dtype.")
    return align(x, _TMA_ALIGNMENT_BYTES // element_size)


def get_mn_major_tma_aligned_tensor(sf, dtype: torch.dtype | None = None, device=None) -> torch.Tensor:
    """Return scales in the MN-major, TMA-aligned layout.

    Args:
        sf: float32 scales [mn, k] or [groups, mn, k], any strides; or such a shape, for an empty tensor.
        dtype, device: those of the empty tensor; by default float32 and torch's default device.

    Returns: a tensor of sf's shape with strides (1, aligned_mn) in its last two dims, also where a dim has size 1; sf
        or its memory where that has this layout. Zero sizes give an empty tensor of the shape.

    Raises: ShapeError for another rank, or more numbers than memory can have; DtypeError for scales that are not
        float32; ArgumentError for no dtype or device of dense tensors, DeviceError for a device that is not there.
    """
    made = _lay_out(sf)
    if made is not NotImplemented:
        return made
    if not isinstance(sf, torch.Tensor):
        return _make_empty(check_integers("sf", sf), torch.float32 if dtype is None else dtype, device)
    _check_sm90_scales(sf)
    return _align(sf)


def _check_sm90_scales(sf: torch.Tensor) -> None:
    check_tensor("sf", sf)
    if sf.dtype != torch.float32:
        raise DtypeError(f"sf.dtype = {sf.dtype}: scales on SM90 are torch.float32; convert them with .float().")
    _check_rank(sf.shape)


def _align(sf: torch.Tensor) -> torch.Tensor:
    """Return sf, of any dtype of 4 bytes, in the MN-major layout."""
    if _is_mn_major(sf):
        strides = _strides(sf.shape, sf.element_size())
        return sf if sf.stride() == strides else sf.detach().as_strided(sf.shape, strides)
    return make_mn_major(sf.detach())


def _plan_alignment(sf: torch.Tensor) -> planned.Plan | None:
    """Plan what _align does."""
    if not _is_mn_major(sf):
        return cast_kernels.plan_layout(sf, False)
    is_done = sf.stride() == _strides(sf.shape, sf.element_size())
    return planned.Plan((), (), planned.argument(0)[:1]) if is_done else None


def get_theoretical_mk_alignment_for_contiguous_layout(
    expected_m: int | None = None, num_groups: int | None = None
) -> int:
    """Return the alignment of contiguous groups that the kernels are fastest with: 128 on SM90, whatever the groups.

    Args:
        expected_m: rows of a group, or None. num_groups: at least 1, or None.

    Raises: ArgumentError.
    """
    for name, value, minimum in (("expected_m", expected_m, 0), ("num_groups", num_groups, 1)):
        if value is not None:
            check_integer(name, value, minimum)
    return _DEFAULT_ALIGNMENT


def get_mn_major_tma_aligned_packed_ue8m0_tensor(sf, device=None) -> torch.Tensor:
    """Return scales packed as UE8M0 in the MN-major, TMA-aligned layout.

    Args:
        sf: float32 scales [mn, k] or [groups, mn, k], any strides; the exponents of numbers that are no powers of two
            are taken as they are. Or such a shape, for an empty tensor.
        device: that of the empty tensor.

    Returns: int32 [..., mn, ceil(k / 4)] with strides (1, align(mn, 4)) in its last two dims; bytes beyond k are 0.
    Raises: as get_mn_major_tma_aligned_tensor.
    """
    made = _pack_up(sf)
    if made is not NotImplemented:
        return made
    if not isinstance(sf, torch.Tensor):
        sizes = check_integers("sf", sf)
        _check_rank(sizes)
        shape = (*sizes[:-1], ceil_div(sizes[-1], PER_WORD))
        return get_mn_major_tma_aligned_tensor(shape, torch.int32, device)
    check_scales(sf)
    _check_rank(sf.shape)
    return _pack_in_torch(sf)


def _pack_in_torch(sf: torch.Tensor) -> torch.Tensor:
    *leading, k = sf.shape
    if sf.numel() == 0:
        return get_mn_major_tma_aligned_tensor((*leading, ceil_div(k, PER_WORD)), torch.int32, sf.device)
    padded = torch.nn.functional.pad(exponents_of(sf), (0, align(k, PER_WORD) - k))
    return make_mn_major(padded.clone(memory_format=torch.contiguous_format).view(torch.int32))


def transform_sf_into_required_layout(
    sf: torch.Tensor,
    mn: int | None = None,
    k: int | None = None,
    recipe: tuple[int, ...] | None = None,
    num_groups: int | None = None,
    is_sfa: bool | None = None,
    disable_ue8m0_cast: bool = False,
    *,
    target: str | None = None,
    psum_layout: None = None,
) -> torch.Tensor:
    """Return scales in the layout that kernels prefer: FP32 for those of SM90, or packed UE8M0 for those of SM100.

    Args:
        sf: float32 [ceil(mn / gran_mn), ceil(k / gran_k)], with a leading [num_groups] where that is given.
        mn, k: sizes of the operand, for the shape check (skipped when omitted).
        recipe: granularity (gran_m, gran_n, gran_k), default (1, 128, 128), of which A uses gran_m (`is_sfa`) and B
            gran_n; or that of the operand itself, (gran_mn, gran_k).
        disable_ue8m0_cast: accepted for compatibility; scales stay FP32 on SM90.
        target: None for SM90, where gran_k is 128 and gran_mn 1 or 128. "ue8m0" for SM100, where gran_k may be 32 as
            well: takes mn, and int32 scales that are packed already.
        psum_layout: None; the kernels that skip rows between groups are for SM100.

    Returns: MN-major TMA-aligned scales, whose values never change, for granularity 1, and sf itself for blocks of 128.
        Packed: int32 [mn, ceil(k / (4 * gran_k))], likewise MN-major, one row for each row of the operand.
    Raises: ArgumentError for an unknown recipe or target, ShapeError, DtypeError.
    """
    if psum_layout is not None:
        raise ArgumentError(f"psum_layout = {shorten(psum_layout)}: SM100 only; pass None, which transforms all rows.")
    made = _transform(sf, mn, k, recipe, num_groups, is_sfa, target)
    if made is not NotImplemented:
        return made
    gran_mn = _check_transform(sf, mn, k, recipe, num_groups, is_sfa, target)
    if target is not None:
        return _pack(sf, mn, gran_mn)
    return get_mn_major_tma_aligned_tensor(sf) if gran_mn == 1 else sf


def _check_transform(
    sf: torch.Tensor,
    mn: int | None,
    k: int | None,
    recipe: tuple[int, ...] | None,
    num_groups: int | None,
    is_sfa: bool | None,
    target: str | None,
) -> int:
    """Return the rows of the operand that share a scale."""
    check_tensor("sf", sf)
    check_flag("is_sfa", is_sfa)
    if target is None:
        _check_sm90_scales(sf)
    if target is not None and not (isinstance(target, str) and target == "ue8m0"):
        raise ArgumentError(
            f"target = {shorten(target)}: must be None (FP32 scales of SM90) or 'ue8m0'; pass one of them."
        )
    recipe = _DEFAULT_RECIPE if recipe is None else check_integers("recipe", recipe) or _DEFAULT_RECIPE
    gran_mn, gran_k = _granularity(recipe, bool(is_sfa), target)
    for name, size in (("mn", mn), ("k", k), ("num_groups", num_groups)):
        if size is not None:
            check_integer(name, size)
    if mn is not None and k is not None:
        is_packed = sf.dtype == torch.int32
        steps = ceil_div(k, gran_k * (PER_WORD if is_packed else 1))
        _check_shape(sf, (mn if is_packed else ceil_div(mn, gran_mn), steps), num_groups)
    return gran_mn


def _granularity(recipe: tuple[int, ...], is_sfa: bool, target: str | None) -> tuple[int, int]:
    """Return (gran_mn, gran_k) of one operand."""
    own = (recipe[0] if is_sfa else recipe[1], recipe[2]) if len(recipe) == 3 else recipe
    allowed = ((1, 128), (128, 128)) if target is None else ((1, 128), (128, 128), (1, 32), (32, 32))
    if own not in allowed or (len(recipe) == 3 and recipe[0] != 1):
        raise ArgumentError(
            f"recipe = {recipe}: must be (1, 128, 128), (1, 1, 128), (1, 128) or (128, 128) on SM90, or None; others"
            " are SM100 only: pass target='ue8m0' for them."
        )
    return own  # type: ignore[return-value]


def _pack(sf: torch.Tensor, mn: int | None, gran_mn: int) -> torch.Tensor:
    _check_rank(sf.shape)
    if sf.dtype == torch.int32:
        return _align(sf)
    if gran_mn > 1:
        if mn is None:
            raise ArgumentError("mn = None: packed scales have a row for each row of the operand; pass mn and k.")
        sf = sf.repeat_interleave(gran_mn, dim=-2)[..., :mn, :]
    return get_mn_major_tma_aligned_packed_ue8m0_tensor(sf)


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
    leading = align(mn, _TMA_ALIGNMENT_BYTES // element_size)
    return (leading * k, 1, leading) if groups else (1, leading)


def _make_empty(sizes: tuple[int, ...], dtype: torch.dtype, device) -> torch.Tensor:
    """Return an empty tensor of what a caller asks for."""
    if not isinstance(dtype, torch.dtype) or dtype in _QUANTIZED_DTYPES:
        raise ArgumentError(f"dtype = {shorten(dtype)}: must be a torch.dtype of plain numbers; pass torch.float32.")
    _check_rank(sizes)
    if not torch.compiler.is_compiling():
        device = check_device("device", device)
        if math.prod(size for size in sizes if type(size) is int) * dtype.itemsize > _MAX_BYTES:
            raise ShapeError(f"sf = {shorten(sizes)}: takes more bytes than any memory has; pass smaller sizes.")
    return _make_mn_major(sizes, dtype, device)


def _make_mn_major(shape, dtype: torch.dtype, device) -> torch.Tensor:
    _check_rank(shape)
    return torch.empty_strided(shape, _strides(shape, dtype.itemsize), dtype=dtype, device=device)


def _is_mn_major(sf: torch.Tensor) -> bool:
    """Return whether sf has this layout at an aligned address; the strides of dims of size 1 do not count."""
    strides = zip(sf.shape, sf.stride(), _strides(sf.shape, sf.element_size()))
    return _is_aligned(sf) and all(_is_true(size == 1) or _is_true(have == want) for size, have, want in strides)


def _is_aligned(sf: torch.Tensor) -> bool:
    if sf.is_meta or is_fake(sf) or torch.compiler.is_compiling():
        return True  # while a graph is made, no address is known; one that is not aligned is only slower
    try:
        return sf.data_ptr() % _TMA_ALIGNMENT_BYTES == 0
    except RuntimeError:  # a tensor of torch.vmap, whose memory is that of many
        return False


def _is_true(claim) -> bool:
    """Return whether a claim about sizes holds, in a graph for all sizes: to ask it would fix them."""
    if not torch.compiler.is_compiling() and isinstance(claim, bool):
        return claim
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # which eager calls need not load

    return statically_known_true(claim)


def _plan_layout(sf: torch.Tensor) -> planned.Plan | None:
    _check_sm90_scales(sf)
    return _plan_alignment(sf)


def _plan_packing(sf: torch.Tensor) -> planned.Plan | None:
    check_scales(sf)
    return cast_kernels.plan_layout(sf, True)


def _plan_transform(sf: torch.Tensor, mn, k, recipe, num_groups, is_sfa, target) -> planned.Plan | None:
    gran_mn = _check_transform(sf, mn, k, recipe, num_groups, is_sfa, target)
    if target is not None:
        return _plan_packing(sf) if gran_mn == 1 and sf.dtype == torch.float32 else None
    return _plan_layout(sf) if gran_mn == 1 else planned.Plan((), (), planned.argument(0)[:1])


_lay_out = planned.make_call("get_mn_major_tma_aligned_tensor", _plan_layout)
_pack_up = planned.make_call("get_mn_major_tma_aligned_packed_ue8m0_tensor", _plan_packing)
_transform = planned.make_call("transform_sf_into_required_layout", _plan_transform)
