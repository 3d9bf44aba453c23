"""python -m tuner sweep: measure configurations on the GPU at hand and record them."""

import json
import sys
import time
from pathlib import Path
from typing import Self

import typer

from deep_gemm import _C, environment
from deep_gemm.text import printable
from tuner import errors
from tuner.commands.gpu_options import GPUS, MIXED, SCHEDULER, check_mixed, check_scheduler, choose_gpus
from tuner.commands.options import ENERGY, GPU, MAX_SEED, RECORD_DB, AsJson, check_choice
from tuner.commands.sweep_options import (
    BACKEND_HELP,
    BEST,
    N_TRIALS,
    PORTFOLIO_FROM,
    PORTFOLIO_SIZE,
    PRESET_HELP,
    SAMPLER_HELP,
    SPACE_HELP,
    STORAGE_HELP,
    WORKLOAD_HELP,
    check_portfolio,
    check_space,
    choose_recorded,
    load_configs,
)
from tuner.commands.tables import format_table
from tuner.problems import shapes

DEFAULT_PRESET = "default"
#: Failures that a summary shows; --json has all.
MAX_EXAMPLES = 8
#: Without a terminal, progress is one line at most this often.
LINE_INTERVAL_S = 15.0


def register(app) -> None:
    """Add `sweep` to the command line."""
    app.command("sweep")(sweep)


def sweep(
    preset: str = typer.Option("", help=PRESET_HELP),
    shapes_file: Path = typer.Option(None, "--shapes", help="JSON file with the problems, instead of a preset."),
    configs_file: Path = typer.Option(None, "--configs", help="JSON file with the configs, instead of a space."),
    space: str = typer.Option("default", help=SPACE_HELP),
    portfolio_size: int = PORTFOLIO_SIZE,
    portfolio_from: str = PORTFOLIO_FROM,
    best: int = BEST,
    database: str = RECORD_DB,
    sampler: str = typer.Option("auto", help=SAMPLER_HELP),
    n_trials: int = N_TRIALS,
    effort: str = typer.Option("quick", help="quick (3 search and 30 confirmation rounds) or full (8 and 40)."),
    seed: int = typer.Option(0, min=0, max=MAX_SEED, help="Seed of the input data, group sizes and the sampler."),
    workload: str = typer.Option("spread", help=WORKLOAD_HELP),
    shard: str = typer.Option("0/1", help="Measure shard i of n, given as i/n. Each shard needs its own database."),
    device: int = GPU,
    gpus: str = GPUS,
    scheduler: str = SCHEDULER,
    mixed: bool = MIXED,
    time_budget: float = typer.Option(0.0, min=0.0, help="Start no new problem after this many seconds; 0: no limit."),
    resume: bool = typer.Option(
        True, help="Skip problems that were measured before with this kernel, compiler and regime."
    ),
    study_storage: str = typer.Option("", help=STORAGE_HELP),
    sentinels: bool = typer.Option(
        True, help="Also measure a few fixed configs now and then, from which `compare` knows this sweep's noise."
    ),
    rests: bool = typer.Option(
        True, help="Time the finalists of long products (100 us and more) again after rests, and choose by both."
    ),
    energy: str = ENERGY,
    dry_run: bool = typer.Option(
        False, help="Measure nothing; print what would be measured on an H200, and roughly how long it would take."
    ),
    backend: str = typer.Option("cuda", help=BACKEND_HELP),
    as_json: AsJson = False,
) -> None:
    """Measure configs on this GPU and record them. Run it again to resume.

    Example: python -m tuner sweep --preset default --effort full
    """
    from tuner.search.candidates import SweepOptions
    from tuner.search.energy import parse_count
    from tuner.search.plan import check_trials
    from tuner.search.propose import choose_sampler

    check_choices(workload, space, backend, effort, study_storage)
    choose_sampler(sampler, 0)  # that it exists
    check_space(space, {"--configs": configs_file, "--portfolio-size": portfolio_size, "--best": best})
    check_portfolio(portfolio_from, portfolio_size or best)
    problems, part = load_problems(preset, shapes_file), shapes.parse_shard(shard)
    options = SweepOptions(
        problems=shapes.take_shard(problems, *part),
        database=database or environment.tuner_database(),
        preset="" if shapes_file else preset or DEFAULT_PRESET,
        configs=load_configs(configs_file) if configs_file else None,
        space=space,
        sampler=sampler,
        num_trials=n_trials or None,
        effort=effort,
        seed=seed,
        workload=workload,
        shard=part,
        device=device,
        gpus=choose_gpus(gpus, device, backend),
        mixed=check_mixed(mixed, bool(gpus or scheduler)),
        scheduler=check_scheduler(scheduler, bool(gpus or device)),
        time_budget_s=time_budget or None,
        resume=resume,
        backend=backend,
        study_storage=study_storage,
        sentinels=sentinels,
        rests=rests,
        energy=parse_count(energy),
        argv=sys.argv[1:],
    )
    check_trials(options)
    if not options.problems:
        print(f"--shard {shard}: holds none of the {len(problems)} problems", file=sys.stderr)
    recorded = choose_recorded(portfolio_from or options.database, portfolio_size, best)
    summary = (dry_summary if dry_run else measure)(options, recorded)
    print_plan(summary) if dry_run and not as_json else print_summary(summary, as_json)
    errors.check_measured(summary)


def check_choices(workload: str, space: str, backend: str, effort: str, storage: str) -> None:
    """Raise UsageError for a name that does not exist, or a storage that is no URL."""
    from tuner.measure.worker import BACKENDS
    from tuner.problems.workload import WORKLOADS
    from tuner.search.problem_run import EFFORTS
    from tuner.search.study_storage import check_url
    from tuner.search.wide_space import SPACES

    check_choice("--workload", workload, WORKLOADS)
    check_choice("--space", space, SPACES)
    check_choice("--backend", backend, BACKENDS)
    check_choice("--effort", effort, EFFORTS)
    if storage:
        check_url(storage)


def load_problems(preset: str, path: Path | None) -> list:
    """Return the problems of a shape file, or of a preset where there is no `path`. Raises: UsageError for both."""
    if preset and path:
        raise errors.UsageError(f"--preset {preset}: cannot be combined with --shapes {path}; drop one")
    return shapes.load_file(path) if path else shapes.load_preset(preset or DEFAULT_PRESET)


def dry_summary(options, recorded=None) -> dict:
    """Return what the sweep would measure on an H200."""
    from tuner.search.plan import plan_sweep

    device = _C.Device.known("h200")
    options = recorded.narrow(options, device.sku) if recorded else options
    configs = None if options.configs is None else [config.as_dict() for config in options.configs]
    return plan_sweep(options, device) | {"configs": configs, "best": recorded.best if recorded else 0}


def measure(options, recorded=None) -> dict:
    """Run the sweep with a progress bar and return its summary; for several kinds of GPUs that of each, as "sweeps".
    `recorded`: how recorded rows choose its configs, where they do.

    Raises: NothingMeasuredError where no problem could be measured.
    """
    from tuner.search import lanes
    from tuner.search.sweep import open_workers

    with open_workers(options) as workers, make_progress() as progress:
        # Before there is a database: without a GPU none is created.
        groups = lanes.group_workers(workers, progress, options.mixed)
        chosen = [narrow(group, options, recorded) for group in groups]
        summaries = [measure_on(group, own, progress) for group, own in zip(groups, chosen, strict=True)]
    return summaries[0] if len(summaries) == 1 else {"sweeps": summaries}


def narrow(workers: list, options, recorded):
    """Return the options of a sweep on equal boards, with the configs that recorded rows choose for these."""
    if recorded is None:
        return options
    hello = workers[0].start()
    return recorded.narrow(options, hello["device"]["sku"], hello["regime"])


def measure_on(workers: list, options, progress) -> dict:
    """Run the sweep on equal boards and return its summary."""
    from tuner.db import Store
    from tuner.learn.orders import predict_times
    from tuner.search.sweep import Sweep

    with Store.open(options.database) as store:
        summary = Sweep(options, store, workers, progress, predict_times).run()
    if (failed := summary["failed"]) and not summary["measured"] + summary["already_measured"]:
        problem, reason = next(iter(failed.items()))
        raise errors.NothingMeasuredError(f"none of {len(failed)} problems could be measured; {problem}: {reason}")
    return summary


class SweepProgress:
    """Shows the sweep's events on standard error: as progress bars on a terminal, else as a line now and then."""

    def __init__(self):
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.is_terminal = sys.stderr.isatty()
        self.progress = Progress(*columns, console=Console(stderr=True), disable=not self.is_terminal)
        self.tasks: dict = {}
        self.printed_at = time.monotonic()
        self.verb = "measuring"

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.progress.stop()

    def show_device(self, name: str, sku: str, regime: str) -> None:
        """Say which GPU is measured, or that none is."""
        from tuner.problems.regimes import is_simulated

        self.verb, on = ("simulating", "") if is_simulated(regime) else ("measuring", "on ")
        self.progress.console.print(f"{self.verb} {on}{name} ({sku})", highlight=False)

    def __call__(self, name: str, facts: dict) -> None:
        """Show one event of the sweep."""
        if name == "device":
            self.show_device(**facts)
            return
        if name in ("waiting", "warning"):
            text = f"waiting for space: {facts['reason']}" if name == "waiting" else f"warning: {facts['text']}"
            print(printable(text), file=sys.stderr, flush=True)
            return
        if name == "retired":
            print(printable(f"a GPU is used no more: {facts['reason']}"), file=sys.stderr, flush=True)
            return
        label = {"compile": "compiling", "problem": self.verb}[name]
        if not self.is_terminal and time.monotonic() - self.printed_at > LINE_INTERVAL_S:
            self.printed_at = time.monotonic()
            print(f"{label} {facts['done']}/{facts['total']}", file=sys.stderr, flush=True)
        if label not in self.tasks:
            self.tasks[label] = self.progress.add_task(label, total=facts["total"])
        self.progress.update(self.tasks[label], completed=facts["done"], total=facts["total"])


def make_progress() -> SweepProgress:
    """Return the progress display."""
    return SweepProgress()


def print_summary(summary: dict, as_json: bool) -> None:
    """Print what a sweep did, as JSON or as short lines and tables."""
    if as_json:
        print(json.dumps(summary, indent=1, sort_keys=True))
        return
    for each in summary.get("sweeps", [summary]):
        print_sweep(each)


def print_sweep(summary: dict) -> None:
    """Print what a sweep did on GPUs of one kind."""
    print(f"{summary['database']}: {describe_counts(summary)}")
    rows = [
        (op, found["sku"], found["kernel_hash"][:8], found["compiler"], found["regime"])
        for op, found in summary["identities"].items()
    ]
    print(format_table(("op kind", "gpu", "kernel", "compiler", "regime"), rows, indent="  "))
    if summary["statuses"]:
        statuses = ", ".join(f"{count} {status}" for status, count in sorted(summary["statuses"].items()))
        print(f"configs: {statuses} (censored: dropped early, because they are slow)")
    parts = [
        f"{name.replace('_', ' ')} {value:.1f} s" for name, value in summary["phase_seconds"].items() if value >= 0.05
    ]
    print(f"time: {describe_seconds(summary['seconds'])}{': ' if parts else ''}{', '.join(parts)}")
    for label in ("failed", "quarantined", "retired"):
        rows = list(summary[label].items())
        if rows:
            print(format_table((f"{label} ({len(rows)})", "reason"), rows[:MAX_EXAMPLES], indent="  "))


def describe_counts(summary: dict) -> str:
    """Return how many problems were measured, and how many were not."""
    others = {
        "measured before": summary["already_measured"],
        "failed": len(summary["failed"]),
        "left for the next run": summary["remaining"],
    }
    rest = "".join(f", {count} {name}" for name, count in others.items() if count)
    return f"{summary['measured']} of {summary['problems']} problems measured now{rest}"


def print_plan(plan: dict) -> None:
    """Print what a sweep would measure, a line per op kind, and roughly how long it would take."""
    effort, options = plan["effort"], plan["options"]
    index, count = options["shard"]
    subject = (options["preset"] or "the problems of --shapes") + (f", shard {index}/{count}" if count > 1 else "")
    print(
        f"{subject} on {plan['device']}, effort {effort['name']}: {effort['search_rounds']} search and"
        f" {effort['confirm_rounds']} confirmation rounds"
    )
    rows = [
        (
            name,
            row["problems"],
            row["space"],
            row["kernels"],
            row["measurements"],
            describe_seconds(row["rough_seconds"]),
        )
        for name, row in {**plan["ops"], "total": plan}.items()
    ]
    print(format_table(("op kind", "problems", "configs", "kernels", "measurements", "roughly"), rows))
    if plan["best"]:
        print(f"of each problem the {plan['best']} fastest configs on record, and the heuristic's pick, all confirmed")
    if plan["configs"] is not None:
        print(f"of {len(plan['configs'])} given configs, where legal, and the heuristic's pick; winners come on top")
    print("The times are rough, within a factor of two: they come from the effort and the heuristic's estimates.")
    print("Compiling the kernels comes on top. Problems that were measured before are included.")


def describe_seconds(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds > 0.5 else "<1 s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
