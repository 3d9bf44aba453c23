"""Run the programs of callers on the GPU: `python -m tests.callers.run [result.json]`.

Prints a line for each, and exits with 1 where one failed.
"""

import json
import sys
import time
import traceback
from pathlib import Path

import torch

from tests.callers.programs import PROGRAMS


def run_program(name: str) -> str:
    """Return "passed" or the error of one program."""
    try:
        PROGRAMS[name]("cuda")
        torch.cuda.synchronize()
    except Exception as error:  # the others still run
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    return "passed"


def main(arguments: list[str]) -> int:
    """Run all of them."""
    results = {}
    for name in PROGRAMS:
        start = time.monotonic()
        results[name] = run_program(name)
        print(f"{name:55} {time.monotonic() - start:6.2f} s  {results[name]}", flush=True)
    if arguments:
        Path(arguments[0]).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return int(any(result != "passed" for result in results.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
