"""What a checked launch wrote, and what it should have written.

The first config of a job is compared with the product of the dequantised operands; every other one with the first one's
bits, because all configs of a problem compute one formula. Only a split of K changes the order of additions: such a
result is compared with the dequantised product, too.

D is looked at as rows, those of all groups one after the other. Of masked groups only rows that hold tokens are
compared, and of groups with ends: what lies behind them may be overwritten. Other padding between groups must be +0.
"""

from collections.abc import Iterator
from typing import Any

import torch

from deep_gemm.fields import OP_KINDS
from deep_gemm.numerics import SCALE_BLOCK, get_sums_error, make_bound, widen
from tuner.measure.operands import BufferSet, get_d_columns, get_factors, get_family, get_head_splits, make_d_layout
from tuner.problems.workload import Groups

#: Red zones before and after the checked D, in elements.
GUARD = 4096
#: The dequantised reference covers every row up to this many multiplications (about 3 ms in FP32), beyond it 256 rows:
#: the first and last 64 (tile edges) and 128 spread evenly. The other rows are covered by the bitwise comparison
#: between configs.
FULL_REFERENCE_PRODUCTS = 1 << 35
SAMPLED_ROWS = 256
#: Groups share the sampled rows; each has at least so many.
SAMPLED_GROUP_ROWS = 16
ROWS_PER_STEP = 512
INTEGERS = {"bf16": torch.int16, "fp32": torch.int32}


class CheckedOutput:
    """D [m, columns] (with groups of its own: [num_groups, m, columns]) between two red zones.

    `bits` is the whole buffer as integers, all NaN (every bit set) after `prepare`; `rows` is D as [all rows, columns];
    `compared` bool[all rows] are those that must be right, None where all must be; `padding` I64 are rows that must be
    +0.
    """

    def __init__(self, problem, device: str, groups: Groups | None = None):
        self.layout = make_d_layout(problem, "d", get_d_columns(problem))
        self.bits = torch.empty(self.layout.count + 2 * GUARD, dtype=INTEGERS[problem.d_dtype], device=device)
        inside = self.bits[GUARD : GUARD + self.layout.count].view(self.layout.dtype)
        self.d = inside.as_strided(self.layout.shape, self.layout.strides)
        self.rows = self.d.flatten(0, -2)
        self.columns = find_columns(problem).to(device)
        tokens = find_token_rows(problem, groups, device)
        kind = OP_KINDS[problem.op]
        is_zeroed = kind.m_is_shared and not kind.has_ends
        self.compared = None if is_zeroed else tokens
        self.padding = (~tokens).nonzero().flatten() if is_zeroed and tokens is not None else None
        self.start = None

    def prepare(self, start: torch.Tensor | None) -> None:
        """Fill everything with NaN; where D accumulates, D itself with `start`, of its shape, what is added to."""
        self.bits.fill_(-1)
        self.start = start
        if start is not None:
            self.d.copy_(start)

    def get_bits(self) -> torch.Tensor:
        """Return D as integers [all rows, pitch], the columns between its rows included."""
        return self.bits[GUARD : GUARD + self.layout.count].view(len(self.rows), self.layout.strides[-2])

    def has_clean_guards(self) -> bool:
        """Return whether everything that no launch may write is untouched."""
        inside = self.get_bits()
        foreign = torch.ones(inside.shape[1], dtype=torch.bool, device=self.bits.device)
        foreign[self.columns] = False
        ends = (self.bits[:GUARD] == -1).all() & (self.bits[GUARD + self.layout.count :] == -1).all()
        return bool(ends & (not foreign.any() or (inside[:, foreign] == -1).all()))

    def has_clean_padding(self) -> bool:
        """Return whether all rows between groups are +0, bit by bit."""
        return self.padding is None or not bool(self.get_bits()[self.padding][:, self.columns].any())

    def has_nan(self) -> bool:
        """Return whether a row that is compared holds NaN, in the columns of the product."""
        rows = self.rows if self.compared is None else self.rows[self.compared]
        return bool(torch.isnan(rows).any(dim=0)[self.columns].any())

    def equals(self, other: "CheckedOutput") -> bool:
        """Return whether both buffers hold the same bits, red zones included; rows that are not compared may differ."""
        if self.compared is None:
            return torch.equal(self.bits, other.bits)
        mine, theirs = self.get_bits(), other.get_bits()
        parts = self.compared.nonzero().flatten().split(ROWS_PER_STEP)  # in parts, which keep memory low
        return self.has_clean_guards() and all(torch.equal(mine[rows], theirs[rows]) for rows in parts)


def find_token_rows(problem, groups: Groups | None, device: str) -> torch.Tensor | None:
    """Return bool[all rows of D] of the rows that groups of rows hold, None for other problems."""
    kind = OP_KINDS[problem.op]
    if groups is None or kind.k_is_divided:
        return None
    if kind.is_batched:
        return None
    found = torch.zeros(problem.m * (problem.num_groups if kind.has_room else 1), dtype=torch.bool)
    for start, size in zip(*groups, strict=True):
        found[start : start + size] = True
    return found.to(device)


def find_columns(problem) -> torch.Tensor:
    """Return I64[n]: the column of D that each column of the product goes to."""
    columns, splits = torch.arange(problem.n), get_head_splits(problem)
    if splits is None:
        return columns
    left, mid, right = splits
    head, place = columns // (left + right), columns % (left + right)
    return head * (left + mid + right) + place + mid * (place >= left)


def choose_rows(m: int, n: int, k: int, limit: int = SAMPLED_ROWS, products: int | None = None) -> list[int]:
    """Return which of m rows the dequantised reference covers: all, or of more than `products` multiplications (m * n *
    k) `limit` of them.
    """
    if (m * n * k if products is None else products) <= FULL_REFERENCE_PRODUCTS or m <= limit:
        return list(range(m))
    edge, spread = limit // 4, limit // 2
    middle = [edge + index * (m - 2 * edge) // spread for index in range(spread)]
    return [*range(edge), *middle, *range(m - edge, m)]


def split_groups(problem, operands: BufferSet, groups: Groups | None) -> Iterator[tuple[Any, Any, Any, Any, int]]:
    """Yield (A [rows,k], its scales, B [n,k], its scales, first row of D) of each group; of a dense problem, of the
    whole.
    """
    a, scale_a, b, scale_b = operands[:4]
    kind = OP_KINDS[problem.op]
    if kind.is_summed:
        yield a.transpose(0, 1).flatten(1), None, b.transpose(0, 1).flatten(1), None, 0
        return
    if groups is None:
        yield a, scale_a, b, scale_b, 0
        return
    for group, (start, size) in enumerate(zip(*groups, strict=True)):
        if kind.k_is_divided:
            parts = (
                take_k(problem, values, scales, rows, start, size)
                for values, scales, rows in ((a, scale_a, problem.m), (b, scale_b, problem.n))
            )
            yield *next(parts), *next(parts), group * problem.m
            continue
        has_matrix = kind.has_room or kind.is_batched
        place, rows = (group, slice(size)) if has_matrix else (slice(start, start + size), slice(None))
        mine = [None if tensor is None else tensor[place][rows] for tensor in (a, scale_a)]
        yield *mine, b[group], None if scale_b is None else scale_b[group], start


def take_k(problem, values: torch.Tensor, scales: torch.Tensor | None, rows: int, start: int, size: int) -> tuple:
    """Return one group of K of an operand, [rows,size], and its scales."""
    is_block = problem.group_layout == "blocks"
    mine = (
        values[rows * start : rows * (start + size)].view(rows, size) if is_block else values[:, start : start + size]
    )
    return mine, None if scales is None else scales[:, start // SCALE_BLOCK : (start + size) // SCALE_BLOCK]


class Reference:
    """The dequantised product of one set in FP32 (TF32 off) over the rows of choose_rows, made once.

    `sums_error` is the part of each element's error bound that its sum is allowed: t * (|A| |B|^T) of numerics.py.
    """

    def __init__(self, problem, operands: BufferSet, groups: Groups | None = None):
        self.problem = problem
        self.c = None if operands.c is None or problem.c_mode != "general" else operands.c.flatten(0, -2)
        found = [
            self.multiply(*part, 1 if groups is None else problem.num_groups)
            for part in split_groups(problem, operands, groups)
        ]
        self.rows, self.product, self.sums_error = (torch.cat(parts) for parts in zip(*found, strict=True))

    def multiply(self, a, scale_a, b, scale_b, first: int, num_groups: int) -> tuple:
        """Return (rows of D, product, error of its sums) over the chosen rows of one group."""
        problem, (n, k) = self.problem, b.shape
        limit = SAMPLED_ROWS if num_groups == 1 else max(SAMPLED_ROWS // num_groups, SAMPLED_GROUP_ROWS)
        rows = torch.tensor(
            choose_rows(len(a), n, k, limit, len(a) * n * k * num_groups), dtype=torch.int64, device=a.device
        )
        product = torch.empty(len(rows), problem.n, device=a.device)
        magnitude = torch.empty_like(product)
        wide_a = widen(take_rows(a, rows), None if scale_a is None else scale_a[rows])
        wide_b = widen(b, scale_b)
        for start in range(0, len(rows), ROWS_PER_STEP):
            product[start : start + ROWS_PER_STEP] = wide_a[start : start + ROWS_PER_STEP] @ wide_b.T
        wide_b.abs_()
        for start in range(0, len(rows), ROWS_PER_STEP):
            magnitude[start : start + ROWS_PER_STEP] = wide_a[start : start + ROWS_PER_STEP].abs() @ wide_b.T
        return rows + first, product, magnitude.mul_(get_sums_error(a.dtype, k))

    def compare(self, output: CheckedOutput) -> tuple[str | None, float]:
        """Return (what is wrong with `output`, or None; its largest error)."""
        if not output.has_clean_guards():
            return "wrote outside D", float("inf")
        if output.has_nan():
            return "D has NaN or unwritten elements", float("inf")
        if not output.has_clean_padding():
            return "padding between groups is not +0", float("inf")
        largest, wrong = 0.0, 0
        for start in range(0, len(self.rows), ROWS_PER_STEP):
            part = slice(start, start + ROWS_PER_STEP)
            error, bound = self.measure(output, part)
            largest, wrong = max(largest, float(error.max())), wrong + int((~(error <= bound)).sum())
        return (
            f"{wrong} elements of {len(self.rows)} checked rows differ from the dequantised product" if wrong else None
        ), largest

    def measure(self, output: CheckedOutput, part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the error of each element of some covered rows, and its bound."""
        alpha, beta = get_factors(self.problem)
        added = output.start.flatten(0, -2) if output.start is not None else self.c
        expected = alpha * self.product[part]
        if added is not None:
            expected += beta * added[self.rows[part]].float()
        expected = get_family(self.problem).finish(expected)
        found = output.rows[self.rows[part]][:, output.columns].float()
        return (found - expected).abs(), make_bound(expected, abs(alpha) * self.sums_error[part], output.d.dtype)


def take_rows(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return some rows of FP8 or BF16 [m,k]; indexing knows no FP8."""
    return values.view(torch.uint8)[rows].view(values.dtype) if values.dtype == torch.float8_e4m3fn else values[rows]
