"""python -m tuner select: which config a problem gets, who chose it and why."""

import json
import math

import typer

from tuner.fields import OP_NAMES


def register(app) -> None:
    """Add `select` to the command line."""
    app.command("select")(select)


def select(
    m: int = typer.Argument(help="Rows of A and D; of masked groups, the rows that each has room for."),
    n: int = typer.Argument(help="Rows of B, columns of D."),
    k: int = typer.Argument(help="Columns of A and B; of groups of K, those of all groups."),
    device: str = typer.Option("", help="SKU or short name (h200, h100, ...); default: the GPU at hand, without one the recorded SKU."),
    op: str = typer.Option("fp8_gemm", help=f"One of {OP_NAMES}."),
    num_sms: int = typer.Option(0, help="SMs that the kernel may use; 0: all."),
    num_groups: int = typer.Option(0, help="Groups of a grouped op."),
    expected_m: int = typer.Option(0, help="Rows that a masked group holds on average; 0: not known."),
    alignment: int = typer.Option(128, help="Rows of contiguous groups start at a multiple of it."),
    group_layout: str = typer.Option("joint", help="Operands of k_grouped_fp8_gemm_contiguous: joint, or blocks of memory."),
    recipe: str = typer.Option("1d2d", help="Scales of FP8 operands: 1d2d, 1d1d or per_row."),
    d_dtype: str = typer.Option("bf16", help="Type of D: bf16 or fp32."),
    c_mode: str = typer.Option("none", help="What is added: none, accumulate (C is D), general (any C, alpha, beta), or head_split."),
    a_major: str = typer.Option("k", help="Contiguous dimension of A of BF16 ops: k or mn."),
    b_major: str = typer.Option("k", help="Contiguous dimension of B of BF16 ops: k or mn."),
    scale_layout: str = typer.Option("mn_major", help="Scale vectors of FP8 operands: mn_major (aligned for TMA) or any."),
    batch_invariant: bool = typer.Option(False, help="Only configs whose results do not depend on m."),
    explain: bool = typer.Option(False, help="Also show scores, guards and predicted times."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as JSON."),
) -> None:
    """Print the config that the library would use; needs no GPU. Example: python -m tuner select 64 2112 7168 --op bf16_gemm --explain"""
    from tuner.selection import describe_choice

    found = describe_choice(
        op, m, n, k, device, num_sms=num_sms, num_groups=num_groups, expected_m=expected_m, alignment=alignment, group_layout=group_layout,
        recipe=recipe, d_dtype=d_dtype, c_mode=c_mode, a_major=a_major, b_major=b_major, scale_layout=scale_layout, batch_invariant=batch_invariant,
    )  # fmt: skip
    if as_json:
        return print(json.dumps(found, indent=1, sort_keys=True))
    print(f"{found['name']}  ({found['source']}: {found['reason']})  about {found['predicted_us']:.1f} us on {found['sku']}")
    if explain:
        print_explanation(found)


def print_explanation(found: dict) -> None:
    """Print the heuristic's pick, the selector's identity and guards, and the portfolio by score."""
    pick = found["heuristic"]
    print(f"heuristic's pick: {pick['name']}, about {pick['predicted_us']:.1f} us")
    selector = found["selector"]
    if selector is None:
        return print(f"no selector is used for {found['sku']}: the heuristic chooses")
    print(f"selector of {selector['created']}: margin {selector['margin']:.1%}, spread at most {selector['max_spread']:.3f}, kernel hash {selector['kernel_hash'][:16]}")
    for name, passed in selector["guards"].items():
        print(f"  {'ok ' if passed else 'NOT'} {name}")
    for entry in found["scores"] or []:
        print(f"  {entry['name']:<24} {math.exp(entry['score']):6.3f}x the heuristic's pick, about {entry['predicted_us']:.1f} us")
