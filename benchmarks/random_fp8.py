"""Time dense FP8 on 60 problems that were drawn at random and that no sweep has measured, beside unscaled cuBLASLt.

Example: python -m benchmarks.random_fp8 --time-budget 120
Example: python -m benchmarks.random_fp8 --draw

Problems: m log-uniform from 1 to 8,192, n multiples of 64 up to 32,768, k multiples of 128 up to 18,432, drawn from
    SEED into data/random_fp8.json, before anything was timed on them. The library chooses as for any new shape.
Method and result: harness.py.
"""

import dataclasses
import random
import sys

from deep_gemm import _C

from . import dense_fp8
from .harness import main
from .stamp import DATA, write_json

SEED, COUNT = 13, 60
MAX_M, MAX_N, MAX_K = 8192, 32768, 18432


def draw(seed: int = SEED, count: int = COUNT) -> list[dict]:
    """Return the problems of a seed, in the order in which they are drawn."""
    source = random.Random(seed)
    return [
        {
            "m": min(int(MAX_M ** source.random()), MAX_M),
            "n": 64 * source.randint(1, MAX_N // 64),
            "k": 128 * source.randint(1, MAX_K // 128),
        }
        for _ in range(count)
    ]


FAMILY = dataclasses.replace(
    dense_fp8.FAMILY,
    name="random_fp8",
    roles={"mn_major": ("heuristic",)},
    make_problems=lambda key: {"mn_major": _C.Problem("fp8_gemm", key["m"], key["n"], key["k"])},
)


if __name__ == "__main__":
    if sys.argv[1:] == ["--draw"]:
        write_json(DATA / "random_fp8.json", {"meta": {"seed": SEED}, "rows": draw()})
        sys.exit(0)
    sys.exit(main(FAMILY, __doc__.splitlines()[0]))
