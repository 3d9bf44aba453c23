"""Compile one source into one checked cubin, by NVRTC or NVCC, without any cache (build.py has that)."""

import contextlib
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from deep_gemm import environment
from deep_gemm.arguments import shorten
from deep_gemm.errors import ArgumentError, CompileError
from deep_gemm.jit import cubin, hashing, private_folder
from deep_gemm.jit.cubin import CompilerOutput, CubinError
from deep_gemm.jit.nvcc import Nvcc, get_nvcc
from deep_gemm.jit.nvrtc import Nvrtc, get_nvrtc

LOG_TAIL_BYTES = 4096
NUM_SOURCES_KEPT = 16
MAX_COMPILERS = 8

_TOOLCHAINS: dict[str, Callable[[], Nvrtc | Nvcc]] = {"nvrtc": get_nvrtc, "nvcc": get_nvcc}


@dataclass(frozen=True)
class CompileResult:
    """One compiled kernel and what its compiler reported.

    For each thread: `registers` at launch, `spill_bytes` stored and loaded, `local_bytes` of stack and spills.
    `warnings` of the compiler include lost optimisations (C7508, C7510); `log` holds the last 4 KiB of its output;
    `compile_ms` is wall time.
    """

    cubin: bytes = field(repr=False)
    kernel_name: str
    registers: int
    spill_bytes: int
    local_bytes: int
    warnings: tuple[str, ...]
    log: str
    compile_ms: float
    compiler: str
    compiler_version: str


def _make_gate() -> threading.BoundedSemaphore:
    return threading.BoundedSemaphore(min(len(os.sched_getaffinity(0)), MAX_COMPILERS))


_gate = _make_gate()  # at most this many compilers at once in a process


def _reset_after_fork() -> None:
    global _gate
    _gate = _make_gate()


os.register_at_fork(after_in_child=_reset_after_fork)


def get_toolchain(compiler: str | None = None) -> Nvrtc | Nvcc:
    """Return the compiler "nvrtc" or "nvcc"; None: the one that DG_JIT_USE_NVRTC names (default NVRTC).

    Raises:
        ArgumentError: any other name.
        CompileError: it was not found, or is too old for SM90.
    """
    if compiler is None:
        compiler = "nvrtc" if environment.is_enabled("DG_JIT_USE_NVRTC", default=True) else "nvcc"
    if not isinstance(compiler, str) or compiler not in _TOOLCHAINS:
        raise ArgumentError(f"compiler = {shorten(compiler)}: must be 'nvrtc' or 'nvcc'; pass one of them.")
    return _TOOLCHAINS[compiler]()


def compile_source(source: str, kernel_name: str | None = None, compiler: str | None = None) -> CompileResult:
    """Compile CUDA C++ for SM90 to a cubin and check it.

    Args:
        source: one `extern "C" __global__` kernel; it may include the package's device headers.
        kernel_name: the symbol that the cubin must hold; None takes whatever it holds.
        compiler: "nvrtc", "nvcc" or None, as for get_toolchain.

    Raises:
        CompileError: no compiler was found, it failed or timed out, or its output is not exactly this kernel.
    """
    toolchain = get_toolchain(compiler)
    headers = hashing.get_included_headers(source)
    with _gate:
        start = time.perf_counter()
        output = toolchain.compile(source, headers)
        compile_ms = 1e3 * (time.perf_counter() - start)
    _print_output(output)
    if output.error:
        raise _make_error(output.error, output, source)
    try:
        return _make_result(output, kernel_name, toolchain, compile_ms)
    except CubinError as error:
        raise _make_error(f"{toolchain.kind} wrote a cubin that cannot be used: {error}", output, source) from None


def _make_result(
    output: CompilerOutput, kernel_name: str | None, toolchain: Nvrtc | Nvcc, compile_ms: float
) -> CompileResult:
    kernel = cubin.read_kernel(output.image)
    if kernel_name is not None and kernel.name != kernel_name:
        raise CubinError(f"it holds the kernel {kernel.name}, not {kernel_name}")
    spill_bytes = cubin.read_spill_bytes(output.log)
    return CompileResult(
        cubin=output.image,
        kernel_name=kernel.name,
        registers=kernel.registers,
        # Without a report in the log all local memory counts as spilled: losing a config is better than measuring one
        # that spills.
        spill_bytes=kernel.local_bytes if spill_bytes is None else spill_bytes,
        local_bytes=kernel.local_bytes,
        warnings=cubin.read_warnings(output.log),
        log=_tail(output.log),
        compile_ms=compile_ms,
        compiler=toolchain.kind,
        compiler_version=toolchain.version_text,
    )


def print_message(message: str) -> None:
    """Print what a DG_JIT_* switch asks for, on stderr: stdout belongs to the program."""
    print(f"deep_gemm: {message}", file=sys.stderr, flush=True)


def _print_output(output: CompilerOutput) -> None:
    if environment.is_enabled("DG_JIT_PRINT_COMPILER_COMMAND"):
        print_message("compiler command: " + " ".join(output.argv))
    if environment.is_enabled("DG_JIT_PTXAS_VERBOSE"):
        print_message("compiler report:\n" + output.log.rstrip())


def _make_error(reason: str, output: CompilerOutput, source: str) -> CompileError:
    """Return a CompileError whose message has the reason, the path of the kept source and the end of the log."""
    kept = _keep_source(source)
    log = _tail(output.log)
    place = f"; source kept at {kept}" if kept else "; source not kept: there is no cache folder"
    message = f"{reason}{place}\n{log}" if log else reason + place
    return CompileError(
        message, argv=output.argv, status=output.status, log=log, source_path=str(kept) if kept else None
    )


def _tail(log: str) -> str:
    return log.encode()[-LOG_TAIL_BYTES:].decode(errors="ignore")


def _keep_source(source: str) -> Path | None:
    """Keep the source of a failed compilation in the cache folder, which holds the newest NUM_SOURCES_KEPT."""
    root = environment.cache_dir()
    if root is None:
        return None
    folder, name = root / "failed", hashlib.sha256(source.encode()).hexdigest()[:32] + ".cu"
    try:
        os.close(private_folder.open_private_dir(root, forbidden=0o022))
        directory = private_folder.open_private_dir(folder)
        try:
            private_folder.publish(directory, name, source.encode())
            _prune_sources(directory)
        finally:
            os.close(directory)
    except OSError:
        return None
    return folder / name


def _prune_sources(directory: int) -> None:
    with contextlib.suppress(OSError):
        kept = sorted((os.stat(name, dir_fd=directory).st_mtime_ns, name) for name in os.listdir(directory))
        for _, name in kept[:-NUM_SOURCES_KEPT]:
            os.unlink(name, dir_fd=directory)
