"""Families of weights: which shapes are so similar that validation must not split them."""

import math

import numpy as np

from tuner.problems.fields import get_weight_shape

#: Weights are near each other when both their sizes (n and k; m and n for groups of K) lie within this factor.
FAMILY_FACTOR = 1.25


def find_families(problems: list) -> np.ndarray:
    """Return a family number per problem, I64[R]: the connected components of weights that are near each other."""
    pairs = sorted({get_weight_shape(problem) for problem in problems})
    logs = np.log(np.array(pairs, dtype=float))
    near = (np.abs(logs[:, None] - logs[None]) <= math.log(FAMILY_FACTOR) + 1e-12).all(axis=2)
    family = np.arange(len(pairs))
    for _ in pairs:
        merged = np.where(near, family[None], len(pairs)).min(axis=1)
        if (merged == family).all():
            break
        family = merged
    numbers = {label: index for index, label in enumerate(sorted(set(family.tolist())))}
    of_pair = {pair: numbers[label] for pair, label in zip(pairs, family.tolist(), strict=True)}
    return np.array([of_pair[get_weight_shape(problem)] for problem in problems])
