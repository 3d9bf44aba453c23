"""The training folder: what `train` leaves for `evaluate` and `export`, in one folder per op kind.

    training.json     what the selector was trained on, its portfolio and its guards, see record.py
    forest.arrays     the trees as plain arrays, see forest.py; never read at run time
    evaluation.json   by `evaluate`: statistics per split and method, see evaluation.py
    out_of_fold.json  by `evaluate`: for each problem, the choice of the selector that never saw its family
    unconfirmed.json  by `evaluate`: problems and configs that folds or baselines picked without confirmation rounds, in
                      the form that `sweep --shapes` and `sweep --configs` read

`training.json` holds the SHA-256 of the forest and of the data, so that a changed file or database is refused. All
files are numbers and text: whoever wrote them, reading them runs no code.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from deep_gemm import _C, environment
from deep_gemm.artifact import MAX_BYTES
from tuner import errors
from tuner.files import make_folder, write_whole
from tuner.learn.dataset import Dataset, load_dataset
from tuner.learn.forest import Forest, read_forest, write_forest
from tuner.learn.learner import Learned, Settings, choose_settings, fit
from tuner.learn.record import Record, make_record, to_json
from tuner.learn.residual import make_config_rows
from tuner.learn.sources import known_device, open_database
from tuner.problems.fields import OPS

FOREST, TRAINING = "forest.arrays", "training.json"
#: Problems of an op kind that trees and portfolio are fitted to: 30 times as many as any preset has. With more, memory
#: would grow by 40 kB a problem.
MAX_FITTED = 20_000
EVALUATION, OUT_OF_FOLD, UNCONFIRMED = "evaluation.json", "out_of_fold.json", "unconfirmed.json"


@dataclass(frozen=True)
class Training:
    """A training folder, read back: the record and the fitted forest."""

    folder: Path
    record: Record
    forest: Forest


def default_folder(sku: str) -> Path:
    """Return `$HOME/.deep_gemm/training/<sku>`."""
    return (environment.home_dir() or Path.cwd()) / ".deep_gemm" / "training" / sku


def choose_folder(training: Path | None, device: str) -> Path:
    """Return `training`, else the folder of `device`, else the only training folder under the home folder.

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


def find_folders(folder: Path, op: str = "", device: str = "") -> list[Path]:
    """Return the folders of the op kinds that were trained into `folder`, or of `op` alone.

    Raises: UsageError where there is none, or where one was trained for another GPU model than `device`, if that is
    named; IntegrityError as `load`.
    """
    found = [folder / name for name in OPS if op in ("", name) and (folder / name / TRAINING).is_file()]
    if not found:
        if op not in ("", *OPS):
            raise errors.UsageError(f"--op {op}: must be one of {', '.join(OPS)}")
        out = "" if folder.parent == default_folder("") or folder == default_folder("") else f" --out {folder}"
        raise errors.UsageError(
            f"--training {folder}: no {op or '<op>'}/{TRAINING} there; run `python -m tuner train{out}` first"
        )
    check_device(found, device)
    return found


def check_device(folders: list[Path], device: str) -> None:
    """Raise UsageError where a folder was trained for another GPU model than `device`, "" meaning any."""
    if not device:
        return
    wanted = known_device(device).sku
    for folder in folders:
        sku = load(folder).record.identity.sku
        if sku != wanted:
            raise errors.UsageError(
                f"--device {device}: {folder} was trained for {sku}; drop --device, or name another --training"
            )


def train(data: Dataset, settings: Settings) -> Learned:
    """Fit on all problems. Raises: as check_enough."""
    check_enough(data)
    problems = choose_fitted(data)
    return fit(data, problems, settings, make_config_rows(data, problems))


def check_enough(data: Dataset) -> None:
    """Raise InconclusiveError where no problem was measured over nearly its whole space."""
    if not data.full_space.any():
        raise errors.InconclusiveError(
            f"{data.identity.op}: none of {len(data.problems)} problems was measured over its whole space, so no"
            " portfolio can be chosen: run `python -m tuner sweep` without --n-trials, --configs and --portfolio-size"
            " for at least 1 of them"
        )


def choose_fitted(data: Dataset) -> np.ndarray:
    """Return the problems that a selector is fitted on, I64[P]: all, or MAX_FITTED evenly over the order of shapes."""
    count = len(data.problems)
    return np.linspace(0, count - 1, min(count, MAX_FITTED)).round().astype(np.int64)


def choose(data: Dataset, settings: Settings) -> Settings:
    """Return the settings of the trees that do best on left-out families, see learner.CANDIDATES."""
    problems = choose_fitted(data)
    return choose_settings(data, problems, settings, make_config_rows(data, problems))


def fingerprint(data: Dataset) -> str:
    """Return a SHA-256 over everything in the data that training reads, and the revision of the estimate that rows are
    relative to, but for the first one: folders from before there were any hold.
    """
    digest = hashlib.sha256(json.dumps(asdict(data.identity), sort_keys=True).encode())
    if (revision := _C.estimate_revision(data.identity.op)) != 1:
        digest.update(f"estimate revision {revision}".encode())
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


def save(folder: Path, data: Dataset, learned: Learned, settings: Settings, database: str, prior: str = "") -> Record:
    """Write the training folder and return its record; an evaluation of an earlier selector is removed.

    `prior` describes what else the trees were fitted to.
    """
    forest = write_forest(learned.forest)
    sha256 = hashlib.sha256(forest).hexdigest()
    record = make_record(data, learned, settings, database, fingerprint(data), sha256, prior)
    make_folder(folder, 0o700)
    write_file(folder / FOREST, forest)
    write_file(folder / TRAINING, to_json(record.to_json()))
    for name in (EVALUATION, OUT_OF_FOLD, UNCONFIRMED):  # last: on a full disk nothing is lost
        (folder / name).unlink(missing_ok=True)
    return record


def load(folder: Path) -> Training:
    """Read a training folder back. Raises: UsageError without one; IntegrityError for one that must not be trusted."""
    if not (folder / TRAINING).is_file():
        raise errors.UsageError(f"--training {folder}: no {TRAINING} there; run `python -m tuner train` first")
    try:
        record = Record.from_json(json.loads(read_bounded(folder / TRAINING).decode("ascii")))
        content = read_bounded(folder / FOREST)
        if hashlib.sha256(content).hexdigest() != record.estimator_sha256:
            raise ValueError(f"{FOREST} is not the one that was trained")
        forest = read_forest(content, len(record.feature_min))
        return Training(folder, record, forest)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise errors.IntegrityError(f"--training {folder}: {error}; train again") from error


def load_with_data(folder: Path, database: str) -> tuple[Training, Dataset]:
    """Read the training folder of an op kind and the data that it was trained on.

    The database is the one named, else the file that the folder names. Raises: UsageError, IntegrityError.
    """
    found = load(folder)
    if not database and "://" in found.record.database:
        raise errors.UsageError(f"--training {folder}: trained on a server's database; name it with --db")
    identity = found.record.identity
    with open_database(database or found.record.database) as store:
        data = load_dataset(
            store,
            identity.sku,
            op=identity.op,
            kernel_hash=identity.kernel_hash,
            compiler=identity.compiler,
            regime=identity.regime,
            with_older=found.record.data.older > 0,
        )
    check_unchanged(found, data)
    return found, data


def check_unchanged(training: Training, data: Dataset) -> None:
    """Raise IntegrityError where the heuristic, the features or the data changed since training."""
    heuristic_version = _C.heuristic_version(training.record.identity.sku)
    for name, current in (("features_version", _C.FEATURES_VERSION), ("heuristic_version", heuristic_version)):
        trained = getattr(training.record, name)
        if trained != current:
            raise errors.IntegrityError(
                f"{training.folder}: trained with {name} {trained}, but this package has {current}; train again"
            )
    if training.record.fingerprint != fingerprint(data):
        raise errors.IntegrityError(
            f"{training.folder}: the database or the op kind's estimate changed since training; train again"
        )


def read_bounded(path: Path) -> bytes:
    """Return a file. Raises: OSError; ValueError for one that is larger than any that `train` writes."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"{path.name}: larger than {MAX_BYTES} bytes")
    return content


def write_file(path: Path, payload: bytes, mode: int = 0o600) -> None:
    """Replace `path` as a whole and durably, see tuner.files.write_whole."""
    write_whole(path, payload, mode)
