"""python -m tuner select: which config a problem gets, what chose it, and why."""

import json
import math
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from itertools import groupby
from typing import Any

import typer

from deep_gemm import _C
from deep_gemm.fields import PROBLEM_FIELDS
from tuner.problems.fields import OP_NAMES, describe_option

#: The field for which the library takes a setting of the process where the caller says nothing.
SETTING = "batch_invariant"
TIME_SOURCES = {"heuristic": "the heuristic's estimate", "forest": "the forest's prediction"}


def register(app) -> None:
    """Add `select` to the command line."""
    app.command("select")(select)


def make_parameter(field: _C.Field) -> Parameter:
    """Return the argument or option of a field; a word that is not given is the op kind's or the function's."""
    kind, default = type(field.default), typer.Option(field.default, help=field.meaning)
    if field.role == "size":
        kind, default = int, typer.Argument(help=field.meaning)
    elif field.name == SETTING:
        kind, default = (
            bool,
            typer.Option(None, help=f"{field.meaning} Default: as the library, see $DG_BATCH_INVARIANT."),
        )
    elif field.type == "word":
        default = typer.Option(None, help=describe_option(field.name))
    return Parameter(field.name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def add_field_parameters(command: Callable) -> Callable:
    """Give a command that takes **fields, as its signature, the fields of a problem after its positional parameters.

    Which sizes are compiled into a kernel (`dims`) is decided call by call and has no option.
    """
    fields = [make_parameter(field) for field in PROBLEM_FIELDS.values() if field.type != "dims"]
    own = [one for one in signature(command).parameters.values() if one.kind != Parameter.VAR_KEYWORD]
    before = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in own if one.kind != Parameter.KEYWORD_ONLY]
    command.__signature__ = Signature([*before, *fields, *own[len(before) :]])  # type: ignore[attr-defined]
    return command


@add_field_parameters
def select(
    device: str = typer.Option(
        "", help="SKU or short name (h200, h100, ...). Default: this machine's GPU, without one the recorded SKU."
    ),
    op: str = typer.Option(
        "fp8_gemm", help=f"One of {OP_NAMES}; or the name of a function, such as m_grouped_fp8_gemm_nt_masked."
    ),
    *,
    explain: bool = typer.Option(False, help="Show scores, guards and predicted times as well."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
    **fields: Any,
) -> None:
    """Print the config that the library would use. This needs no GPU.

    DG_SELECTOR, DG_MODEL_DIR and DG_BATCH_INVARIANT count as they do for the library. What a program sets with
    set_num_sms or set_batch_invariant is named by --num-sms and --batch-invariant.

    Example: python -m tuner select 64 2112 7168 --op bf16_gemm --explain
    """
    from tuner.ship.selection import describe_choice

    found = describe_choice(op, device=device, **fields)
    if as_json:
        print(json.dumps(found, indent=1, sort_keys=True))
        return
    # The heuristic's estimate of a config that was measured best would contradict it.
    time = "" if found["source"] == "exact" else f"  {describe_time(found)}"
    print(f"{found['name']}  ({found['source']}: {found['reason']}){time} on {found['sku']}")
    if explain:
        print_explanation(found)


def describe_time(entry: dict) -> str:
    """Return a predicted time and what predicted it."""
    return f"about {entry['predicted_us']:.1f} us ({TIME_SOURCES[entry['predicted_by']]})"


def print_explanation(found: dict) -> None:
    """Print the heuristic's pick, the selector's identity and guards, and the portfolio by score."""
    print(f"heuristic's pick: {found['heuristic']['name']}, {describe_time(found['heuristic'])}")
    print("all times are predictions: a selector knows which config was measured best, but not its time")
    is_used, selector = found["source"] != "analytic", found["selector"]
    if not is_used:
        print(f"no selector is used for this problem: {found['reason']}")
    if selector is None:
        return
    label = f"selector of {selector['created']}{'' if is_used else ', which is not used'}"
    print(
        f"{label}: margin {selector['margin']:.1%}, spread at most {selector['max_spread']:.3f}, kernel hash"
        f" {selector['kernel_hash'][:16]}"
    )
    for name, passed in selector["guards"].items():
        print(f"  {'ok ' if passed else 'NOT'} {name}")
    if found["scores"]:
        print_scores(found)


def print_scores(found: dict) -> None:
    """Print what the forest predicts for the portfolio, and whether that decided."""
    undecided = "" if found["source"] == "learned" else f", which did not decide ({found['reason']})"
    print(f"the portfolio as the forest predicts it{undecided}:")
    width = max(len(entry["name"]) for entry in found["scores"])
    for ratio, entries in groupby(found["scores"], lambda entry: f"{math.exp(entry['score']):6.3f}x"):
        first, *others = entries
        # The forest also predicts the ratio of the pick to itself: how far that is from 1 is the forest's error.
        note = ", is the heuristic's pick" if first["config"] == found["heuristic"]["config"] else ""
        print(f"  {first['name']:<{width}} {ratio} the heuristic's pick, {describe_time(first)}{note}")
        if others:
            print(f"  {'':<{width}} and {len(others)} more at the same ratio; --json names them")
