"""Selector artefacts for tests: a few trees trained on invented times, written as the tuner writes real ones."""

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from deep_gemm import _C, selection, selector_files
from deep_gemm.artifact import exact_key
from tuner.learn.artifact import build_artifact
from tuner.learn.forest import flatten
from tuner.learn.learner import SLACK, choose_row, widen

OP = "fp8_gemm"
KERNEL_HASH = "0123456789abcdef" * 4
DEVICE = _C.Device.known("h200")
MARGIN = 0.01
NUM_GOLDEN = 200  # problems


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


def get_rows(problem) -> np.ndarray:
    """Return the features of a problem's shortlist as the run time has them, F32[S,F]."""
    shortlist = _C.get_shortlist(problem, DEVICE, _C.NUM_RANKED)
    return _C.get_config_features(problem, DEVICE, shortlist).astype(np.float32)


def invented_residual(features: np.ndarray) -> np.ndarray:
    """Return a log residual for every row of features, which depends on shape and tile in a smooth way."""
    names = _C.config_feature_names()
    rows, tile, columns = (features[:, names.index(name)] for name in ("log2_rows", "block_m", "block_n"))
    return 0.1 * np.sin(rows * 0.9 + columns / 40) + 0.05 * np.cos(columns / 16 - tile / 64)


def train_model(features: np.ndarray, num_trees: int, leaves: int) -> HistGradientBoostingRegressor:
    """Return trees fitted to the invented machine."""
    model = HistGradientBoostingRegressor(
        max_iter=num_trees, max_leaf_nodes=leaves, learning_rate=0.3, early_stopping=False, random_state=0
    )
    return model.fit(features, invented_residual(features))


def exact_arrays(entries: list[tuple]) -> dict[str, np.ndarray]:
    """Return the exact table of (problem, config index) pairs."""
    pairs = sorted((exact_key(problem), index) for problem, index in entries)
    keys, indices = [key for key, _ in pairs], [index for _, index in pairs]
    return {"exact_key": np.array(keys, np.uint64), "exact_config": np.array(indices, np.int32)}


def make_metadata(op: str = OP) -> dict:
    """Return the metadata of a valid artefact, without the hash."""
    of_op = {
        "estimate_revision": _C.estimate_revision(op),
        "kernel_hash": KERNEL_HASH,
        "regime": "cold-graph",
        "margin": MARGIN,
        "quarantined": [],
    }
    return {
        "format": 2,
        "sku": DEVICE.sku,
        "sm_count": DEVICE.sm_count,
        "features_version": _C.FEATURES_VERSION,
        "heuristic_version": _C.heuristic_version(DEVICE.sku),
        "package_version": "0.1.0",
        "ops": {op: of_op},
        "stale": None,
        "created": "2025-01-01",
    }


def golden_arrays(hull: tuple, rows: list[np.ndarray], model: HistGradientBoostingRegressor) -> dict[str, np.ndarray]:
    """Return golden vectors of problems' rows, with scikit-learn's scores and the choices that the guards leave."""
    scores = [model.predict(features) for features in rows]
    choice = [choose_row(features, own, hull, MARGIN) for features, own in zip(rows, scores, strict=True)]
    return {
        "golden_features": np.concatenate(rows),
        "golden_scores": np.concatenate(scores),
        "golden_start": np.cumsum([0, *map(len, rows)]).astype(np.int32),
        "golden_choice": np.array(choice, np.int32),
    }


def pack(metadata: dict, arrays: dict[str, np.ndarray]) -> bytes:
    """Return the artefact of op arrays named without their prefix."""
    (op,) = metadata["ops"]
    return build_artifact(metadata, {f"{op}/{name}": array for name, array in arrays.items()})


@functools.cache
def make_parts(num_configs: int = 8, num_trees: int = 16, leaves: int = 8, num_problems: int = 360, op: str = OP):
    """Return (metadata, arrays, model, problems) of a valid artefact; copy before changing.

    The first problems are in the exact table.
    """
    problems = make_problems(num_problems, op=op)
    rows = [get_rows(problem) for problem in problems]
    features = np.concatenate(rows)
    model = train_model(features, num_trees, leaves)
    hull = widen(features, SLACK)
    arrays = {
        "configs": np.array([list(config.as_dict().values()) for config in make_portfolio(num_configs, op)], np.int32),
        "feature_min": hull[0],
        "feature_max": hull[1],
        **exact_arrays([(problem, i % num_configs) for i, problem in enumerate(problems[:20])]),
        **flatten(model, np.arange(features.shape[1])).to_arrays(),
        **golden_arrays(hull, rows[:NUM_GOLDEN], model),
    }
    return make_metadata(op), arrays, model, problems


def widest_hull() -> dict[str, np.ndarray]:
    """Return a hull that holds every row."""
    width = make_parts()[1]["feature_min"].size
    return {"feature_min": np.full(width, -1e9), "feature_max": np.full(width, 1e9)}


@functools.cache
def make_artifact(num_configs: int = 8, num_trees: int = 16, leaves: int = 8) -> bytes:
    """Return the bytes of a valid artefact for DEVICE."""
    metadata, arrays, _, _ = make_parts(num_configs, num_trees, leaves)
    return pack(metadata, arrays)


def make_joined_artifact(*ops: str) -> bytes:
    """Return the bytes of a valid artefact with several op kinds."""
    made = {op: make_parts(num_trees=4, num_problems=NUM_GOLDEN, op=op) for op in ops}
    arrays = {f"{op}/{name}": array for op, (_, own, _, _) in made.items() for name, array in own.items()}
    described = {op: metadata["ops"][op] for op, (metadata, *_) in made.items()}
    return build_artifact(make_metadata() | {"ops": described}, arrays)


@contextlib.contextmanager
def private_models(monkeypatch, path: Path) -> Iterator[None]:
    """Let this process choose by the artefacts in `path` alone, as if they were of this package's kernels."""
    monkeypatch.setenv("DG_MODEL_DIR", str(path))
    monkeypatch.delenv("DG_SELECTOR", raising=False)
    monkeypatch.setattr(selection, "kernel_hash", lambda op: KERNEL_HASH)
    monkeypatch.setattr(selector_files, "read_packaged_file", lambda sku: None)
    selection.forget_selectors()
    yield
    selection.forget_selectors()
