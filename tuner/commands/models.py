"""python -m tuner models: list, show, verify, compare and remove selector artefacts."""

import json
from typing import Annotated

import typer

from deep_gemm.text import printable
from tuner.commands.options import AsJson
from tuner.commands.tables import format_table

Name = Annotated[str, typer.Argument(help="SKU or short name (h200), or the path of a .dgsel file.")]
OP_HEADINGS = ("op kind", "kernel", "exact", "configs", "trees", "margin", "not used because")

app = typer.Typer(
    name="models",
    no_args_is_help=True,
    help="List, show, verify, compare and remove selector artefacts. Example: python -m tuner models list",
)


def register(parent: typer.Typer) -> None:
    """Add `models` to the command line."""
    parent.add_typer(app, name="models")


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the artefacts that the library may read, and which it does. Example: python -m tuner models list"""
    from tuner.ship import models

    found = models.find_models()
    rows = [describe(model, models.is_used(model, found)) for model in found]
    if as_json:
        print(json.dumps({"models": rows}, indent=1, sort_keys=True))
        return
    print(
        format_table(
            ("gpu", "used", "place", "created", "op kinds", "state"), [list(row.values())[:-1] for row in rows]
        )
    )
    for row in rows:
        print(printable(f"  {row['file']}"))


def describe(model, is_used: bool) -> dict:
    """Return an artefact's facts, in the order of the columns."""
    metadata = model.selector.metadata if model.selector else {}
    outdated = model.list_outdated()
    state = model.fault or (
        f"{len(outdated)} op kinds not used: {next(iter(outdated.values()))}" if outdated else "fits"
    )
    return {
        "sku": model.sku,
        "used": "yes" if is_used and not model.fault else "no",
        "place": model.place,
        "created": metadata.get("created", "-"),
        "ops": len(metadata.get("ops", ())),
        "state": state,
        "file": str(model.path),
    }


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show what an artefact holds, op kind by op kind. Example: python -m tuner models show h200"""
    from tuner.ship import models

    model = models.find_model(name)
    ops = models.describe_ops(model)
    if as_json:
        document = {"file": str(model.path), "place": model.place, "sku": model.sku, "ops": ops}
        print(json.dumps(document, indent=1, sort_keys=True))
        return
    metadata = models.get_selector(model).metadata
    print(printable(f"{model.path} ({model.place})"))
    print(f"{model.sku}, {metadata['sm_count']} SMs, of {metadata['created']}, package {metadata['package_version']}")
    counts = ("exact", "configs", "trees")
    rows = [
        (
            op["op"],
            op["kernel_hash"][:8],
            *(op[count] for count in counts),
            f"{op['margin']:.1%}",
            op["unused_because"],
        )
        for op in ops
    ]
    print(format_table(OP_HEADINGS, rows))


@app.command()
def verify(name: Name, as_json: AsJson = False) -> None:
    """Read an artefact as the library does and replay its golden vectors.

    Example: python -m tuner models verify h200
    """
    from tuner.ship import models

    model = models.find_model(name)
    golden = models.verify(model)
    outdated = model.list_outdated()
    if as_json:
        print(json.dumps({"file": str(model.path), "golden": golden, "unused": outdated}, indent=1, sort_keys=True))
        return
    print(printable(f"{model.path}: sound, {golden} golden vectors give the recorded result"))
    for op, reason in outdated.items():
        print(f"  {op} is not used: {reason}")


@app.command()
def diff(first: Name, second: Name, as_json: AsJson = False) -> None:
    """Compare two artefacts. Exits with 0 whether they differ or not.

    Example: python -m tuner models diff h200 new.dgsel
    """
    from tuner.ship import models

    found = models.compare(models.find_model(first), models.find_model(second))
    if as_json:
        print(json.dumps({"ops": found}, indent=1, sort_keys=True))
        return
    print(format_table(("op kind", "", "exact entries", "configs", "forest", "kernel"), map(describe_change, found)))
    for entry in found:
        for label, names in (("+", entry.get("configs_added", ())), ("-", entry.get("configs_removed", ()))):
            for config in names:
                print(f"  {label} {entry['op']} {config}")


def describe_change(entry: dict) -> tuple:
    """Return the cells of one op kind: what was added, removed and changed."""
    if "exact_added" not in entry:
        return entry["op"], entry["change"], "", "", "", ""
    exact = f"+{entry['exact_added']} -{entry['exact_removed']} changed {entry['exact_changed']}"
    configs = f"+{len(entry['configs_added'])} -{len(entry['configs_removed'])}"
    words = ["other" if entry[name] else "same" for name in ("forest_changed", "kernel_hash_changed")]
    return entry["op"], entry["change"], exact, configs, *words


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="SKU or short name of an artefact that `export --install` wrote.")],
    as_json: AsJson = False,
) -> None:
    """Remove an installed artefact and its model card; packaged ones stay.

    Example: python -m tuner models remove h100
    """
    from tuner.ship import models

    files = [str(path) for path in models.remove(name)]
    print(json.dumps({"removed": files}) if as_json else "\n".join(f"removed {printable(path)}" for path in files))
