"""python -m tuner compare: which kernels became slower from one recorded sweep to another."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import typer

from tuner import errors
from tuner.commands.options import SKU, check_choice
from tuner.commands.sweep import make_progress
from tuner.problems.fields import OP_NAMES, OPS

SIDE_HELP = (
    "DATABASE, @WHICH or both, as DATABASE@WHICH. WHICH is a kernel hash, sweep:ID, driver:VERSION or previous; without"
    " it, the newest kernels."
)
#: deep_gemm.selector_files.SUFFIX, whose module imports more than a help text may.
ARTEFACT = ".dgsel"
A_HELP = f"The old sweep: {SIDE_HELP} Left out: the baseline, else the kernels before the newest."


def register(app) -> None:
    """Add `compare` to the command line."""
    app.command("compare")(compare)


def compare(
    a: str = typer.Argument("", metavar="[A]", help=A_HELP),
    b: str = typer.Argument("", metavar="[B]", help="The new sweep, named likewise. Left out: the newest kernels."),
    device: str = SKU,
    op: str = typer.Option("", help=f"One of {OP_NAMES}. Default: every op kind with rows in both."),
    again: bool = typer.Option(True, help="Where there is such a GPU, measure suspects again, both kernels in turns."),
    work: Path = typer.Option(None, help="Folder for checked-out kernels of --again. Default: that of the cache."),
    database: str = typer.Option("", "--db", help="Recorded times by which two artefacts are compared."),
    form: str = typer.Option("table", "--format", help="table, markdown, json, junit or html (not of artefacts)."),
    as_json: bool = typer.Option(False, "--json", help="As --format json."),
) -> None:
    """Compare two recorded sweeps on the problems and configs that both measured. Needs no GPU.

    A config that lost against the others in the same blocks, or that fails in B, is slower: exits with 1. What may be
    the board, its clocks or a place in memory is a suspect: measured again where there is a GPU, else exits with 3, as
    where the sweeps have too little in common. Else exits with 0.

    Two artefacts (.dgsel) are compared by what they choose for the recorded problems: exits with 1 where the recorded
    times expect B's choices to be slower, with 3 where they say nothing, or an op kind is in one artefact alone.

    Example: python -m tuner compare old.db new.db
    """
    if op:
        check_choice("--op", op, OPS)
    if any(name.endswith(ARTEFACT) for name in (a, b)):
        compare_artefacts(a, b, database, device, op, "json" if as_json else form)
        return
    if database:
        raise errors.UsageError("--db: only for two artefacts; name the database of a sweep as A or B")
    from tuner.compare import recorded
    from tuner.compare.sweep_formats import FORMATS

    check_choice("--format", form, FORMATS)
    names, sku, sides = load_sides(a, b, device, op)
    parts = recorded.compare_sides(sides)
    done = settle(parts, sku, work) if again else {}
    reports = recorded.describe(parts)
    code = recorded.choose_exit_code(reports)
    report = {"a": names[0], "b": names[1], "sku": sku, "ops": reports, "again": done, "exit_code": code}
    print(FORMATS["json" if as_json else form](report))
    if code == errors.EXIT_FAILURE:
        raise errors.TunerError(f"{names[1]} has slower or failing kernels")
    if code:
        raise errors.InconclusiveError(
            f"{names[0]} and {names[1]} do not answer it on every op kind: measure both with `ab`"
        )


def compare_artefacts(a: str, b: str, database: str, device: str, op: str, form: str) -> None:
    """Compare what two artefacts choose. Raises: UsageError, TunerError, InconclusiveError."""
    from tuner.learn.sources import find_device, open_database
    from tuner.ship import changes, models

    check_choice("--format", form, changes.FORMATS)
    if not (a.endswith(ARTEFACT) and b.endswith(ARTEFACT)):
        raise errors.UsageError(f"A and B: two artefacts (*{ARTEFACT}), or two sweeps; not one of each")
    first, second = models.find_model(a), models.find_model(b)
    skus = {models.get_selector(model).sku for model in (first, second)}
    if len(skus) > 1:
        raise errors.UsageError(f"A and B: of different GPU models ({', '.join(sorted(skus))})")
    name = device or next(iter(skus))
    with open_database(database, name) as store:
        used = find_device(store, name)
        reports = changes.compare(first, second, store, used, op)
    code = changes.choose_exit_code(reports)
    names = {"a": a, "b": b, "sku": used.sku, "database": str(store.target)}
    print(changes.FORMATS[form](names | {"ops": reports, "exit_code": code}))
    if code == errors.EXIT_FAILURE:
        raise errors.TunerError(f"{b}: slower choices than those of {a}, by recorded times")
    if code:
        raise errors.InconclusiveError(
            f"{b}: op kinds of one artefact alone, or choices without recorded times; measure these with `refine` or"
            " `sweep`"
        )


def settle(parts: list, sku: str, work: Path | None) -> dict[str, str]:
    """Measure suspects again where that can be done; return {op kind: what was done}."""
    from tuner.compare.again import explain_absence, measure_again
    from tuner.compare.suspects import list_suspects

    is_open = any(finding.verdict == "suspect" for part in parts for finding in part.findings)
    absence = explain_absence(sku)
    if absence:
        return {"suspects": f"not measured again: {absence}"} if is_open else {}
    if not list_suspects(parts):
        return {}
    with make_progress() as progress:
        return measure_again(parts, work, lambda done, total: progress("problem", {"done": done, "total": total}))


def load_sides(
    a: str, b: str, device: str, op: str, stores: Mapping[str, Any] | None = None
) -> tuple[tuple[str, str], str, dict]:
    """Return (what A and B are called, SKU, {op kind: sides}); `stores` are those that are open already, by name.

    Raises: UsageError, InconclusiveError.
    """
    from tuner.compare import baselines
    from tuner.compare.sides import Named, load_side, read_name
    from tuner.learn.sources import find_device, find_ops, open_database

    if a and not b:
        a, b = "", a  # one name is the new sweep's, as without a name
    named_a, named_b = read_name(a), read_name(b)
    with ExitStack() as stack:
        opened = dict(stores or {})

        def get_store(database: str):
            if database not in opened:
                opened[database] = stack.enter_context(open_database(database, device))
            return opened[database]

        store_b = get_store(named_b.database)
        sku = find_device(store_b if not a else get_store(named_a.database), device).sku
        known = {} if a else baselines.load().get(sku, {})
        sides, used = {}, set()
        for name in find_ops(store_b, sku, op):
            first = named_a if a else known.get(name, Named(named_b.database, "previous"))
            store_a = get_store(first.database)
            if not a and name not in known and not has_previous(store_a, sku, name):
                continue
            if not store_a.newest_kernel_hash(name, sku):
                continue
            used.add(str(first))
            sides[name] = (
                load_side(store_a, sku, name, first.which), load_side(store_b, sku, name, named_b.which)
            )  # fmt: skip
        if not sides:
            raise errors.InconclusiveError(
                f"{store_b.target}: has nothing to compare with: no op kind has rows on both sides, a baseline or two"
                " kernel hashes; name A and B, or choose a baseline by `baseline set`"
            )
    return (", ".join(sorted(used)) or "this database", str(named_b) or "this database"), sku, sides


def has_previous(store, sku: str, op: str) -> bool:
    """Return whether a database has two kernel hashes of an op kind."""
    from tuner.db.origins import list_kernel_hashes

    with store.reading() as connection:
        return len(list_kernel_hashes(connection, op, sku)) > 1
