"""Run the programs of callers on the GPU: `python -m tests.callers.run --out callers.json`.

Prints a line for each, and exits with 1 where one failed. Result: {"meta": ..., "rows": [{"case", "seconds", "error":
null where it passed}]}.
"""

import argparse
import sys
import time
import traceback
from pathlib import Path

import torch

from deep_gemm import _C
from deep_gemm.fields import OP_KINDS
from tests.callers.programs import PROGRAMS
from tuner.measure.stamp import make_stamp, name_model_here, write_json


def run_program(name: str) -> str | None:
    """Return None or the error of one program."""
    try:
        PROGRAMS[name]("cuda")
        torch.cuda.synchronize()
    except Exception as error:  # the others still run
        traceback.print_exc()
        return f"{type(error).__name__}: {str(error)[:500]}"
    return None


def main(arguments: list[str] | None = None) -> int:
    """Run all of them and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    path = Path("benchmarks/results") / name_model_here() / "callers.json"
    parser.add_argument("--out", type=Path, default=path, help="result file")
    args = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("no GPU is visible; `python -m pytest tests/callers` runs them on the CPU, after `make setup`")
    rows = []
    for name in PROGRAMS:
        start = time.monotonic()
        error = run_program(name)
        rows.append({"case": name, "seconds": round(time.monotonic() - start, 2), "error": error})
        print(f"{name:55} {rows[-1]['seconds']:6.2f} s  {error or 'passed'}", flush=True)
    meta = {**make_stamp(_C.get_device(), tuple(OP_KINDS)), "complete": True}
    write_json(args.out, {"meta": meta, "rows": rows})
    return int(any(row["error"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
