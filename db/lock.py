"""One writer per database: an exclusive flock on `<database>.lock`, a file that contains the writer's process id.

The lock file stays when the writer is gone, because removing it would race with the next writer. The kernel releases
the lock when its process ends, in whatever way. SQLite's own locks protect the database; this one refuses a second
sweep at once, instead of letting two interleave.

Guarantees: the holder of a WriterLock is the only one on this host. A process that it forks holds nothing.
"""

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path

from tuner import errors

POLL_S = 0.05
#: A process that was killed while it started another one leaves its lock to that one, until it has started.
GONE_S = 2.0

#: The locks that this process holds.
_held: set["WriterLock"] = set()


def _forget_in_child() -> None:
    """Close a fork's copies of the locks: they would hold the database after the writer has ended."""
    while _held:
        lock = _held.pop()
        if lock.handle >= 0:
            os.close(lock.handle)
        lock.handle = -1


os.register_at_fork(after_in_child=_forget_in_child)


class WriterLock:
    """The right to write to one database file.

    Exception contract: the constructor raises StoreError. It names the holder's process id where the lock is still held
    after `wait_s` seconds, else the path and why the lock file cannot be made.
    """

    def __init__(self, database: Path, wait_s: float = 0.0):
        self.path = lock_path(database)
        self.handle = open_lock(self.path)
        try:
            self.acquire(database, time.monotonic() + wait_s)
            os.ftruncate(self.handle, 0)
            os.pwrite(self.handle, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(self.handle)
            raise errors.StoreError(
                f"{self.path}: cannot be locked ({error.strerror}); keep the database on a local disk with free space"
            ) from error
        except errors.StoreError:
            os.close(self.handle)
            raise
        _held.add(self)

    def acquire(self, database: Path, deadline: float) -> None:
        """Take the flock, trying until `deadline`, and for GONE_S where the process that is named has ended."""
        start = time.monotonic()
        while True:
            try:
                return fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno != errno.EWOULDBLOCK:
                    raise
            holder = read_holder(database)
            if time.monotonic() >= (max(deadline, start + GONE_S) if is_gone(holder) else deadline):
                raise errors.StoreError(
                    f"{database}: process {holder or 'unknown'} is writing to it; wait for it or stop it"
                )
            time.sleep(POLL_S)

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        _held.discard(self)
        if self.handle >= 0:
            with contextlib.suppress(OSError):  # the disk failed: the process id stays, but not the lock
                os.ftruncate(self.handle, 0)
            os.close(self.handle)
            self.handle = -1


def lock_path(database: Path) -> Path:
    """Return the lock file's path."""
    return database.with_name(f"{database.name}.lock")


def open_lock(path: Path) -> int:
    """Open or create the lock file. Raises: StoreError."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise errors.StoreError(
            f"{path}: {error.strerror}; writing needs a folder that this user can write to, and no symbolic link there"
        ) from error


def read_holder(database: Path) -> int | None:
    """Return the process id in the lock file, None where there is none."""
    try:
        return int(lock_path(database).read_text("ascii"))
    except (OSError, ValueError):
        return None


def is_gone(process: int | None) -> bool:
    """Return whether there is no such process on this host any more."""
    if process is None or process < 1:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):  # somebody else's; no process has such a number
        return False
    return False
