"""The ops on CPU tensors: what the kernels compute, in plain torch, for tests and for programs that run without a GPU.

All take A [m, k] and B [n, k] of any strides, check nothing (the public ops do), add in FP32 and round to the dtype of
D once. m = 0 or n = 0: nothing to write. k = 0: the product is 0. Grouped ops do the same for each group.
"""

from collections.abc import Callable, Iterable

import torch

from deep_gemm.logits import fp8_mqa_logits as fp8_mqa_logits
from deep_gemm.logits import fp8_paged_mqa_logits as fp8_paged_mqa_logits
from deep_gemm.quantize import SCALE_BLOCK, align
from deep_gemm.reference_products import multiply_bf16, multiply_fp8, store, store_heads, sum_steps


@torch.no_grad()
def fp8_gemm(
    a: torch.Tensor,
    scale_a: torch.Tensor,
    b: torch.Tensor,
    scale_b: torch.Tensor,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    recipe: str = "1d2d",
    head_splits: tuple[int, int, int] | None = None,
) -> None:
    """Compute d = alpha * (A @ B.T) + beta * c from scaled FP8 operands by the kernels' formula.

    Per 128 of K: partial = A @ B.T in FP32, final += (scale_a * scale_b) * partial, with scales per row after the last
    of them.

    Args:
        a: float8_e4m3fn [m, k]. b: float8_e4m3fn [n, k]. d: bfloat16 or float32 [m, n], written.
        scale_a: float32 [m, ceil(k / 128)], or [m] with recipe "per_row".
        scale_b: float32 [ceil(n / 128), ceil(k / 128)] ("1d2d"), [n, ceil(k / 128)] ("1d1d") or [n] ("per_row").
        c: [m, n] of the dtype of d, which it may be. alpha, beta: factors of the product and of c.
        head_splits: (left, mid, right): d is [m, heads * (left + mid + right)], and the mid columns of each head are
            left alone.
    """
    final = multiply_fp8(a, scale_a, b, scale_b, recipe)
    if head_splits is None:
        store(final, d, c, alpha, beta)
    else:
        store_heads(final.mul_(alpha), d, head_splits)


@torch.no_grad()
def bf16_gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> None:
    """Compute d = alpha * (A @ B.T) + beta * c from BF16 operands: FP32 sums, one rounding.

    Args:
        a: bfloat16 [m, k]. b: bfloat16 [n, k]. d: bfloat16 or float32 [m, n], written.
        c: [m, n] of the dtype of d, which it may be. alpha, beta: factors of the product and of c.
    """
    store(multiply_bf16(a, b), d, c, alpha, beta)


@torch.no_grad()
def m_grouped_fp8_gemm_contiguous(
    a: torch.Tensor,
    scale_a: torch.Tensor,
    b: torch.Tensor,
    scale_b: torch.Tensor,
    d: torch.Tensor,
    groups: torch.Tensor,
    recipe: str = "1d2d",
) -> None:
    """Compute d[i] = A[i] @ B[groups[i]].T from scaled FP8 operands, each row with the matrix of its group; rows of
    padding become +0.

    Args:
        a: float8_e4m3fn [m, k]. b: float8_e4m3fn [num_groups, n, k]. d: bfloat16 or float32 [m, n], written.
        scale_a: float32 [m, ceil(k / 128)].
        scale_b: float32 [num_groups, ceil(n / 128), ceil(k / 128)] ("1d2d") or [num_groups, n, ceil(k / 128)] ("1d1d").
        groups: int32 [m], the group of each row, -1 for padding.
    """
    _store_rows(
        d,
        groups,
        len(b),
        lambda rows, group: multiply_fp8(_take(a, rows), scale_a[rows], b[group], scale_b[group], recipe),
    )


@torch.no_grad()
def m_grouped_bf16_gemm_contiguous(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, groups: torch.Tensor) -> None:
    """Compute d[i] = A[i] @ B[groups[i]].T from BF16 operands, each row with the matrix of its group; rows of padding
    become +0.

    Args:
        a: bfloat16 [m, k]. b: bfloat16 [num_groups, n, k]. d: bfloat16 or float32 [m, n], written.
        groups: int32 [m], the group of each row, -1 for padding.
    """
    _store_rows(d, groups, len(b), lambda rows, group: multiply_bf16(a[rows], b[group]))


@torch.no_grad()
def m_grouped_fp8_gemm_masked(
    a: torch.Tensor,
    scale_a: torch.Tensor,
    b: torch.Tensor,
    scale_b: torch.Tensor,
    d: torch.Tensor,
    groups: torch.Tensor,
    recipe: str = "1d2d",
) -> None:
    """Compute d[g, i] = A[g, i] @ B[g].T from scaled FP8 operands for the first groups[g] rows of each group; others
    are left alone.

    Args:
        a: float8_e4m3fn [num_groups, m, k]. b: float8_e4m3fn [num_groups, n, k]. d: bfloat16 or float32 [num_groups, m,
            n], written.
        scale_a: float32 [num_groups, m, ceil(k / 128)]. scale_b: as for m_grouped_fp8_gemm_contiguous.
        groups: int32 [num_groups], rows of each group; more than m count as m, fewer than 0 as 0.
    """
    for group, rows in enumerate(_masked_rows(groups, a.shape[1])):
        d[group, rows].copy_(multiply_fp8(a[group, rows], scale_a[group, rows], b[group], scale_b[group], recipe))


@torch.no_grad()
def m_grouped_bf16_gemm_masked(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, groups: torch.Tensor) -> None:
    """Compute d[g, i] = A[g, i] @ B[g].T from BF16 operands for the first groups[g] rows of each group; others are left
    alone.

    Args:
        a: bfloat16 [num_groups, m, k]. b: bfloat16 [num_groups, n, k]. d: bfloat16 or float32 [num_groups, m, n],
            written.
        groups: int32 [num_groups], rows of each group; more than m count as m, fewer than 0 as 0.
    """
    for group, rows in enumerate(_masked_rows(groups, a.shape[1])):
        d[group, rows].copy_(multiply_bf16(a[group, rows], b[group]))


@torch.no_grad()
def k_grouped_fp8_gemm_contiguous(
    a: torch.Tensor,
    scale_a: torch.Tensor,
    b: torch.Tensor,
    scale_b: torch.Tensor,
    d: torch.Tensor,
    groups: torch.Tensor,
    c: torch.Tensor | None = None,
    is_blocks: bool = False,
) -> None:
    """Compute d[g] = A_g @ B_g.T + c[g] from scaled FP8 operands, whose K the groups divide; an empty group has d[g] =
    c[g] or 0.

    Args:
        a: float8_e4m3fn [m, sum_k], or 1-D, of the [m, k_g] of one group after the other (`is_blocks`). b: as a, with
            n.
        scale_a: float32 [m, sum_k / 128]. scale_b: float32 [n, sum_k / 128].
        d: float32 [num_groups, m, n], written. c: as d, which it may be.
        groups: int32 [num_groups], k of each group: multiples of 128 that add up to sum_k.
    """
    _multiply_k_groups(_k_ranges(groups), a, scale_a, b, scale_b, d, c, is_blocks)


@torch.no_grad()
def k_grouped_bf16_gemm_contiguous(
    a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, groups: torch.Tensor, c: torch.Tensor | None = None
) -> None:
    """Compute d[g] = A_g @ B_g.T + c[g] from BF16 operands, whose K the groups divide; an empty group has d[g] = c[g]
    or 0.

    Args:
        a: bfloat16 [m, sum_k]. b: bfloat16 [n, sum_k].
        d: float32 [num_groups, m, n], written. c: as d, which it may be.
        groups: int32 [num_groups], k of each group: multiples of 128 that add up to sum_k.
    """
    for group, columns in enumerate(_k_ranges(groups)):
        store(multiply_bf16(a[:, columns], b[:, columns]), d[group], None if c is None else c[group])


@torch.no_grad()
def m_grouped_fp8_gemm_psum(
    a: torch.Tensor,
    scale_a: torch.Tensor,
    b: torch.Tensor,
    scale_b: torch.Tensor,
    d: torch.Tensor,
    groups: torch.Tensor,
    recipe: str = "1d2d",
    alignment: int = SCALE_BLOCK,
    ensure_zero_padding: bool = False,
) -> None:
    """Compute d[i] = A[i] @ B[group of i].T as m_grouped_fp8_gemm_contiguous, with groups given by their ends; rows of
    padding become +0 with `ensure_zero_padding`, else they are left alone.

    Args:
        a, scale_a, b, scale_b, d: as for m_grouped_fp8_gemm_contiguous.
        groups: int32 [num_groups], the row behind the last one of each group; a group starts at the end of the one
            before, rounded up to a multiple of `alignment`.
    """
    _store_psum_rows(
        d,
        _list_ranges(groups, alignment),
        ensure_zero_padding,
        lambda rows, group: multiply_fp8(a[rows], scale_a[rows], b[group], scale_b[group], recipe),
    )


@torch.no_grad()
def m_grouped_bf16_gemm_psum(
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    groups: torch.Tensor,
    alignment: int = SCALE_BLOCK,
    ensure_zero_padding: bool = False,
) -> None:
    """Compute d[i] = A[i] @ B[group of i].T as m_grouped_bf16_gemm_contiguous, with groups given by their ends as for
    m_grouped_fp8_gemm_psum.
    """
    _store_psum_rows(
        d,
        _list_ranges(groups, alignment),
        ensure_zero_padding,
        lambda rows, group: multiply_bf16(a[rows], b[group]),
    )


@torch.no_grad()
def k_grouped_fp8_gemm_psum(
    a: torch.Tensor,
    scale_a: torch.Tensor,
    b: torch.Tensor,
    scale_b: torch.Tensor,
    d: torch.Tensor,
    groups: torch.Tensor,
    c: torch.Tensor | None = None,
    is_blocks: bool = False,
) -> None:
    """Compute d[g] = A_g @ B_g.T + c[g] as k_grouped_fp8_gemm_contiguous, with groups given by their ends; what A and B
    hold between the groups has no effect.

    Args:
        a: float8_e4m3fn [m, sum_k], or 1-D, of the [m, k_g rounded up to 128] of one group after the other
            (`is_blocks`). b: as a, with n.
        scale_a: float32 [m, ceil(sum_k / 128)]. scale_b: float32 [n, ceil(sum_k / 128)].
        d, c: as for k_grouped_fp8_gemm_contiguous.
        groups: int32 [num_groups], the end of each group along K; a group starts at the end of the one before, rounded
            up to a multiple of 128.
    """
    _multiply_k_groups(_list_ranges(groups, SCALE_BLOCK), a, scale_a, b, scale_b, d, c, is_blocks)


@torch.no_grad()
def k_grouped_bf16_gemm_psum(
    a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, groups: torch.Tensor, c: torch.Tensor | None = None
) -> None:
    """Compute d[g] = A_g @ B_g.T + c[g] as k_grouped_bf16_gemm_contiguous, with groups given by their ends as for
    k_grouped_fp8_gemm_psum.
    """
    for group, columns in enumerate(_list_ranges(groups, SCALE_BLOCK)):
        store(multiply_bf16(a[:, columns], b[:, columns]), d[group], None if c is None else c[group])


def _multiply_k_groups(
    ranges: Iterable[slice],
    a: torch.Tensor,
    scale_a: torch.Tensor,
    b: torch.Tensor,
    scale_b: torch.Tensor,
    d: torch.Tensor,
    c: torch.Tensor | None,
    is_blocks: bool,
) -> None:
    """Compute d[g] for groups that lie at these ranges of K; a block is as wide as its group rounded up to 128."""
    m, n = d.shape[1:]
    for group, columns in enumerate(ranges):
        whole = slice(columns.start, align(columns.stop, SCALE_BLOCK))
        steps = slice(whole.start // SCALE_BLOCK, whole.stop // SCALE_BLOCK)
        left, right = (
            _take_columns(operand, rows, whole)[:, : columns.stop - columns.start] if is_blocks else operand[:, columns]
            for operand, rows in ((a, m), (b, n))
        )
        final = sum_steps(left, right, scale_a[:, steps], scale_b[:, steps])
        store(final, d[group], None if c is None else c[group])


def _list_ranges(ends: torch.Tensor, alignment: int) -> list[slice]:
    """Return where groups lie that end at `ends`; a group that ends before it starts is empty."""
    found, before = [], 0
    for end in ends.tolist():
        start = align(before, alignment)
        found.append(slice(start, max(start, end)))
        before = end
    return found


def _store_psum_rows(
    d: torch.Tensor,
    ranges: list[slice],
    ensure_zero_padding: bool,
    multiply: Callable[[slice, int], torch.Tensor],
) -> None:
    """Write the rows of each group of d [m, n] from `multiply(rows, group)`; zero the others where wanted."""
    final = torch.zeros(d.shape, dtype=torch.float32, device=d.device)
    for group, rows in enumerate(ranges):
        final[rows] = multiply(rows, group)
    if ensure_zero_padding:
        d.copy_(final)
        return
    for rows in ranges:
        d[rows].copy_(final[rows])


@torch.no_grad()
def batched_fp8_gemm(
    a: torch.Tensor,
    scale_a: torch.Tensor,
    b: torch.Tensor,
    scale_b: torch.Tensor,
    d: torch.Tensor,
    c: torch.Tensor | None = None,
    recipe: str = "1d2d",
) -> None:
    """Compute d[g] = A[g] @ B[g].T + c[g] from scaled FP8 operands.

    Args:
        a: float8_e4m3fn [num_groups, m, k]. b: float8_e4m3fn [num_groups, n, k]. d: bfloat16 or float32 [num_groups, m,
            n], written. c: as d, which it may be.
        scale_a: float32 [num_groups, m, ceil(k / 128)]. scale_b: as for m_grouped_fp8_gemm_contiguous.
    """
    for group in range(len(a)):
        final = multiply_fp8(a[group], scale_a[group], b[group], scale_b[group], recipe)
        store(final, d[group], None if c is None else c[group])


@torch.no_grad()
def batched_bf16_gemm(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """Compute d[g] = A[g] @ B[g].T + c[g] from BF16 operands.

    Args:
        a: bfloat16 [num_groups, m, k]. b: bfloat16 [num_groups, n, k]. d: bfloat16 or float32 [num_groups, m, n],
            written. c: as d, which it may be.
    """
    store(torch.bmm(a.float(), b.float().mT), d, c)


@torch.no_grad()
def summed_bf16_gemm(a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, c: torch.Tensor | None = None) -> None:
    """Compute d = sum over g of A[g] @ B[g].T + c from BF16 operands.

    Args:
        a: bfloat16 [num_groups, m, k]. b: bfloat16 [num_groups, n, k]. d: bfloat16 or float32 [m, n], written. c:
            float32 [m, n], which may be d.
    """
    store(torch.einsum("gmk,gnk->mn", a.float(), b.float()), d, c)


def _store_rows(
    d: torch.Tensor, groups: torch.Tensor, num_groups: int, multiply: Callable[[torch.Tensor, int], torch.Tensor]
) -> None:
    """Write d [m, n] from `multiply(rows, group)`, the product of some rows with a group's matrix; rows of no group
    become +0.
    """
    final = torch.zeros(d.shape, dtype=torch.float32, device=d.device)
    for group in range(num_groups):
        rows = (groups == group).nonzero().flatten()
        final[rows] = multiply(rows, group)
    d.copy_(final)


def _take(data: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return some rows of FP8 data, by its bytes: torch 2.9 cannot index FP8 on the CPU."""
    return data.view(torch.uint8)[rows].view(data.dtype)


def _masked_rows(groups: torch.Tensor, m: int) -> list[slice]:
    return [slice(0, count) for count in groups.clamp(0, m).tolist()]


def _k_ranges(groups: torch.Tensor) -> list[slice]:
    ends = groups.cumsum(0).tolist()
    return [slice(end - size, end) for end, size in zip(ends, groups.tolist(), strict=True)]


def _take_columns(blocks: torch.Tensor, rows: int, columns: slice) -> torch.Tensor:
    """Return the [rows, k_g] that begins after `columns.start` columns of whole rows of the groups before."""
    return blocks[rows * columns.start : rows * columns.stop].view(rows, columns.stop - columns.start)
