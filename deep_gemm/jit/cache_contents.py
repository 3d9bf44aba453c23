"""What the cache of compiled kernels holds, and emptying it. For tools: a call looks entries up by their keys."""

import os
import stat
from dataclasses import dataclass

from deep_gemm.jit.build import decode_payload
from deep_gemm.jit.cache import DiskCache, get_disk_cache, open_private_dir

ENTRY, SET_ASIDE = ".kernel", ".bad"


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
    found = [read_entry(cache, name.removesuffix(ENTRY), status) for name, status in list_files(cache, (ENTRY,))]
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
    names = [name for name, _ in list_files(cache, (ENTRY, SET_ASIDE))]
    if cache.path is None or not names:
        return 0
    directory = open_private_dir(cache.path)
    try:
        for name in names:
            os.unlink(name, dir_fd=directory)
    finally:
        os.close(directory)
    return len(names)


def list_files(cache: DiskCache, suffixes: tuple[str, ...]) -> list[tuple[str, os.stat_result]]:
    """Return (name, status) of the regular files with one of `suffixes`.

    Raises: OSError where the folder must not be used.
    """
    if cache.path is None or not cache.path.exists():
        return []
    directory = open_private_dir(cache.path)
    try:
        names = [name for name in sorted(os.listdir(directory)) if name.endswith(suffixes)]
        found = [(name, os.stat(name, dir_fd=directory, follow_symlinks=False)) for name in names]
    finally:
        os.close(directory)
    return [(name, status) for name, status in found if stat.S_ISREG(status.st_mode)]
