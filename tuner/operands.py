"""Operands for measuring: seeded pools on the device, a ring of buffer sets that keeps the L2 cold, and the checked D.

All operands are views into a few pools made once per process, because making fresh random data costs more than measuring:
    fp8 pool     E4M3 bytes of standard normals, quantised per 128 elements (amax 448), so the bit patterns are those of real data
    scale pool   FP32, uniform in 0.5..1.5 times the scale that quantising standard normals gives; every block has its own
A ring is as many disjoint sets (A, scales of A, B, scales of B, D) as it takes to exceed three times the L2.
"""

from typing import NamedTuple

import torch

BLOCK = 128
FP8_MAX = 448.0
#: The ring's bytes in units of the L2: a set comes round again only after everything in the cache was replaced.
RING_L2_MULTIPLE = 3
#: More sets than this would only be reached by problems of under 0.4 MB; the graphs of different configs start at different sets.
MAX_RING_SETS = 512
MIN_POOL_BYTES = 256 << 20
CHUNK_BYTES = 64 << 20
#: Red zones before and after the checked D, in elements.
GUARD = 4096
#: Element bound |D - reference| <= ROUNDING * |reference| + PARTIAL_SUMS * (|A| |B|^T): BF16 rounding, 14-bit partial sums.
ROUNDING = 2.0**-8
PARTIAL_SUMS = 2.0**-12
#: The dequantised reference covers every row up to this many multiplications (about 3 ms in FP32), beyond it 256 rows: the first
#: and last 64 (tile edges) and 128 spread evenly. The other rows are covered by the bitwise comparison between configs.
FULL_REFERENCE_PRODUCTS = 1 << 35
SAMPLED_ROWS = 256
ROWS_PER_STEP = 512


class BufferSet(NamedTuple):
    """One set: a FP8 [m,k], scale_a FP32 [m,ceil(k/128)], b FP8 [n,k], scale_b FP32 [ceil(n/128),ceil(k/128)], d BF16 [m,n]."""

    a: torch.Tensor
    scale_a: torch.Tensor
    b: torch.Tensor
    scale_b: torch.Tensor
    d: torch.Tensor


def align(value: int, unit: int) -> int:
    """Round `value` up to a multiple of `unit`."""
    return -(-value // unit) * unit


class Sizes(NamedTuple):
    """Elements of each operand of one set, padded so that every set starts 1,024-byte aligned."""

    a: int
    b: int
    scale_a: int
    scale_b: int
    d: int

    @property
    def set_bytes(self) -> int:
        """Bytes of one set."""
        return self.a + self.b + 4 * (self.scale_a + self.scale_b) + 2 * self.d


def get_sizes(problem) -> Sizes:
    """Return the padded element counts of the operands of `problem`."""
    blocks_k, blocks_n = -(-problem.k // BLOCK), -(-problem.n // BLOCK)
    return Sizes(
        a=align(problem.m * problem.k, 1024),
        b=align(problem.n * problem.k, 1024),
        scale_a=align(problem.m * blocks_k, 256),
        scale_b=align(blocks_n * blocks_k, 256),
        d=align(problem.m * problem.n, 512),
    )


class OperandPool:
    """The pools of one process; they grow when a problem needs more, with the same content for the same seed."""

    def __init__(self, device: str, l2_bytes: int, seed: int):
        self.device, self.l2_bytes, self.seed = device, l2_bytes, seed
        self.fp8 = make_fp8_pool(device, seed, MIN_POOL_BYTES)
        self.scales = make_scale_pool(device, seed, MIN_POOL_BYTES // BLOCK)
        self.d = torch.empty(0, dtype=torch.bfloat16, device=device)

    def reserve(self, sizes: Sizes, count: int) -> None:
        """Make the pools large enough for `count` sets."""
        if self.fp8.numel() < count * (sizes.a + sizes.b):
            self.fp8 = make_fp8_pool(self.device, self.seed, count * (sizes.a + sizes.b))
        if self.scales.numel() < count * (sizes.scale_a + sizes.scale_b):
            self.scales = make_scale_pool(self.device, self.seed, count * (sizes.scale_a + sizes.scale_b))
        if self.d.numel() < count * sizes.d:
            self.d = torch.empty(0, dtype=torch.bfloat16, device=self.device)  # give the old one back before asking for more
            self.d = torch.empty(count * sizes.d, dtype=torch.bfloat16, device=self.device)

    def make_ring(self, problem) -> list[BufferSet]:
        """Return the ring of `problem`: disjoint sets of at least RING_L2_MULTIPLE times the L2 together."""
        sizes = get_sizes(problem)
        count = min(max(-(-RING_L2_MULTIPLE * self.l2_bytes // sizes.set_bytes), 1), MAX_RING_SETS)
        self.reserve(sizes, count)
        return [self.make_set(problem, sizes, number) for number in range(count)]

    def make_set(self, problem, sizes: Sizes, number: int) -> BufferSet:
        """Return set `number` of the ring as views into the pools."""
        m, n, k = problem.m, problem.n, problem.k
        blocks_k, blocks_n = -(-k // BLOCK), -(-n // BLOCK)
        bytes_at, scales_at = number * (sizes.a + sizes.b), number * (sizes.scale_a + sizes.scale_b)
        fp8 = self.fp8.view(torch.float8_e4m3fn)
        return BufferSet(
            cut(fp8, bytes_at, m, k),
            cut(self.scales, scales_at, m, blocks_k),
            cut(fp8, bytes_at + sizes.a, n, k),
            cut(self.scales, scales_at + sizes.scale_a, blocks_n, blocks_k),
            cut(self.d, number * sizes.d, m, n),
        )


def cut(pool: torch.Tensor, start: int, rows: int, columns: int) -> torch.Tensor:
    """Return the row-major [rows, columns] view of a flat pool at element `start`."""
    return pool[start : start + rows * columns].view(rows, columns)


def make_fp8_pool(device: str, seed: int, num_bytes: int) -> torch.Tensor:
    """Return uint8 [align(num_bytes, 128)]: E4M3 bytes of normals, each run of 128 scaled to its largest magnitude."""
    generator = torch.Generator(device=device).manual_seed(seed)
    pool = torch.empty(align(num_bytes, BLOCK), dtype=torch.uint8, device=device)
    for start in range(0, pool.numel(), CHUNK_BYTES):
        part = pool[start : start + CHUNK_BYTES]
        normals = torch.randn(part.numel() // BLOCK, BLOCK, generator=generator, device=device)
        scaled = normals * (FP8_MAX / normals.abs().amax(1, keepdim=True).clamp_(min=1e-4))
        part.copy_(scaled.to(torch.float8_e4m3fn).view(torch.uint8).view(-1))
    return pool


def make_scale_pool(device: str, seed: int, count: int) -> torch.Tensor:
    """Return FP32 [count] of scales around 2.8/448, the mean amax of 128 normals over the largest E4M3 number."""
    generator = torch.Generator(device=device).manual_seed(seed + 1)
    return torch.rand(count, generator=generator, device=device).add_(0.5).mul_(2.8 / FP8_MAX)


class CheckedOutput:
    """D BF16 [m,n] between two red zones; `bits` is the whole buffer as int16, all NaN (0xFFFF) after `poison`."""

    def __init__(self, problem, device: str):
        self.count = problem.m * problem.n
        self.bits = torch.empty(self.count + 2 * GUARD, dtype=torch.int16, device=device)
        self.d = self.bits[GUARD : GUARD + self.count].view(torch.bfloat16).view(problem.m, problem.n)

    def poison(self) -> None:
        """Fill D and the red zones with NaN."""
        self.bits.fill_(-1)

    def has_clean_guards(self) -> bool:
        """Return whether the red zones are untouched."""
        return bool((self.bits[:GUARD] == -1).all() & (self.bits[GUARD + self.count :] == -1).all())

    def equals(self, other: "CheckedOutput") -> bool:
        """Return whether both buffers, red zones included, hold the same bits."""
        return torch.equal(self.bits, other.bits)


def dequantise_rows(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return FP32 [rows,k] of FP8 [rows,k] with FP32 scales [rows,ceil(k/128)]."""
    return values.float() * scales.repeat_interleave(BLOCK, 1)[:, : values.shape[1]]


def choose_rows(m: int, n: int, k: int) -> list[int]:
    """Return the rows of D that the dequantised reference covers."""
    if m * n * k <= FULL_REFERENCE_PRODUCTS or m <= SAMPLED_ROWS:
        return list(range(m))
    edge, spread = SAMPLED_ROWS // 4, SAMPLED_ROWS // 2
    middle = [edge + index * (m - 2 * edge) // spread for index in range(spread)]
    return [*range(edge), *middle, *range(m - edge, m)]


def check_reference(operands: BufferSet, output: CheckedOutput) -> tuple[str | None, float]:
    """Compare D with the product of the dequantised operands in FP32 (TF32 off). Return (what is wrong or None, largest error)."""
    if not output.has_clean_guards():
        return "wrote outside D", float("inf")
    d, (m, k), n = output.d, operands.a.shape, operands.b.shape[0]
    if bool(torch.isnan(d).any()):
        return "D has NaN or unwritten elements", float("inf")
    rows = torch.tensor(choose_rows(m, n, k), device=d.device)
    b = dequantise_rows(operands.b, operands.scale_b.repeat_interleave(BLOCK, 0)[:n])
    largest, num_wrong = torch.zeros((), device=d.device), torch.zeros((), dtype=torch.int64, device=d.device)
    for part in rows.split(ROWS_PER_STEP):
        a = dequantise_rows(operands.a.view(torch.uint8)[part].view(operands.a.dtype), operands.scale_a[part])
        reference = a @ b.T
        error = (d[part].float() - reference).abs()
        bound = ROUNDING * reference.abs() + PARTIAL_SUMS * (a.abs() @ b.abs().T)
        largest, num_wrong = torch.maximum(largest, error.max()), num_wrong + (~(error <= bound)).sum()
    wrong = int(num_wrong)
    return (f"{wrong} elements of {len(rows)} checked rows differ from the dequantised product" if wrong else None), float(largest)
