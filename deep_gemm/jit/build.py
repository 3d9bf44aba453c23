"""Get the cubin of a kernel from memory, from the disk cache, or from the compiler. Each key is built once, however
many threads and processes ask for it.

The payload of a cache entry is, little-endian: the length of a report (4 bytes), the report (canonical JSON: every
field of CompileResult but the cubin), the cubin. cache.SCHEMA is the version of this layout, too.
"""

import contextlib
import json
import os
import struct
import threading
from collections import defaultdict
from dataclasses import asdict

from deep_gemm import _C, environment
from deep_gemm.jit import generator, hashing
from deep_gemm.jit.cache import DiskCache, get_disk_cache
from deep_gemm.jit.compile import CompileResult, compile_source, get_toolchain, print_message

_LENGTH = struct.Struct("<I")

_memory: dict[str, CompileResult] = {}
_num_compiled = 0
_guard = threading.Lock()
_key_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


def _reset_after_fork() -> None:
    """Give the child of a fork new locks: the threads that held the old ones do not run in it."""
    global _guard, _key_locks
    _guard, _key_locks = threading.Lock(), defaultdict(threading.Lock)


os.register_at_fork(after_in_child=_reset_after_fork)


def get_cubin(
    problem: "_C.Problem",
    config: "_C.Config",
    compiler: str | None = None,
    *,
    second: "_C.Config | None" = None,
    is_refused: bool = False,
) -> CompileResult:
    """Return the compiled kernel of `config` for the problem's op kind and compiled dims.

    Args:
        problem: its sizes matter only where compiled_dims names them.
        config: a legal config.
        compiler: "nvrtc", "nvcc", or None for the one that DG_JIT_USE_NVRTC names.
        second: a second tile, as for generator.generate_source.
        is_refused: the driver refused the cubin that this function returned before: compile again, and replace the
            kernel in memory and on disk.

    Raises:
        ConfigError: the config is not legal.
        CompileError: no compiler, or the kernel does not compile.
    """
    source = generator.generate_source(problem, config, second)
    return get_cubin_for_source(source, generator.kernel_name(problem.op), compiler, is_refused=is_refused)


def get_cubin_for_source(
    source: str, kernel_name: str | None = None, compiler: str | None = None, *, is_refused: bool = False
) -> CompileResult:
    """Return the compiled kernel of `source`, with the arguments of get_cubin. Raises: CompileError."""
    key = _make_key(source, compiler)
    if key in _memory and not is_refused:
        return _memory[key]
    with _hold_key(key):
        if key not in _memory or is_refused:
            _memory[key] = _load_or_compile(key, source, kernel_name, compiler, is_refused)
        return _memory[key]


def find_cubin_for_source(
    source: str, kernel_name: str | None = None, compiler: str | None = None
) -> CompileResult | None:
    """Return what get_cubin_for_source would return without compiling, or None. Raises: CompileError."""
    key = _make_key(source, compiler)
    return _memory.get(key) or _load(get_disk_cache(), key, kernel_name)


def _make_key(source: str, compiler: str | None) -> str:
    return hashing.compile_key(source, hashing.get_included_headers(source), get_toolchain(compiler))


@contextlib.contextmanager
def _hold_key(key: str):
    """Keep other threads of this process from building `key`."""
    with _guard:
        lock = _key_locks[key]
    with lock:
        yield


def _load_or_compile(
    key: str, source: str, kernel_name: str | None, compiler: str | None, is_refused: bool
) -> CompileResult:
    cache = get_disk_cache()
    result = None if is_refused else _load(cache, key, kernel_name)
    if result is not None:
        return result
    with cache.lock(key):
        # Another process may have built it while this one waited.
        result = None if is_refused else _load(cache, key, kernel_name)
        if result is None:
            result = compile_source(source, kernel_name, compiler)
            _count_compilation()
            _debug(f"compiled {key[:16]} by {result.compiler} {result.compiler_version} in {result.compile_ms:.0f} ms")
            cache.put(key, encode_payload(result))
    return result


def _count_compilation() -> None:
    global _num_compiled
    with _guard:
        _num_compiled += 1


def count_compilations() -> int:
    """Return how many kernels this process has compiled, which neither memory nor the disk had."""
    return _num_compiled


def _load(cache: DiskCache, key: str, kernel_name: str | None) -> CompileResult | None:
    payload = cache.get(key)
    result = decode_payload(payload) if payload is not None else None
    if result is None or kernel_name not in (None, result.kernel_name):
        return None
    _debug(f"loaded {key[:16]} from {cache.path}")
    return result


def _debug(message: str) -> None:
    if environment.is_enabled("DG_JIT_DEBUG"):
        print_message(message)


def encode_payload(result: CompileResult) -> bytes:
    """Return the payload of a cache entry."""
    fields = asdict(result)
    image = fields.pop("cubin")
    report = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    return _LENGTH.pack(len(report)) + report + image


def decode_payload(payload: bytes) -> CompileResult | None:
    """Return what encode_payload was given, or None where the payload has another layout."""
    try:
        (length,) = _LENGTH.unpack_from(payload)
        fields = json.loads(payload[_LENGTH.size : _LENGTH.size + length])
        fields["warnings"] = tuple(fields["warnings"])
        return CompileResult(cubin=payload[_LENGTH.size + length :], **fields)
    except (struct.error, ValueError, TypeError, KeyError):
        return None


def clear_memory() -> None:
    """Forget the kernels kept in this process; the disk cache stays."""
    with _guard:
        _memory.clear()
