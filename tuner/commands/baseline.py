"""python -m tuner baseline: name what later sweeps are compared with."""

import json

import typer

from tuner.commands.options import RECORDED_OP, SKU, AsJson
from tuner.commands.tables import format_table, print_left_out
from tuner.credentials import hide_credentials

app = typer.Typer(
    help="Name the sweep or kernel hash that `compare` and `inspect` compare with. Example: baseline set tuning.db",
    no_args_is_help=True,
)


def register(parent) -> None:
    """Add `baseline` and its commands to the command line."""
    parent.add_typer(app, name="baseline")


@app.command("set")
def set_baseline(
    which: str = typer.Argument(
        "", metavar="[DATABASE][@WHICH]", help="A sweep, as `compare` names it. Left out: the newest kernels."
    ),
    device: str = SKU,
    op: str = RECORDED_OP,
    as_json: AsJson = False,
) -> None:
    """Make the kernels or the sweep of a database the baseline of its op kinds.

    A kernel hash is kept as such: sweeps of other kernels do not move the baseline.

    Example: python -m tuner baseline set tuning.db@5092fbdd79ba
    """
    from tuner.compare import baselines
    from tuner.compare.sides import Named, load_side, read_name
    from tuner.learn.each_op import try_each
    from tuner.learn.sources import find_device, find_ops, open_database

    named = read_name(which)
    with open_database(named.database, device) as store:
        sku = find_device(store, device).sku
        is_file = named.database and "://" not in named.database

        def choose(name: str) -> Named:
            side = load_side(store, sku, name, named.which)
            kept = named.which if ":" in named.which else next(iter(side.kernel_hashes))
            return Named(str(store.target) if is_file else named.database, kept)

        found, left_out = try_each(find_ops(store, sku, op), choose)
    print_left_out(left_out)
    path = baselines.save(sku, found)
    show(baselines.load(), as_json, f"kept in {path}")


@app.command("list")
def list_baselines(as_json: AsJson = False) -> None:
    """List the baselines of every GPU model and op kind.

    Example: python -m tuner baseline list
    """
    from tuner.compare import baselines

    show(baselines.load(), as_json, f"none is set; they would be kept in {baselines.get_path()}")


def show(known: dict, as_json: bool, remark: str) -> None:
    """Print all baselines."""
    if as_json:
        document = {
            sku: {op: one._asdict() | {"database": hide_credentials(one.database)} for op, one in ops.items()}
            for sku, ops in known.items()
        }
        print(json.dumps(document, indent=1, sort_keys=True))
        return
    rows = [
        (sku, op, one.which[:16], hide_credentials(one.database) or "the default one")
        for sku, ops in known.items()
        for op, one in ops.items()
    ]
    if rows:
        print(format_table(("gpu", "op kind", "kernel or sweep", "database"), rows))
    if not rows or "kept" in remark.split()[:1]:
        print(remark)
