"""Replacing a file as a whole, durably."""

import contextlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tuner import errors

STALE_S = 3600.0  # no replacement takes as long
#: What a SQLite database begins with.
DATABASE_MAGIC = b"SQLite format 3\0"


def check_replaceable(name: str, path: Path) -> None:
    """Raise UsageError where a file that is no database may not replace what has its path: a folder, anything else but
    a regular file, or a database, of whose measurements there may be no copy. `name` is what the command line calls it.
    """
    if not path.exists():
        return
    if path.is_dir():
        raise errors.UsageError(f"{name} {path}: is a folder; name a file in it")
    if not path.is_file():
        raise errors.UsageError(f"{name} {path}: is no regular file; name one, or a new file")
    with raising_store_error(path), path.open("rb") as file:
        is_database = file.read(len(DATABASE_MAGIC)) == DATABASE_MAGIC
    if is_database:
        raise errors.UsageError(f"{name} {path}: is a database, which would be lost; name another file")


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a path in a private folder beside `target`; the file written there replaces `target` unless something
    fails.

    Guarantees: readers see the old file or the new one, never a mixture, because the new file is flushed to disk before
        it is renamed. After an error the old file is still there, and nothing else is left; what a killed process
        leaves is removed by a replacement an hour later. The file has the mode that the body made it with: by the
        umask, as any new file, whatever the old one had.
    Raises: StoreError naming the path and the reason. What the body raises, which may be about another file, is left
        alone.
    """
    with raising_store_error(target):
        absent = [folder for folder in target.parents if not folder.exists()]  # the innermost first
    folder = None
    try:
        with raising_store_error(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            sweep_stale(target)
            folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        fresh = folder / target.name
        yield fresh
        with raising_store_error(target):
            flush(fresh)
            os.replace(fresh, target)
        with contextlib.suppress(OSError):  # a file system that flushes no folders: the file is there all the same
            flush(target.parent)
    finally:
        if folder is not None:
            # What cannot be removed is swept later. TemporaryDirectory would recurse for ever where it may not open it.
            shutil.rmtree(folder, ignore_errors=True)
        remove_empty(absent)  # where the file is in none of them


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders, each of which lies in the next one, unless something is in them."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextmanager
def raising_store_error(what: object) -> Iterator[None]:
    """Turn an OSError into StoreError about `what`, of which nothing was changed."""
    try:
        yield
    except OSError as error:
        raise errors.StoreError(f"{what}: {error.strerror or error}; nothing was changed") from error


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder, and those that it lies in, unless they are there. Raises: StoreError."""
    with raising_store_error(folder):
        folder.mkdir(mode=mode, parents=True, exist_ok=True)


def write_whole(target: Path, payload: bytes, mode: int | None = None) -> None:
    """Replace `target` by `payload` as `replacing` does; with `mode`, or by the umask. Raises: StoreError."""
    with replacing(target) as fresh, raising_store_error(target):
        fresh.write_bytes(payload)
        if mode is not None:
            os.chmod(fresh, mode)


def sweep_stale(target: Path) -> None:
    """Remove the private folders beside `target` that replacements left whose process was killed."""
    name = re.compile(rf"\.{re.escape(target.name)}\.[a-z0-9_]{{8}}")
    for folder in target.parent.iterdir():
        if not name.fullmatch(folder.name):
            continue
        with contextlib.suppress(OSError):
            status = folder.lstat()
            is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if is_ours and time.time() - status.st_mtime > STALE_S:
                shutil.rmtree(folder)


def flush(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
