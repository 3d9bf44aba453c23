"""python -m tuner select: which config a problem gets, what chose it, and why."""

import json
import math

import typer

from tuner.problems.fields import FIELDS, OP_NAMES, describe_option

TIME_SOURCES = {"heuristic": "the heuristic's estimate", "forest": "the forest's prediction"}


def register(app) -> None:
    """Add `select` to the command line."""
    app.command("select")(select)


def select(
    m: int = typer.Argument(help=FIELDS["m"].meaning),
    n: int = typer.Argument(help=FIELDS["n"].meaning),
    k: int = typer.Argument(help=FIELDS["k"].meaning),
    device: str = typer.Option(
        "", help="SKU or short name (h200, h100, ...). Default: this machine's GPU, without one the recorded SKU."
    ),
    op: str = typer.Option(
        "fp8_gemm", help=f"One of {OP_NAMES}; or the name of a function, such as m_grouped_fp8_gemm_nt_masked."
    ),
    num_sms: int = typer.Option(FIELDS["num_sms"].default, help=FIELDS["num_sms"].meaning),
    num_groups: int = typer.Option(FIELDS["num_groups"].default, help=FIELDS["num_groups"].meaning),
    expected_m: int = typer.Option(FIELDS["expected_m"].default, help=FIELDS["expected_m"].meaning),
    alignment: int = typer.Option(FIELDS["alignment"].default, help=FIELDS["alignment"].meaning),
    group_layout: str = typer.Option(None, help=describe_option("group_layout")),
    recipe: str = typer.Option(None, help=describe_option("recipe")),
    d_dtype: str = typer.Option(None, help=describe_option("d_dtype")),
    c_mode: str = typer.Option(None, help=describe_option("c_mode")),
    a_major: str = typer.Option(None, help=describe_option("a_major")),
    b_major: str = typer.Option(None, help=describe_option("b_major")),
    scale_layout: str = typer.Option(FIELDS["scale_layout"].default, help=FIELDS["scale_layout"].meaning),
    batch_invariant: bool = typer.Option(False, help=FIELDS["batch_invariant"].meaning),
    explain: bool = typer.Option(False, help="Show scores, guards and predicted times as well."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Print the config that the library would use. This needs no GPU.

    Example: python -m tuner select 64 2112 7168 --op bf16_gemm --explain
    """
    from tuner.ship.selection import describe_choice

    found = describe_choice(
        op,
        m,
        n,
        k,
        device,
        num_sms=num_sms,
        num_groups=num_groups,
        expected_m=expected_m,
        alignment=alignment,
        group_layout=group_layout,
        recipe=recipe,
        d_dtype=d_dtype,
        c_mode=c_mode,
        a_major=a_major,
        b_major=b_major,
        scale_layout=scale_layout,
        batch_invariant=batch_invariant,
    )
    if as_json:
        print(json.dumps(found, indent=1, sort_keys=True))
        return
    print(f"{found['name']}  ({found['source']}: {found['reason']})  {describe_time(found)} on {found['sku']}")
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
    for entry in found["scores"]:
        # The forest also predicts the ratio of the pick to itself: how far that is from 1 is the forest's error.
        note = ", is the heuristic's pick" if entry["config"] == found["heuristic"]["config"] else ""
        print(
            f"  {entry['name']:<24} {math.exp(entry['score']):6.3f}x the heuristic's pick, {describe_time(entry)}{note}"
        )
