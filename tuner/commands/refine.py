"""python -m tuner refine: measure the best few choices for a deployment's own shapes, and install the winners."""

import json
import sys
from pathlib import Path

import typer

from deep_gemm import environment
from tuner import errors
from tuner.commands import options as shared_options
from tuner.commands.sweep import measure
from tuner.commands.tables import format_table
from tuner.commands.tune import choose_folder

#: Configs that are measured of a problem, and the most that may be; for more there is `sweep`.
COUNT, MOST = 16, 64


def register(app) -> None:
    """Add `refine` to the command line."""
    app.command("refine")(refine)


def refine(
    shapes_file: Path = typer.Option(
        ..., "--shapes", help="File that DG_RECORD_SHAPES named, or any other shape file."
    ),
    count: int = typer.Option(COUNT, "--best", min=1, max=MOST, help="Configs to measure for each problem."),
    database: str = shared_options.RECORD_DB,
    effort: str = typer.Option("quick", help="quick (3 search and 30 confirmation rounds) or full (8 and 40)."),
    device: int = shared_options.GPU,
    out: Path = shared_options.MODEL_FOLDER,
    backend: str = shared_options.BACKEND,
    as_json: shared_options.AsJson = False,
) -> None:
    """Measure the selector's best few configs for the shapes of a file and install the winners.

    The heuristic's pick is measured as well. All other choices of the artefact stay.

    Example: python -m tuner refine --shapes shapes.jsonl
    """
    from tuner.problems.shapes import load_file

    problems = load_file(shapes_file)
    report = install_few(problems, count, database, out, effort=effort, device=device, backend=backend)
    print(
        json.dumps(report, indent=1, sort_keys=True) if as_json else describe(report, "written" if out else "installed")
    )
    errors.check_measured(report)


def install_few(
    problems: list, count: int, database: str, out: Path | None, *, effort: str, device: int, backend: str
) -> dict:
    """Measure the `count` best choices for each problem and the heuristic's pick, install the winners, and return what
    was done.
    """
    from tuner.learn.sources import device_at_hand
    from tuner.measure.worker import BACKENDS
    from tuner.search.candidates import SweepOptions
    from tuner.search.problem_run import EFFORTS
    from tuner.ship.tuned import install_best, list_finalists

    shared_options.check_choice("--effort", effort, EFFORTS)
    shared_options.check_choice("--backend", backend, BACKENDS)
    folder, target = choose_folder(out, backend), database or environment.tuner_database()
    options = SweepOptions(
        problems=problems,
        database=target,
        finalists=list_finalists(problems, device_at_hand("", device), folder, count),
        effort=effort,
        device=device,
        backend=backend,
        argv=sys.argv[1:],
    )
    summary = measure(options)
    failed = {str(problem): reason for problem, reason in summary["failed"].items()}
    skus = {op: identity["sku"] for op, identity in summary["identities"].items()}
    installed = [
        install_best(problem, target, folder, skus[problem.op], backend)
        for problem in problems
        if str(problem) not in failed
    ]
    return {"problems": len(problems), "failed": failed, "installed": installed}


def describe(report: dict, verb: str) -> str:
    """Return what was installed, or only written, a line for each problem, and what failed."""
    rows = [
        (one["problem"], one["name"], "as before" if one["name"] == one["before"] else f"before {one['before']}")
        for one in report["installed"]
    ]
    lines = [format_table(("problem", "config", ""), rows)] if rows else []
    lines += [f"not measured: {problem}: {reason}" for problem, reason in report["failed"].items()]
    lost = sum(one["entries_lost"] for one in report["installed"])
    lines += [f"{lost} measured choices of other problems gave way: the artefact is full"] if lost else []
    changed = sum(one["name"] != one["before"] for one in report["installed"])
    lines.append(f"{len(rows)} of {report['problems']} problems {verb}, {changed} with another config than before")
    return "\n".join([*lines, *dict.fromkeys(f"written: {one['artifact']}" for one in report["installed"])])
