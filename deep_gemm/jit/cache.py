"""Keep compiled kernels on disk: one file for each entry, shared by processes, safe against other users.

An entry `<key>.kernel` in the cache folder is, little-endian:

    | offset | bytes | what                                                           |
    | 0      | 8     | magic "DGKERNEL"                                               |
    | 8      | 4     | SCHEMA                                                         |
    | 12     | 32    | key (SHA-256 of everything that determines the payload)        |
    | 44     | 8     | length of the payload; it ends with the file                   |
    | 52     | 32    | SHA-256 over bytes 0..51 and the payload                       |
    | 84     | ...   | payload                                                        |

A writer fills a temporary file in the same folder, syncs it, renames it over the entry and syncs the folder. So readers
see the old entry, the new one or none, whenever the writer dies. Reading takes no lock. The hash detects corruption.
Ownership and mode keep other users out: folder and entries belong to this user and are open to nobody else, and nothing
is read through a symbolic link. Locks only save work: a process that cannot get one in time compiles by itself, and the
last rename wins.
"""

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import re
import secrets
import stat
import struct
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from deep_gemm import environment
from deep_gemm.errors import CacheError, CacheWarning
from deep_gemm.jit.private_folder import OPEN_FLAGS, TEMP, open_private_dir, publish
from deep_gemm.text import printable

SCHEMA = 1  # of the entry and of the payload that build.py puts into it; part of the key
MAX_ENTRY_BYTES = 64 << 20
PROBE_BYTES = 1 << 20  # the largest of our kernels takes a tenth of it
NUM_BAD_KEPT = 16
STALE_S = 3600.0  # an older temporary or lock file was left by a process that died
LOCK_TIMEOUT_S = 120.0

_MAGIC = b"DGKERNEL"
_HEADER = struct.Struct("<8sI32sQ32s")
_DIGEST_BYTES = 32
_KEY = re.compile(r"[0-9a-f]{64}")
_ENTRY, _BAD, _LOCK = ".kernel", ".bad", ".lock"

_warn_guard = threading.Lock()
_has_warned = False


def _reset_after_fork() -> None:
    """A child must not inherit a lock that another thread of the parent held."""
    global _warn_guard
    _warn_guard = threading.Lock()


os.register_at_fork(after_in_child=_reset_after_fork)


class _BadEntry(Exception):
    """An entry that must not be used: corrupt, foreign, or no regular file."""


def _warn(path: Path | None, error: OSError) -> None:
    """Warn, once in each process, that the cache cannot be used."""
    global _has_warned
    with _warn_guard:
        if _has_warned:
            return
        _has_warned = True
    message = f"{_explain(path, error)}; kernels are kept in memory only; name a folder that is yours alone (mode 700)"
    warnings.warn(message, CacheWarning, stacklevel=3)


def _explain(path: Path | None, error: OSError) -> str:
    where = printable(error.filename if isinstance(error.filename, str) else path)
    return f"DG_JIT_CACHE_DIR = {where}: {error.strerror} (errno {error.errno})"


def encode_entry(key: str, payload: bytes) -> bytes:
    """Return the bytes of the entry of `key`."""
    header = _HEADER.pack(_MAGIC, SCHEMA, bytes.fromhex(key), len(payload), bytes(_DIGEST_BYTES))[:-_DIGEST_BYTES]
    return header + _digest(header, payload) + payload


def decode_entry(key: str, entry: bytes) -> bytes:
    """Return the payload of the entry of `key`. Raises: _BadEntry."""
    if len(entry) < _HEADER.size:
        raise _BadEntry("cut in the header")
    magic, schema, entry_key, length, digest = _HEADER.unpack_from(entry)
    payload = entry[_HEADER.size :]
    if (magic, schema, entry_key, length) != (_MAGIC, SCHEMA, bytes.fromhex(key), len(payload)):
        raise _BadEntry("another magic, schema, key or length")
    if digest != _digest(entry[: _HEADER.size - _DIGEST_BYTES], payload):
        raise _BadEntry("the hash does not match")
    return payload


def _digest(header: bytes, payload: bytes) -> bytes:
    digest = hashlib.sha256(header)
    digest.update(payload)
    return digest.digest()


class DiskCache:
    """The entries in one folder. The object holds no open file, so threads may share it and a fork may inherit it.

    Guarantees:
        `get` returns exactly the bytes that some `put` of that key was given, or None, never a part of them.
    Exception contract:
        A fault of the disk, the folder or an entry never raises: `get` misses and `put` stores nothing. Where the
        folder cannot be used, each process gives one CacheWarning. Only a key that is not 64 hexadecimal digits raises:
        ValueError. Whoever must know before asks `check`.
    """

    def __init__(self, path: Path | None, *, root: Path | None = None, lock_timeout_s: float = LOCK_TIMEOUT_S):
        """Use the folder `path` (None: keep nothing); `root`, a folder above it, must belong to this user, too."""
        self.path = path
        self.lock_timeout_s = lock_timeout_s
        self._root = root
        self._is_swept = False

    @contextlib.contextmanager
    def _directory(self) -> Iterator[int]:
        """Open the folder for one operation. Raises: OSError where it must not be used."""
        if self.path is None:
            raise OSError(errno.ENOENT, "neither DG_JIT_CACHE_DIR nor HOME names a folder")
        if self._root is not None:
            # Other users may read the root (an older tool may have made it), but only this one may write to it.
            os.close(open_private_dir(self._root, forbidden=0o022))
        directory = open_private_dir(self.path)
        try:
            yield directory
        finally:
            os.close(directory)

    def check(self, *, is_filled: bool = False) -> None:
        """Raise CacheError where the folder cannot be used or, with `is_filled`, where no entry can be stored in it."""
        try:
            with self._directory() as directory:
                if is_filled:
                    _write_probe(directory)
        except OSError as error:
            raise CacheError(
                f"{_explain(self._root or self.path, error)}; compiled kernels must be kept there: name a folder that"
                " is yours alone (mode 700), on a disk with space"
            ) from error

    def get(self, key: str) -> bytes | None:
        """Return the payload of `key`, or None; an entry that fails a check is renamed to `*.bad`."""
        name = _file_name(key, _ENTRY)
        try:
            with self._directory() as directory:
                return self._get(directory, key, name)
        except OSError as error:
            _warn(self._root or self.path, error)
            return None

    def _get(self, directory: int, key: str, name: str) -> bytes | None:
        inode = None
        try:
            descriptor = _open_entry(directory, name)
            try:
                inode = os.fstat(descriptor).st_ino
                return decode_entry(key, _read_entry(descriptor))
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return None
        except _BadEntry:
            _set_aside(directory, name, inode)
            return None

    def put(self, key: str, payload: bytes) -> None:
        """Store `payload` as the entry of `key`, replacing an older one."""
        name = _file_name(key, _ENTRY)
        if len(payload) + _HEADER.size > MAX_ENTRY_BYTES:
            return
        try:
            with self._directory() as directory:
                self._sweep_once(directory)
                publish(directory, name, encode_entry(key, payload))
        except OSError as error:
            _warn(self._root or self.path, error)

    def _sweep_once(self, directory: int) -> None:
        if not self._is_swept:
            self._is_swept = True
            _remove_stale(directory)

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[bool]:
        """Hold the lock of `key` among processes and threads; yield False where that took longer than `lock_timeout_s`.

        The holder removes the lock file. Whoever waited for the removed file notices, and tries again with a new one.
        """
        name = _file_name(key, _LOCK)
        with contextlib.ExitStack() as stack:
            descriptor = None
            with contextlib.suppress(OSError):
                directory = stack.enter_context(self._directory())
                descriptor = _acquire(directory, name, time.monotonic() + self.lock_timeout_s)
            try:
                yield descriptor is not None
            finally:
                if descriptor is not None:
                    _release(directory, name, descriptor)

    def gc(self) -> int:
        """Remove entries set aside and what dead processes left (older than an hour); return the number of files
        removed.
        """
        try:
            with self._directory() as directory:
                bad = [name for name in os.listdir(directory) if name.endswith(_BAD)]
                return _remove_stale(directory) + sum(_remove(directory, name) for name in bad)
        except OSError:
            return 0


def _file_name(key: str, suffix: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError(f"key = {key!r}: must be 64 lower-case hexadecimal digits")
    return key + suffix


def _write_probe(directory: int) -> None:
    """Write a file as large as an entry, and remove it. Raises: OSError."""
    name = f"probe.{secrets.token_hex(4)}{TEMP}"
    publish(directory, name, bytes(PROBE_BYTES))
    os.unlink(name, dir_fd=directory)


def _open_entry(directory: int, name: str) -> int:
    try:
        return os.open(name, os.O_RDONLY | OPEN_FLAGS, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a symbolic link, a socket
            raise _BadEntry("no regular file") from None
        raise


def _read_entry(descriptor: int) -> bytes:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink > 1:
        raise _BadEntry("no regular file of ours with one name")  # no name at all: just replaced, and still whole
    if status.st_size > MAX_ENTRY_BYTES:
        raise _BadEntry("too large")
    chunks = []
    while chunk := os.read(descriptor, 1 << 20):
        chunks.append(chunk)
    return b"".join(chunks)


def _set_aside(directory: int, name: str, inode: int | None) -> None:
    """Rename a bad entry, unless another process has replaced it meanwhile, and keep the NUM_BAD_KEPT newest ones."""
    with contextlib.suppress(OSError):
        if inode is None or os.stat(name, dir_fd=directory, follow_symlinks=False).st_ino == inode:
            os.rename(name, f"{name}.{secrets.token_hex(4)}{_BAD}", src_dir_fd=directory, dst_dir_fd=directory)
        bad = [(_changed(directory, other), other) for other in os.listdir(directory) if other.endswith(_BAD)]
        for _, other in sorted(bad)[:-NUM_BAD_KEPT]:
            _remove(directory, other)


def _changed(directory: int, name: str) -> int:
    return os.stat(name, dir_fd=directory, follow_symlinks=False).st_ctime_ns


def _remove(directory: int, name: str) -> bool:
    """Remove a file or an empty folder; return whether it is gone."""
    for remove in (os.unlink, os.rmdir):
        with contextlib.suppress(OSError):
            remove(name, dir_fd=directory)
            return True
    return False


def _remove_stale(directory: int) -> int:
    """Remove temporary and lock files that only a dead process can have left."""
    count = 0
    for name in os.listdir(directory):
        with contextlib.suppress(OSError):
            if (
                name.endswith((TEMP, _LOCK))
                and time.time() - os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime > STALE_S
            ):
                count += _remove_unlocked(directory, name)
    return count


def _remove_unlocked(directory: int, name: str) -> bool:
    descriptor = os.open(name, os.O_RDWR | OPEN_FLAGS, dir_fd=directory)
    try:
        return _try_flock(descriptor) and _remove(directory, name)
    finally:
        os.close(descriptor)


def _acquire(directory: int, name: str, deadline: float) -> int | None:
    """Return a descriptor that holds the lock file, or None at the deadline."""
    pause = 0.001
    while True:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | OPEN_FLAGS, 0o600, dir_fd=directory)
        is_held = False
        try:
            is_held = _try_flock(descriptor) and _is_current(directory, name, descriptor)
        finally:
            if not is_held:
                os.close(descriptor)
        if is_held:
            return descriptor
        if time.monotonic() >= deadline:
            return None
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _try_flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_current(directory: int, name: str, descriptor: int) -> bool:
    """Return whether the lock file held still has its name: the holder before may have removed it."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def _release(directory: int, name: str, descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=directory)
    # Unlock before closing: a process forked meanwhile holds a copy of the descriptor, and the lock lasts until every
    # copy is closed.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


@functools.lru_cache(maxsize=8)
def _disk_cache(root: Path | None) -> DiskCache:
    return DiskCache(root / "cache" if root else None, root=root)


def get_disk_cache() -> DiskCache:
    """Return the cache below the folder that DG_JIT_CACHE_DIR (or HOME) names now."""
    return _disk_cache(environment.cache_dir())
