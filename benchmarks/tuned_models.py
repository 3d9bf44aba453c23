"""What tuning for a model brings: record its problems, sweep, train, export, and time the same model again.

Example: python -m benchmarks.tuned_models --model llama_8b --layers 4 --work tuned
Example: python -m benchmarks.tuned_models --model qwen3_30b --layers 4 --sweep-budget 240 --work tuned

The model is one of benchmarks.models, with FP8 layers. The steps are those of docs/tune-your-model.md, with its
commands: DG_RECORD_SHAPES while the model runs each case once, `sweep --shapes`, `train`, `evaluate`, and `export
--install` into a folder of artefacts of its own. Then each case is captured in one CUDA graph for each way to choose
configs, and replays alternate, so that all see the same clocks: `heuristic` (DG_SELECTOR=analytic), `before` (as this
process finds it: the shipped artefact, if nothing else is installed) and `tuned` (the new artefact). On a CPU the sweep
is simulated and the model tiny: that shows the steps and no times.

Result: {"meta": {..., "problems": recorded, "changed": of these, those that `tuned` gives another config than `before`,
    "seconds": of each command}, "rows": [{"phase", "sequences", "tokens" of a call, "<way>_ms": [of each round],
    "<way>_tokens_s", "gain": median before / tuned, "heuristic_gain": median heuristic / tuned, "failed"}]}.
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from deep_gemm import _C, plan, selection
from deep_gemm.nn import quantize_
from tuner import cli
from tuner.measure.statistics import median, paired_ratios
from tuner.problems import shapes

from .models import (
    DECODES,
    FAMILIES,
    PREFILLS,
    Case,
    Model,
    capture,
    choose_maker,
    list_cases,
    make_call,
    refuse_transformers,
    run_safely,
    time_once,
)
from .stamp import find_results, make_stamp, write_result

WAYS = ("heuristic", "before", "tuned")
ROUNDS = 15
#: What makes the commands possible, and quick, without a GPU.
CPU_OPTIONS = {
    "sweep": ("--backend", "simulated", "--effort", "quick"),
    "train": ("--trees", "4"),
    "evaluate": ("--jobs", "1"),
}


class CommandFailed(Exception):
    """A command of the tuner ended with another exit code than 0."""


@contextlib.contextmanager
def use_environment(settings: dict[str, str]) -> Iterator[None]:
    """Let what is chosen within be chosen under environment variables, and nothing outside be chosen by them."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    forget_choices()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        forget_choices()


def forget_choices() -> None:
    """Make every problem new to this process."""
    selection.forget_selectors()
    plan.forget()
    _C.dispatch_clear()


def get_settings(way: str, folder: Path) -> dict[str, str]:
    """Return the environment variables of a way to choose configs, whatever DG_SELECTOR was outside."""
    learned = {"DG_SELECTOR": "auto"}
    tuned = {**learned, "DG_MODEL_DIR": str(folder)}
    return {"heuristic": {"DG_SELECTOR": "analytic"}, "before": learned, "tuned": tuned}[way]


def record(calls: dict[Case, object], path: Path) -> list:
    """Run every call once and return the problems that the library wrote to a file."""
    path.unlink(missing_ok=True)
    with use_environment({"DG_RECORD_SHAPES": str(path)}):
        for call in calls.values():
            call()
    return shapes.load_file(path)


def list_commands(work: Path, sweep_budget: float, is_gpu: bool) -> list[list[str]]:
    """Return the tuner's commands from recorded shapes to an installed artefact."""
    db, training = ["--db", str(work / "tuning.db")], str(work / "training")
    place = ["--install"] if is_gpu else ["--out", str(work / "models")]  # simulated times are not installed
    commands = [
        ["sweep", "--shapes", str(work / "shapes.jsonl"), *db, "--time-budget", str(sweep_budget)],
        ["train", *db, "--out", training],
        ["evaluate", "--training", training, *db],
        ["export", "--training", training, *db, *place, "--force"],
    ]
    return commands if is_gpu else [[*words, *CPU_OPTIONS.get(words[0], ())] for words in commands]


def tune(work: Path, sweep_budget: float, is_gpu: bool) -> dict[str, float]:
    """Run the commands, and return the seconds of each. Raises: CommandFailed."""
    seconds = {}
    with use_environment({"DG_MODEL_DIR": str(work / "models")}):
        for words in list_commands(work, sweep_budget, is_gpu):
            start = time.monotonic()
            code = cli.run(words)
            seconds[words[0]] = round(time.monotonic() - start, 1)
            if code != 0:
                raise CommandFailed(f"tuner {' '.join(words)}: exit code {code}")
    return seconds


def count_changes(problems: list, folder: Path, device) -> int:
    """Return for how many problems `tuned` chooses another config than `before`."""
    chosen = {}
    for way in ("before", "tuned"):
        with use_environment(get_settings(way, folder)):
            chosen[way] = [selection.explain(problem, device).config for problem in problems]
    return sum(one != other for one, other in zip(*chosen.values(), strict=True))


def time_case(case: Case, call, folder: Path, rounds: int) -> dict:
    """Return the row of a case."""
    runs, times = {}, {way: [] for way in WAYS}
    for way in WAYS:
        with use_environment(get_settings(way, folder)):
            call()  # chooses, compiles and loads
            runs[way] = capture(call)
    for index in range(rounds + 1):
        for way, run in runs.items():
            taken = time_once(run)
            times[way] += [taken] if index else []  # the first round warms up
    row = {"phase": case.phase, "sequences": case.sequences, "tokens": case.tokens}
    for way in WAYS:
        row[f"{way}_ms"] = [round(taken, 4) for taken in times[way]]
        row[f"{way}_tokens_s"] = round(case.tokens / median(times[way]) * 1e3, 1)
    row["gain"] = round(median(paired_ratios(times["before"], times["tuned"])), 4)
    row["heuristic_gain"] = round(median(paired_ratios(times["heuristic"], times["tuned"])), 4)
    return row


def format_table(rows: list[dict]) -> str:
    """Return the rows as a table in Markdown."""
    lines = [
        "| phase | tokens | heuristic, tokens/s | before, tokens/s | tuned, tokens/s | gain | over the heuristic |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in (row for row in rows if "failed" not in row):
        speeds = " | ".join(f"{row[f'{way}_tokens_s']:,.0f}" for way in WAYS)
        gains = f"{row['gain']:.3f} | {row['heuristic_gain']:.3f}"
        lines.append(f"| {row['phase']} | {row['tokens']} | {speeds} | {gains} |")
    return "\n".join(lines)


def make_calls(model: Model, cases: list[Case], context: int, device: str) -> dict[Case, object]:
    """Return a function without arguments for each case."""

    def bind(case: Case):
        step = make_call(case, model.sizes.vocabulary, context, device)
        return lambda: step(model)

    return {case: bind(case) for case in cases}


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="Exit codes: 0 all right, 1 a command or a case failed."
    )
    parser.add_argument("--out", type=Path, help="where the result goes; default: the record, on a GPU")
    parser.add_argument("--work", type=Path, required=True, help="folder of shapes, database, training and artefact")
    parser.add_argument("--model", choices=FAMILIES, default="llama_8b", help="the sizes; default: llama_8b")
    parser.add_argument("--transformers", action="store_true", help="the model of transformers in these sizes")
    parser.add_argument("--layers", type=int, help="layers of the model; default: all")
    parser.add_argument("--sweep-budget", type=float, default=300.0, help="seconds of the sweep; 0: no limit")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="samples of each way")
    args = parser.parse_args(arguments)
    refuse_transformers(parser, args.model, args.transformers)
    return args


@torch.no_grad()
def main(arguments: list[str] | None = None) -> int:
    """Record, tune, time again and write the result. Returns the exit status."""
    args, is_gpu = parse_arguments(arguments), torch.cuda.is_available()
    family, name = FAMILIES[args.model], "cuda" if is_gpu else "cpu"
    sizes = family.gpu_sizes if is_gpu else family.cpu_sizes
    sizes = sizes._replace(layers=args.layers or sizes.layers)
    cases = list_cases(PREFILLS, family.length, DECODES) if is_gpu else list_cases((1,), 16, (2,))
    args.work.mkdir(parents=True, exist_ok=True, mode=0o700)  # the library trusts artefacts in closed folders only
    model = quantize_(choose_maker(family, args.transformers)(sizes, name, torch.bfloat16).eval().requires_grad_(False))
    calls = make_calls(model, cases, family.context if is_gpu else 16, name)
    problems = record(calls, args.work / "shapes.jsonl")
    print(f"{len(problems)} problems of {args.model}", flush=True)
    try:
        seconds = tune(args.work, args.sweep_budget, is_gpu)
    except CommandFailed as error:
        print(error, file=sys.stderr)
        return 1
    folder, device = args.work / "models", _C.get_device() if is_gpu else _C.Device.known("h200")
    rows = [run_safely(time_case, case, call, folder, args.rounds) for case, call in calls.items()]
    changed = count_changes(problems, folder, device)
    origin = make_stamp(device, family.ops) if is_gpu else {"device": "CPU reference"}
    meta = {
        **origin,
        "model": args.model,
        "transformers": args.transformers,
        "sizes": sizes._asdict(),
        "problems": len(problems),
        "changed": changed,
        "seconds": seconds,
        "rounds": args.rounds,
    }
    write_result({"meta": meta, "rows": rows}, args.out, find_results() / "tuned_models.json", is_gpu)
    print(f"{changed} of {len(problems)} problems have another config now\n\n{format_table(rows)}", flush=True)
    return 1 if any("failed" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
