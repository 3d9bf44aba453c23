"""Fitted boosted trees as flat arrays, as selector artefacts hold them: plain numbers to keep in a file and to walk.

A file of scikit-learn's own could only be read by running what is in it.
"""

from dataclasses import asdict, dataclass, fields

import numpy as np

from deep_gemm.artifact import ARRAYS, DTYPES, read_artifact
from tuner.learn.artifact import build_artifact

#: The run time refuses trees of more leaves: a row's leaves are the bits of a number.
MAX_LEAVES = 32


@dataclass(frozen=True)
class Forest:
    """Trees by node; deep_gemm.artifact.ARRAYS says what each array holds. Every walk ends at a leaf."""

    tree_start: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    leaf_value: np.ndarray

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name."""
        return asdict(self)

    def num_comparisons(self) -> int:
        """Return how many comparisons a prediction makes: all inner nodes of all trees."""
        return int((self.feature >= 0).sum())

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        """Return the sum over the trees for F32[R,F] rows: F64[R], bit by bit as scikit-learn and the run time do."""
        sums, rows = np.zeros(len(inputs)), np.arange(len(inputs))
        for root in self.tree_start[:-1].tolist():
            nodes = np.full(len(inputs), root)
            while (inner := self.feature[nodes] >= 0).any():
                is_left = inputs[rows, self.feature[nodes]] <= self.threshold[nodes]
                nodes = np.where(inner, np.where(is_left, self.left[nodes], self.right[nodes]), nodes)
            sums += self.leaf_value[self.left[nodes]]
        return sums


def flatten(model, columns: np.ndarray) -> Forest:
    """Return the trees of a fitted HistGradientBoostingRegressor that saw the features `columns`: absolute indices of
    nodes, leaves numbered over all trees. What it predicts before any tree is a first tree of one leaf.
    """
    start = np.zeros(1, model._predictors[0][0].nodes.dtype)
    start["is_leaf"], start["value"] = 1, float(np.ravel(model._baseline_prediction)[0])
    trees = [start, *(predictors[0].nodes for predictors in model._predictors)]
    starts = np.cumsum([0, *map(len, trees)])
    nodes = np.concatenate(trees)
    first = np.repeat(starts[:-1], np.diff(starts))
    is_leaf = nodes["is_leaf"] != 0
    return Forest(
        tree_start=starts.astype(np.int32),
        feature=np.where(is_leaf, -1, columns[np.where(is_leaf, 0, nodes["feature_idx"])]).astype(np.int32),
        threshold=np.where(is_leaf, 0.0, nodes["num_threshold"]).astype(np.float64),
        left=np.where(is_leaf, np.cumsum(is_leaf) - 1, nodes["left"] + first).astype(np.int32),
        right=np.where(is_leaf, -1, nodes["right"] + first).astype(np.int32),
        leaf_value=nodes["value"][is_leaf].astype(np.float64),
    )


def write_forest(forest: Forest) -> bytes:
    """Return the forest as a file in the layout of artefacts. Raises: IntegrityError above 16 MiB."""
    return build_artifact({}, forest.to_arrays())


def read_forest(content: bytes, num_features: int) -> Forest:
    """Return a forest of rows of `num_features`.

    Raises: ModelError, ValueError for anything that write_forest does not write of such a forest.
    """
    _, arrays = read_artifact(content)
    if arrays.keys() != {field.name for field in fields(Forest)}:
        raise ValueError(f"a forest has other arrays than {', '.join(arrays)}")
    for name, array in arrays.items():
        wanted = ARRAYS[name]
        if array.dtype != DTYPES[wanted.dtype] or array.ndim != len(wanted.dimensions):
            raise ValueError(f"array {name}: must be {wanted.dtype} of {len(wanted.dimensions)} dimensions")
    forest = Forest(**arrays)
    check_sizes(forest)
    check_nodes(forest, num_features)
    check_leaves(forest)
    return forest


def check_sizes(forest: Forest) -> None:
    """Raise ValueError unless the arrays fit each other."""
    starts, num_nodes = forest.tree_start, len(forest.feature)
    if any(len(array) != num_nodes for array in (forest.threshold, forest.left, forest.right)):
        raise ValueError("the arrays of the nodes differ in length")
    if len(starts) < 2 or starts[0] != 0 or starts[-1] != num_nodes or (np.diff(starts) < 1).any():
        raise ValueError("tree_start must ascend from 0 to the number of nodes")
    if not np.isfinite(forest.leaf_value).all() or not np.isfinite(forest.threshold).all():
        raise ValueError("a number is not finite")


def check_nodes(forest: Forest, num_features: int) -> None:
    """Raise ValueError unless leaves have values, and children come after their parent in its tree."""
    nodes, inner = np.arange(len(forest.feature)), forest.feature >= 0
    if (forest.feature < -1).any() or (forest.feature >= num_features).any():
        raise ValueError("a node compares a feature that does not exist")
    rows = forest.left[~inner]
    if (rows < 0).any() or (rows >= len(forest.leaf_value)).any():
        raise ValueError("a leaf points outside the leaf values")
    ends = np.repeat(forest.tree_start[1:], np.diff(forest.tree_start))
    for child in (forest.left[inner], forest.right[inner]):
        if (child <= nodes[inner]).any() or (child >= ends[inner]).any():
            raise ValueError("a child does not come after its parent in the same tree")


def check_leaves(forest: Forest) -> None:
    """Raise ValueError for a tree of more leaves than the run time takes, one that several nodes share counted for
    each.
    """
    leaves = np.ones(len(forest.feature), np.int64)
    for node in np.flatnonzero(forest.feature >= 0)[::-1]:  # children come after their parent
        leaves[node] = min(leaves[forest.left[node]] + leaves[forest.right[node]], MAX_LEAVES + 1)
    if (leaves[forest.tree_start[:-1]] > MAX_LEAVES).any():
        raise ValueError(f"a tree has more than {MAX_LEAVES} leaves")
