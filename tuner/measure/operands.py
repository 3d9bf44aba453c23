"""Operands for measuring: seeded pools on the device, and a ring of buffer sets that keeps the L2 cold.

All operands are views into a few pools made once per process, because making fresh random data costs more than
measuring:
    pages    as e4m3, for the pages of keys, into which scales are written
    e4m3     standard normals, quantised per 128 elements (amax 448): the bit patterns of real data
    bf16     standard normals
    scales   FP32, one for each block, uniform in 0.5..1.5 times the scale that quantising standard normals gives
    c        standard normals of D's type, where an op adds a C of its own
    d        results; zeroed before a ring whose launches add to it, so that sums stay finite
A ring is as many disjoint sets (A, scales of A, B, scales of B, D, C) as it takes to exceed three times the L2 in bytes
that launches touch: masked groups have room for far more rows than they hold. The groups themselves are one small
tensor that all sets share.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from deep_gemm.fields import OP_KINDS
from deep_gemm.numerics import SCALE_BLOCK
from deep_gemm.quantize import FP8_MAX, MIN_AMAX, align, ceil_div
from tuner.measure import logits
from tuner.problems.fields import is_fp8
from tuner.problems.workload import (
    Groups,
    Workload,
    count_touched_matrices,
    count_touched_rows,
    make_group_tensor,
    make_groups,
)

#: The ring's bytes in units of the L2: a set comes round again only after everything in the cache was replaced.
RING_L2_MULTIPLE = 3
#: More sets than this would only be reached by problems of under 0.4 MB; the graphs of different configs start at
#: different sets.
MAX_RING_SETS = 512
#: A ring makes do with fewer sets rather than take more memory; one set may be larger.
MAX_RING_BYTES = 24 << 30
MIN_POOL_BYTES = 256 << 20
CHUNK_BYTES = 64 << 20
#: Operands start this aligned within their pool, and rows are a multiple of TMA_BYTES apart.
SET_ALIGNMENT = 1024
TMA_BYTES = 16
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
#: (left, mid, right) of DeepSeek-V3's heads; another n than a multiple of left + right counts as one head.
HEAD_SPLITS = (128, 64, 128)
#: Factors of the product and of C in dense `general` problems: neither is a special case of any kernel. Grouped ops
#: take none.
GENERAL_FACTORS = (0.75, -0.5)


class BufferSet(NamedTuple):
    """One set, as _C.Kernel.launch takes it. For M x N x K and G groups:

    a [M,K], of masked groups, batches and sums [G,M,K]; b [N,K], of these and of groups of rows [G,N,K]; d [M,N], of
    masked groups, batches and groups of K [G,M,N]; c as d (None without one, D itself where D accumulates); scales
    (None for BF16) as their operands, along K one per 128; blocks of groups of K: a and b 1-D, [M,K_g] or [N,K_g] one
    after the other. groups: I32 as workload.make_group_tensor makes it, None where no operand says what a group has.
    """

    a: torch.Tensor
    scale_a: torch.Tensor | None
    b: torch.Tensor
    scale_b: torch.Tensor | None
    d: torch.Tensor
    c: torch.Tensor | None
    groups: torch.Tensor | None = None

    def launch(self, kernel, **options: object) -> None:
        """Launch a kernel on this set."""
        groups = {} if self.groups is None else {"groups": self.groups}
        kernel.launch(*self[:6], **groups, **options)


class Layout(NamedTuple):
    """Where an operand lies in its pool: shape and strides in elements, elements taken up with padding, and the first
    one's place.
    """

    pool: str
    dtype: torch.dtype
    shape: tuple
    strides: tuple
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls
    first: int = 0

    @property
    def num_bytes(self) -> int:
        """Return the bytes taken up, so that the next operand starts aligned."""
        return align(self.count * self.dtype.itemsize, SET_ALIGNMENT)


def row_major(pool: str, dtype: torch.dtype, rows: int, columns: int) -> Layout:
    """Return the layout of rows that are contiguous and TMA_BYTES aligned."""
    pitch = align(columns, TMA_BYTES // dtype.itemsize)
    return Layout(pool, dtype, (rows, columns), (pitch, 1), rows * pitch)


def column_major(pool: str, dtype: torch.dtype, rows: int, columns: int) -> Layout:
    """Return the layout of columns that are contiguous and TMA_BYTES aligned."""
    pitch = align(rows, TMA_BYTES // dtype.itemsize)
    return Layout(pool, dtype, (rows, columns), (1, pitch), columns * pitch)


def stack(layout: Layout, count: int) -> Layout:
    """Return the layout of `count` such matrices one after the other; for none (0), the layout itself."""
    if count == 0:
        return layout
    return layout._replace(
        shape=(count, *layout.shape), strides=(layout.count, *layout.strides), count=count * layout.count
    )


def make_operand_layout(problem, major: str, rows: int) -> Layout:
    """Return the layout of A or B of one group of rows, or of all groups of K."""
    if problem.group_layout == "blocks":
        return Layout("e4m3", torch.float8_e4m3fn, (rows * problem.k,), (1,), rows * problem.k)
    if is_fp8(problem.op):
        return row_major("e4m3", torch.float8_e4m3fn, rows, problem.k)
    return (row_major if major == "k" else column_major)("bf16", torch.bfloat16, rows, problem.k)


def make_scale_layout(problem, rows: int, is_vector: bool) -> Layout | None:
    """Return the layout of A's or B's scales; `is_vector`: one per row and 128 of K, else one per block of 128 rows."""
    if not is_fp8(problem.op):
        return None
    if problem.recipe == "per_row":
        return Layout("scales", torch.float32, (rows,), (1,), rows)
    steps = ceil_div(problem.k, SCALE_BLOCK)
    if not is_vector:
        blocks = ceil_div(rows, SCALE_BLOCK)
        return Layout("scales", torch.float32, (blocks, steps), (steps, 1), blocks * steps)
    if problem.scale_layout == "mn_major":
        return column_major("scales", torch.float32, rows, steps)
    # A single column would be contiguous along the rows after all, and a single row too where it is aligned.
    pitch = max(steps, 2)
    return Layout("scales", torch.float32, (rows, steps), (pitch, 1), rows * pitch + 1, first=int(rows == 1))


def get_head_splits(problem) -> tuple[int, int, int] | None:
    """Return (left, mid, right) of a head_split problem, else None."""
    if problem.c_mode != "head_split":
        return None
    left, mid, right = HEAD_SPLITS
    return HEAD_SPLITS if problem.n % (left + right) == 0 else (problem.n - problem.n // 2, mid, problem.n // 2)


def get_factors(problem) -> tuple[float, float]:
    """Return (alpha, beta)."""
    return GENERAL_FACTORS if problem.c_mode == "general" and not OP_KINDS[problem.op].is_grouped else (1.0, 1.0)


def get_d_columns(problem) -> int:
    """Return the columns of D, which a head_split problem has more of than the product."""
    splits = get_head_splits(problem)
    return problem.n if splits is None else problem.n // (splits[0] + splits[2]) * sum(splits)


def count_stacked(problem) -> dict[str, int]:
    """Return how many matrices A, B and D (with C) are stacks of; 0: one matrix without a dimension of groups."""
    kind, count = OP_KINDS[problem.op], problem.num_groups
    return {
        "a": count if kind.has_room or kind.is_batched or kind.is_summed else 0,
        "b": count if kind.is_grouped and not kind.k_is_divided else 0,
        "d": count if kind.has_room or kind.k_is_divided or kind.is_batched else 0,
    }


def make_d_layout(problem, pool: str, columns: int) -> Layout:
    """Return the layout of D or C."""
    return stack(row_major(pool, DTYPES[problem.d_dtype], problem.m, columns), count_stacked(problem)["d"])


def make_product_layouts(problem) -> dict[str, Layout | None]:
    """Return the layouts of a product of A and B, with or without groups, as get_layouts does."""
    m, n, counts = problem.m, problem.n, count_stacked(problem)
    scale_a = make_scale_layout(problem, m, is_vector=True)
    scale_b = make_scale_layout(problem, n, is_vector=problem.recipe == "1d1d")
    return {
        "a": stack(make_operand_layout(problem, problem.a_major, m), counts["a"]),
        "scale_a": None if scale_a is None else stack(scale_a, counts["a"]),
        "b": stack(make_operand_layout(problem, problem.b_major, n), counts["b"]),
        "scale_b": None if scale_b is None else stack(scale_b, counts["b"]),
        "d": make_d_layout(problem, "d", get_d_columns(problem)),
        "c": make_d_layout(problem, f"c_{problem.d_dtype}", n) if problem.c_mode == "general" else None,
    }


def make_product_set(problem, tensors: dict) -> BufferSet:
    """Return the set of a product; D takes the place of C where it accumulates."""
    return BufferSet(**tensors | ({"c": tensors["d"]} if problem.c_mode == "accumulate" else {}))


def make_logits_layouts(problem) -> dict[str, Layout | None]:
    """Return the layouts of the operands of attention logits: queries, keys or pages, scales, weights, logits."""
    m, n, k, heads = problem.m, problem.n, problem.k, problem.heads
    layouts: dict[str, Layout | None] = {
        "q": Layout("e4m3", torch.float8_e4m3fn, (m, heads, k), (heads * k, k, 1), m * heads * k),
        "keys": row_major("e4m3", torch.float8_e4m3fn, n, k),
        "scales": Layout("scales", torch.float32, (n,), (1,), n),
        "weights": row_major("c_fp32", torch.float32, m, heads),
        "d": make_d_layout(problem, "d", n),
    }
    if not OP_KINDS[problem.op].is_paged:
        return layouts
    sequences, pages, width = m // problem.next_n, sum(logits.count_pages(problem)), k + logits.SCALE_BYTES
    shape, strides = (sequences, problem.next_n, heads, k), (problem.next_n * heads * k, heads * k, k, 1)
    page = problem.block_kv * width
    layouts["q"] = Layout("e4m3", torch.float8_e4m3fn, shape, strides, m * heads * k)
    layouts["keys"] = Layout(
        "pages", torch.uint8, (pages, problem.block_kv, 1, width), (page, width, width, 1), pages * page
    )
    del layouts["scales"]
    return layouts


class FamilyOperands(NamedTuple):
    """What measuring has to know of an op family.

    make_layouts: the operands of a problem, as get_layouts returns them. make_set: the set of a problem with the
    operands {name: tensor}. finish: what kernels do to alpha * product + beta * C, in FP32, before they round it.
    """

    make_layouts: Callable[..., dict[str, Layout | None]] = make_product_layouts
    make_set: Callable[..., Any] = make_product_set
    finish: Callable[[torch.Tensor], torch.Tensor] = lambda result: result


#: The operands of every op family.
FAMILIES = {
    "gemm": FamilyOperands(),
    "m_grouped_gemm": FamilyOperands(),
    "k_grouped_gemm": FamilyOperands(),
    "batched_gemm": FamilyOperands(),
    "mqa_logits": FamilyOperands(make_logits_layouts, logits.make_set),
}


def get_family(problem) -> FamilyOperands:
    """Return the row of a problem's op family."""
    return FAMILIES[OP_KINDS[problem.op].family]


def get_layouts(problem) -> dict[str, Layout | None]:
    """Return {operand: layout} in the order of BufferSet; None where a problem has no such operand, or it is D."""
    return get_family(problem).make_layouts(problem)


def get_set_bytes(problem) -> int:
    """Return the bytes of one set."""
    return sum(layout.num_bytes for layout in get_layouts(problem).values() if layout)


def get_touched_bytes(problem, groups: Groups | None) -> int:
    """Return the bytes of one set that a launch reads or writes: masked groups are not full, and B of an empty group is
    not read.
    """
    if groups is None or OP_KINDS[problem.op].k_is_divided:
        return get_set_bytes(problem)
    rows, room = count_touched_rows(problem, groups), problem.m * max(count_stacked(problem)["a"], 1)
    matrices, layouts = count_touched_matrices(problem, groups), get_layouts(problem)
    of_rows = sum(layout.num_bytes for name in ("a", "scale_a", "d") if (layout := layouts[name]))
    of_matrices = sum(layout.num_bytes for name in ("b", "scale_b") if (layout := layouts[name]))
    return of_rows * rows // room + of_matrices * matrices // problem.num_groups


def count_sets(problem, groups: Groups | None, l2_bytes: int) -> int:
    """Return the sets of a ring: enough that launches touch RING_L2_MULTIPLE times the L2, within MAX_RING_SETS and
    MAX_RING_BYTES.
    """
    wanted = ceil_div(RING_L2_MULTIPLE * l2_bytes, max(get_touched_bytes(problem, groups), 1))
    return max(min(wanted, MAX_RING_SETS, MAX_RING_BYTES // get_set_bytes(problem)), 1)


class OperandPool:
    """The pools of one process; they grow when a problem needs more, with the same content for the same seed."""

    def __init__(self, device: str, l2_bytes: int, seed: int):
        self.device, self.l2_bytes, self.seed = device, l2_bytes, seed
        self.pools: dict[str, torch.Tensor] = {}

    def reserve(self, name: str, num_bytes: int) -> torch.Tensor:
        """Return pool `name` as bytes, at least so many."""
        if name not in self.pools or self.pools[name].numel() < num_bytes:
            self.pools.pop(name, None)  # given back before more is asked for
            self.pools[name] = make_pool(name, self.device, self.seed, num_bytes)
        return self.pools[name]

    def make_ring(self, problem, groups: Groups | None = None) -> list:
        """Return the ring of `problem`: disjoint sets that launches with `groups` touch RING_L2_MULTIPLE times the L2
        of.
        """
        groups = groups or make_groups(problem, Workload(seed=self.seed))
        layouts, count = get_layouts(problem), count_sets(problem, groups, self.l2_bytes)
        strides: dict[str, int] = {}
        for layout in filter(None, layouts.values()):
            strides[layout.pool] = strides.get(layout.pool, 0) + layout.num_bytes
        self.pools.pop("pages", None)  # another problem's scales lie among its keys
        for name, stride in strides.items():
            self.reserve(name, count * stride)
        if problem.c_mode == "accumulate":
            self.pools["d"].zero_()
        reads_groups = OP_KINDS[problem.op].reads_groups
        shared = make_group_tensor(problem, groups, self.device) if groups and reads_groups else None
        sets = [
            self.make_set(problem, layouts, {name: number * stride for name, stride in strides.items()})
            for number in range(count)
        ]
        return [entry._replace(groups=shared) for entry in sets]

    def make_start(self, problem) -> torch.Tensor | None:
        """Return FP32 [m,n], of groups of K [num_groups,m,n], that a checked D begins with where it accumulates, else
        None.
        """
        if problem.c_mode != "accumulate":
            return None
        layout = make_d_layout(problem, "c_fp32", problem.n)
        return cut(self.reserve(layout.pool, layout.num_bytes), 0, layout)

    def make_set(self, problem, layouts: dict, starts: dict[str, int]):
        """Return the set whose operands begin at byte `starts` of each pool."""
        tensors: dict = dict.fromkeys(layouts)
        for name, layout in layouts.items():
            if layout is not None:
                tensors[name] = cut(self.pools[layout.pool], starts[layout.pool], layout)
                starts[layout.pool] += layout.num_bytes
        return get_family(problem).make_set(problem, tensors)


def cut(pool: torch.Tensor, start: int, layout: Layout) -> torch.Tensor:
    """Return the view of a pool of bytes that begins at byte `start`."""
    flat = pool[start : start + layout.num_bytes].view(layout.dtype)
    return flat.as_strided(layout.shape, layout.strides, flat.storage_offset() + layout.first)


def make_pool(name: str, device: str, seed: int, num_bytes: int) -> torch.Tensor:
    """Return uint8 [at least num_bytes] of one of the pools that the head of this file lists."""
    num_bytes = align(num_bytes, SET_ALIGNMENT)
    if name == "d":
        return torch.empty(num_bytes, dtype=torch.uint8, device=device)
    if name in ("e4m3", "pages"):
        return make_fp8_pool(device, seed, max(num_bytes, MIN_POOL_BYTES))
    if name == "scales":
        return make_scale_pool(device, seed, max(num_bytes, MIN_POOL_BYTES // SCALE_BLOCK) // 4).view(torch.uint8)
    return make_normal_pool(device, seed + 2, num_bytes, torch.float32 if name == "c_fp32" else torch.bfloat16)


def make_fp8_pool(device: str, seed: int, num_bytes: int) -> torch.Tensor:
    """Return uint8 [align(num_bytes, 128)]: E4M3 bytes of normals, each run of 128 scaled to its largest magnitude."""
    generator = torch.Generator(device=device).manual_seed(seed)
    pool = torch.empty(align(num_bytes, SCALE_BLOCK), dtype=torch.uint8, device=device)
    for start in range(0, pool.numel(), CHUNK_BYTES):
        part = pool[start : start + CHUNK_BYTES]
        normals = torch.randn(part.numel() // SCALE_BLOCK, SCALE_BLOCK, generator=generator, device=device)
        scaled = normals * (FP8_MAX / normals.abs().amax(1, keepdim=True).clamp_(min=MIN_AMAX))
        part.copy_(scaled.to(torch.float8_e4m3fn).view(torch.uint8).view(-1))
    return pool


def make_normal_pool(device: str, seed: int, num_bytes: int, dtype: torch.dtype) -> torch.Tensor:
    """Return uint8 [num_bytes] of standard normals of `dtype`."""
    generator = torch.Generator(device=device).manual_seed(seed)
    pool = torch.empty(num_bytes // dtype.itemsize, dtype=dtype, device=device)
    for part in pool.split(CHUNK_BYTES):
        part.copy_(torch.randn(part.numel(), generator=generator, device=device))
    return pool.view(torch.uint8)


def make_scale_pool(device: str, seed: int, count: int) -> torch.Tensor:
    """Return FP32 [count] of scales around 2.8/448, the mean amax of 128 normals over the largest E4M3 number."""
    generator = torch.Generator(device=device).manual_seed(seed + 1)
    return torch.rand(count, generator=generator, device=device).add_(0.5).mul_(2.8 / FP8_MAX)
