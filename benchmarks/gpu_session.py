"""Build, check and time on a GPU machine in one go, each step within a budget of wall time.

Example: python -m benchmarks.gpu_session build suite:1/2 host_time --budget 540 --out results

Steps, in the order given:
  build         the native module, in place; where it fails, nothing else runs
  suite[:i/n]   the GPU correctness suite, or one shard of it
  <script>      a benchmark: the name of a script beside this one

Result: one JSON file for each step (`gpu_record.json`, of a shard `gpu_record_<i>of<n>.json`; `<script>.json`) and
    session.json: {"steps": [{"step", "status", "exit_code", "seconds", "result"}]}. The status is that of the step's
    exit code (STATUS), `timed out` (killed at its budget), or `skipped`. The records of all shards become one with
    `python -m tests.gpu.run --merge <records> --out gpu_record.json`.
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

from .stamp import ROOT, write_json

SUITE = re.compile(r"suite(?::([1-9]\d*)/([1-9]\d*))?")
#: Scripts that take a time budget, stop by themselves and write what they have measured by then.
BUDGETED = (
    "dense_fp8",
    "dense_bf16",
    "wgrad_fp8",
    "transpose_fp8",
    "m_grouped_contiguous",
    "m_grouped_masked",
    "k_grouped",
)
SCRIPTS = (*BUDGETED, "host_time", "pdl", "compile_time")
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


def make_step(name: str, out: Path, budget_s: float) -> Step:
    """Return the step of a name. Raises: ValueError where there is none."""
    told = ["--time-budget", str(max(budget_s - GRACE_S, 1.0))]
    if name == "build":
        return Step(name, [sys.executable, "setup.py", "-q", "build_ext", "--inplace"])
    if suite := SUITE.fullmatch(name):
        index, total = suite.groups()
        result = out / (f"gpu_record_{index}of{total}.json" if index else "gpu_record.json")
        options = ["--out", str(result), "--shard", f"{index}/{total}" if index else "1/1", *told]
        return Step(name, [sys.executable, "-m", "tests.gpu.run", *options], result)
    if name in SCRIPTS:
        result = out / f"{name}.json"
        options = ["--out", str(result), *(told if name in BUDGETED else [])]
        return Step(name, [sys.executable, "-m", f"benchmarks.{name}", *options], result)
    raise ValueError(f"{name}: expected build, suite, suite:i/n or one of {', '.join(SCRIPTS)}")


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


def run_steps(steps: list[Step], budget_s: float, run: Callable[[Step, float], dict] = run_step) -> list[dict]:
    """Run the steps one after the other; those after a failed build are skipped."""
    rows: list[dict] = []
    for step in steps:
        if any(row["step"] == "build" and row["status"] != "ok" for row in rows):
            rows.append({"step": step.name, "status": "skipped", "exit_code": None, "seconds": 0.0, "result": None})
        else:
            rows.append(run(step, budget_s))
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
    parser.add_argument("steps", nargs="+", help=f"build, suite, suite:i/n, {', '.join(SCRIPTS)}")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(os.environ.get("OUT", "gpu_session")),
        help="folder of the results (default: $OUT, else gpu_session)",
    )
    parser.add_argument("--budget", type=float, default=540.0, help="seconds of wall time for each step (default 540)")
    args = parser.parse_args(arguments)
    out = args.out.absolute()
    try:
        steps = [make_step(name, out, args.budget) for name in args.steps]
    except ValueError as error:
        parser.error(str(error))
    out.mkdir(parents=True, exist_ok=True)
    rows = run_steps(steps, args.budget)
    write_json(out / "session.json", {"steps": rows})
    print(format_table(rows), flush=True)
    return get_exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
