"""Sizes of the groups of the grouped benchmarks, and the bytes that a masked product has to move.

The baseline's notes say that each size is mean * U(0.7, 1.3), and give the sum over the groups. Here the draws are
seeded and the same for every dtype, n and k. Of many draws, the one with the nearest sum is taken; then single units
are added or removed until the sum is the baseline's.
"""

import random

from deep_gemm import _C
from deep_gemm.numerics import SPREAD, draw_factors
from deep_gemm.quantize import SCALE_BLOCK, align, ceil_div

#: The library's default alignment of the groups of a contiguous layout; here groups of K are multiples of it, too.
ALIGNMENT = next(field.default for field in _C.PROBLEM_FIELDS if field.name == "alignment")
NUM_DRAWS = 1000


def draw_sizes(num_groups: int, mean: int, total: int, unit: int) -> list[int]:
    """Return sizes mean * U(0.7, 1.3) that, each rounded up to `unit`, add up to `total`.

    Raises:
        ValueError: no such sizes exist.
    """
    low, high = (align(int(mean * bound), unit) * num_groups for bound in (1.0 - SPREAD, 1.0 + SPREAD))
    if total % unit or not low <= total <= high:
        raise ValueError(
            f"total = {total}: expected a multiple of {unit} between {low} and {high} for {num_groups} groups of {mean}"
        )

    def get_excess(sizes: list[int]) -> int:
        return sum(align(size, unit) for size in sizes) - total

    generator = random.Random(f"{num_groups} groups of {mean}")
    draws = [[int(mean * factor) for factor in draw_factors(num_groups, generator)] for _ in range(NUM_DRAWS)]
    sizes = min(draws, key=lambda draw: abs(get_excess(draw)))
    excess = get_excess(sizes)
    for _ in range(abs(excess) // unit):  # the farthest from the other bound moves, so that all stay within them
        index = sizes.index(max(sizes) if excess > 0 else min(sizes))
        sizes[index] -= unit if excess > 0 else -unit
    return sizes


def draw_contiguous_rows(key: dict) -> list[int]:
    """Return the rows of each group without its padding; rounded up to ALIGNMENT they add up to the key's m."""
    return draw_sizes(key["num_groups"], key["mean_m"], key["m"], ALIGNMENT)


def draw_masked_rows(key: dict) -> list[int]:
    """Return the valid rows of each group, sum_m in all; a skewed load has as many as fit in the last group."""
    groups, total = key["num_groups"], key["sum_m"]
    if key["load"] == "uniform":
        return draw_sizes(groups, key["mean_m"], total, 1)
    few, extra = divmod(total - min(key["max_m"], total - 2 * (groups - 1)), groups - 1)
    others = [few + (index < extra) for index in range(groups - 1)]
    return [*others, total - sum(others)]


def draw_ks(key: dict) -> list[int]:
    """Return the K of each group: multiples of ALIGNMENT that add up to the key's sum_k."""
    return [align(size, ALIGNMENT) for size in draw_sizes(key["num_groups"], key["mean_k"], key["sum_k"], ALIGNMENT)]


def count_masked_bytes(key: dict) -> int:
    """Return the bytes that a masked product reads and writes at least: all of B, the valid rows of A and of D, and
    their scales.
    """
    groups, n, k, rows = (key[name] for name in ("num_groups", "n", "k", "sum_m"))
    size = 1 if key["dtype"] == "fp8" else 2
    scales = 0
    if key["dtype"] == "fp8":
        scales = 4 * (rows + groups * ceil_div(n, SCALE_BLOCK)) * ceil_div(k, SCALE_BLOCK)
    return size * (groups * n * k + rows * k) + scales + 2 * rows * n
