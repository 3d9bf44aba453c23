"""Replacing a file as a whole."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuner import errors


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a path in a private folder beside `target`; what is written there replaces `target` when the block ends
    well.

    Guarantees: the file is flushed to disk, then renamed, then the folder is flushed, so that readers see the old file
        or the new one; after an error the old one, and nothing is left behind. Raises: StoreError naming path and
        reason.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
            fresh = Path(folder) / target.name
            yield fresh
            flush(fresh)
            os.replace(fresh, target)
            flush(target.parent)
    except OSError as error:
        raise errors.StoreError(f"{target}: {error.strerror or error}; nothing was changed") from error


def flush(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
