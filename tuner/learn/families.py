"""Families of weights: which shapes are so similar that validation must not split them."""

import math

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage

from tuner.problems.fields import get_weight_shape

#: Weights are near each other when both their sizes (n and k; m and n for groups of K) lie within this factor.
FAMILY_FACTOR = 1.25
#: Added to the logarithm of the factor: weights exactly that far apart are near.
EPSILON = 1e-9


def find_families(problems: list) -> np.ndarray:
    """Return a family number per problem, I64[R]: groups of weights that are all near each other.

    They are joined by complete linkage. Chains of neighbours are no families: of weights drawn at random, one chain
    takes most.
    """
    logs = log_weights(problems)
    pairs, of_problem = np.unique(logs, axis=0, return_inverse=True)
    if len(pairs) < 2:
        return np.zeros(len(problems), np.int64)
    tree = linkage(pairs, method="complete", metric="chebyshev")
    labels = fcluster(tree, math.log(FAMILY_FACTOR) + EPSILON, criterion="distance")
    # Numbers in the order of the weights, whatever those of the library are.
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels.tolist()))}
    return np.array([numbers[labels[index]] for index in of_problem.ravel().tolist()])


def find_near(problems: list, chosen: np.ndarray) -> np.ndarray:
    """Return bool[R]: which problems have a weight near one of those of `chosen`, a mask over problems."""
    logs = log_weights(problems)
    weights = np.unique(logs[chosen], axis=0)
    gaps = np.abs(logs[:, None] - weights[None]).max(axis=2)
    return (gaps <= math.log(FAMILY_FACTOR) + EPSILON).any(axis=1)


def log_weights(problems: list) -> np.ndarray:
    """Return the logarithms of the sizes of each problem's weight, F64[R,2]."""
    return np.log(np.array([get_weight_shape(problem) for problem in problems], dtype=float))
