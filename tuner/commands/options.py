"""Options that several commands share."""

from pathlib import Path

import typer

from tuner import errors

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
    """Return a folder to write into, which may be missing. Raises: UsageError where something else has its name."""
    if path is not None and path.exists() and not path.is_dir():
        raise errors.UsageError(f"{flag} {path}: is a file; name a folder")
    return path


def check_file(flag: str, path: Path) -> Path:
    """Return a file to write, which may be missing. Raises: UsageError where a folder has its name."""
    if path.is_dir():
        raise errors.UsageError(f"{flag} {path}: is a folder; name a file in it")
    return path
