"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from tuner import errors
from tuner.files import check_replaceable
from tuner.problems.fields import OP_NAMES

#: What numpy, scikit-learn and optuna take.
MAX_SEED = 2**32 - 1
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
RECORD_DB = typer.Option("", "--db", help="Database to record in. Default: $DG_TUNER_DB, else ~/.deep_gemm/tuning.db.")
READ_DB = typer.Option(
    "",
    "--db",
    help="Database to read. Default: $DG_TUNER_DB, else ~/.deep_gemm/tuning.db, else the recorded snapshot.",
)
SKU = typer.Option("", help="SKU or short name (h200). Default: the only one in the database.")
RECORDED_OP = typer.Option("", help=f"One of {OP_NAMES}. Default: every op kind with rows.")
TRAINING = typer.Option(None, help="Training folder. Default: ~/.deep_gemm/training/<sku>.")
TRAINED_SKU = typer.Option(
    "", help="SKU or short name whose training folder is meant. Default: the only GPU model that was trained."
)
TRAINING_DB = typer.Option("", "--db", help="Database with the measurements. Default: that of the training.")
GPU = typer.Option(0, min=0, help="GPU to measure on, counted among those in CUDA_VISIBLE_DEVICES.")
MODEL_FOLDER = typer.Option(
    None, help="Folder for the artefact. Default: $DG_MODEL_DIR, where the library finds it (~/.deep_gemm/models)."
)
BACKEND = typer.Option("cuda", help="cuda, or simulated: estimates with noise; this needs --out.")
ENERGY = typer.Option(
    "0",
    help=(
        "Also measure the energy of so many configs of each problem, the fastest confirmed ones, or of all that are"
        " right: all. About a second each."
    ),
)


def check_folder(flag: str, path: Path | None) -> Path | None:
    """Return a folder to write into, which may be missing. Raises: UsageError where it cannot be one: something else
    has its name, or that of a folder that it would lie in.
    """
    for part in () if path is None else (path, *path.absolute().parents):
        if part.exists() and not part.is_dir():
            raise errors.UsageError(f"{flag} {path}: {'' if part == path else f'{part} '}is a file; name a folder")
    return path


def check_file(flag: str, path: Path) -> Path:
    """Return a file to write, which may be missing. Raises: UsageError where it may not replace what has its name."""
    check_replaceable(flag, path)
    return path


def check_choice(flag: str, value: str, choices) -> None:
    """Raise UsageError unless `value` is one of `choices`."""
    if value not in choices:
        raise errors.UsageError(f"{flag} {value}: must be one of {', '.join(choices)}")
