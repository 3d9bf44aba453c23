"""Plans of the one-pass kernels that quantise to FP8 and that change the layout of scales (planned.py).

A plan is None, and the caller uses the torch formula, for other dtypes and granularities than those of the kernels, for
memory that they do not walk, and beyond their limits of size. The kernels record no autograd graph.
"""

import functools
import math
from typing import NamedTuple

import torch

from deep_gemm import _C
from deep_gemm.planned import KernelOf, Launch, Memory, Plan, argument, get_kernel, memory
from deep_gemm.recorded_calls import SwigluCast

_MAX_SLICES = (1 << 31) - (1 << 22)  # of one group: indices and their steps have 32 bits
_MAX_GRID_Y = 65535
_CTAS_PER_SM = 16  # of masked groups: enough of each that groups of unequal size share the SMs
ELEMENTS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}  # as recorded calls have them
_ROW_THREADS, _CHUNKS, _UNROLL = 256, 2, 2  # cast_rows.cuh
RUN = 8  # gates or ups beside each other, where they are interleaved
_COLUMNS = 128  # cast_blocks.cuh
_LAYOUT_ROWS, _LAYOUT_COLUMNS = 64, 64  # scale_layout.cuh
_PACKING_THREADS = 256  # k_grouped_packing.cuh
_FP8, _FLOAT = torch.float8_e4m3fn, torch.float32

#: (shape, strides).
Layout = tuple[tuple[int, ...], tuple[int, ...]]
#: Whether gates and ups are interleaved, and the bits of the limit in FP32, -1 for none.
Swiglu = tuple[int, int]
X, MASKED_M, DATA, SCALES = argument(0), argument(1), memory(0), memory(1)


def name_row_kernel(
    dtype: torch.dtype,
    gran: int,
    use_ue8m0: bool,
    is_masked: bool,
    is_aligned: bool = True,
    swiglu: Swiglu | None = None,
) -> KernelOf:
    """Return the kernel of plan_rows. `is_aligned`: all rows and groups of rows are multiples of 16 bytes."""
    is_interleaved, limit_bits = swiglu or (0, -1)
    constants = {
        "kElement": ELEMENTS[dtype], "kGran": gran, "kUe8m0": int(use_ue8m0), "kSwiglu": int(bool(swiglu)),
        "kInterleaved": is_interleaved, "kLimited": int(limit_bits >= 0), "kMasked": int(is_masked),
        "kAligned": int(is_aligned), "kSaturates": int(_does_torch_saturate()),
    }  # fmt: skip
    return "cast_rows", _ROW_THREADS, constants


def name_block_kernel(
    dtype: torch.dtype, gran: int, use_ue8m0: bool, is_per_column: bool, is_aligned: bool = True
) -> KernelOf:
    """Return the kernel of plan_blocks."""
    constants = {
        "kElement": ELEMENTS[dtype], "kGran": gran, "kUe8m0": int(use_ue8m0), "kPerColumn": int(is_per_column),
        "kAligned": int(is_aligned), "kSaturates": int(_does_torch_saturate()),
    }  # fmt: skip
    return "cast_blocks", 16 * _COLUMNS * dtype.itemsize // 16, constants


def plan_rows(
    x: torch.Tensor,
    gran: int,
    use_ue8m0: bool,
    is_masked: bool = False,
    is_mn_major: bool = False,
    swiglu: Swiglu | None = None,
    matrices: Layout | None = None,
) -> Plan | None:
    """Plan per_token_cast_to_fp8 and swiglu_per_token_cast_to_fp8 of argument 0; argument 1 is masked_m, if any.
    `matrices`: (shape, strides) that x is read as, [..., m, n], by default its own; results have these dims.
    """
    walk = _walk_rows(x, gran, is_masked, is_mn_major, swiglu, matrices)
    if walk is None:
        return None
    groups, rows, n, slices, size = walk.groups, walk.rows, walk.n, walk.slices, x.element_size()
    mask, limit_bits = MASKED_M if is_masked else 0, swiglu[1] if swiglu else -1
    numbers = (
        mask, groups, rows, n, slices, *divider(max(slices, 2)), walk.group_stride * size, walk.row_stride * size,
        *_group_strides(walk.scales), max(limit_bits, 0),
    )  # fmt: skip
    name, threads, constants = name_row_kernel(x.dtype, gran, use_ue8m0, is_masked, walk.is_aligned, swiglu)
    kernel = get_kernel(name, threads, **constants)
    ctas = -(-rows * slices // (_ROW_THREADS * _UNROLL))
    if is_masked:
        ctas = min(ctas, -(-_CTAS_PER_SM * _sm_count(x) // max(groups, 1)))
    grid = (ctas, min(groups, _MAX_GRID_Y))
    outputs = Memory(*_contiguous((*walk.scales[0][:-1], n)), _FP8), Memory(*walk.scales, _FLOAT)
    return make_plan(kernel, grid, outputs, (X, DATA, SCALES, *numbers))


class _Walk(NamedTuple):
    """How a kernel goes through rows: strides in elements, and slices of a row, each for a thread."""

    groups: int
    rows: int
    n: int
    slices: int
    group_stride: int
    row_stride: int
    scales: Layout
    is_aligned: bool


def _walk_rows(
    x: torch.Tensor, gran: int, is_masked: bool, is_mn_major: bool, swiglu: Swiglu | None, matrices: Layout | None
) -> _Walk | None:
    """Return how the kernel of plan_rows goes through x, None where it cannot."""
    chunk, matrices = 16 // x.element_size(), matrices or _layout_of(x)
    if x.dtype not in ELEMENTS or gran not in [chunk * lanes for lanes in (2, 4, 8, 16, 32)]:
        return None
    if not _is_walkable(matrices):
        return None
    *leading, m, n = matrices[0]
    n = n // 2 if swiglu else n
    if swiglu and swiglu[0] and (chunk != RUN or n % RUN):
        return None
    num_scales = -(-n // gran)
    scales = scale_layout((*leading, m, num_scales), is_mn_major)
    is_joint = not is_masked and (not is_mn_major or math.prod(leading) == 1)
    groups, rows, group_stride, row_stride = _as_groups(matrices, is_joint)
    slices = num_scales * gran // (chunk * _CHUNKS)
    if rows * slices > _MAX_SLICES or slices == 1:  # the kernel's division is none by 1
        return None
    is_aligned = _is_aligned(x, (group_stride, row_stride, n)) and n % chunk == 0
    return _Walk(groups, rows, n, slices, group_stride, row_stride, scales, is_aligned)


def describe_swiglu(
    x: torch.Tensor, gran: int, use_ue8m0: bool, is_masked: bool, is_mn_major: bool, swiglu: Swiglu
) -> SwigluCast | None:
    """Return the call of a SwiGLU's plan_rows as it is recorded; None where no kernel runs it."""
    walk = _walk_rows(x, gran, is_masked, is_mn_major, swiglu, None)
    if walk is None or not x.numel():
        return None
    word = next(word for word, dtype in _DTYPES.items() if dtype == x.dtype)
    return SwigluCast(word, gran, bool(use_ue8m0), is_masked, bool(swiglu[0]), swiglu[1] >= 0, walk.is_aligned)


def list_kernels(call: SwigluCast) -> list[KernelOf]:
    """Return the kernel that a recorded call needs."""
    form = int(call.is_interleaved), 0 if call.has_limit else -1
    dtype = _DTYPES[call.dtype]
    return [name_row_kernel(dtype, call.gran_k, call.use_ue8m0, call.is_masked, call.is_aligned, form)]


def plan_whole_rows(x: torch.Tensor, num_kept: int, use_ue8m0: bool) -> Plan | None:
    """Plan per_custom_dims_cast_to_fp8 of argument 0, a scale for each index of its first `num_kept` dims: rows as wide
    as one scale of plan_rows, or less, whose results get the dims of x.
    """
    shape, strides = _layout_of(x)
    if not _is_contiguous(shape[num_kept:], strides[num_kept:]):
        return None
    n, chunk = math.prod(shape[num_kept:]), 16 // x.element_size()
    # Not two lanes: they are one slice, which plan_rows declines.
    widths = [chunk * lanes for lanes in (4, 8, 16, 32) if chunk * lanes >= n]
    if not widths:
        return None
    dims = [dim for dim in range(num_kept) if shape[dim] != 1]
    sizes, steps = tuple(shape[dim] for dim in dims), tuple(strides[dim] for dim in dims)
    rows = ((*sizes, n), (*steps, 1)) if dims else ((1, n), (n, 1))
    plan = plan_rows(x, widths[0], use_ue8m0, matrices=rows)
    outputs = (shape, _FP8), (sizes, _FLOAT)
    return plan and plan._replace(memory=tuple(Memory(*_contiguous(size), dtype) for size, dtype in outputs))


def plan_blocks(
    x: torch.Tensor, gran: int, use_ue8m0: bool, is_per_column: bool, is_padded: bool = False
) -> Plan | None:
    """Plan per_block_cast_to_fp8 and per_channel_cast_to_fp8 of argument 0. `is_padded`: the data of a matrix has room
    for rows up to a multiple of `gran`, which are not written.
    """
    if x.dtype not in ELEMENTS or gran not in (32, 64, 128) or not _is_walkable(_layout_of(x)):
        return None
    *leading, m, n = x.shape
    chunk, size = 16 // x.element_size(), x.element_size()
    scales = _contiguous((*leading, -(-m // gran), n if is_per_column else -(-n // gran)))
    groups, rows, group_stride, row_stride = _as_groups(_layout_of(x), m % gran == 0)
    grid = (-(-n // _COLUMNS), -(-rows // gran), groups)
    if max(grid[1:]) > _MAX_GRID_Y:
        return None
    columns = scales[0][-1]
    numbers = (rows, n, group_stride * size, row_stride * size, -(-rows // gran) * columns, columns, 1)
    is_aligned = _is_aligned(x, (group_stride, row_stride)) and n % chunk == 0
    name, threads, constants = name_block_kernel(x.dtype, gran, use_ue8m0, is_per_column, is_aligned)
    kernel = get_kernel(name, threads, **constants)
    room = -(-m // gran) * gran if is_padded else m
    outputs = Memory(*_contiguous((*leading, room, n)), _FP8), Memory(*scales, _FLOAT)
    return make_plan(kernel, grid, outputs, (X, DATA, SCALES, *numbers))


def plan_swiglu_grad(x: torch.Tensor, grad: torch.Tensor, has_y: bool) -> Plan | None:
    """Plan the derivative of SwiGLU of argument 0, rows [gate, up] [m, 2 * n], from argument 1 [m, n]; with the product
    itself or without it.
    """
    if x.dtype not in (torch.float32, torch.bfloat16) or grad.dtype != x.dtype:
        return None
    if not all(map(_is_walkable, map(_layout_of, (x, grad)))) or x.shape != (grad.shape[0], 2 * grad.shape[1]):
        return None
    m, n = grad.shape
    chunk, size = 16 // x.element_size(), x.element_size()
    chunks, strides = -(-n // chunk), (x.stride(0), grad.stride(0))
    if m * chunks > _MAX_SLICES or chunks == 1:  # the kernel's division is none by 1
        return None
    is_aligned = n % chunk == 0 and _is_aligned(x, strides) and _is_aligned(grad, strides)
    kernel = get_kernel(
        "swiglu_grad", _ROW_THREADS, kElement=ELEMENTS[x.dtype], kHasY=has_y, kAligned=is_aligned
    )  # fmt: skip
    numbers = (m, n, chunks, *divider(max(chunks, 2)), *(stride * size for stride in strides))
    outputs = tuple(Memory(*_contiguous(shape), x.dtype) for shape in ((m, 2 * n), (m, n))[: 1 + has_y])
    places = (X, argument(1), DATA, memory(1) if has_y else DATA)
    return make_plan(kernel, (-(-m * chunks // _ROW_THREADS),), outputs, (*places, *numbers))


def plan_layout(sf: torch.Tensor, is_packed: bool) -> Plan | None:
    """Plan the copy of argument 0, FP32 or packed scales [mn, k] or [groups, mn, k] whose rows are contiguous, into the
    MN-major layout; or the packing of FP32 scales, int32 [..., mn, ceil(k / 4)] in that layout.
    """
    dtypes = (_FLOAT,) if is_packed else (_FLOAT, torch.int32)
    if sf.dtype not in dtypes or sf.dim() not in (2, 3) or (sf.shape[-1] > 1 and sf.stride(-1) != 1):
        return None
    *leading, mn, k = sf.shape
    layout = scale_layout((*leading, mn, -(-k // 4) if is_packed else k), True)
    groups, in_group, in_row = math.prod(leading), sf.stride(0) if leading else 0, sf.stride(-2)
    out_group, _, out_column = _group_strides(layout)
    columns = layout[0][-1]
    tiles = -(-columns // _LAYOUT_COLUMNS)
    grid = (tiles, -(-mn // _LAYOUT_ROWS), groups)
    if max(grid[1:]) > _MAX_GRID_Y:
        return None
    is_aligned = k % 4 == 0 and _is_aligned(sf, (in_group, in_row))
    kernel = get_kernel("scale_layout", 256, kPack=is_packed, kAligned=is_aligned)
    width = -(-columns // max(tiles, 1))
    width = -(-width // 4) * 4 if is_aligned and not is_packed else width
    numbers = (mn, k, width, in_group, in_row, out_group, out_column)
    output = Memory(*layout, torch.int32 if is_packed else sf.dtype)
    return make_plan(kernel, grid, (output,), (X, DATA, 0, *numbers))


def plan_groups(
    sf: torch.Tensor, groups: torch.Tensor, words: int, gran_k: int, alignment: int, is_ends: bool
) -> Plan | None:
    """Plan the packing of argument 0, FP32 scales [rows, mn] of groups of K, into int32 [words, mn]; argument 1 is the
    K of each group, or its end, where the next one starts at the next multiple of `alignment`.
    """
    if sf.dtype != _FLOAT or sf.dim() != 2 or groups.dtype != torch.int32 or groups.dim() != 1:
        return None
    if not groups.is_contiguous() or (sf.shape[1] > 1 and sf.stride(1) != 1) or words > _MAX_GRID_Y:
        return None
    rows, mn = sf.shape
    is_aligned = mn % 4 == 0 and _is_aligned(sf, (sf.stride(0),))
    kernel = get_kernel("k_grouped_packing", _PACKING_THREADS, kEnds=is_ends, kAligned=is_aligned)
    grid = (-(-mn // (_PACKING_THREADS * (4 if is_aligned else 1))), words)
    numbers = (len(groups), rows, mn, gran_k, alignment, sf.stride(0))
    return make_plan(kernel, grid, (Memory(*_contiguous((words, mn)), torch.int32),), (X, argument(1), DATA, *numbers))


def make_plan(kernel, grid: tuple[int, ...], outputs: tuple[Memory, ...], arguments: tuple) -> Plan:
    """Return the plan; nothing is launched where nothing is written."""
    launches = (Launch(kernel, grid, arguments),) if all(grid) else ()
    return Plan(launches, outputs, tuple(memory(i)[0] for i in range(len(outputs))))


def _layout_of(x: torch.Tensor) -> Layout:
    return tuple(x.shape), x.stride()


def _is_walkable(matrices: Layout) -> bool:
    """Return whether columns lie beside each other and one stride leads from each matrix to the next."""
    shape, strides = matrices
    return (strides[-1] == 1 or shape[-1] == 1) and (len(strides) <= 3 or _has_one_group_stride(shape, strides))


def _has_one_group_stride(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether one stride leads from each matrix of [..., m, n] to the next."""
    groups = range(len(shape) - 3)
    return all(strides[i] == strides[i + 1] * shape[i + 1] for i in groups if shape[i] > 1)


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    wanted = _contiguous(shape)[1]
    return all(size == 1 or stride == want for size, stride, want in zip(shape, strides, wanted, strict=True))


def _as_groups(matrices: Layout, is_joint: bool) -> tuple[int, int, int, int]:
    """Return groups, rows of each, and the strides of both; one group where that is allowed and strides agree."""
    (*leading, m, _), strides = matrices
    groups, row_stride = math.prod(leading), strides[-2]
    group_stride = strides[-3] if leading else 0
    if m == 1:  # no stride within a group, but one that joins the groups
        row_stride = group_stride if groups > 1 else 0
    if is_joint and (groups == 1 or group_stride == m * row_stride):
        return 1, groups * m, 0, row_stride
    return groups, m, group_stride if groups > 1 else 0, row_stride if m > 1 else 0


def _is_aligned(x: torch.Tensor, strides: tuple[int, ...]) -> bool:
    return x.data_ptr() % 16 == 0 and all(stride * x.element_size() % 16 == 0 for stride in strides)


def _contiguous(shape: tuple[int, ...]) -> Layout:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return tuple(shape), tuple(reversed(strides[: len(shape)]))


def scale_layout(shape: tuple[int, ...], is_mn_major: bool) -> Layout:
    """Return (shape, strides) of scales [..., m, k]: contiguous, or MN-major and TMA-aligned."""
    if not is_mn_major:
        return _contiguous(shape)
    *leading, m, k = shape
    aligned = (m + 3) // 4 * 4  # as quantize.align has it: a graph compares both for any m
    return tuple(shape), (*(stride * aligned * k for stride in _contiguous((*leading, 1))[1][:-1]), 1, aligned)


def _group_strides(layout: Layout) -> tuple[int, int, int]:
    shape, strides = layout
    return (strides[-3] if len(shape) > 2 else 0), strides[-2], strides[-1]


def divider(divisor: int) -> tuple[int, int]:
    """Return (magic, shift) with x // divisor == (x * magic >> 32) >> shift for 0 <= x < 2**31 and divisor >= 2."""
    bits = (divisor - 1).bit_length()
    return -(-(1 << (31 + bits)) // divisor), bits - 1


def _sm_count(x: torch.Tensor) -> int:
    return _C.get_device(x.get_device()).sm_count


@functools.cache
def _does_torch_saturate() -> bool:
    """Return whether torch casts numbers beyond 448 to 448, as from 2.13 on, or to NaN."""
    return bool(torch.tensor(1e3).to(_FP8).float() == 448)
