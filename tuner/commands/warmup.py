"""python -m tuner warmup: compile ahead the kernels that recorded shapes need."""

import json
import re
from pathlib import Path
from typing import Any

import typer

from tuner import errors
from tuner.commands import options as shared_options
from tuner.commands.refine import MOST, install_few
from tuner.commands.refine import describe as describe_few

#: Numbers of rows that may be asked for.
MOST_ROWS = 100_000
RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")


def register(app) -> None:
    """Add `warmup` to the command line."""
    app.command("warmup")(warmup)


def warmup(
    shapes_file: Path = typer.Argument(
        metavar="SHAPES", help="File that DG_RECORD_SHAPES named, or any other shape file."
    ),
    m: str = typer.Option(
        "", "--m", help="Numbers of rows instead of the recorded ones, such as 1-64,128-4096:128 (first-last:step)."
    ),
    device: str = typer.Option("", help="SKU or short name (h200, h100, ...). Default: this machine's GPU."),
    any_size: bool = typer.Option(False, help="Also compile what other sizes of the same ops choose most often."),
    cores: int = typer.Option(0, min=0, help="Compilers at a time; 0: one per core."),
    count: int = typer.Option(
        0,
        "--measure",
        min=0,
        max=MOST,
        help="First measure so many of the best configs of each shape, as `refine` does.",
    ),
    database: str = shared_options.RECORD_DB,
    out: Path = shared_options.MODEL_FOLDER,
    backend: str = shared_options.BACKEND,
    as_json: shared_options.AsJson = False,
) -> None:
    """Compile every kernel that these shapes need into the disk cache. With --device this needs no GPU.

    --db, --out and --backend are for --measure, which installs the winners first. With --out they are only written
    there, and what the library chooses without them is compiled.

    Example: python -m tuner warmup shapes.jsonl --m 1-64,128-4096:128 --device h200
    """
    import deep_gemm
    from deep_gemm.errors import CacheError, DeepGemmError, DeviceError
    from tuner.learn.sources import device_at_hand
    from tuner.problems.shapes import load_given

    (problems, calls), rows = load_given(shapes_file, "SHAPES"), parse_rows(m)
    check_measuring(count, device, {"--db": bool(database), "--out": bool(out), "--backend": backend != "cuda"})
    measured = None
    try:
        board = device_at_hand("", 0) if count else device or None
        if count and problems:
            measured = measure_few(problems, rows, count, board, database=database, out=out, backend=backend)
        report = deep_gemm.warmup([*problems, *calls], rows, device=board, any_size=any_size, cores=cores)
    except DeviceError as error:
        if count:
            raise errors.TunerError(str(error)) from error
        if device:
            raise errors.UsageError(f"--device {device}: {error}") from error
        fault = str(error).partition("; ")[0].removeprefix("device = None: ")
        raise errors.UsageError(f"no --device {fault}; name a GPU model, such as --device h200") from error
    except CacheError as error:
        raise errors.TunerError(str(error)) from error
    except DeepGemmError as error:
        raise errors.UsageError(str(error)) from error
    if as_json:
        shown = {"measured": measured} if measured else {}
        print(json.dumps(report.as_dict() | shown, indent=1, sort_keys=True))
    else:
        lines = [describe_few(measured, "written" if out else "installed")] if measured else []
        print("\n".join([*lines, describe(report)]))
    if report.failures:
        raise errors.TunerError(f"{len(report.failures)} of {report.kernels} kernels failed")
    errors.check_measured(measured or {})


def measure_few(problems: list, rows: list[int] | None, count: int, board, **options: Any) -> dict:
    """Measure the `count` best configs of each problem with each number of rows on this machine's GPU, `board`, and
    install the winners; return what was done. `options` are those of install_few.
    """
    from deep_gemm import selection
    from deep_gemm.jit.cache import get_disk_cache
    from deep_gemm.warm_up import list_problems
    from tuner.problems.shapes import drop_signals

    get_disk_cache().check()  # what is compiled behind it needs one
    every = list_problems(drop_signals(problems), rows, board)
    found = install_few(every, count, **options, effort="quick", device=0)
    selection.forget_selectors()  # the kernels of the winners are those to compile
    return found


def check_measuring(count: int, device: str, given: dict[str, bool]) -> None:
    """Raise UsageError where --measure and what belongs to it, `given`, do not fit together."""
    if count and device:
        raise errors.UsageError(f"--measure {count}: measures on this machine's GPU; drop --device {device}")
    flags = [flag for flag, is_given in given.items() if is_given]
    if flags and not count:
        raise errors.UsageError(f"{', '.join(flags)}: nothing is measured without --measure; give that, too")


def parse_rows(text: str) -> list[int] | None:
    """Return the numbers that `text` names, None for "". Raises: UsageError."""
    found: list[int] = []
    for part in text.split(",") if text else ():
        match = RANGE.fullmatch(part.strip())
        first, last, step = (
            (int(number or default) for number, default in zip(match.groups(), (0, match[1], 1)))
            if match
            else (1, 0, 1)
        )
        if last < first or not step or len(found) + (last - first) // step >= MOST_ROWS:
            raise errors.UsageError(
                f"--m {text}: must be numbers and ranges first-last[:step], such as 1,8,64-512:64; at most {MOST_ROWS}"
            )
        found += range(first, last + 1, step)
    return list(dict.fromkeys(found)) if text else None


def describe(report) -> str:
    """Return the report as text: one line, and one more for each failure."""
    lines = [
        f"{report.problems} problems need {report.kernels} kernels: {report.compiled} compiled, {report.found} found,"
        f" {len(report.failures)} failed, in {report.seconds:.1f} s"
    ]
    lines += [f"  {one.kernel}: {type(one.error).__name__}: {one.error}" for one in report.failures]
    return "\n".join(lines)
