"""python -m tuner bisect: which commit made a problem slower."""

import json
import sys
from pathlib import Path

import typer

from tuner import errors
from tuner.commands.ab import choose_problems
from tuner.commands.options import GPU, AsJson
from tuner.problems.fields import OP_NAMES


def register(app) -> None:
    """Add `bisect` to the command line."""
    app.command("bisect")(bisect)


def bisect(
    good: str = typer.Argument(help="Git revision that is fast."),
    bad: str = typer.Argument(help="Git revision that is slow, a descendant of GOOD."),
    m: int = typer.Argument(help="Size of the problem."),
    n: int = typer.Argument(help="Size of the problem."),
    k: int = typer.Argument(help="Size of the problem."),
    op: str = typer.Option("fp8_gemm", help=f"One of {OP_NAMES}, or the name of a function."),
    problem_fields: list[str] = typer.Option([], "--field", help="Another field of the problem, such as num_groups=8."),
    any_bits: bool = typer.Option(False, help="Accept results that are right but not equal to the bit."),
    device: int = GPU,
    work: Path = typer.Option(None, help="Folder for checked-out sets. Default: that of the kernel cache."),
    as_json: AsJson = False,
) -> None:
    """Find the first commit between GOOD and BAD whose kernel is slower than GOOD's on one problem.

    Commits whose kernel hash is that of a commit already judged are not measured again.

    Example: python -m tuner bisect HEAD~40 HEAD 64 2112 7168
    """
    from tuner.compare import revisions
    from tuner.compare.comparison import Options, compare_sets
    from tuner.compare.kernel_sets import Clone
    from tuner.measure.devices import choose_visible_device

    clone = Clone.here(work)
    options = Options(choose_problems([m, n, k], None, "", op, problem_fields), any_bits=any_bits, device=device)
    listed = revisions.list_revisions(clone, good, bad)
    kind = options.problems[0].op

    def get_hash(revision: str) -> str:
        return revisions.get_hashes(clone, revision, [kind])[kind]

    if get_hash(listed[0]) == get_hash(listed[-1]):
        raise errors.InconclusiveError(
            f"{good} and {bad} have the same kernels of {kind}: there is nothing to find; name other revisions or --op"
        )
    choose_visible_device(device)  # before minutes of building: whether there is one
    oldest, steps = clone.make_set(listed[0]), []

    def is_slower(revision: str) -> bool:
        return judge(compare_sets(oldest, clone.make_set(revision), options))

    def show(step: revisions.Step) -> None:
        steps.append(step)
        print(f"{step.revision[:12]}: {'slow' if step.is_slow else 'fast'} ({step.how})", file=sys.stderr, flush=True)

    if not is_slower(listed[-1]):
        raise errors.InconclusiveError(f"{bad} is not slower than {good} on this problem: there is nothing to find")
    found = revisions.bisect(listed, get_hash, is_slower, show)
    subject = clone.git("log", "-1", "--format=%h %s", found)
    report = {"first_slow": found, "subject": subject, "steps": [vars(step) for step in steps]}
    print(json.dumps(report, indent=1, sort_keys=True) if as_json else f"first slow: {subject}")


def judge(report: dict) -> bool:
    """Return whether the new set of a report is slower. Raises: InconclusiveError where that is not known."""
    row = report["pairs"][0]
    if row["verdict"] in ("wrong", "failed", "skipped"):
        raise errors.InconclusiveError(f"{report['new']['name'][:12]}: {row['verdict']}: {row['error']}")
    return row["verdict"] == "slower"
