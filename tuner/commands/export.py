"""python -m tuner export: build, check and write the selector artefact of a SKU with its model card."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import typer

from deep_gemm import environment
from deep_gemm.errors import DeepGemmError
from tuner import errors
from tuner.commands import options as shared_options
from tuner.commands.tables import format_table, print_gates
from tuner.problems.fields import OP_NAMES


def register(app) -> None:
    """Add `export` to the command line."""
    app.command("export")(export)


def export(
    training: Path = shared_options.TRAINING,
    device: str = shared_options.TRAINED_SKU,
    op: str = typer.Option(
        "", help=f"Export only this op kind ({OP_NAMES}). Default: all that were trained, or have rows."
    ),
    database: str = shared_options.TRAINING_DB,
    out: Path = typer.Option(None, help="Folder for <sku>.dgsel and <sku>.md. Default: the training folder."),
    install: bool = typer.Option(
        False, help="Write into $DG_MODEL_DIR (default ~/.deep_gemm/models), where the library finds the artefact."
    ),
    keep: Path = typer.Option(
        None, help="Artefact, with its card beside it, whose op kinds that are not exported stay as they are."
    ),
    exact_only: bool = typer.Option(
        False,
        help=(
            "Renew only the exact tables of --keep's artefact by the rows of --db (default: your own database, else the"
            " recorded snapshot); its trees stay. Needs --out or --install."
        ),
    ),
    force: bool = typer.Option(False, help="Export even though a gate is missed; the model card will say so."),
    stale: str = typer.Option("", help="Mark the artefact as stale for this reason; it is then never used."),
    as_json: shared_options.AsJson = False,
) -> None:
    """Write the artefact by which the library chooses configs. Exits with 1 if a gate is missed.

    Example: python -m tuner export --install
    """
    from tuner.learn.train import choose_folder, find_folders, load_with_data
    from tuner.ship import export as exporting
    from tuner.ship import gates

    if out and install:
        raise errors.UsageError("--out and --install: give one of them")
    shared_options.check_folder("--out", out)
    if exact_only:
        check_exact_only(
            keep, bool(out or install), {"--training": training, "--device": device, "--force": force, "--stale": stale}
        )
        renew_exact(keep, database, op, out, as_json)
        return
    folder = choose_folder(training, device)
    trained = [load_with_data(part, database) for part in find_folders(folder, op, device)]
    if install:
        refuse_simulated({found.record.identity.op: found.record.identity.regime for found, _ in trained})
    base, base_card = read_kept(keep) if keep else (None, None)
    made = exporting.make_export(trained, stale=stale or None, base=base, base_card=base_card)
    check_kept(made, base, keep, install)
    passed = gates.is_passed(made.verdicts)
    if not passed and not force:
        print_gates(made.verdicts, sys.stderr)
        missed = {verdict.op for verdict in made.verdicts if not verdict.met}
        raise errors.TunerError(
            f"not exported: {len(missed)} of {len(trained)} op kinds miss a limit (!); measure more problems, or"
            " --force to export with the verdict in the model card"
        )
    artifact, card = exporting.write_export(
        made, install_folder() if install else out or folder, trained[0][0].record.identity.sku
    )
    print_export(made, artifact, card, passed, keep, as_json)


def check_exact_only(keep: Path | None, has_place: bool, others: dict) -> None:
    """Raise UsageError for --exact-only without an artefact or a place, or beside an option that it makes useless."""
    if not keep or not has_place:
        raise errors.UsageError("--exact-only: needs --keep with an artefact, and --out or --install; give both")
    if given := [name for name, value in others.items() if value]:
        raise errors.UsageError(f"{given[0]}: has no effect beside --exact-only; drop one")


def renew_exact(keep: Path, database: str, op: str, out: Path | None, as_json: bool) -> None:
    """Write the artefact `keep` with exact tables by the rows of a database, into `out` or where it is installed."""
    from deep_gemm.artifact import read_artifact
    from tuner.learn.sources import open_database
    from tuner.ship.export import write_export
    from tuner.ship.renewal import load_tables, renew

    base, base_card = read_kept(keep)
    if not base_card:
        raise errors.UsageError(f"--keep {keep}: has no card ({keep.stem}.md) beside it to renew; add it")
    metadata = read_artifact(base)[0]
    with open_database(database, metadata["sku"]) as store:
        print(f"rows of {store.target}", file=sys.stderr)
        tables, left = load_tables(store, metadata, op)
    if out is None:
        kept = {name: part["regime"] for name, part in metadata["ops"].items()}
        refuse_simulated(kept | {data.identity.op: data.identity.regime for data in tables})
    made = renew(base, base_card, tables)
    for name, reason in left.items():
        print(f"left as it was: {name}: {reason}", file=sys.stderr)
    if made.num_lost:
        print(f"{made.num_lost} exact entries without rows had no room among the configs", file=sys.stderr)
    artifact, card = write_export(made, out or install_folder(), metadata["sku"])
    print_export(made, artifact, card, True, keep, as_json)


def print_export(made, artifact: Path, card: Path, passed: bool, keep: Path | None, as_json: bool) -> None:
    """Print what an export wrote, as JSON or as short lines and a table."""
    if as_json:
        document = {
            "artifact": str(artifact),
            "card": str(card),
            "gates": [verdict.to_json() for verdict in made.verdicts],
            "passed": passed if made.verdicts else None,  # exact tables alone pass no gate
            "kept": list(made.kept),
            **asdict(made.contents),
        }
        print(json.dumps(document, indent=1, sort_keys=True))
        return
    if made.verdicts:
        print_gates(made.verdicts, sys.stdout if passed else sys.stderr)
    print(f"written: {artifact} ({made.contents.bytes} bytes) and {card.name}")
    if made.kept:
        print(f"as they were in {keep}: {', '.join(made.kept)}")
    counts = [(name, found.exact, found.configs, found.nodes) for name, found in made.contents.ops.items()]
    print(format_table(("op kind", "exact entries", "configs", "nodes"), counts, indent="  "))


def read_kept(path: Path) -> tuple[bytes, str]:
    """Return an artefact that is readable, and the text of the card beside it, if there is one. Raises: UsageError."""
    from deep_gemm.artifact import MAX_BYTES
    from deep_gemm.selector import Selector

    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        Selector(content)
        card = path.with_suffix(".md")
        return content, card.read_text(encoding="utf-8") if card.exists() else ""
    except (OSError, UnicodeDecodeError, DeepGemmError) as error:
        fault = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else error
        raise errors.UsageError(f"--keep {path}: {fault}; name an artefact (.dgsel)") from error


def check_kept(made, base: bytes | None, keep: Path, install: bool) -> None:
    """Name what is not kept of an artefact. Raises: UsageError where nothing is, or as refuse_simulated."""
    from deep_gemm.artifact import read_artifact

    if base is None:
        return
    if not made.kept:
        raise errors.UsageError(
            f"--keep {keep}: nothing to keep: it is of another GPU model, package or kernels, stale, or all of its op"
            " kinds are exported; leave --keep out"
        )
    ops = read_artifact(base)[0]["ops"]
    if install:
        refuse_simulated({op: ops[op]["regime"] for op in made.kept})
    if dropped := sorted(ops.keys() - made.contents.ops.keys() - set(made.kept)):
        print(f"not kept, of other kernels than this package's: {', '.join(dropped)}", file=sys.stderr)


def refuse_simulated(regimes: dict[str, str]) -> None:
    """Raise UsageError where {op kind: regime} has simulated times."""
    from tuner.problems.regimes import is_simulated

    simulated = [op for op, regime in regimes.items() if is_simulated(regime)]
    if simulated:
        raise errors.UsageError(
            f"--install: {', '.join(simulated)} learned from simulated times, which must not decide what the library"
            " runs; give --out"
        )


def install_folder() -> Path:
    """Return the folder of user-made artefacts. Raises: UsageError where neither DG_MODEL_DIR nor HOME is set."""
    folder = environment.model_dir()
    if folder is None:
        raise errors.UsageError("--install: neither DG_MODEL_DIR nor HOME is set; give --out")
    return folder
