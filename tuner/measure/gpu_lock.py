"""One measuring process per GPU: an flock on a file that is named after the hash of the board's UUID.

The files lie in $XDG_RUNTIME_DIR/deep_gemm, else in <tmp>/deep_gemm-<uid>. The kernel releases the lock when its holder
ends, in whatever way.
"""

import fcntl
import os
import tempfile
from pathlib import Path
from typing import Self

from tuner import errors


def lock_folder() -> Path:
    """Return the folder of the lock files, which only this user may enter. Raises: TunerError for someone else's."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    base = (
        Path(runtime) / "deep_gemm"
        if os.path.isabs(runtime) and os.path.isdir(runtime)
        else Path(tempfile.gettempdir()) / f"deep_gemm-{os.getuid()}"
    )
    base.mkdir(mode=0o700, exist_ok=True)
    if base.is_symlink() or base.stat().st_uid != os.getuid():
        raise errors.TunerError(
            f"{base}: belongs to another user; remove it, or set XDG_RUNTIME_DIR to a folder of your own"
        )
    return base


class GpuLock:
    """The right to measure on one board, as a context manager.

    Raises: TunerError naming the process of another sweep that has it.
    """

    def __init__(self, uuid_hash: str):
        self.path = lock_folder() / f"gpu-{uuid_hash[:16]}.lock"
        self.handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self.handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self.handle)
            raise errors.TunerError(
                f"this GPU is being measured by process {holder}: one sweep at a time; name another --device"
            ) from error
        os.ftruncate(self.handle, 0)
        os.pwrite(self.handle, f"{os.getpid()}\n".encode(), 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self.handle)
