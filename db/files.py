"""Which database files are recorded snapshots."""

import os
from pathlib import Path

#: The recorded snapshots of the package: finished files, which readers may open as such.
SNAPSHOTS = Path(__file__).with_name("snapshots")


def is_recorded(target: str | os.PathLike) -> bool:
    """Return whether `target` is a recorded snapshot of the package, which nothing writes to."""
    return "://" not in str(target) and Path(target).resolve().parent == SNAPSHOTS.resolve()
