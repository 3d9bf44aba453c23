"""Options that several commands share."""

from pathlib import Path

import typer

from tuner import errors
from tuner.files import check_replaceable

#: What numpy, scikit-learn and optuna take.
MAX_SEED = 2**32 - 1
RECORD_DB = typer.Option("", "--db", help="Database to record in. Default: $DG_TUNER_DB, else ~/.deep_gemm/tuning.db.")
READ_DB = typer.Option(
    "",
    "--db",
    help="Database to read. Default: $DG_TUNER_DB, else ~/.deep_gemm/tuning.db, else the recorded snapshot.",
)
SKU = typer.Option("", help="SKU or short name (h200). Default: the only one in the database.")
GPU = typer.Option(0, min=0, help="GPU to measure on, counted among those in CUDA_VISIBLE_DEVICES.")
MODEL_FOLDER = typer.Option(
    None, help="Folder for the artefact. Default: $DG_MODEL_DIR, where the library finds it (~/.deep_gemm/models)."
)
BACKEND = typer.Option("cuda", help="cuda, or simulated: estimates with noise; this needs --out.")
AS_JSON = typer.Option(False, "--json", help="Print the result as JSON.")
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
