"""One more entry in the exact table of an artefact: how a single measured problem reaches the library."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from deep_gemm import _C
from deep_gemm._version import __version__
from deep_gemm.artifact import FORMAT, exact_key, read_artifact
from deep_gemm.errors import DeepGemmError
from deep_gemm.older_kernels import list_serving
from deep_gemm.selector import Selector, join_quarantined, split_quarantined
from tuner import errors
from tuner.db.rows import Identity
from tuner.learn.artifact import build_artifact
from tuner.learn.ranking import Ranking

#: Configs of the exact table; a deployment compiles those of its own shapes. 95 give each of 517 dense FP8 products its
#: best within 1 % (H200). With 64, 28 of them lost more, 5 % at worst, and eight had no entry.
MAX_CONFIGS = 96
#: An entry may be this much slower than the winner where the artefact has no room for another config.
TOLERANCE = 1.02
#: What the trees of an artefact hang on; its exact tables do not.
VERSIONS = ("features_version", "heuristic_version")


@dataclass(frozen=True)
class Entry:
    """A new artefact, the config that its exact table has for the problem, and how many other entries it lost."""

    content: bytes
    config: _C.Config
    num_lost: int


def add_entry(base: bytes | None, ranking: Ranking, device: _C.Device) -> Entry:
    """Return an artefact with the best measured config of a problem in its exact table.

    `base` is the artefact that the library uses so far, None without one. What no longer fits this package is left out
    of it: of another version of the features or the heuristic, its trees alone. An op kind that it lacks gets a part
    that knows its exact table alone: the heuristic answers for every other problem. Where the part already has
    MAX_CONFIGS configs, all more than 2 % slower than the winner, the one that serves fewest problems makes room; these
    problems lose their entries.

    Raises: InconclusiveError where no config has a time, or none can make room; IntegrityError where the result does
        not choose as it must.
    """
    identity, problem = ranking.block.identity, ranking.block.problem
    metadata, arrays = read_base(base, identity, device, is_strict=False)
    part = {name.partition("/")[2]: array for name, array in arrays.items() if name.startswith(f"{problem.op}/")}
    winner = choose_config(ranking)
    if not part:
        part = make_part(problem, winner, device)
        metadata["ops"][problem.op] = describe_part(identity)
    configs = [to_config(row) for row in part["configs"].tolist()]
    chosen, num_lost = choose_allowed(ranking, configs, winner), 0
    if chosen not in configs:
        quarantined = list(map(split_quarantined, metadata["ops"][problem.op]["quarantined"]))
        if len(configs) - sum(not variants for _, variants in quarantined) >= MAX_CONFIGS:
            least, num_lost = make_room(part, [index for index, _ in quarantined])
            moved = [join_quarantined(index - (index > least), variants) for index, variants in quarantined]
            metadata["ops"][problem.op] = metadata["ops"][problem.op] | {"quarantined": moved}
        part["configs"] = np.concatenate([part["configs"], to_rows([chosen])])
    place = [to_config(row) for row in part["configs"].tolist()].index(chosen)
    insert(part, exact_key(problem), place)
    metadata["ops"][problem.op] = allow(metadata["ops"][problem.op], place, problem)
    arrays |= {f"{problem.op}/{name}": array for name, array in part.items()}
    content = build_artifact(metadata | {"created": ranking.block.created[:10]}, arrays)
    check(content, problem, chosen, device)
    return Entry(content, chosen, num_lost)


def read_base(
    base: bytes | None, identity: Identity, device: _C.Device, is_strict: bool
) -> tuple[dict[str, Any], dict]:
    """Return metadata and arrays of the artefact to add to, without what this package would not use.

    Of one with other VERSIONS the package uses the exact tables alone, so that these are kept; not with `is_strict`.
    """
    empty: dict[str, Any] = {
        "format": FORMAT,
        "sku": identity.sku,
        "sm_count": device.sm_count,
        "features_version": _C.FEATURES_VERSION,
        "heuristic_version": _C.heuristic_version(identity.sku),
        "package_version": __version__,
        "ops": {},
        "stale": None,
        "created": "",
    }
    try:
        metadata, arrays = read_artifact(base) if base is not None else (empty, {})
    except DeepGemmError:
        return empty, {}
    if metadata["sku"] == _C.base_sku(identity.sku):  # what a board with a lower power limit chose by so far
        metadata = metadata | {"sku": identity.sku}
    fixed = ("format", "sku", "sm_count", "stale", *(VERSIONS if is_strict else ()))
    if any(metadata[name] != empty[name] for name in fixed):
        return empty, {}
    if any(metadata[name] != empty[name] for name in VERSIONS):
        metadata |= {name: empty[name] for name in VERSIONS}
        arrays = {name: array for op in metadata["ops"] for name, array in forget_trees(op, arrays).items()}
    is_known = identity.op in metadata["ops"]
    known = metadata["ops"][identity.op]["kernel_hash"] if is_known else identity.kernel_hash
    if known in list_serving(identity.op, identity.kernel_hash):
        # Of older kernels that choose for these: it now gets times of these, which say nothing of the older ones.
        own = {identity.op: metadata["ops"][identity.op] | {"kernel_hash": identity.kernel_hash}} if is_known else {}
        return metadata | {"ops": metadata["ops"] | own}, dict(arrays)
    ops = {op: part for op, part in metadata["ops"].items() if op != identity.op}
    return metadata | {"ops": ops}, {name: one for name, one in arrays.items() if name.partition("/")[0] in ops}


def choose_config(ranking: Ranking) -> _C.Config:
    """Return the stored winner, else the fastest config. Raises: InconclusiveError where none has a time."""
    if ranking.winner is not None:
        return ranking.winner
    best = next((row.config for row in ranking.rows if row.status == "ok"), None)
    if best is None:
        raise errors.InconclusiveError(f"{ranking.block.problem}: no config was measured to the end")
    return best


def choose_allowed(ranking: Ranking, configs: list, winner: _C.Config) -> _C.Config:
    """Return the winner, or where there is no room for it one of `configs` that is hardly slower, if there is one: by
    times back to back and after rests, as the winner was chosen.
    """
    if len(configs) < MAX_CONFIGS or winner in configs:
        return winner
    ratios = ranking.judged
    near = [one for one in configs if one in ratios and ratios[one] <= TOLERANCE * ratios.get(winner, 0.0)]
    return min(near, key=lambda one: ratios[one], default=winner)


def make_room(part: dict[str, np.ndarray], quarantined: list[int]) -> tuple[int, int]:
    """Remove the config that serves fewest problems; return its index and how many lose their entry."""
    served = part["exact_config"]
    named = [index for index in range(len(part["configs"])) if index not in quarantined]
    if not named:
        raise errors.InconclusiveError(
            f"the exact table has no room: each of its {MAX_CONFIGS} configs failed for some variant, which it must"
            " remember; export a selector from your database instead"
        )
    least = min(named, key=lambda index: (int((served == index).sum()), -index))
    kept = served != least
    part["configs"] = np.delete(part["configs"], least, axis=0)
    part["exact_key"] = part["exact_key"][kept]
    part["exact_config"] = served[kept] - (served[kept] > least).astype(np.int32)
    return least, int((~kept).sum())


def allow(op: dict[str, Any], place: int, problem: _C.Problem) -> dict[str, Any]:
    """Return the metadata of an op kind in which a config that some variants did not build may be chosen for the
    variant of `problem`, for which it was timed.
    """
    variant = _C.kernel_identity(problem).to_json()
    entries = [
        join_quarantined(index, sorted({*variants, variant}) if index == place and variants else variants)
        for index, variants in map(split_quarantined, op["quarantined"])
    ]
    return op | {"quarantined": entries}


def make_part(problem: _C.Problem, config: _C.Config, device: _C.Device) -> dict[str, np.ndarray]:
    """Return the arrays of an op kind without a model: one leaf that changes no estimate, valid at one point."""
    features = np.ravel(_C.get_config_features(problem, device, [config])).astype(np.float64)
    return {
        "configs": to_rows([config]),
        "exact_key": np.array([], np.uint64),
        "exact_config": np.array([], np.int32),
        **make_leaf(features),
    }


def forget_trees(op: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of an op kind with its configs and its exact table, but without its model."""
    kept = {f"{op}/{name}": arrays[f"{op}/{name}"] for name in ("configs", "exact_key", "exact_config")}
    leaf = make_leaf(np.zeros(len(_C.config_feature_names())))
    return kept | {f"{op}/{name}": array for name, array in leaf.items()}


def make_leaf(features: np.ndarray) -> dict[str, np.ndarray]:
    """Return the arrays of a model of one leaf, which changes no estimate and is valid at one point."""
    return {
        "tree_start": np.array([0, 1], np.int32),
        "feature": np.array([-1], np.int32),
        "threshold": np.array([0.0]),
        "left": np.array([0], np.int32),
        "right": np.array([-1], np.int32),
        "leaf_value": np.array([0.0]),
        "feature_min": features,
        "feature_max": features,
        "golden_features": np.zeros((0, len(features)), np.float32),
        "golden_scores": np.zeros(0),
        "golden_start": np.array([0], np.int32),
        "golden_choice": np.array([], np.int32),
    }


def describe_part(identity: Identity) -> dict:
    """Return the metadata of an op kind without a model."""
    return {
        **describe_estimate(identity.op),
        "kernel_hash": identity.kernel_hash,
        "regime": identity.regime,
        "margin": 0.5,
        "quarantined": [],
    }


def describe_estimate(op: str) -> dict[str, int]:
    """Return the member of an op kind's metadata that names the estimate of this package. The first has none, so that
    packages from before there were others can read the artefact.
    """
    revision = _C.estimate_revision(op)
    return {} if revision == 1 else {"estimate_revision": revision}


def to_rows(configs: list) -> np.ndarray:
    """Return configs as the rows of an artefact, I32."""
    return np.array([list(config.as_dict().values()) for config in configs], np.int32)


def to_config(row: list[int]) -> _C.Config:
    """Return the config of a row of an artefact."""
    return _C.Config(**dict(zip(_C.Config(64, 64, 2).as_dict(), row, strict=True)))


def insert(part: dict[str, np.ndarray], key: int, index: int) -> None:
    """Put an entry into an exact table, in the place of an older one of the same problem."""
    entries = dict(zip(part["exact_key"].tolist(), part["exact_config"].tolist(), strict=True)) | {key: index}
    part["exact_key"] = np.array(sorted(entries), np.uint64)
    part["exact_config"] = np.array([entries[one] for one in sorted(entries)], np.int32)


def check(content: bytes, problem: _C.Problem, config: _C.Config, device: _C.Device) -> None:
    """Raise IntegrityError unless the run time's own reader takes the artefact and chooses `config`."""
    try:
        selector = Selector(content)
        choice = selector.choose(problem, device)
    except DeepGemmError as error:
        raise errors.IntegrityError(f"the new artefact cannot be read ({error}); nothing was written") from error
    if selector.replay_golden() or (choice.source, choice.config) != ("exact", config):
        raise errors.IntegrityError(f"the new artefact chooses {choice} instead of {config}; nothing was written")
