"""Check on a GPU that `python -m tuner ab` finds what is there and nothing else.

Example: python -m tests.gpu.kernel_sets --out kernel_sets.json

    equal     this package against itself, all problems measured: no problem may be called slower or faster
    slowed    this package against one whose kernels spin for SPIN_CYCLES first: every problem of less than
              SHORT_US must be called slower
    other     with --other FOLDER (a built clone, or a set that `ab --compile-only` prepared): this package against one
              with native sources of its own; both must run in one process and give equal bits

Exit status 1 where one of these does not hold.
Result: {"meta": ..., "num_wrong": int, "reports": {name: the report of `ab --json`}}.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from deep_gemm import _C
from tuner.compare.comparison import Options, compare_sets
from tuner.compare.kernel_sets import Clone
from tuner.measure.stamp import make_stamp, write_json
from tuner.problems.shapes import load_preset

#: Where device code changes: all threads of a CTA pass here first.
PLACE = "void run() const {"
#: About 0.5 us on an H200: 2.5 % of SHORT_US.
SPIN_CYCLES = 1000
SHORT_US = 20.0


def slow_down(headers: Path) -> None:
    """Let the dense kernels of a folder of device headers spin before they begin."""
    path = headers / "sm90" / "gemm.cuh"
    text = path.read_text(encoding="utf-8")
    assert text.count(PLACE) == 1
    spin = f"for (const long long start = clock64(); clock64() - start < {SPIN_CYCLES};) {{}}"
    path.write_text(text.replace(PLACE, f"{PLACE} {spin}"), encoding="utf-8")


def compare(clone: Clone, name: str, problems: list) -> dict:
    """Return the report of this package against another set."""
    return compare_sets(clone.make_set("."), clone.make_set(name), Options(problems, identical_too=True))


def compare_slowed(clone: Clone, problems: list) -> dict:
    """Return the report of this package against its slowed kernels."""
    with tempfile.TemporaryDirectory() as folder:
        headers = Path(folder) / "include" / "deep_gemm"
        shutil.copytree(clone.root / "deep_gemm" / "include" / "deep_gemm", headers)
        slow_down(headers)
        return compare(clone, folder, problems)


def find_wrong(name: str, report: dict) -> list[str]:
    """Return what of a report must not be."""
    wrong = []
    for row in report["pairs"]:
        is_short = row["old"].get("median_us", SHORT_US) < SHORT_US
        if name == "other":
            is_right = row["verdict"] in ("same", "slower", "faster")
        elif name == "slowed":
            is_right = row["verdict"] == "slower" or (row["verdict"] == "same" and not is_short)
        else:
            is_right = row["verdict"] == "same"
        if not is_right:
            wrong.append(f"{name}: {row['problem']}: {row['verdict']} {row.get('ratio')} {row['error'] or ''}")
    return wrong


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.kernel_sets", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("kernel_sets.json"))
    parser.add_argument("--preset", default="demo", help="problems to compare; dense ones")
    parser.add_argument("--other", default="", help="another set to compare with, see above")
    parser.add_argument("--work", type=Path, help="folder for checked-out sets")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the comparisons and write the result. Returns the exit status."""
    args, start = parse_arguments(arguments), time.perf_counter()
    clone, problems = Clone.here(args.work), load_preset(args.preset)
    reports = {"equal": compare(clone, ".", problems), "slowed": compare_slowed(clone, problems)}
    if args.other:
        reports["other"] = compare(clone, args.other, problems)
    wrong = [line for name, report in reports.items() for line in find_wrong(name, report)]
    meta = {**make_stamp(_C.get_device(), tuple({problem.op for problem in problems})), "complete": True}
    write_json(args.out, {"meta": meta, "num_wrong": len(wrong), "reports": reports})
    for line in wrong:
        print(f"WRONG {line}")
    counts = {name: report["summary"]["verdicts"] for name, report in reports.items()}
    print(f"{counts}, {len(wrong)} wrong, {time.perf_counter() - start:.1f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
