"""python -m tuner select: which config a problem gets, what chose it, and why."""

import json
import math
from typing import Any

import typer

from tuner.commands.options import AsJson
from tuner.commands.problem_options import OP_HELP, add_field_parameters
from tuner.commands.tables import WIDTH, format_table, wrap

#: Configs of the table of --explain; --json has all.
MAX_SHOWN = 12
TIME_SOURCES = {"heuristic": "the heuristic's estimate", "trees": "the trees' prediction"}


def register(app) -> None:
    """Add `select` to the command line."""
    app.command("select")(select)


@add_field_parameters
def select(
    device: str = typer.Option(
        "", help="SKU or short name (h200, h100, ...). Default: this machine's GPU, without one the recorded SKU."
    ),
    op: str = typer.Option("fp8_gemm", help=OP_HELP),
    *,
    explain: bool = typer.Option(False, help="Show measured times, the trees' scores and the guards as well."),
    database: str = typer.Option(
        "", "--db", help="Database with the times for --explain. Default: your own, else the recorded snapshot."
    ),
    as_json: AsJson = False,
    **fields: Any,
) -> None:
    """Print the config that the library would use. This needs no GPU.

    DG_SELECTOR, DG_MODEL_DIR and DG_BATCH_INVARIANT count as they do for the library. What a program sets with
    set_num_sms or set_batch_invariant is named by --num-sms and --batch-invariant. A config is printed as
    64x96x128 s9 c1x1 k4 swap: tile, stages, cluster, split of K, swapped operands; see `python -m tuner --help`.

    Example: python -m tuner select 64 2112 7168 --op bf16_gemm --explain
    """
    from tuner.ship.selection import add_measured, describe_choice

    found = describe_choice(op, device=device, **fields)
    if explain:
        add_measured(found, database)
    if as_json:
        print(json.dumps(found, indent=1, sort_keys=True))
        return
    print(describe_selected(found))
    if explain:
        print_explanation(found)


def describe_selected(found: dict) -> str:
    """Return config, who chose it and why, time and GPU model: on one line, or the reason below where that is long; and
    the second tile of a call's kernel, if it has one.
    """
    why, rest = f"{found['source']}: {found['reason']}", f"{describe_time(found)} on {found['sku']}"
    line = f"{found['name']}  ({why}){rest}"
    lines = [line] if len(line) <= WIDTH else [f"{found['name']}{rest}", wrap("  " + why)]
    if found["second"]:
        lines.append(wrap(f"  or {found['second']['name']}, where masked_m asks for it"))
    return "\n".join(lines)


def describe_time(found: dict) -> str:
    """Return the time of the chosen config: as measured, else as predicted, with what predicted it.

    A config that was measured best gets no predicted time: the prediction was not asked, and would contradict it.
    """
    measured = (found.get("measured") or {}).get("configs", {}).get(found["name"])
    if measured and not measured["is_bound"]:
        return f"  {measured['median_us']:.2f} us measured"
    if found["source"] == "exact":
        return ""
    return f"  about {found['predicted_us']:.1f} us ({TIME_SOURCES[found['predicted_by']]})"


def print_explanation(found: dict) -> None:
    """Print the configs with their times, then the selector's identity and guards."""
    is_used, selector = found["source"] != "analytic", found["selector"]
    if not is_used:
        print(wrap(f"no selector is used for this problem: {found['reason']}"))
    print_configs(found)
    if selector is None:
        return
    print(f"selector: {selector['file']}{'' if is_used else ', which is not used'}")
    print(
        f"  of {selector['created']}, kernel hash {selector['kernel_hash'][:16]}; it decides where it expects a gain"
        f" above {selector['margin']:.1%}"
    )
    guards = [f"{name}: {'yes' if passed else 'NO'}" for name, passed in selector["guards"].items()]
    print(f"  {', '.join(guards)}{': ' if selector['fault'] else ''}{selector['fault']}")


def print_configs(found: dict) -> None:
    """Print the chosen config, the heuristic's pick and the shortlist with measured times and predicted ratios."""
    measured = found["measured"]
    times = measured["configs"] if measured else {}
    scores = {entry["name"]: math.exp(entry["score"]) for entry in found["scores"] or ()}
    reference = measured["reference"] if measured else None
    names = list(dict.fromkeys([found["name"], found["heuristic"]["name"], *scores]))
    # Measured ones first: what a prediction says of them no longer matters.
    ordered = sorted(names, key=lambda name: (name not in times, get_ratio(times, name), scores.get(name, 9.0)))
    shown = ordered[:MAX_SHOWN]
    shown += [name for name in dict.fromkeys([*names[:2], reference]) if name in (times or names) and name not in shown]
    rows = [
        (
            name,
            *describe_measured(times.get(name)),
            f"{scores[name]:.3f}" if name in scores else "-",
            describe_role(found, name, reference),
        )
        for name in shown
    ]
    print(format_table(("config", "us", "ratio", "predicted", ""), rows))
    if len(ordered) > len(shown):
        print(f"... and {len(ordered) - len(shown)} more of the shortlist; --json names them")
    print("us, ratio: measured, and that to the reference's time; >: dropped early, at least this")
    print("predicted: ratio to the heuristic's pick, by the trees, which do not look at measured times")
    print(
        f"times: {measured['database']}, measured {measured['created'][:10]}"
        f"{' with older kernels' if measured['is_older'] else ''}"
        if measured
        else "times: this problem was not measured with these kernels"
    )


def get_ratio(times: dict, name: str) -> float:
    """Return the measured ratio of a config, 0 where there is none."""
    return times.get(name, {}).get("ratio") or 0.0


def describe_measured(entry: dict | None) -> tuple[str, str]:
    """Return the measured time and ratio of a config."""
    if entry is None:
        return "-", "-"
    sign = ">" if entry["is_bound"] else ""
    median_us, ratio = entry["median_us"], entry["ratio"]
    return f"{sign}{median_us:.2f}" if median_us else "-", f"{sign}{ratio:.3f}" if ratio else "-"


def describe_role(found: dict, name: str, reference: str | None) -> str:
    """Return what a config is in this choice, and in what was measured."""
    roles = {
        f"chosen ({found['source']})": found["name"],
        "heuristic's pick": found["heuristic"]["name"],
        "reference": reference,
    }
    return ", ".join(role for role, config in roles.items() if config == name)
