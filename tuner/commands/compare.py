"""python -m tuner compare: which kernels became slower from one recorded sweep to another."""

import typer

from tuner import errors
from tuner.commands.sweep import check_choice
from tuner.problems.fields import OP_NAMES

SIDE_HELP = "Database (file or URL) of a sweep, behind @ the kernel hash; without one, the newest of each op kind."


def register(app) -> None:
    """Add `compare` to the command line."""
    app.command("compare")(compare)


def compare(
    a: str = typer.Argument(help=f"The old sweep. {SIDE_HELP}"),
    b: str = typer.Argument(help="The new sweep, named likewise."),
    device: str = typer.Option("", help="SKU or short name (h200). Default: the only one in A."),
    op: str = typer.Option("", help=f"One of {OP_NAMES}. Default: every op kind with rows in both."),
    form: str = typer.Option("table", "--format", help="table, markdown, json or junit."),
    as_json: bool = typer.Option(False, "--json", help="As --format json."),
) -> None:
    """Compare two recorded sweeps on the problems and configs that both measured. Needs no GPU.

    Exits with 1 where a config became slower beside the others or fails, with 3 where the sweeps have too little in
    common or all of B is slower (which may be the board: use `ab`), else with 0.

    Example: python -m tuner compare old.db new.db
    """
    from tuner.compare import formats, recorded
    from tuner.learn.sources import find_device, find_ops, open_database

    check_choice("--format", form, formats.SWEEP_FORMATS)
    (path_a, hash_a), (path_b, hash_b) = split_side(a), split_side(b)
    with open_database(path_a) as store_a, open_database(path_b) as store_b:
        sku = find_device(store_a, device).sku
        ops = [name for name in find_ops(store_a, sku, op) if name in find_ops(store_b, sku, op)]
        reports = [
            recorded.compare_rows(name, load(store_a, sku, name, hash_a), load(store_b, sku, name, hash_b))
            for name in ops
        ]
    code = recorded.choose_exit_code(reports)
    report = {"a": a, "b": b, "sku": sku, "ops": reports, "exit_code": code}
    print(formats.SWEEP_FORMATS["json" if as_json else form](report))
    if code == errors.EXIT_FAILURE:
        raise errors.TunerError(f"{b} has slower or failing kernels")
    if code:
        raise errors.InconclusiveError(f"{a} and {b} do not answer it on every op kind: measure both with `ab`")


def split_side(text: str) -> tuple[str, str]:
    """Return (database, kernel hash or "") of one side; a URL may have an @ of its own."""
    path, has_hash, digits = text.rpartition("@")
    is_hash = bool(has_hash) and 8 <= len(digits) <= 64 and not set(digits) - set("0123456789abcdef")
    return (path, digits) if is_hash else (text, "")


def load(store, sku: str, op: str, digits: str) -> list:
    """Return the rows of one side. Raises: InconclusiveError where it has no such kernel hash."""
    kernel_hash = store.newest_kernel_hash(op, sku)
    if not digits:
        return store.load_measurements(sku=sku, op=op, kernel_hash=kernel_hash)
    rows = [row for row in store.load_measurements(sku=sku, op=op) if row.block.kernel_hash.startswith(digits)]
    if not rows:
        raise errors.InconclusiveError(f"{store.target}: has no rows of {op} with kernel hash {digits}")
    return rows
