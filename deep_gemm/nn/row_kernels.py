"""Plans of the kernels that find the rows of choices of experts (place_rows.cuh), and move rows between tokens and
their choices (spread_rows.cuh, combine_rows.cuh).

A plan is None, and the caller uses the torch formula, for dtypes other than FP32 and BF16, rows that are no whole
chunks of 16 bytes at multiples of 16, and sizes beyond 32 bits. Choices of rows that a matrix does not have are left
out.
"""

import torch

from deep_gemm import cast_kernels
from deep_gemm.group_rows import MOST_GROUPS, Form, count_most_rows, find_placing_kernel
from deep_gemm.planned import Memory, Place, Plan, argument, get_kernel, memory
from deep_gemm.quantize import SCALE_BLOCK

_THREADS = 256
_CHUNK_BYTES = 16


def plan_place(experts: torch.Tensor, num_experts: int, is_masked: bool) -> Plan | None:
    """Plan finding the rows of the choices that argument 0 holds, int64 [tokens, top_k] as words: the same form of them
    and int32 [num_experts], see routing.Placement.
    """
    tokens, top_k = len(experts), experts.shape[1] // 2
    room, form = (tokens, Form.MASKED) if is_masked else (SCALE_BLOCK, Form.CONTIGUOUS)
    num_rows = num_experts * tokens if is_masked else count_most_rows(tokens * top_k, num_experts, SCALE_BLOCK)
    if not 1 <= num_experts <= MOST_GROUPS or not 1 <= tokens * top_k < 1 << 31 or num_rows >= 1 << 31:
        return None
    name, threads, constants = find_placing_kernel(num_experts, form)
    outputs = Memory((tokens, 2 * top_k), (2 * top_k, 1), torch.int32), Memory((num_experts,), (1,), torch.int32)
    places, numbers = (argument(0), memory(0), memory(1)), (tokens * top_k, top_k, num_experts, room, num_rows)
    return cast_kernels.make_plan(get_kernel(name, threads, **constants), (1,), outputs, (*places, *numbers))


def plan_spread(x: torch.Tensor, rows: torch.Tensor, weights: torch.Tensor | None, out: torch.Tensor) -> Plan | None:
    """Plan the copies of argument 0 [tokens, n], times the weight of each choice, where there are weights, into rows of
    argument 3 [num_rows, n]. Argument 1 is the row of each choice, int64 [tokens, top_k], as words
    (`rows.view(torch.int32)`), because the native module has no int64; argument 2 FP32 [tokens, top_k].
    """
    if not _is_good(out) or out.dtype != x.dtype or not out.is_contiguous() or x.shape[1] != out.shape[1]:
        return None
    return _plan("spread_rows", x, rows, weights, len(out), argument(3), ())


def plan_combine(y: torch.Tensor, rows: torch.Tensor, weights: torch.Tensor | None) -> Plan | None:
    """Plan the sums [tokens, n] of rows of argument 0 [num_rows, n], times the weight of each choice, where there are
    weights; arguments as for plan_spread.
    """
    shape = (len(rows), y.shape[1])
    return _plan("combine_rows", y, rows, weights, len(y), memory(0), (Memory(shape, (shape[1], 1), y.dtype),))


def _plan(
    name: str,
    source: torch.Tensor,
    rows: torch.Tensor,
    weights: torch.Tensor | None,
    num_rows: int,
    target: Place,
    outputs: tuple[Memory, ...],
) -> Plan | None:
    if not _is_good(source) or not _are_choices(rows, weights):
        return None
    tokens, top_k, size = len(rows), rows.shape[1] // 2, source.element_size()
    chunks = source.shape[1] * size // _CHUNK_BYTES
    if chunks < 2 or max(tokens * chunks, tokens * top_k, num_rows) >= 1 << 31:  # the division is none by 1
        return None
    kernel = get_kernel(name, _THREADS, kElement=cast_kernels.ELEMENTS[source.dtype], kWeighted=weights is not None)
    numbers = (tokens, top_k, chunks, *cast_kernels.divider(chunks), num_rows, source.stride(0) * size)
    places = (argument(0), argument(1), argument(2) if weights is not None else 0, target)
    return cast_kernels.make_plan(kernel, (-(-tokens * chunks // _THREADS),), outputs, (*places, *numbers))


def _is_good(matrix: torch.Tensor) -> bool:
    """Return whether rows are whole chunks."""
    size = matrix.element_size()
    strides = (matrix.stride(0) * size, matrix.shape[1] * size, matrix.data_ptr())
    return (
        matrix.dtype in (torch.float32, torch.bfloat16)
        and (matrix.stride(1) == 1 or matrix.shape[1] == 1)
        and not any(stride % _CHUNK_BYTES for stride in strides)
    )


def _are_choices(rows: torch.Tensor, weights: torch.Tensor | None) -> bool:
    good = rows.dtype == torch.int32 and rows.is_contiguous()
    if weights is not None:
        shape = (len(rows), rows.shape[1] // 2)
        good = good and weights.dtype == torch.float32 and weights.is_contiguous() and weights.shape == shape
    return good
