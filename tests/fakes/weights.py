"""Weights in a chain: each is near the next one, so that families of them have neighbours in other families."""

import numpy as np

from deep_gemm import _C
from tuner.learn.dataset import Dataset
from tuner.learn.families import find_families

#: From one weight to the next but one it is 1.44x: too far to be near.
STEP = 1.2


def make_chain(data: Dataset) -> dict:
    """Return {"problems", "families"}: the table's problems, those of the same weight with the same one of a chain."""
    shapes = {shape: place for place, shape in enumerate(dict.fromkeys((one.n, one.k) for one in data.problems))}
    sizes = [round(1000 * STEP ** shapes[one.n, one.k]) for one in data.problems]
    problems = [_C.Problem(one.op, one.m, size, 1024) for one, size in zip(data.problems, sizes, strict=True)]
    return {"problems": problems, "families": find_families(problems)}


def are_near(first, second) -> bool:
    """Return whether two problems of a chain have weights near each other."""
    return bool(abs(np.log(first.n / second.n)) <= np.log(1.25))
