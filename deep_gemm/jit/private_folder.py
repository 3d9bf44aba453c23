"""Folders that belong to this user alone, and writing files into them: each appears whole or not at all."""

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

#: O_NONBLOCK: a FIFO in a file's place must not block the open.
OPEN_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
#: How the names of files end that are not finished yet.
TEMP = ".tmp"


def open_private_dir(path: Path, forbidden: int = 0o077) -> int:
    """Return a descriptor of the folder `path`, made with mode 700 (and its parents) where it is missing.

    Raises:
        OSError: the path is relative or a symbolic link, the folder is another user's, has one of the `forbidden` mode
            bits, or cannot be made.
    """
    if not path.is_absolute():
        raise OSError(errno.EINVAL, "not an absolute path", str(path))
    _make_dirs(path)
    if path.is_symlink():
        raise OSError(
            errno.ELOOP, "a symbolic link, which another user may have made; name the folder itself", str(path)
        )
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check_private(os.fstat(descriptor), forbidden, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _make_dirs(path: Path) -> None:
    """Make a folder and those above it. Raises: OSError; of a path that is too long, no part is made."""
    missing = []
    for folder in (path, *path.parents):
        try:
            os.lstat(folder)
            break
        except FileNotFoundError:
            missing.append(folder)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)


def _check_private(status: os.stat_result, forbidden: int, path: Path) -> None:
    if status.st_uid != os.geteuid():
        raise OSError(errno.EPERM, f"the folder belongs to user {status.st_uid}", str(path))
    if status.st_mode & forbidden:
        raise OSError(
            errno.EPERM, f"the folder is open to other users (mode {stat.S_IMODE(status.st_mode):o})", str(path)
        )


def publish(directory: int, name: str, data: bytes) -> None:
    """Write the file `name` in the open folder so that it appears whole or not at all, with mode 600.

    Raises: OSError.
    """
    temp = f"{name[:16]}.{os.getpid()}.{secrets.token_hex(4)}{TEMP}"
    descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | OPEN_FLAGS, 0o600, dir_fd=directory)
    try:
        try:
            _write(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temp, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temp, dir_fd=directory)
        raise
    os.fsync(directory)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
