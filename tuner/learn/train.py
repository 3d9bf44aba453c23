"""The training folder: what `train` leaves for `evaluate` and `export`, in one folder per op kind.

    training.json     what was trained on (identity, fingerprint of the data, versions), the portfolio, the guards
    (format below) estimator.joblib  the scikit-learn forest itself, for further training; never shipped, never read at
    run time evaluation.json   written by `evaluate`: statistics per split and method, worst problems, picks without
    confirmation out_of_fold.json  written by `evaluate`: per problem, the choice of the selector that never saw its
    family unconfirmed.json  written by `evaluate`: problems and configs that folds or baselines picked without
    confirmation rounds, in
                      the form that `sweep --shapes` and `sweep --configs` read

`training.json` holds the sha256 of the estimator and of the data: a file or database that changed since is refused.
joblib runs code while it loads, so a folder that other users can write to is refused too.
"""

import hashlib
import io
import json
import os
import stat
from collections import Counter
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import joblib
import numpy as np
import sklearn

from deep_gemm import _C, environment
from tuner import errors
from tuner.db.files import replacing
from tuner.learn.dataset import Dataset, Identity, load_dataset
from tuner.learn.learner import Guards, Learned, Settings, fit
from tuner.learn.sources import known_device, open_database
from tuner.problems.fields import OPS, describe_variant, get_tokens, to_config
from tuner.problems.shapes import OTHER_MODEL

FORMAT = 2
ESTIMATOR, TRAINING = "estimator.joblib", "training.json"
EVALUATION, OUT_OF_FOLD, UNCONFIRMED = "evaluation.json", "out_of_fold.json", "unconfirmed.json"


@dataclass(frozen=True)
class Training:
    """A training folder, read back: the fitted selector with its portfolio as configs, and the record of how it came
    about.
    """

    folder: Path
    record: dict
    identity: Identity
    settings: Settings
    portfolio: list
    forest: object
    guards: Guards
    feature_min: np.ndarray
    feature_max: np.ndarray


def default_folder(sku: str) -> Path:
    """Return `$HOME/.deep_gemm/training/<sku>`."""
    return (environment.home_dir() or Path.cwd()) / ".deep_gemm" / "training" / sku


def choose_folder(training: Path | None, device: str) -> Path:
    """Return the training folder that is meant: `training`, else that of `device`, else the only one in the home
    folder.

    Raises: UsageError for an unknown device, or where several GPU models were trained and none is named.
    """
    if training or device:
        return training or default_folder(known_device(device).sku)
    root = default_folder("")
    found = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    if len(found) > 1:
        raise errors.UsageError(
            f"--device: {len(found)} GPU models were trained ({', '.join(path.name for path in found)}); name one"
        )
    return found[0] if found else root


def find_folders(folder: Path, op: str = "") -> list[Path]:
    """Return the folders of the op kinds that were trained into `folder`, or of `op` alone.

    Raises: UsageError where there is none.
    """
    found = [folder / name for name in OPS if op in ("", name) and (folder / name / TRAINING).is_file()]
    if not found:
        raise errors.UsageError(
            f"--training {folder}: no {op or '<op>'}/{TRAINING} there; run `python -m tuner train --out {folder}` first"
        )
    return found


def train(data: Dataset, settings: Settings) -> Learned:
    """Fit on everything. Raises: InconclusiveError where no problem was measured over (nearly) its whole space."""
    if not data.full_space.any():
        raise errors.InconclusiveError(
            f"none of {len(data.problems)} problems was measured over its whole space, so no portfolio can be chosen:"
            " run `python -m tuner sweep` without --n-trials for some"
        )
    return fit(data, np.arange(len(data.problems)), settings)


def fingerprint(data: Dataset) -> str:
    """Return a sha256 over everything in the data that training reads."""
    digest = hashlib.sha256(json.dumps(asdict(data.identity), sort_keys=True).encode())
    for item in (*(problem.key for problem in data.problems), *(str(config) for config in data.configs)):
        digest.update(item.encode())
    for array in (
        data.log_ratio,
        data.state,
        data.candidate,
        data.legal,
        data.full_space,
        data.heuristic,
        data.oracle,
        data.families,
    ):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def save(folder: Path, data: Dataset, learned: Learned, settings: Settings, database: str) -> dict:
    """Write the training folder and return the record; an older evaluation is removed, because it is of another
    selector.
    """
    payload = io.BytesIO()
    joblib.dump(learned.forest, payload, compress=3)
    record = make_record(data, learned, settings, database, hashlib.sha256(payload.getvalue()).hexdigest())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (EVALUATION, OUT_OF_FOLD, UNCONFIRMED):
        (folder / name).unlink(missing_ok=True)
    write_file(folder / ESTIMATOR, payload.getvalue())
    write_file(folder / TRAINING, to_json(record))
    return record


def make_record(data: Dataset, learned: Learned, settings: Settings, database: str, estimator_sha256: str) -> dict:
    """Return what `training.json` holds."""
    return {
        "format": FORMAT,
        "identity": asdict(data.identity),
        "database": database,
        "fingerprint": fingerprint(data),
        "newest_row": data.newest,
        "features_version": _C.FEATURES_VERSION,
        "heuristic_version": _C.HEURISTIC_VERSION,
        "package_version": version("deep_gemm"),
        "sklearn_version": sklearn.__version__,
        "data": describe_data(data),
        "settings": {**asdict(settings), "sizes": list(settings.sizes)},
        "portfolio": [data.configs[column].as_dict() for column in learned.portfolio.columns],
        "portfolio_curve": {str(size): score for size, score in learned.portfolio.curve.items()},
        "kind": learned.kind,
        "guards": asdict(learned.guards),
        "feature_min": learned.feature_min.tolist(),
        "feature_max": learned.feature_max.tolist(),
        "estimator_sha256": estimator_sha256,
    }


def describe_data(data: Dataset) -> dict:
    """Return the counts that say what a selector was trained on."""
    return {
        "problems": len(data.problems),
        "full_space_problems": int(data.full_space.sum()),
        "families": len(np.unique(data.families)),
        "configs": len(data.configs),
        "models": sorted(set(data.models) - {OTHER_MODEL}),
        "values_of_m": len({get_tokens(problem) for problem in data.problems}),
        "variants": count_variants(data.problems),
        "timed": int((data.state > 0).sum()),
        "confirmed": int((data.state == 3).sum()),
        "quarantined": [str(config) for config in data.quarantined],
        "dropped": data.dropped,
    }


def count_variants(problems: list) -> dict[str, int]:
    """Return {what is unusual about a variant: problems}, "default" for the one where nothing is."""
    return dict(Counter(describe_variant(problem.as_dict()) or "default" for problem in problems))


def load(folder: Path) -> Training:
    """Read a training folder back. Raises: UsageError without one; IntegrityError for one that must not be trusted."""
    if not (folder / TRAINING).is_file():
        raise errors.UsageError(f"--training {folder}: no {TRAINING} there; run `python -m tuner train` first")
    try:
        check_ownership(folder)
        record = json.loads((folder / TRAINING).read_text("ascii"))
        payload = (folder / ESTIMATOR).read_bytes()
        if record["format"] != FORMAT or hashlib.sha256(payload).hexdigest() != record["estimator_sha256"]:
            raise ValueError(f"{ESTIMATOR} is not the one that was trained")
        portfolio = [to_config(config) for config in record["portfolio"]]
        settings = Settings(**{**record["settings"], "sizes": tuple(record["settings"]["sizes"])})
        bounds = [np.array(record[name]) for name in ("feature_min", "feature_max")]
        return Training(
            folder,
            record,
            Identity(**record["identity"]),
            settings,
            portfolio,
            joblib.load(io.BytesIO(payload)),
            Guards(**record["guards"]),
            *bounds,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise errors.IntegrityError(f"--training {folder}: {error}; train again") from error


def load_with_data(folder: Path, database: str) -> tuple[Training, Dataset]:
    """Read the training folder of an op kind and the very data that it was trained on.

    Raises: UsageError, IntegrityError.
    """
    found = load(folder)
    identity = found.identity
    with open_database(database or found.record["database"]) as store:
        data = load_dataset(
            store,
            identity.sku,
            op=identity.op,
            kernel_hash=identity.kernel_hash,
            compiler=identity.compiler,
            regime=identity.regime,
        )
    check_unchanged(found, data)
    return found, data


def check_ownership(folder: Path) -> None:
    """Raise IntegrityError unless the folder and its estimator belong to this user and nobody else can write them."""
    for path in (folder, folder / ESTIMATOR):
        found = path.stat()
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
            raise errors.IntegrityError(
                f"{path}: owned by another user or writable by others; loading an estimator runs code, so train into a"
                " folder of your own"
            )


def check_unchanged(training: Training, data: Dataset) -> None:
    """Raise IntegrityError where heuristic, features or data are not those that the selector was trained on."""
    for name, current in (("features_version", _C.FEATURES_VERSION), ("heuristic_version", _C.HEURISTIC_VERSION)):
        if training.record[name] != current:
            raise errors.IntegrityError(
                f"{training.folder}: trained with {name} {training.record[name]}, this package has {current}; train"
                " again"
            )
    if training.record["fingerprint"] != fingerprint(data):
        raise errors.IntegrityError(f"{training.folder}: the database changed since training; train again")


def to_json(value: object) -> bytes:
    """Return indented ASCII JSON with sorted keys and a final newline."""
    return (json.dumps(value, sort_keys=True, indent=1) + "\n").encode("ascii")


def write_file(path: Path, payload: bytes, mode: int = 0o600) -> None:
    """Write `path` durably and at once, see tuner.db.files.replacing."""
    with replacing(path) as fresh:
        fresh.write_bytes(payload)
        os.chmod(fresh, mode)
