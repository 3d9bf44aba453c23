"""What is known of configs before any was measured: the heuristic's estimate, and what the installed trees add to it.

The trees are those of the selector that the library uses on this GPU model: see tuner.learn.residual. Outside the hull
of what they have learned, and where there is no selector, the estimate stands alone.
"""

import math
from collections.abc import Sequence

import numpy as np

from deep_gemm import _C, selection, selector_files
from deep_gemm.artifact import read_artifact
from deep_gemm.errors import ModelError
from tuner.learn.forest import Forest

ARRAYS = tuple(Forest.__dataclass_fields__)


def predict_times(device, problem, configs: Sequence) -> dict:
    """Return {config: log of its predicted time, to a constant}."""
    logs = {config: math.log(_C.estimate_time_us(problem, config, device)) for config in configs}
    residuals = predict_residuals(problem, device, list(logs))
    return {config: value + residual for (config, value), residual in zip(logs.items(), residuals, strict=True)}


def predict_residuals(problem, device, configs: list) -> list[float]:
    """Return what the installed trees add to the log of each estimate, 0 where they do not know."""
    arrays = find_trees(problem.op, device)
    if not arrays or not configs:
        return [0.0] * len(configs)
    features = _C.get_config_features(problem, device, configs).astype(np.float32)
    is_known = ((features >= arrays["feature_min"]) & (features <= arrays["feature_max"])).all(axis=1)
    found = Forest(**{name: arrays[name] for name in ARRAYS}).predict(features)
    return np.where(is_known, found.clip(-_C.MAX_RESIDUAL, _C.MAX_RESIDUAL), 0.0).tolist()


def find_trees(op: str, device) -> dict[str, np.ndarray]:
    """Return the arrays of an op kind in the artefact that the library uses on `device`, {} where there is none.

    Nor are there any in an artefact that was learned with other features or estimates.
    """
    selector = selection.get_selector(device)
    if selector is None or op not in selector.metadata["ops"] or selector.find_fault(op, ""):
        return {}
    try:
        _, path = selector_files.selection_mode()
        found = selector_files.read_selector_file(device.sku, path)
    except ModelError:
        return {}
    arrays = read_artifact(found[1])[1] if found else {}
    start = f"{op}/"
    return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
