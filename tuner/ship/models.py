"""The selector artefacts of this machine: which there are, which one the library uses, and what they hold."""

from dataclasses import dataclass
from pathlib import Path

import deep_gemm.models
from deep_gemm import _C, environment, selection, selector_files
from deep_gemm.artifact import MAX_BYTES, read_artifact
from deep_gemm.errors import DeepGemmError, ModelError
from deep_gemm.selector import Selector
from tuner import errors


@dataclass(frozen=True)
class Model:
    """An artefact file. `place`: asked for (DG_SELECTOR), installed or packaged; `fault`: why it cannot be read, ''."""

    path: Path
    place: str
    sku: str
    fault: str
    selector: Selector | None
    arrays: dict

    def list_outdated(self) -> dict[str, str]:
        """Return {op kind: why the library does not use its part}."""
        if self.selector is None:
            return {}
        faults = {op: self.selector.find_fault(op, selection.kernel_hash(op)) for op in self.selector.metadata["ops"]}
        return {op: fault for op, fault in faults.items() if fault}


def find_models() -> list[Model]:
    """Return every artefact: the one that DG_SELECTOR names, those of the user's folder, and the packaged ones."""
    asked, folder = selector_files.selection_mode()[1], environment.model_dir()
    paths = [(asked, "asked for")] if asked else []
    paths += [(path, "installed") for path in list_folder(folder)]
    paths += [(path, "packaged") for root in deep_gemm.models.__path__ for path in list_folder(Path(root))]
    return [read_model(path, place) for path, place in paths]


def list_folder(folder: Path | None) -> list[Path]:
    """Return the artefacts of a folder, none where there is no folder."""
    return sorted(folder.glob(f"*{selector_files.SUFFIX}")) if folder is not None else []


def read_model(path: Path, place: str) -> Model:
    """Return what one file holds, read as the library reads it."""
    try:
        content = read_file(path) if place in ("packaged", "named") else selector_files.read_private_file(path)
        if content is None:
            raise ModelError(f"{path}: no such file")
        selector = Selector(content)
        return Model(path, place, selector.sku, "", selector, read_artifact(content)[1])
    except (DeepGemmError, OSError) as error:
        return Model(path, place, path.stem, str(error), None, {})


def read_file(path: Path) -> bytes:
    """Return the content of a file that anybody may have written. Raises: ModelError where it is too large for an
    artefact, before it is read; OSError.
    """
    if path.stat().st_size > MAX_BYTES:
        raise ModelError(f"has {path.stat().st_size} bytes, an artefact at most {MAX_BYTES}; name another file")
    return path.read_bytes()


def is_used(model: Model, models: list[Model]) -> bool:
    """Return whether the library reads this artefact for its SKU: the first place that has one counts."""
    if selector_files.selection_mode()[0] == "analytic":
        return False
    return next(other for other in models if other.place == "asked for" or other.sku == model.sku) is model


def find_model(name: str) -> Model:
    """Return the artefact called `name`: a path, or the SKU or short name for which the library would use it.

    Raises: UsageError where there is none.
    """
    if Path(name).suffix == selector_files.SUFFIX:
        if not Path(name).is_file():
            raise errors.UsageError(f"{name}: no such file; `python -m tuner models list` shows what there is")
        return read_model(Path(name), "named")
    models, skus = find_models(), selector_files.list_skus(get_sku(name))
    found = [model for sku in skus for model in models if model.sku == sku]
    if not found:
        known = ", ".join(dict.fromkeys(model.sku for model in models)) or "none"
        raise errors.UsageError(f"{name}: no artefact for this GPU model; there are: {known}")
    return found[0]


def get_sku(name: str) -> str:
    """Return the SKU of a short name, which may already be one."""
    try:
        return _C.Device.known(name).sku
    except DeepGemmError:
        return name


def describe_ops(model: Model) -> list[dict]:
    """Return per op kind what an artefact holds. Raises: IntegrityError where it cannot be read."""
    selector, outdated = get_selector(model), model.list_outdated()
    return [
        {
            "op": op,
            "kernel_hash": part["kernel_hash"],
            "regime": part["regime"],
            "exact": len(model.arrays[f"{op}/exact_key"]),
            "configs": len(selector.configs(op)),
            "trees": len(model.arrays[f"{op}/tree_start"]) - 1,
            "margin": part["margin"],
            "unused_because": outdated.get(op, ""),
        }
        for op, part in selector.metadata["ops"].items()
    ]


def get_selector(model: Model) -> Selector:
    """Return the selector of an artefact. Raises: IntegrityError where it cannot be read."""
    if model.selector is None:
        raise errors.IntegrityError(f"{model.path}: {model.fault}")
    return model.selector


def verify(model: Model) -> int:
    """Return the number of golden vectors that were replayed: features whose scores and choice are recorded.

    Raises: IntegrityError where the file cannot be read, or gives another result than when it was made.
    """
    differing = get_selector(model).replay_golden()
    if differing:
        raise errors.IntegrityError(
            f"{model.path}: {differing} golden problems give another result than when it was made; export it again"
        )
    return sum(len(array) for name, array in model.arrays.items() if name.endswith("/golden_scores"))


def compare(first: Model, second: Model) -> list[dict]:
    """Return per op kind what the second artefact has more, less or otherwise. Raises: IntegrityError."""
    old, new = get_selector(first), get_selector(second)
    ops = list(dict.fromkeys([*old.metadata["ops"], *new.metadata["ops"]]))
    return [compare_op(op, first, second) for op in ops]


def compare_op(op: str, first: Model, second: Model) -> dict:
    """Return the difference in one op kind; counts are 0 where nothing differs."""
    sides = [model if op in get_selector(model).metadata["ops"] else None for model in (first, second)]
    if None in sides:
        return {"op": op, "change": "added" if sides[0] is None else "removed"}
    old, new = (get_exact(model, op) for model in (first, second))
    configs = [{str(config) for config in get_selector(model).configs(op)} for model in (first, second)]
    parts = [get_selector(model).metadata["ops"][op] for model in (first, second)]
    changed = {
        "kernel_hash_changed": parts[0]["kernel_hash"] != parts[1]["kernel_hash"],
        "exact_added": len(new.keys() - old.keys()),
        "exact_removed": len(old.keys() - new.keys()),
        "exact_changed": sum(old[key] != new[key] for key in old.keys() & new.keys()),
        "configs_added": sorted(configs[1] - configs[0]),
        "configs_removed": sorted(configs[0] - configs[1]),
        "forest_changed": any(
            first.arrays[f"{op}/{name}"].tobytes() != second.arrays[f"{op}/{name}"].tobytes()
            for name in ("feature", "threshold", "leaf_value")
        ),
    }
    return {"op": op, "change": "changed" if any(changed.values()) else "same"} | changed


def get_exact(model: Model, op: str) -> dict[int, str]:
    """Return {key of a problem: config} of an exact table."""
    configs = [str(config) for config in get_selector(model).configs(op)]
    keys, indices = (model.arrays[f"{op}/{name}"].tolist() for name in ("exact_key", "exact_config"))
    return {key: configs[index] for key, index in zip(keys, indices, strict=True)}


def remove(name: str) -> list[Path]:
    """Remove an installed artefact, by SKU or short name, and its model card; return the files that were removed.

    Raises: UsageError where none is installed: those of the package, and files elsewhere, are not ours to remove.
    """
    folder = environment.model_dir()
    # Among what lies in the folder: a name may hold parts of a path, which must not lead out of it.
    installed = next((path for path in list_folder(folder) if path.stem == get_sku(name)), None)
    if installed is None or not installed.is_file():
        raise errors.UsageError(
            f"{name}: no artefact of this GPU model in {folder or 'a folder of yours'}; only installed ones are removed"
            " (`python -m tuner models list`)"
        )
    files = [path for path in (installed, installed.with_suffix(".md")) if path.is_file()]
    for path in files:
        path.unlink()
    return files
