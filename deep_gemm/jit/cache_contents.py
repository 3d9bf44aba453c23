"""What the cache of compiled kernels holds, and emptying it. For tools: a call looks entries up by their keys."""

import contextlib
import os
import re
import stat
from dataclasses import dataclass

from deep_gemm.jit.build import decode_payload
from deep_gemm.jit.cache import DiskCache, get_disk_cache
from deep_gemm.jit.private_folder import open_private_dir

#: Names of entries, and of those that were set aside; other files in the folder are somebody else's.
ENTRY = re.compile(r"[0-9a-f]{64}\.kernel")
OWN = re.compile(rf"{ENTRY.pattern}(\.[0-9a-f]+\.bad)?")


@dataclass(frozen=True)
class Entry:
    """One compiled kernel: its key, name, compiler, size of the file in bytes, and when it was stored (Unix time).

    `kernel_name` is empty where the entry cannot be read; the library then compiles that kernel again.
    """

    key: str
    kernel_name: str
    compiler: str
    registers: int
    bytes: int
    stored: float


def list_entries() -> list[Entry]:
    """Return the entries, the newest first; [] where there is no folder.

    Raises: OSError where the folder must not be used.
    """
    cache = get_disk_cache()
    found = [read_entry(cache, name.partition(".")[0], status) for name, status in list_files(cache, ENTRY)]
    return sorted(found, key=lambda entry: (-entry.stored, entry.key))


def read_entry(cache: DiskCache, key: str, status: os.stat_result) -> Entry:
    """Return one entry; reading sets a damaged one aside, as every call does."""
    payload = cache.get(key)
    result = decode_payload(payload) if payload is not None else None
    name, compiler, registers = (result.kernel_name, result.compiler, result.registers) if result else ("", "", 0)
    return Entry(key, name, compiler, registers, status.st_size, status.st_mtime)


def clear() -> int:
    """Remove every entry and what was set aside; return the number of files removed.

    Processes that run keep the kernels that they have loaded. Raises: OSError where the folder must not be used.
    """
    cache = get_disk_cache()
    names = [name for name, _ in list_files(cache, OWN)]
    if cache.path is None or not names:
        return 0
    count, directory = 0, open_private_dir(cache.path)
    try:
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                os.unlink(name, dir_fd=directory)
                count += 1
    finally:
        os.close(directory)
    return count


def list_files(cache: DiskCache, names: re.Pattern) -> list[tuple[str, os.stat_result]]:
    """Return (name, status) of the regular files with such `names`.

    Raises: OSError where the folder must not be used.
    """
    if cache.path is None or not cache.path.exists():
        return []
    found, directory = [], open_private_dir(cache.path)
    try:
        for name in filter(names.fullmatch, sorted(os.listdir(directory))):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                found.append((name, os.stat(name, dir_fd=directory, follow_symlinks=False)))
    finally:
        os.close(directory)
    return [(name, status) for name, status in found if stat.S_ISREG(status.st_mode)]
