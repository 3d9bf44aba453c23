"""python -m tuner tune: measure one problem and let the library use its best config."""

import json
import sys
from pathlib import Path
from typing import Any

import typer

from deep_gemm import environment
from tuner import errors
from tuner.commands import options as shared_options
from tuner.commands.problem_options import OP_HELP, add_field_parameters
from tuner.commands.sweep import check_choice, measure
from tuner.commands.tables import format_table


def register(app) -> None:
    """Add `tune` to the command line."""
    app.command("tune")(tune)


@add_field_parameters
def tune(
    op: str = typer.Option("fp8_gemm", help=OP_HELP),
    *,
    database: str = shared_options.RECORD_DB,
    effort: str = typer.Option("full", help="quick (3 search and 30 confirmation rounds) or full (8 and 40)."),
    device: int = shared_options.GPU,
    out: Path = shared_options.MODEL_FOLDER,
    backend: str = shared_options.BACKEND,
    as_json: bool = shared_options.AS_JSON,
    **fields: Any,
) -> None:
    """Measure one problem on this GPU and install its best config, for processes that start afterwards.

    The config enters the exact table of the artefact that the library uses so far; for every other problem it chooses
    as before.

    Example: python -m tuner tune 64 2112 7168 --op fp8_gemm
    """
    from tuner.ship.selection import make_asked_problem
    from tuner.ship.tuned import install_best

    folder = choose_folder(out, backend)
    problem = make_asked_problem(op, **fields)
    target = database or environment.tuner_database()
    sweep_problem(problem, target, effort, device, backend)
    found = install_best(problem, target, folder)
    print(json.dumps(found, indent=1, sort_keys=True) if as_json else describe(found))


def choose_folder(out: Path | None, backend: str) -> Path:
    """Return the folder of the artefact. Raises: UsageError, for simulated times also where it is not named."""
    if out is None and backend == "simulated":
        raise errors.UsageError(
            "--backend simulated: give --out; simulated times must not decide what the library runs"
        )
    folder = out or environment.model_dir()
    if folder is None:
        raise errors.UsageError("neither DG_MODEL_DIR nor HOME is set; give --out")
    return folder


def sweep_problem(problem, database: str, effort: str, device: int, backend: str) -> None:
    """Measure the whole space of a problem into a database, unless that was done before with these kernels."""
    from tuner.measure.worker import BACKENDS
    from tuner.search.candidates import SweepOptions
    from tuner.search.problem_run import EFFORTS

    check_choice("--effort", effort, EFFORTS)
    check_choice("--backend", backend, BACKENDS)
    options = SweepOptions(
        problems=[problem], database=database, effort=effort, device=device, backend=backend, argv=sys.argv[1:]
    )
    measure(options, database, 0)


def describe(found: dict) -> str:
    """Return what was installed, and the fastest configs beside the heuristic's pick."""
    rows = [
        (entry["name"], f"{entry['median_us']:.2f}", f"{entry['ratio']:.3f}" if entry["ratio"] else "-", entry["role"])
        for entry in found["configs"]
    ]
    before = f"{found['before']} ({found['before_source']})"
    lines = [
        f"{found['problem']} on {found['sku']}: {found['name']}, before {before}",
        format_table(("config", "us", "ratio", ""), rows, indent="  "),
        "ratio: to the heuristic's pick, in rounds that did not choose the winner",
    ]
    if found["entries_lost"]:
        lines.append(
            f"for room, {found['entries_lost']} other problems lost their entries; the selector's trees answer"
        )
    return "\n".join([*lines, f"written: {found['artifact']}"])
