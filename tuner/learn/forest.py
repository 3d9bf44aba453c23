"""A fitted forest as flat arrays, as selector artefacts hold them: plain numbers to keep in a file and to walk.

A file of scikit-learn's own could only be read by running what is in it.
"""

from dataclasses import asdict, dataclass, fields

import numpy as np

from deep_gemm.artifact import ARRAYS, DTYPES, read_artifact
from tuner.learn.artifact import build_artifact

MAX_DEPTH = 64


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

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        """Return what each tree says of F32[R,F] rows: F64[T,R,P], bit by bit as scikit-learn does."""
        rows = np.arange(len(inputs))
        nodes = np.repeat(self.tree_start[:-1, None], len(inputs), axis=1)
        while (inner := self.feature[nodes] >= 0).any():
            is_left = inputs[rows, self.feature[nodes]] <= self.threshold[nodes]
            nodes = np.where(inner, np.where(is_left, self.left[nodes], self.right[nodes]), nodes)
        return self.leaf_value[self.left[nodes]]


def flatten(ensemble) -> Forest:
    """Return the trees of a fitted scikit-learn ensemble: absolute node indices, leaves numbered over all trees."""
    starts, feature, threshold, left, right, leaves = [0], [], [], [], [], []
    num_leaves = 0
    for estimator in ensemble.estimators_:
        tree = estimator.tree_
        is_leaf = tree.children_left < 0
        rows = num_leaves + np.cumsum(is_leaf) - 1
        feature.append(np.where(is_leaf, -1, tree.feature))
        threshold.append(np.where(is_leaf, 0.0, tree.threshold))
        left.append(np.where(is_leaf, rows, tree.children_left + starts[-1]))
        right.append(np.where(is_leaf, -1, tree.children_right + starts[-1]))
        leaves.append(tree.value[is_leaf].reshape(int(is_leaf.sum()), -1))
        starts.append(starts[-1] + tree.node_count)
        num_leaves += int(is_leaf.sum())
    return Forest(
        tree_start=np.array(starts, np.int32),
        feature=np.concatenate(feature).astype(np.int32),
        threshold=np.concatenate(threshold),
        left=np.concatenate(left).astype(np.int32),
        right=np.concatenate(right).astype(np.int32),
        leaf_value=np.concatenate(leaves),
    )


def write_forest(forest: Forest) -> bytes:
    """Return the forest as a file in the layout of artefacts. Raises: IntegrityError above 16 MiB."""
    return build_artifact({}, forest.to_arrays())


def read_forest(content: bytes, num_features: int, num_outputs: int) -> Forest:
    """Return a forest of rows of `num_features` and `num_outputs` columns.

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
    check_sizes(forest, num_outputs)
    check_nodes(forest, num_features)
    check_depth(forest)
    return forest


def check_sizes(forest: Forest, num_outputs: int) -> None:
    """Raise ValueError unless the arrays fit each other."""
    starts, num_nodes = forest.tree_start, len(forest.feature)
    if any(len(array) != num_nodes for array in (forest.threshold, forest.left, forest.right)):
        raise ValueError("the arrays of the nodes differ in length")
    if len(starts) < 2 or starts[0] != 0 or starts[-1] != num_nodes or (np.diff(starts) < 1).any():
        raise ValueError("tree_start must ascend from 0 to the number of nodes")
    if forest.leaf_value.shape[1] != num_outputs:
        raise ValueError(f"leaf_value must have {num_outputs} columns")
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


def check_depth(forest: Forest) -> None:
    """Raise ValueError for a tree that a walk takes long to leave; the run time has the same bound."""
    nodes = forest.tree_start[:-1]
    for _ in range(MAX_DEPTH + 1):
        nodes = nodes[forest.feature[nodes] >= 0]
        nodes = np.unique(np.concatenate((forest.left[nodes], forest.right[nodes])))
    if len(nodes):
        raise ValueError(f"a tree is deeper than {MAX_DEPTH}")
