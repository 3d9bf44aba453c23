"""The GPU suite on several GPUs of one host: a run for each, on its shard and its share of the cores, and one record.

Each run writes the record of its shard beside the one of all, and it stays there where there is none of all.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from tuner.errors import TunerError
from tuner.measure.stamp import read_json, write_json

from .gpus import list_gpus, make_environment, share_cores, using_cores
from .processes import end_all, holding_signals
from .record import merge_records


def run_on_gpus(args: argparse.Namespace, arguments: list[str]) -> int:
    """Run the suite as `arguments` say on the GPUs of `args`, merge the records and return the exit code."""
    from .run import print_summary

    start = time.monotonic()
    try:
        gpus = list_gpus(args.gpus)
    except TunerError as error:
        print(error, file=sys.stderr)
        return 2
    parts = [args.out.with_name(f"{args.out.stem}_{index}of{len(gpus)}.json") for index in range(1, len(gpus) + 1)]
    codes = run_shards(args, arguments, gpus, parts)
    missing = [f"{part.name} (exit code {code})" for part, code in zip(parts, codes, strict=True) if not part.exists()]
    try:
        record = merge_records([read_json(part) for part in parts if part.exists()]) if not missing else None
    except ValueError as error:  # the GPUs are of different models, say
        record, missing = None, [str(error)]
    if record is None:
        print(f"no record of all GPUs: {'; '.join(missing)}", file=sys.stderr)
        return 2 if set(codes) == {2} else 1
    record["notes"] |= {"gpus": len(gpus), "wall_s": round(time.monotonic() - start, 1)}
    write_json(args.out, record)
    for part in parts:
        part.unlink()
    return print_summary(record)


def run_shards(args: argparse.Namespace, arguments: list[str], gpus: tuple[str, ...], parts: list[Path]) -> list[int]:
    """Run one shard on each GPU, side by side; return the exit codes."""
    children: list[subprocess.Popen] = []
    try:
        for index, (gpu, part, cores) in enumerate(zip(gpus, parts, share_cores(len(gpus)), strict=True), 1):
            part.unlink(missing_ok=True)  # one of an earlier run is none of this one
            own = [
                "--gpus",
                "",
                "--shard",
                f"{index}/{len(gpus)}",
                "--out",
                str(part),
                "--deadline",
                str(args.deadline),
            ]
            command = [
                sys.executable,
                "-m",
                "tests.gpu.run",
                *arguments,
                *own,
            ]  # of an option given twice the last counts
            with holding_signals(), using_cores(cores):
                children.append(subprocess.Popen(command, env=make_environment(gpu)))
        return [child.wait() for child in children]
    finally:
        end_all(children)
