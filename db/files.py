"""Replacing a file as a whole, durably."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuner import errors

#: The recorded snapshots of the package: finished files, which readers may open as such.
SNAPSHOTS = Path(__file__).with_name("snapshots")


def is_recorded(target: str | os.PathLike) -> bool:
    """Return whether `target` is a recorded snapshot of the package, which nothing writes to."""
    return "://" not in str(target) and Path(target).resolve().parent == SNAPSHOTS.resolve()


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a path in a private folder beside `target`; the file written there replaces `target` unless something
    fails.

    Guarantees: readers see the old file or the new one, never a mixture, because the new file is flushed to disk before
        it is renamed. After an error the old file is still there, and nothing else is left. Raises: StoreError naming
        the path and the reason.
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
    """Flush a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
