"""Families of weights: which shapes are so similar that no validation, outer or inner, may learn from one and ask about
the other.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial import KDTree

from tuner.problems.fields import get_weight_shape

#: Weights are near each other when both their sizes (n and k; m and n for groups of K) lie within this factor.
FAMILY_FACTOR = 1.25
#: Added to the logarithm of the factor: weights exactly that far apart are near.
EPSILON = 1e-9


class Split(NamedTuple):
    """Two masks over problems: what is held out, and what may be learned from, which may be nothing."""

    held_out: np.ndarray
    kept: np.ndarray


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
    gaps, _ = KDTree(np.unique(logs[chosen], axis=0)).query(logs, p=np.inf)
    return gaps <= math.log(FAMILY_FACTOR) + EPSILON


def hold_out(problems: list, held_out: np.ndarray) -> Split:
    """Return the split that holds out whole families, bool[R]. Weights near one of these are of other families where
    they are not near all of its weights; nothing is learned from them, either.
    """
    return Split(held_out, ~find_near(problems, held_out))


def split_families(problems: list, families: np.ndarray, num_folds: int) -> list[Split]:
    """Return at most `num_folds` splits that hold out whole families, about equally many problems each, and every
    problem once; deterministic.
    """
    labels, counts = np.unique(families, return_counts=True)
    folds: list[list] = [[] for _ in range(min(num_folds, len(labels)))]
    loads = np.zeros(len(folds))
    for label in labels[np.lexsort((labels, -counts))]:
        target = int(loads.argmin())
        folds[target].append(label)
        loads[target] += counts[labels == label][0]
    return [hold_out(problems, np.isin(families, fold)) for fold in folds]


def log_weights(problems: list) -> np.ndarray:
    """Return the logarithms of the sizes of each problem's weight, F64[R,2]."""
    return np.log(np.array([get_weight_shape(problem) for problem in problems], dtype=float))
