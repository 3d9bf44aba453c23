"""Options that several commands share."""

import typer

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
