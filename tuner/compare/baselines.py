"""Baselines: which sweep or kernel hash of which database later ones are compared with, by SKU and op kind.

They are kept in `baselines.json` in the folder of the user's tuning database, so that a baseline may be in the recorded
snapshot or in a database that others write to.
"""

import json
from pathlib import Path

from deep_gemm import environment
from tuner import errors
from tuner.compare.sides import Named
from tuner.db.lock import WriterLock
from tuner.files import make_folder
from tuner.measure.stamp import write_json

FORMAT = 1
#: Seconds to wait for another process that sets a baseline.
WAIT_S = 30.0


def get_path() -> Path:
    """Return the file of the baselines."""
    target = environment.tuner_database()
    folder = (environment.home_dir() or Path.cwd()) / ".deep_gemm" if "://" in target else Path(target).parent
    return folder / "baselines.json"


def load() -> dict[str, dict[str, Named]]:
    """Return {SKU: {op kind: baseline}}, {} where none was ever set. Raises: IntegrityError for a damaged file."""
    path = get_path()
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']}, this deep_gemm reads {FORMAT}")
        return {
            str(sku): {str(op): Named(str(one["database"]), str(one["which"])) for op, one in ops.items()}
            for sku, ops in document["baselines"].items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise errors.IntegrityError(
            f"{path}: not a file of baselines ({type(error).__name__}: {error}); remove it and set them again"
        ) from error


def save(sku: str, named: dict[str, Named]) -> Path:
    """Set the baselines of some op kinds and return the file. Raises: IntegrityError, StoreError."""
    path = get_path()
    make_folder(path.parent)
    lock = WriterLock(path, WAIT_S)
    try:
        known = load()
        known[sku] = known.get(sku, {}) | named
        document = {sku: {op: one._asdict() for op, one in sorted(ops.items())} for sku, ops in sorted(known.items())}
        write_json(path, {"format": FORMAT, "baselines": document})
    finally:
        lock.release()
    return path
