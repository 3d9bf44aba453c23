"""python -m tuner export: build, check and write the selector artefact of a SKU with its model card."""

import json
import sys
from pathlib import Path

import typer

from deep_gemm import environment
from tuner import errors
from tuner.problems.fields import OP_NAMES


def register(app) -> None:
    """Add `export` to the command line."""
    app.command("export")(export)


def export(
    training: Path = typer.Option(None, help="Training folder; default: ~/.deep_gemm/training/<sku>."),
    device: str = typer.Option(
        "", help="SKU or short name, for the default training folder; default: the only GPU model that was trained."
    ),
    op: str = typer.Option("", help=f"Export this op kind alone ({OP_NAMES}); default: every one that was trained."),
    database: str = typer.Option("", "--db", help="Database; default: the one that was trained on."),
    out: Path = typer.Option(None, help="Folder to write <sku>.dgsel and <sku>.md into; default: the training folder."),
    install: bool = typer.Option(
        False, help="Write into $DG_MODEL_DIR (default ~/.deep_gemm/models), where the library finds it."
    ),
    force: bool = typer.Option(False, help="Export although a gate is missed; the model card says so."),
    stale: str = typer.Option("", help="Mark the artefact as stale for this reason: it is then kept but never used."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Write the artefact that the library chooses by; exits with 1 where a gate is missed.

    Example: python -m tuner export --install
    """
    from tuner.learn.train import choose_folder, find_folders, load_with_data
    from tuner.ship import export as exporting
    from tuner.ship import gates

    if out and install:
        raise errors.UsageError("--out and --install: give one of them")
    folder = choose_folder(training, device)
    trained = [load_with_data(part, database) for part in find_folders(folder, op)]
    made = exporting.make_export(trained, stale=stale or None)
    passed = gates.is_passed(made.verdicts)
    summary = "; ".join(gates.format_verdict(verdict) for verdict in made.verdicts)
    if not passed and not force:
        raise errors.TunerError(
            f"not exported: {summary}; measure more problems, or --force to export with the verdict in the model card"
        )
    artifact, card = exporting.write_export(
        made, install_folder() if install else out or folder, trained[0][0].identity.sku
    )
    if as_json:
        return print(
            json.dumps(
                {
                    "artifact": str(artifact),
                    "card": str(card),
                    "gates": made.verdicts,
                    "passed": passed,
                    **made.contents,
                },
                indent=1,
                sort_keys=True,
            )
        )
    print(summary, file=sys.stdout if passed else sys.stderr)
    print(f"written: {artifact} ({made.contents['bytes']} bytes) and {card.name}")
    for name, counts in made.contents["ops"].items():
        print(f"  {name}: {counts['exact']} exact entries, {counts['configs']} configs, {counts['nodes']} nodes")


def install_folder() -> Path:
    """Return the folder of user-made artefacts. Raises: UsageError where neither DG_MODEL_DIR nor HOME is set."""
    folder = environment.model_dir()
    if folder is None:
        raise errors.UsageError("--install: neither DG_MODEL_DIR nor HOME is set; give --out")
    return folder
