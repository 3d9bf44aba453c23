"""Build, check and time on a GPU machine in one go, each step within a budget of wall time.

Example: python -m benchmarks.gpu_session --list suite --total 560 --out results
Example: python -m benchmarks.gpu_session build suite:1/2 host_time@90 --budget 540 --out results

Steps, in the order given, which is that of their priority; `@SECONDS` behind a name is a budget of its own:
  build           the native module, in place; where it fails, nothing else runs
  suite[-SECTION][:i/n]  the GPU correctness suite on all GPUs, one section of it, or one shard on one GPU
  racecheck       compute-sanitizer's racecheck on everything that the suite's other tools watch, on all GPUs
  sweep-PRESET    a sweep of the tuner on all GPUs, into sweep.db
  upstream        compile what the benchmarks call of DeepGEMM, where --deepgemm names one: it is a peer of BESIDE then
  <script>        a benchmark: the name of a script beside this one, or one of PROGRAMS
  due             find which records are not of this tree (due.py), and run their steps next
A list of LISTS stands for its steps. A step gets its budget or what is left of `--total`, whichever is less; one for
which less than MIN_S are left is skipped.

Result: one file for each step (`gpu_record.json`, of a shard `gpu_record_<i>of<n>.json`, of one section
    `gpu_record_<section>.json`; `<script>.json`; `sweep.db`
    of all sweeps) and session.json, written after every step: {"steps": [{"step", "status", "exit_code", "seconds",
    "result"}]}. The status is that of the step's exit code (STATUS), `timed out` (killed at its budget), or `skipped`.
    The records of all shards become one with `python -m tests.gpu.run --merge <records> --out gpu_record.json`.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tuner.measure.stamp import read_json, write_json

from . import ROOT

SUITE = re.compile(r"suite(?:-([a-z_]+))?(?::([1-9]\d*)/([1-9]\d*))?")
SWEEP = re.compile(r"sweep-([a-z_]+)")
#: A budget behind the name of a step.
BUDGET = re.compile(r"(.+)@(\d+)")
#: Benchmarks that DeepGEMM can be a peer in (upstream.py).
BESIDE = (
    "dense_fp8",
    "random_fp8",
    "dense_bf16",
    "wgrad_fp8",
    "transpose_fp8",
    "m_grouped_contiguous",
    "m_grouped_masked",
    "k_grouped",
    "mqa_logits",
)
#: Scripts that take a time budget, stop by themselves and write what they have measured by then.
BUDGETED = (
    *BESIDE,
    "plain_kernels",
    "batch_invariance",
    "scale_copies",
    "choice_regret",
    "second_tile",
)
#: Scripts that keep a database beside their result, from which it can be derived again.
RECORDING = {"choice_regret": "choices.db"}
SCRIPTS = (*BUDGETED, "host_time", "host_ops", "pdl", "compile_time")
#: Layers of the models that are timed: of a Llama and a Qwen3 as many as take seconds, of DeepSeek as fit into memory.
LLAMA = ("benchmarks.models", "--model", "llama_8b", "--layers", "6")
QWEN3 = ("benchmarks.models", "--model", "qwen3_30b", "--layers", "12")
DEEPSEEK = ("benchmarks.models", "--model", "deepseek_v3", "--layers", "3")
#: Steps that are programs of other folders, that `make benchmark` leaves out, or that have options of their own: the
#: module and these.
PROGRAMS = {
    "einsum": ("tests.gpu.einsum",),
    "plain_kernels_bits": ("tests.gpu.plain_kernels",),
    "callers": ("tests.callers.run",),
    "kernel_sets": ("tests.gpu.kernel_sets",),
    "mega_moe": ("benchmarks.mega_moe",),
    "moe_layer": ("examples.moe_layer",),
    "models": (*LLAMA, "--torchao"),
    "models_compiled": (*LLAMA, "--compile"),
    "models_qwen3": QWEN3,
    "models_qwen3_transformers": (*QWEN3, "--transformers"),
    "models_deepseek": DEEPSEEK,
    "train_llama": ("examples.train_llama",),
    "tuned_models": ("benchmarks.tuned_models", "--model", "llama_8b", "--layers", "4", "--sweep-budget", "60"),
}
STEPS = (*SCRIPTS, *PROGRAMS)
#: Programs that keep files beside their result: the option that names their folder.
WORKING = {"tuned_models": "--work"}
#: The step that finds which others are due, and the file that says so.
DUE, DUE_FILE = "due", "due.json"
#: What a session of minutes is for, the most valuable step first. Each writes at most eight files.
LISTS = {
    "suite": ("build@240", "suite"),
    "faults": ("build@240", "suite-worker_faults@540"),
    "racecheck": ("build@240", "racecheck@300"),
    "callers": (
        "build@240",
        "host_ops@40",
        "callers@60",
        "mqa_logits@90",
        "plain_kernels@90",
        "einsum@120",
        "host_time@90",
        "plain_kernels_bits@60",
    ),
    "sweep": (
        "build@240",
        "sweep-dense@320",
        "sweep-grouped@130",
        "sweep-batched@100",
        "sweep-attention@240",
        "sweep-portfolio_dense@260",
        "sweep-portfolio_grouped@540",
    ),
    "benchmarks": (
        "build@240",
        "dense_fp8@90",
        "random_fp8@80",
        "m_grouped_contiguous@70",
        "m_grouped_masked@90",
        "k_grouped@70",
        "dense_bf16@80",
        "wgrad_fp8@70",
    ),
    "times": (
        "build@240",
        "callers@60",
        "host_time@90",
        "mqa_logits@90",
        "transpose_fp8@70",
        "host_ops@40",
        "einsum@90",
        "batch_invariance@70",
    ),
    "choices": ("build@240", "choice_regret@180"),
    "two_gpus": ("build@240", "mega_moe@120"),
    "launches": (
        "build@240",
        "scale_copies@90",
        "pdl@60",
        "compile_time@120",
        "plain_kernels@90",
        "plain_kernels_bits@60",
    ),
}
#: What a sweep is told beside its preset: portfolios measure the best configs of the sweeps before them, the others all
#: candidates, with and without the knobs of the main loop.
PORTFOLIO_OPTIONS, SPACE_OPTIONS = ("--portfolio-size", "24"), ("--space", "loops")
#: The suite's options in a session, with which it takes minutes: its defaults run twelve times as many configs of the
#: variants that are not main ones, in one process.
SUITE_OPTIONS = ("--spread", "48", "--workers", "3")
#: Seconds without which a step is not begun.
MIN_S = 20.0
#: Seconds between the end of a step's time budget and the moment at which it is killed: time to finish what it has
#: begun and to write its result.
GRACE_S = 30.0
#: What the suite's and the scripts' exit codes mean.
STATUS = {0: "ok", 1: "failed", 2: "cannot run", 3: "incomplete"}


class Step(NamedTuple):
    """A step's name, its command, and the file that it writes, if any."""

    name: str
    command: list[str]
    result: Path | None = None


def split_budget(text: str, budget_s: float) -> tuple[str, float]:
    """Return the name of a step and its budget: its own, if the text has one."""
    found = BUDGET.fullmatch(text)
    return (found[1], float(found[2])) if found else (text, budget_s)


def make_step(name: str, out: Path, budget_s: float, deepgemm: Path | None = None) -> Step:
    """Return the step of a name; `deepgemm`: folder of the peer, if any. Raises: ValueError where there is none."""
    told = ["--time-budget", str(max(budget_s - GRACE_S, 1.0))]
    if name == "build":
        return Step(name, [sys.executable, "setup.py", "-q", "build_ext", "--inplace"])
    if suite := SUITE.fullmatch(name):
        section, index, total = suite.groups()
        parts = ["gpu_record", *([section] if section else []), *([f"{index}of{total}"] if index else [])]
        result = out / f"{'_'.join(parts)}.json"
        chosen = ["--sections", section] if section else []
        options = ["--out", str(result), *chosen, *SUITE_OPTIONS]
        options += ["--shard", f"{index}/{total}"] if index else ["--gpus", "all"]
        return Step(name, [sys.executable, "-m", "tests.gpu.run", *options, *told], result)
    if sweep := SWEEP.fullmatch(name):
        more = PORTFOLIO_OPTIONS if sweep[1].startswith("portfolio_") else SPACE_OPTIONS
        options = ["--preset", sweep[1], *more, "--gpus", "all", "--db", str(out / "sweep.db"), *told]
        return Step(name, [sys.executable, "-m", "tuner", "sweep", *options], out / "sweep.db")
    if name == DUE:
        return Step(name, [sys.executable, "-m", "benchmarks.due", "--out", str(out / DUE_FILE)], out / DUE_FILE)
    if name == "racecheck":
        result = out / "racecheck.json"
        options = ["--tools", "racecheck", "--out", str(result), *told]
        return Step(name, [sys.executable, "-m", "tests.gpu.sanitizer", *options], result)
    if name == "upstream" and deepgemm:
        return Step(name, [sys.executable, "-m", "benchmarks.upstream", str(deepgemm)])
    if name in PROGRAMS:
        result = out / f"{name}.json"
        options = [WORKING[name], str(out / name)] if name in WORKING else []
        return Step(name, [sys.executable, "-m", *PROGRAMS[name], *options, "--out", str(result)], result)
    if name in SCRIPTS:
        result = out / f"{name}.json"
        options = ["--out", str(result), *(told if name in BUDGETED else [])]
        options += ["--db", str(out / RECORDING[name])] if name in RECORDING else []
        options += ["--deepgemm", str(deepgemm)] if deepgemm and name in BESIDE else []
        return Step(name, [sys.executable, "-m", f"benchmarks.{name}", *options], result)
    names = ", ".join(STEPS)
    kinds = "build, due, suite[-SECTION][:i/n], racecheck, sweep-PRESET, upstream (with --deepgemm)"
    raise ValueError(f"{name}: expected {kinds} or one of {names}")


def run_step(step: Step, budget_s: float) -> dict:
    """Run a step; return its row of session.json."""
    print(f"== {step.name}: {' '.join(step.command)}", flush=True)
    start = time.monotonic()
    child = subprocess.Popen(step.command, cwd=ROOT, start_new_session=True)
    try:
        status = STATUS.get(child.wait(budget_s), "crashed")
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        status = "timed out"
    return {
        "step": step.name,
        "status": status,
        "exit_code": child.returncode,
        "seconds": round(time.monotonic() - start, 1),
        "result": step.result.name if step.result and step.result.exists() else None,
    }


def run_steps(
    names: list[str],
    out: Path,
    budget_s: float,
    total_s: float,
    run: Callable[[Step, float], dict] = run_step,
    deepgemm: Path | None = None,
) -> list[dict]:
    """Run the steps one after the other, and keep session.json up to date; those after a failed build, and those for
    which no time is left, are skipped.
    """
    rows: list[dict] = []
    start = time.monotonic()
    waiting = list(names)
    while waiting:
        name, own_s = split_budget(waiting.pop(0), budget_s)
        left_s = total_s - (time.monotonic() - start)
        is_broken = any(row["step"] == "build" and row["status"] != "ok" for row in rows)
        if is_broken or left_s < min(MIN_S, own_s):
            rows.append({"step": name, "status": "skipped", "exit_code": None, "seconds": 0.0, "result": None})
        else:
            given_s = min(own_s, left_s)
            rows.append(run(make_step(name, out, given_s, deepgemm), given_s))
        if name == DUE and rows[-1]["status"] == "ok":
            known = {row["step"] for row in rows} | {split_budget(text, 0.0)[0] for text in waiting}
            due = [each["step"] for each in read_json(out / DUE_FILE)["due"]]
            waiting = [step for step in due if split_budget(step, 0.0)[0] not in known] + waiting
        write_json(out / "session.json", {"steps": rows})
    return rows


def get_exit_code(rows: list[dict]) -> int:
    """Return 0 where every step is ok, 3 where some are incomplete at the worst, else 1."""
    found = {row["status"] for row in rows}
    return 0 if found <= {"ok"} else 3 if found <= {"ok", "incomplete"} else 1


def format_table(rows: list[dict]) -> str:
    """Return one line for each step."""
    return "\n".join(
        f"{row['step']:22} {row['status']:12} {row['seconds']:8.1f} s  {row['result'] or '-'}" for row in rows
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the steps, write session.json and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="Exit codes: 0 all right, 1 a step failed or did not run, 2 wrong arguments, 3 a step is incomplete.",
    )
    parser.add_argument(
        "steps", nargs="*", help=f"build, due, suite, suite:i/n, racecheck, sweep-PRESET, {', '.join(STEPS)}"
    )
    parser.add_argument("--list", choices=LISTS, action="append", default=[], help="the steps of a list, before others")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(os.environ.get("OUT", "gpu_session")),
        help="folder of the results (default: $OUT, else gpu_session)",
    )
    parser.add_argument("--budget", type=float, default=540.0, help="seconds of wall time for each step (default 540)")
    parser.add_argument(
        "--deepgemm", type=Path, help="folder with the __init__.py of an installed DeepGEMM, a peer then"
    )
    parser.add_argument("--total", type=float, default=float("inf"), help="seconds for all steps (default: no limit)")
    args = parser.parse_args(arguments)
    out = args.out.absolute()
    deepgemm = args.deepgemm and args.deepgemm.absolute()  # steps run in ROOT
    if deepgemm and not (deepgemm / "__init__.py").is_file():
        parser.error(f"--deepgemm {args.deepgemm}: no __init__.py in it; name the folder of DeepGEMM's package itself")
    names = list(dict.fromkeys([step for name in args.list for step in LISTS[name]] + args.steps))
    try:
        for name in names or [""]:
            make_step(split_budget(name, args.budget)[0], out, args.budget, deepgemm)
    except ValueError as error:
        parser.error(str(error))
    out.mkdir(parents=True, exist_ok=True)
    rows = run_steps(names, out, args.budget, args.total, deepgemm=deepgemm)
    print(format_table(rows), flush=True)
    return get_exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
