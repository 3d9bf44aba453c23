"""Selector artefacts for tests: a small forest trained on invented times, written as the tuner writes real ones."""

import functools

import numpy as np
from sklearn.ensemble import RandomForestRegressor

from deep_gemm import _C
from deep_gemm.artifact import exact_key
from tuner.learn.artifact import build_artifact
from tuner.learn.forest import flatten
from tuner.learn.learner import is_inside, predict

OP = "fp8_gemm"
KERNEL_HASH = "0123456789abcdef" * 4
DEVICE = _C.Device.known("h200")
MARGIN, MAX_SPREAD = 0.01, 0.5
NUM_GOLDEN = 200


def make_problems(count: int, seed: int = 0, op: str = OP) -> list:
    """Return `count` random problems with sizes from 1 to 40,000, half of them multiples of 64."""
    generator = np.random.default_rng(seed)
    sizes = np.exp(generator.uniform(0, np.log(40000), (count, 3))).astype(int)
    aligned = generator.random((count, 3)) < 0.5
    sizes = np.where(aligned, np.maximum(64, sizes // 64 * 64), np.maximum(1, sizes))
    return [_C.Problem(op, int(m), int(n), int(k)) for m, n, k in sizes]


def make_portfolio(count: int, op: str = OP) -> list:
    """Return `count` configs spread over the default space."""
    space = _C.get_default_space(_C.Problem(op, 1, 1, 1), DEVICE)
    return [space[i * len(space) // count] for i in range(count)]


def invented_log_ratio(features: np.ndarray, num_outputs: int) -> np.ndarray:
    """Return [len(features), num_outputs] log ratios that depend on the shape in a smooth way."""
    phase = np.arange(num_outputs) * 0.7
    return 0.1 * np.sin(features[:, :1] * 0.9 + phase) + 0.05 * np.cos(features[:, 1:2] - phase)


def train_forest(features: np.ndarray, num_outputs: int, num_trees: int, depth: int) -> RandomForestRegressor:
    """Return a forest fitted to the invented machine."""
    forest = RandomForestRegressor(num_trees, max_depth=depth, random_state=0, n_jobs=1, max_features=0.5)
    return forest.fit(features.astype(np.float32), invented_log_ratio(features, num_outputs))


def forest_arrays(forest: RandomForestRegressor) -> dict[str, np.ndarray]:
    """Return the artefact's node and leaf arrays of a fitted forest."""
    columns = {"feature": [], "threshold": [], "left": [], "right": []}
    leaf_values, starts = [], [0]
    for tree in (estimator.tree_ for estimator in forest.estimators_):
        is_leaf = tree.children_left < 0
        leaf_rows = len(leaf_values) + np.cumsum(is_leaf) - 1
        columns["feature"].extend(np.where(is_leaf, -1, tree.feature))
        columns["threshold"].extend(np.where(is_leaf, 0.0, tree.threshold))
        columns["left"].extend(np.where(is_leaf, leaf_rows, tree.children_left + starts[-1]))
        columns["right"].extend(np.where(is_leaf, -1, tree.children_right + starts[-1]))
        leaf_values.extend(tree.value[is_leaf, :, 0])
        starts.append(starts[-1] + tree.node_count)
    arrays = {
        name: np.array(values, np.float64 if name == "threshold" else np.int32) for name, values in columns.items()
    }
    return {**arrays, "tree_start": np.array(starts, np.int32), "leaf_value": np.array(leaf_values)}


def exact_arrays(entries: list[tuple]) -> dict[str, np.ndarray]:
    """Return the exact table of (problem, config index) pairs."""
    pairs = sorted((exact_key(problem), index) for problem, index in entries)
    keys, indices = [key for key, _ in pairs], [index for _, index in pairs]
    return {"exact_key": np.array(keys, np.uint64), "exact_config": np.array(indices, np.int32)}


def make_metadata(num_portfolio: int, op: str = OP) -> dict:
    """Return the metadata of a valid artefact, without the hash."""
    of_op = {
        "kernel_hash": KERNEL_HASH,
        "regime": "cold-graph",
        "margin": MARGIN,
        "max_spread": MAX_SPREAD,
        "num_portfolio": num_portfolio,
        "quarantined": [],
    }
    return {
        "format": 1,
        "sku": DEVICE.sku,
        "sm_count": DEVICE.sm_count,
        "features_version": _C.FEATURES_VERSION,
        "heuristic_version": _C.HEURISTIC_VERSION,
        "package_version": "0.1.0",
        "ops": {op: of_op},
        "stale": None,
        "created": "2025-01-01",
    }


def golden_arrays(arrays: dict, features: np.ndarray, forest: RandomForestRegressor) -> dict[str, np.ndarray]:
    """Return golden vectors over `features`, with scikit-learn's scores and the choices that the guards leave."""
    features = features.astype(np.float32)
    scores, spreads = predict(flatten(forest), features)
    best, every = scores.argmin(axis=1), np.arange(len(scores))
    is_trusted = is_inside(features.astype(np.float64), arrays["feature_min"], arrays["feature_max"])
    is_trusted &= spreads[every, best] <= MAX_SPREAD
    choices = np.where(is_trusted & (scores[every, best] < -MARGIN), best, -1)
    return {"golden_features": features, "golden_scores": scores, "golden_choice": choices.astype(np.int32)}


def pack(metadata: dict, arrays: dict[str, np.ndarray]) -> bytes:
    """Return the artefact of op arrays named without their prefix."""
    (op,) = metadata["ops"]
    return build_artifact(metadata, {f"{op}/{name}": array for name, array in arrays.items()})


@functools.cache
def make_parts(num_portfolio: int = 8, num_trees: int = 16, depth: int = 8, num_problems: int = 300, op: str = OP):
    """Return (metadata, arrays, forest, problems) of a valid artefact; copy before changing.

    The first problems are in the exact table.
    """
    problems = make_problems(num_problems, op=op)
    portfolio = make_portfolio(num_portfolio, op)
    features = np.array([_C.get_features(problem, DEVICE, portfolio) for problem in problems])
    forest = train_forest(features, num_portfolio, num_trees, depth)
    metadata = make_metadata(num_portfolio, op)
    arrays = {
        "configs": np.array([list(config.as_dict().values()) for config in portfolio], np.int32),
        "feature_min": features.min(axis=0),
        "feature_max": features.max(axis=0),
        **exact_arrays([(problem, i % num_portfolio) for i, problem in enumerate(problems[:20])]),
        **forest_arrays(forest),
    }
    arrays |= golden_arrays(arrays, features[:NUM_GOLDEN], forest)
    return metadata, arrays, forest, problems


@functools.cache
def make_artifact(num_portfolio: int = 8, num_trees: int = 16, depth: int = 8) -> bytes:
    """Return the bytes of a valid artefact for DEVICE."""
    metadata, arrays, _, _ = make_parts(num_portfolio, num_trees, depth)
    return pack(metadata, arrays)
