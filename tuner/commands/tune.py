"""python -m tuner tune: measure one problem, or a few of every op kind, and let the library use what follows."""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from deep_gemm import environment
from tuner import errors
from tuner.commands import options as shared_options
from tuner.commands.problem_options import OP_HELP, add_optional_field_parameters
from tuner.commands.sweep import measure
from tuner.commands.tables import format_table
from tuner.problems.fields import OPS

QUICK_HELP = (
    "Calibrate the selector in rounds of 8 problems an op kind, those on which it is least sure, starting from rows of"
    " older kernels or of another GPU; until its regret gets no better, or --time-budget is spent."
)
PRIOR_HELP = "With --quick: database to start from. Default: your own, then the recorded snapshot."
BUDGET_S = 120.0
BUDGET_HELP = (
    "With --quick: begin no further round that would end after this many seconds; the first one is measured in any"
    f" case, with 0 alone. Default: {BUDGET_S:.0f}."
)
EFFORT_HELP = "quick (3 search and 30 confirmation rounds) or full (8 and 40). Default: full; with --quick quick."


def register(app) -> None:
    """Add `tune` to the command line."""
    app.command("tune")(tune)


@add_optional_field_parameters
def tune(
    op: str = typer.Option(None, help=f"{OP_HELP} Default: fp8_gemm; with --quick every op kind of --prior."),
    *,
    quick: bool = typer.Option(False, help=QUICK_HELP),
    prior: str = typer.Option("", help=PRIOR_HELP),
    time_budget: float = typer.Option(None, min=0.0, help=BUDGET_HELP),
    database: str = shared_options.RECORD_DB,
    effort: str = typer.Option("", help=EFFORT_HELP),
    device: int = shared_options.GPU,
    out: Path = shared_options.MODEL_FOLDER,
    backend: str = shared_options.BACKEND,
    as_json: shared_options.AsJson = False,
    **fields: Any,
) -> None:
    """Measure one problem on this GPU and install its best config, for processes that start afterwards.

    The config enters the exact table of the artefact that the library uses so far; for every other problem it chooses
    as before. With --quick and without M, N and K: make an artefact for this GPU and these kernels from recorded rows
    of others, by measuring a few problems.

    Example: python -m tuner tune 64 2112 7168 --op fp8_gemm
    """
    from tuner.learn.sources import device_at_hand
    from tuner.search.candidates import SweepOptions
    from tuner.ship.selection import make_asked_problem
    from tuner.ship.tuned import check_base, install_best

    folder, target = choose_folder(out, backend), database or environment.tuner_database()
    check_sizes([fields[name] for name in ("m", "n", "k")], quick)
    check_calibrating({"--prior": bool(prior), "--time-budget": time_budget is not None}, quick)
    effort = effort or ("quick" if quick else "full")
    check_choices(effort, backend)
    options = SweepOptions([], target, effort=effort, device=device, backend=backend, argv=sys.argv[1:])
    if quick:
        shared_options.check_choice("--op", op or OPS[0], OPS)
        budget_s = BUDGET_S if time_budget is None else time_budget
        report = calibrate(options, prior, [op] if op else [], folder, budget_s)
        print(json.dumps(report, indent=1, sort_keys=True) if as_json else describe_rounds(report))
        return
    problem = make_asked_problem(op or OPS[0], **fields)
    check_base(device_at_hand("", device).sku, folder)
    summary = measure(replace(options, problems=[problem]))
    found = install_best(problem, target, folder, summary["identities"][problem.op]["sku"], backend)
    print(json.dumps(found, indent=1, sort_keys=True) if as_json else describe(found))


def check_sizes(sizes: list, quick: bool) -> None:
    """Raise UsageError unless all sizes are given, or with --quick none."""
    if quick and any(size is not None for size in sizes):
        raise errors.UsageError("--quick: chooses its problems by itself; drop M, N and K")
    if not quick and any(size is None for size in sizes):
        raise errors.UsageError("M, N and K: give all three, or --quick")


def check_calibrating(given: dict[str, bool], quick: bool) -> None:
    """Raise UsageError where options of --quick, `given`, are there without it."""
    flags = [flag for flag, is_given in given.items() if is_given]
    if flags and not quick:
        raise errors.UsageError(f"{', '.join(flags)}: only for --quick; drop it, or give --quick without M, N and K")


def check_choices(effort: str, backend: str) -> None:
    """Raise UsageError for an effort or a backend that does not exist."""
    from tuner.measure.worker import BACKENDS
    from tuner.search.problem_run import EFFORTS

    shared_options.check_choice("--effort", effort, EFFORTS)
    shared_options.check_choice("--backend", backend, BACKENDS)


def calibrate(options, prior: str, ops: list, out: Path, budget_s: float) -> dict:
    """Calibrate the selector in rounds, write the artefact, and return what was done; `options` are those of the
    rounds' sweeps.
    """
    from tuner.learn.sources import device_at_hand, open_priors
    from tuner.ship.calibrate import Calibrator, start

    target = device_at_hand("", options.device)
    with open_priors(prior, target.sku) as priors:
        calibrations, skipped = start(priors, target, ops, options.backend)

    def sweep(problems: list) -> None:
        try:
            measure(replace(options, problems=problems, space="loops", sampler="exhaustive"))
        except errors.NothingMeasuredError as error:  # what earlier rounds learned still counts
            print(f"tuner: {error}", file=sys.stderr)

    calibrator = Calibrator(target, options.database, sweep, calibrations, options.backend)
    calibrator.run(budget_s)
    with tempfile.TemporaryDirectory() as folder:
        written = calibrator.export(Path(folder), out)
    return {"sku": target.sku, "rounds": calibrator.log, "skipped": skipped} | written


def describe_rounds(report: dict) -> str:
    """Return a line for each round and op kind, and what was written."""
    headings = ("round", "op kind", "problems", "regret", "heuristic", "seconds", "trees")
    rows = [
        (
            row["round"],
            row["op"],
            row["problems"],
            *("-" if row[name] is None else f"{row[name]:.2%}" for name in ("regret", "heuristic")),
            row["seconds"],
            "kept as they were" if row["kept"] else "fitted again",
        )
        for row in report["rounds"]
    ]
    lines = [format_table(headings, rows), "regret: of choices that were made before the round was learned from"]
    if report["skipped"]:
        lines.append(f"as they were, without rows of other kernels to start from: {', '.join(report['skipped'])}")
    if report["left_out"]:
        lines.append(f"as they were, not measured or no better than the heuristic: {', '.join(report['left_out'])}")
    return "\n".join([*lines, f"written: {report['artifact']}"])


def choose_folder(out: Path | None, backend: str) -> Path:
    """Return the folder of the artefact. Raises: UsageError, for simulated times also where it is not named."""
    if out is None and backend == "simulated":
        raise errors.UsageError(
            "--backend simulated: give --out; simulated times must not decide what the library runs"
        )
    folder = shared_options.check_folder("--out", out) or environment.model_dir()
    if folder is None:
        raise errors.UsageError("neither DG_MODEL_DIR nor HOME is set; give --out")
    return folder


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
