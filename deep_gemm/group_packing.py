"""Packed scales of products whose K is divided among groups: one kernel for all groups, or the same in torch."""

import torch

from deep_gemm import cast_kernels, planned
from deep_gemm.arguments import check_flag, check_integer, check_integers, shorten
from deep_gemm.errors import ArgumentError, DtypeError, ShapeError
from deep_gemm.operands import check_numbers, check_tensor
from deep_gemm.packing import PER_WORD, check_scales, exponents_of
from deep_gemm.quantize import SCALE_BLOCK, align, ceil_div

Sizes = list[int] | tuple[int, ...]


def get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
    sf: torch.Tensor,
    ks_tensor: torch.Tensor | None = None,
    ks: Sizes | None = None,
    gran_k: int = SCALE_BLOCK,
    k_alignment: int | None = None,
    use_psum_layout: bool = False,
    *,
    grouped_layout: torch.Tensor | None = None,
    ks_cpu: Sizes | None = None,
) -> torch.Tensor:
    """Return the scales of groups of K packed as UE8M0; no word holds scales of two groups.

    One kernel packs all groups where `ks_tensor` is int32 on the GPU of sf, whose rows are contiguous. With
    use_psum_layout, or with ks as well, the host then never waits.

    Args:
        sf: float32 [sum of ceil(K / gran_k), mn], rows of one group after the other.
        ks_tensor: int32 [num_groups], the K of each group; without `ks`, the host reads it and waits for the GPU. With
            use_psum_layout, where each group ends in K. Also called grouped_layout.
        ks: the K of each group on the host; empty: not given. With use_psum_layout it only says how many rows of words
            to return, and each may be rounded up. Also called ks_cpu.
        gran_k: elements of K that share a scale.
        k_alignment: with use_psum_layout, a group starts at the end of the one before rounded up to it; by default 128,
            as in products.

    Returns: int32 [sum of ceil(K / (4 * gran_k)), mn], contiguous. With use_psum_layout and no ks
        [(rows of sf + 3 * num_groups) // 4, mn], enough for any ends. Rows behind the last group's are 0.
    Raises: ArgumentError without any ks; ShapeError where sf has other rows; DtypeError. Ends on the GPU cannot be
        checked: those beyond sf pack zeros.
    """
    groups = ks_tensor if ks_tensor is not None else grouped_layout
    if use_psum_layout is True and groups is not None and ks is None and ks_cpu is None:
        made = _pack(sf, groups, None, gran_k, k_alignment, True)
        if made is not NotImplemented:
            return made
    check_flag("use_psum_layout", use_psum_layout)
    steps = _check(sf, gran_k, k_alignment)
    sizes = _given_sizes(ks, ks_cpu)
    _check_groups(groups, sizes)
    return (_pack_by_ends if use_psum_layout else _pack_by_sizes)(sf, groups, sizes, *steps)


def _check(sf: torch.Tensor, gran_k: int, k_alignment: int | None) -> tuple[int, int]:
    """Return the elements of K that share a scale, and the alignment of groups."""
    check_scales(sf)
    if sf.dim() != 2:
        raise ShapeError(f"sf.ndim = {sf.dim()}: must be [sum of ceil(ks / {shorten(gran_k)}), mn]; reshape it.")
    alignment = SCALE_BLOCK if k_alignment is None else check_integer("k_alignment", k_alignment, 1)
    return check_integer("gran_k", gran_k, 1), alignment


def _given_sizes(ks, ks_cpu) -> tuple[int, ...] | None:
    is_given = ks is not None and not (isinstance(ks, (list, tuple)) and not ks)
    given = ks if is_given else ks_cpu
    return None if given is None else check_integers("ks", given)


def _check_groups(groups: torch.Tensor | None, sizes: tuple[int, ...] | None) -> None:
    if groups is None:
        return
    check_tensor("ks_tensor", groups)
    if groups.is_floating_point() or groups.is_complex() or groups.dtype is torch.bool:
        raise DtypeError(f"ks_tensor.dtype = {groups.dtype}: must be integers; convert it with .int().")
    if groups.dim() != 1 or (sizes and groups.shape[0] != len(sizes)):
        count = len(sizes) if sizes else "num_groups"
        raise ShapeError(f"ks_tensor.shape = {list(groups.shape)}: must be [{count}]; pass one number for each group.")


def _pack_by_sizes(sf, groups, sizes: tuple[int, ...] | None, gran_k: int, alignment: int) -> torch.Tensor:
    if sizes is None:
        if groups is None:
            raise ArgumentError("ks = None: the K of the groups is not known; pass ks or ks_tensor.")
        sizes = _read(groups)
    rows = [ceil_div(k, gran_k) for k in sizes]
    if sf.shape[0] != sum(rows):
        raise ShapeError(
            f"sf.shape = {list(sf.shape)}: must be [sum of ceil(ks / {gran_k}), mn] = [{sum(rows)}, mn]; check ks."
        )
    words = _count_words(rows)
    made = NotImplemented if groups is None else _pack(sf, groups, words, gran_k, alignment, False)
    return _pack_in_torch(sf, rows, words) if made is NotImplemented else made


def _pack_by_ends(sf, groups, sizes: tuple[int, ...] | None, gran_k: int, alignment: int) -> torch.Tensor:
    if groups is None:
        raise ArgumentError("ks_tensor = None: with use_psum_layout it holds the ends of the groups; pass it.")
    words = _count_words([ceil_div(k, gran_k) for k in sizes]) if sizes else _most_words(sf, groups)
    made = _pack(sf, groups, words, gran_k, alignment, True)
    if made is not NotImplemented:
        return made
    if sf.is_meta:
        return sf.new_empty((words, sf.shape[1]), dtype=torch.int32)
    rows = _rows_of_ends(_read(groups), gran_k, alignment)
    if sum(rows) > sf.shape[0] or _count_words(rows) > words:
        raise ShapeError(
            f"ks_tensor: these ends need {sum(rows)} rows of scales and {_count_words(rows)} of words, but sf has"
            f" {sf.shape[0]} and ks make {words}; check ks_tensor, ks, gran_k and k_alignment."
        )
    return _pack_in_torch(sf, rows, words)


def _most_words(sf: torch.Tensor, groups: torch.Tensor) -> int:
    """Return the rows of words that are enough for any ends: each group may leave three places of its last one free."""
    num_groups = groups.shape[0]
    return (sf.shape[0] + (PER_WORD - 1) * num_groups) // PER_WORD if num_groups else 0


def _read(groups: torch.Tensor) -> tuple[int, ...]:
    check_numbers("ks_tensor", groups)
    return check_integers("ks_tensor", groups.tolist())


def _rows_of_ends(ends: tuple[int, ...], gran_k: int, alignment: int) -> list[int]:
    """Return the rows of scales of each group; an empty one ends where it starts, or where the one before ends."""
    starts = [0, *(align(end, alignment) for end in ends)]
    return [ceil_div(max(end - start, 0), gran_k) for start, end in zip(starts, ends)]


def _count_words(rows: list[int]) -> int:
    return sum(ceil_div(count, PER_WORD) for count in rows)


def _pack_in_torch(sf: torch.Tensor, rows: list[int], words: int) -> torch.Tensor:
    mn = sf.shape[1]
    if not words or not mn:
        return sf.new_empty((words, mn), dtype=torch.int32)
    groups = exponents_of(sf[: sum(rows)]).split(rows)
    padded = [torch.nn.functional.pad(group, (0, 0, 0, -len(group) % PER_WORD)) for group in groups]
    rest = groups[0].new_zeros((PER_WORD * (words - _count_words(rows)), mn))
    in_words = torch.cat([*padded, rest]).view(words, PER_WORD, mn).mT
    return in_words.contiguous().view(torch.int32).squeeze(-1)


def _plan(
    sf: torch.Tensor, groups: torch.Tensor, words: int | None, gran_k: int, k_alignment: int | None, is_ends: bool
) -> planned.Plan | None:
    steps = _check(sf, gran_k, k_alignment)
    _check_groups(groups, None)
    return cast_kernels.plan_groups(sf, groups, _most_words(sf, groups) if words is None else words, *steps, is_ends)


_pack = planned.make_call("get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor", _plan)
