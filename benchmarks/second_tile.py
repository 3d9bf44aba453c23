"""Time masked kernels of two tiles beside each tile alone, on the problems of data/second_tile.json: one to four groups
of 64 to 1,024 expected rows, each with four draws of the rows.

Example: python -m benchmarks.second_tile --time-budget 200 --rounds 10

The problems are those of a grid whose calls had a second tile (csrc/core/second_tile.hpp) when they were written down,
with the H200's selector; `python -m benchmarks.second_tile --list` prints today's. Layouts: `mn_major` scales of A
(FP8), `nt` (BF16). After the rows, a table by op kind and groups: the time of the config chosen, alone, relative to the
call's, as a geometric mean, least and most, and that of the faster tile of each draw. Peers, method and result: as
those of m_grouped_masked.py; roles: choices.py.
"""

import json
import random
import sys
from dataclasses import replace
from statistics import geometric_mean

from deep_gemm import _C, selection
from deep_gemm.numerics import draw_factors
from tuner.measure.statistics import median

from . import m_grouped_masked
from .harness import main
from .m_grouped_masked import OPS

SHAPES = ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048))
GROUPS, ROWS = (1, 2, 4, 8), (64, 128, 256, 512, 1024)
MAX_M = 4096
NUM_DRAWS = 4
ROLES = ("first", "second")


def make_problems(key: dict) -> dict[str, "_C.Problem"]:
    """Return the problem of a key in its first layout: scales that need no copy."""
    layout, problem = next(iter(m_grouped_masked.make_problems(key).items()))
    return {layout: problem}


FAMILY = replace(
    m_grouped_masked.FAMILY,
    name="second_tile",
    roles=dict.fromkeys(m_grouped_masked.FAMILY.roles, ROLES),
    make_problems=make_problems,
    rests=False,
)


def list_keys(device: "_C.Device") -> list[dict]:
    """Return the keys of the grid whose calls have a second tile on a device."""
    keys = [
        {"dtype": dtype, "load": "uniform", "num_groups": groups, "max_m": MAX_M, "mean_m": rows, "n": n, "k": k}
        for dtype in OPS for n, k in SHAPES for groups in GROUPS for rows in ROWS
    ]  # fmt: skip
    return [
        key | {"sum_m": sum_m}
        for key in keys
        for _, second in [selection.explain_tiles(*make_problems(key).values(), device)]
        if second
        for sum_m in dict.fromkeys(draw_rows(key, draw) for draw in range(NUM_DRAWS))  # two draws may be alike
    ]


def draw_rows(key: dict, draw: int) -> int:
    """Return the rows of all groups in one draw."""
    generator = random.Random(f"{key['num_groups']} groups of {key['mean_m']}, draw {draw}")
    return sum(int(key["mean_m"] * factor) for factor in draw_factors(key["num_groups"], generator))


def compare(row: dict) -> tuple[float, float] | None:
    """Return the times of the first tile and of the faster one relative to the call's; None where a call has one tile
    now, and where it failed.
    """
    if not set(ROLES) <= set(row["choices"]) or not row["times"]:
        return None
    (layout,) = make_problems(row)
    call, *tiles = (
        median(row["times"][f"{name} {layout}"])
        for name in ("auto", *(row["choices"][role]["config"] for role in ROLES))
    )
    return tiles[0] / call, min(tiles) / call


def list_gains(rows: list[dict]) -> list[tuple[str, str, int, tuple[float, ...]]]:
    """Return (op kind, groups, draws, means) of each number of groups and of all."""
    gains = []
    for dtype, op in OPS.items():
        for groups in (*GROUPS, 0):
            members = [row for row in rows if row["dtype"] == dtype and groups in (0, row["num_groups"])]
            found = [ratios for ratios in map(compare, members) if ratios]
            if found:
                first, faster = zip(*found, strict=True)
                means = (geometric_mean(first), min(first), max(first), geometric_mean(faster))
                gains.append((op, str(groups or "all"), len(found), means))
    return gains


def print_gains(rows: list[dict]) -> None:
    """Print the table of the module's docstring."""
    print(f"{'op kind':>28} {'groups':>6} {'draws':>5} {'first':>6} {'least':>6} {'most':>6} {'faster':>6}")
    for op, groups, draws, means in list_gains(rows):
        print(f"{op:>28} {groups:>6} {draws:5}", *(f"{value:6.3f}" for value in means))


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print(json.dumps({"rows": list_keys(selection.find_device("h200"))}, indent=1))
        sys.exit(0)
    sys.exit(main(FAMILY, __doc__.splitlines()[0], show=print_gains))
