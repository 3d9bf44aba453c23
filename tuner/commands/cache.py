"""python -m tuner cache: list and clear the compiled kernels on disk."""

import datetime
import json
from dataclasses import asdict
from typing import Annotated

import typer

from deep_gemm.text import printable
from tuner import errors
from tuner.commands.options import AsJson
from tuner.commands.tables import format_table

app = typer.Typer(
    name="cache",
    no_args_is_help=True,
    help="List and clear the compiled kernels on disk. Example: python -m tuner cache list",
)


def register(parent: typer.Typer) -> None:
    """Add `cache` to the command line."""
    parent.add_typer(app, name="cache")


@app.command("list")
def list_(
    top: Annotated[int, typer.Option(min=0, help="Kernels to show, newest first; 0: all.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the compiled kernels of DG_JIT_CACHE_DIR. Example: python -m tuner cache list"""
    from deep_gemm.jit import cache, cache_contents

    folder = cache.get_disk_cache().path
    try:
        found = cache_contents.list_entries()
    except OSError as error:
        raise refuse(error) from error
    if as_json:
        document = {"folder": str(folder) if folder else None, "entries": [asdict(entry) for entry in found]}
        print(json.dumps(document, indent=1, sort_keys=True))
        return
    size = sum(entry.bytes for entry in found)
    print(printable(f"{folder or 'no folder: neither DG_JIT_CACHE_DIR nor HOME is set'}"))
    print(f"{len(found)} kernels, {size / 1e6:.1f} MB")
    shown = found[: top or None]
    rows = [
        (
            entry.key[:12],
            entry.kernel_name or "unreadable",
            entry.compiler,
            entry.registers,
            f"{entry.bytes / 1e3:.1f}",
            datetime.datetime.fromtimestamp(entry.stored, datetime.UTC).strftime("%Y-%m-%d %H:%M"),
        )
        for entry in shown
    ]
    if rows:
        print(format_table(("key", "kernel", "compiler", "registers", "kB", "stored (UTC)"), rows))
    if len(shown) < len(found):
        print(f"... and {len(found) - len(shown)} more; --top 0 shows all")


def refuse(error: OSError) -> errors.TunerError:
    """Return the error for a folder that must not be used."""
    return errors.TunerError(
        f"the cache: {error.strerror or error}; set DG_JIT_CACHE_DIR to a folder of your own, open to nobody else"
    )


@app.command()
def clear(as_json: AsJson = False) -> None:
    """Remove all compiled kernels from disk; they are compiled when needed.

    Example: python -m tuner cache clear
    """
    from deep_gemm.jit import cache_contents

    try:
        count = cache_contents.clear()
    except OSError as error:
        raise refuse(error) from error
    print(json.dumps({"removed": count}) if as_json else f"{count} files removed")
