"""What a checked launch wrote, and what it should have written.

The first config of a job is compared with the product of the dequantised operands; every other one with the first one's bits, because
all configs of a problem compute one formula. Only a split of K changes the order of additions: such a result is compared with the
dequantised product, too.
"""

import torch

from tuner.operands import BLOCK, DTYPES, BufferSet, get_d_columns, get_factors, get_head_splits, row_major

#: Red zones before and after the checked D, in elements.
GUARD = 4096
#: Element bound |D - reference| <= ROUNDING[D] * |reference| + PARTIAL_SUMS[op] * |alpha| * (|A| |B|^T): the rounding of D, and the sums'
#: own error. FP8 tensor cores keep about 14 bits of partial sums; BF16 products are exact and added in FP32, at most K / 16 times.
ROUNDING = {"bf16": 2.0**-8, "fp32": 2.0**-22}
PARTIAL_SUMS = {"fp8_gemm": 2.0**-12, "bf16_gemm": 2.0**-18}
#: The dequantised reference covers every row up to this many multiplications (about 3 ms in FP32), beyond it 256 rows: the first
#: and last 64 (tile edges) and 128 spread evenly. The other rows are covered by the bitwise comparison between configs.
FULL_REFERENCE_PRODUCTS = 1 << 35
SAMPLED_ROWS = 256
ROWS_PER_STEP = 512
INTEGERS = {"bf16": torch.int16, "fp32": torch.int32}


class CheckedOutput:
    """D [m, columns] between two red zones; `bits` is the whole buffer as integers, all NaN (every bit set) after `prepare`."""

    def __init__(self, problem, device: str):
        self.layout = row_major("d", DTYPES[problem.d_dtype], problem.m, get_d_columns(problem))
        self.bits = torch.empty(self.layout.count + 2 * GUARD, dtype=INTEGERS[problem.d_dtype], device=device)
        inside = self.bits[GUARD : GUARD + self.layout.count].view(self.layout.dtype)
        self.d = inside.as_strided(self.layout.shape, self.layout.strides)
        self.columns = find_columns(problem).to(device)
        self.start = None

    def prepare(self, start: torch.Tensor | None) -> None:
        """Fill everything with NaN; where D accumulates, D itself with `start` [m,n], what is added to."""
        self.bits.fill_(-1)
        self.start = start
        if start is not None:
            self.d.copy_(start)

    def has_clean_guards(self) -> bool:
        """Return whether everything that no launch may write is untouched."""
        rows, pitch = self.layout.shape[0], self.layout.strides[0]
        inside = self.bits[GUARD : GUARD + self.layout.count].view(rows, pitch)
        foreign = torch.ones(pitch, dtype=torch.bool, device=self.bits.device)
        foreign[self.columns] = False
        ends = (self.bits[:GUARD] == -1).all() & (self.bits[GUARD + self.layout.count :] == -1).all()
        return bool(ends & (not foreign.any() or (inside[:, foreign] == -1).all()))

    def equals(self, other: "CheckedOutput") -> bool:
        """Return whether both buffers, red zones included, hold the same bits."""
        return torch.equal(self.bits, other.bits)


def find_columns(problem) -> torch.Tensor:
    """Return I64[n]: the column of D that each column of the product goes to."""
    columns, splits = torch.arange(problem.n), get_head_splits(problem)
    if splits is None:
        return columns
    left, mid, right = splits
    head, place = columns // (left + right), columns % (left + right)
    return head * (left + mid + right) + place + mid * (place >= left)


def choose_rows(m: int, n: int, k: int) -> list[int]:
    """Return the rows of D that the dequantised reference covers."""
    if m * n * k <= FULL_REFERENCE_PRODUCTS or m <= SAMPLED_ROWS:
        return list(range(m))
    edge, spread = SAMPLED_ROWS // 4, SAMPLED_ROWS // 2
    middle = [edge + index * (m - 2 * edge) // spread for index in range(spread)]
    return [*range(edge), *middle, *range(m - edge, m)]


def dequantise(values: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    """Return FP32 [rows,k] of FP8 or BF16 [rows,k]; scales FP32 [rows], [rows,ceil(k/128)] or [ceil(rows/128),ceil(k/128)], or None."""
    wide = values.float()
    if scales is None:
        return wide
    if scales.dim() == 1:
        return wide.mul_(scales[:, None])
    if scales.shape[0] != wide.shape[0]:
        scales = scales.repeat_interleave(BLOCK, 0)[: wide.shape[0]]
    return wide.mul_(scales.repeat_interleave(BLOCK, 1)[:, : wide.shape[1]])


class Reference:
    """The dequantised product of one set in FP32 (TF32 off) over the rows of choose_rows, and the bound of its error; made once."""

    def __init__(self, problem, operands: BufferSet):
        device = operands.a.device
        self.problem, self.rows = problem, torch.tensor(choose_rows(problem.m, problem.n, problem.k), device=device)
        self.product = torch.empty(len(self.rows), problem.n, device=device)
        self.magnitude = torch.empty_like(self.product)
        self.c = operands.c if problem.c_mode == "general" else None
        a, b = dequantise(take_rows(operands.a, self.rows), self.take_scales(operands.scale_a)), dequantise(operands.b, operands.scale_b)
        for start in range(0, len(self.rows), ROWS_PER_STEP):
            self.product[start : start + ROWS_PER_STEP] = a[start : start + ROWS_PER_STEP] @ b.T
        b.abs_()
        for start in range(0, len(self.rows), ROWS_PER_STEP):
            self.magnitude[start : start + ROWS_PER_STEP] = a[start : start + ROWS_PER_STEP].abs() @ b.T

    def take_scales(self, scales: torch.Tensor | None) -> torch.Tensor | None:
        """Return A's scales of the covered rows."""
        return None if scales is None else scales[self.rows]

    def compare(self, output: CheckedOutput) -> tuple[str | None, float]:
        """Return (what is wrong with `output`, or None; its largest error)."""
        if not output.has_clean_guards():
            return "wrote outside D", float("inf")
        if bool(torch.isnan(output.d).any(dim=0)[output.columns].any()):
            return "D has NaN or unwritten elements", float("inf")
        largest, wrong = 0.0, 0
        for start in range(0, len(self.rows), ROWS_PER_STEP):
            part = slice(start, start + ROWS_PER_STEP)
            error, bound = self.measure(output, part)
            largest, wrong = max(largest, float(error.max())), wrong + int((~(error <= bound)).sum())
        return (f"{wrong} elements of {len(self.rows)} checked rows differ from the dequantised product" if wrong else None), largest

    def measure(self, output: CheckedOutput, part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the error of each element of some covered rows, and its bound."""
        alpha, beta = get_factors(self.problem)
        added = output.start if output.start is not None else self.c
        expected = alpha * self.product[part]
        if added is not None:
            expected += beta * added[self.rows[part]].float()
        found = output.d[self.rows[part]][:, output.columns].float()
        sums = PARTIAL_SUMS[self.problem.op] * abs(alpha) * self.magnitude[part]
        return (found - expected).abs(), ROUNDING[self.problem.d_dtype] * expected.abs() + sums


def take_rows(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return some rows of FP8 or BF16 [m,k]; indexing knows no FP8."""
    return values.view(torch.uint8)[rows].view(values.dtype) if values.dtype == torch.float8_e4m3fn else values[rows]
