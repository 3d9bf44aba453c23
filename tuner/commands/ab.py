"""python -m tuner ab: which of two kernel sets is faster, measured in turns in one process."""

import json
import re
from pathlib import Path
from typing import Any

import typer

from deep_gemm import _C
from deep_gemm.errors import DeepGemmError
from deep_gemm.fields import OP_KINDS, PROBLEM_FIELDS
from tuner import errors
from tuner.commands.options import GPU, MAX_SEED, check_choice
from tuner.commands.sweep import make_progress
from tuner.problems.fields import OP_NAMES, default_fields, read_op_name

#: A config as tables show it: "64x112x128 s5 c1x2 k4 swap"; block_k and what is at its default may be left out.
NOTATION = re.compile(
    r"(\d+)x(\d+)(?:x(\d+))?\s+s(\d+)(?:\s+c(\d+)x(\d+))?(?:\s+k(\d+))?(\s+swap)?"
    + "".join(rf"(\s+{word})?" for word in _C.LOOP_KNOBS.values())
)
NAMES = (
    "block_m", "block_n", "block_k", "num_stages", "cluster_m", "cluster_n", "split_k", "swap_ab", *_C.LOOP_KNOBS
)  # fmt: skip
TARGETS_HELP = (
    "[OLD [NEW]] [M N K]. A set is a git revision, a folder (a clone, or device headers), a kernel hash, or . (this"
    " tree, which NEW is by default). Without M N K name problems by --shapes or --preset."
)
CONFIG_HELP = 'Config for OLD and NEW, as text ("64x112x128 s5 c1x2 k4 swap") or JSON; twice: one for OLD, one for NEW.'


def register(app) -> None:
    """Add `ab` to the command line."""
    app.command("ab")(ab)


def ab(
    targets: list[str] = typer.Argument(None, metavar="[OLD [NEW]] [M N K]", help=TARGETS_HELP),
    shapes_file: Path = typer.Option(None, "--shapes", help="JSON file with the problems."),
    preset: str = typer.Option("", help="Problems of a preset, see `sweep --help`."),
    op: str = typer.Option("fp8_gemm", help=f"Op kind of M N K: one of {OP_NAMES}, or the name of a function."),
    problem_fields: list[str] = typer.Option(
        [], "--field", help="Another field of M N K's problem, such as num_groups=8 or d_dtype=fp32."
    ),
    config: list[str] = typer.Option([], help=CONFIG_HELP),
    change: list[str] = typer.Option([], "--set", help="A field that NEW's config has instead, such as num_stages=4."),
    own_choice: bool = typer.Option(False, help="Let NEW choose its configs too. Default: those that OLD chooses."),
    any_bits: bool = typer.Option(False, help="Accept results that are right but not equal to the bit."),
    identical: bool = typer.Option(False, help="Measure problems, too, whose two kernels are the same code."),
    compile_only: bool = typer.Option(False, help="Compile both for an H200 and show resources; needs no GPU."),
    workload: str = typer.Option("spread", help="Group sizes of grouped ops, see `sweep --help`."),
    turns: int = typer.Option(2, min=1, max=64, help="Times that every problem is measured, some time apart."),
    seed: int = typer.Option(0, min=0, max=MAX_SEED, help="Seed of the input data and the group sizes."),
    device: int = GPU,
    work: Path = typer.Option(None, help="Folder for checked-out sets. Default: that of the kernel cache."),
    out: Path = typer.Option(None, help="Keep the kernels (*.cubin) and their sources (*.cu) in this folder."),
    form: str = typer.Option("table", "--format", help="table, markdown, json or junit."),
    as_json: bool = typer.Option(False, "--json", help="As --format json."),
) -> None:
    """Compare two sets of kernels, or two configs, in one process on one GPU, with equal operands.

    Results are compared to the bit first. Exits with 1 where NEW is slower on some problem, with 3 where a result is
    wrong or nothing could be compared, else with 0.

    Example: python -m tuner ab main my-branch --preset default
    """
    from tuner.compare.comparison import Options, compare_sets, require_gpu
    from tuner.compare.formats import FORMATS
    from tuner.compare.kernel_sets import Clone
    from tuner.compare.revisions import make_set
    from tuner.problems.workload import WORKLOADS

    check_choice("--format", form, FORMATS)
    check_choice("--workload", workload, WORKLOADS)
    names, sizes = split_targets(targets or [], is_within=bool(config or change))
    configs = [read_config(text) for text in config]
    if len(configs) > 2:
        raise errors.UsageError("--config: at most two, one for OLD and one for NEW")
    options = Options(
        problems=choose_problems(sizes, shapes_file, preset, op, problem_fields),
        config=configs[0] if configs else None,
        new_config=configs[1] if len(configs) == 2 else None,
        change=read_fields("--set", change),
        has_own_choice=own_choice,
        any_bits=any_bits,
        identical_too=identical,
        compile_only=compile_only,
        workload=workload,
        seed=seed,
        turns=turns,
        device=device,
        out=out,
    )
    require_gpu(options)
    clone = Clone.here(work)
    old, new = (make_set(clone, name) for name in names)
    with make_progress() as progress:
        report = compare_sets(
            old, new, options, lambda done, total: progress("problem", {"done": done, "total": total})
        )
    print(FORMATS["json" if as_json else form](report))
    report_failure(report)


def report_failure(report: dict) -> None:
    """Raise the error that the report's exit code stands for; return where it is 0."""
    from tuner.compare.formats import format_counts

    counts = format_counts(report)
    if report["exit_code"] == errors.EXIT_INCONCLUSIVE:
        raise errors.InconclusiveError(f"OLD and NEW cannot be compared on every problem: {counts}")
    if report["exit_code"] == errors.EXIT_FAILURE:
        raise errors.TunerError(f"NEW is slower: {counts}")


def split_targets(words: list[str], is_within: bool) -> tuple[list[str], list[int]]:
    """Return (names of OLD and NEW, [m, n, k] or []); `is_within`: two configs of this tree need no set.

    Raises: UsageError.
    """
    has_sizes = len(words) >= 3 and all(word.isdecimal() for word in words[-3:])
    names, sizes = (words[:-3], [int(word) for word in words[-3:]]) if has_sizes else (words, [])
    if len(names) > 2 or not (names or is_within):
        raise errors.UsageError("name one or two kernel sets before M N K, or two configs: ab [OLD [NEW]] [M N K]")
    return [*names, ".", "."][: max(2, len(names))], sizes


def choose_problems(sizes: list[int], path: Path | None, preset: str, op: str, named: list[str]) -> list:
    """Return the problems. Raises: UsageError."""
    from tuner.problems.shapes import load_file, load_preset

    if bool(sizes) + bool(path) + bool(preset) != 1:
        raise errors.UsageError("name problems in one way: M N K, --shapes FILE or --preset NAME")
    if not sizes:
        return load_file(path) if path else load_preset(preset)
    try:
        kind, given = read_op_name(op)
        others = read_fields("--field", named)
        check_fields(others)
        fields: dict[str, Any] = default_fields(kind) | given | others
        return [_C.Problem(kind, *sizes, **fields)]
    except KeyError as error:
        raise errors.UsageError(f"--op {op}: unknown; use one of {', '.join(OP_KINDS)}") from error
    except (DeepGemmError, TypeError) as error:
        raise errors.UsageError(f"{' '.join(map(str, sizes))}: {error}") from error


def check_fields(given: dict) -> None:
    """Raise UsageError where one of them is no field of a problem beside its sizes."""
    names = [name for name, field in PROBLEM_FIELDS.items() if field.role != "size"]
    for name in given:
        if name not in names:
            raise errors.UsageError(f"--field {name}: no such field of a problem; use one of {', '.join(names)}")


def read_fields(flag: str, words: list[str]) -> dict:
    """Return the fields of NAME=VALUE words; numbers and truth values as such. Raises: UsageError."""
    found = {}
    for word in words:
        name, has_value, text = word.partition("=")
        if not name or not has_value:
            raise errors.UsageError(f"{flag} {word}: must be NAME=VALUE")
        found[name] = int(text) if re.fullmatch(r"-?\d+", text) else {"true": True, "false": False}.get(text, text)
    return found


def read_config(text: str) -> dict:
    """Return the fields of a config from its notation or JSON. The sets check them. Raises: UsageError."""
    match = NOTATION.fullmatch(text.strip())
    if match:
        numbers = [part and (int(part) if part.isdigit() else 1) for part in match.groups()]
        return {name: number for name, number in zip(NAMES, numbers, strict=True) if number is not None}
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise errors.UsageError(
            f'--config {text}: must be like "64x112x128 s5 c1x2 k4 swap" or a JSON object of fields'
        )
    return fields
