"""Runs functions in a child process in which `libcuda.so.1` is the stub of libcuda.c, and `libnvidia-ml.so.1` that of
libnvml.c, and returns the calls that the stubs received.
"""

import atexit
import concurrent.futures
import contextlib
import functools
import json
import multiprocessing
import os
import shutil
import struct
import subprocess
import tempfile
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path

import pytest

import deep_gemm
from deep_gemm import _C, plan
from deep_gemm.errors import CompileError
from deep_gemm.jit import build

_SOURCES = {"libcuda.so.1": "libcuda.c", "libnvidia-ml.so.1": "libnvml.c"}
_PARAMS = struct.Struct("<QQQQqqqqqqIIIIIIffIIII")
PARAMS_FIELDS = (
    "scale_a",
    "scale_b",
    "d",
    "c",
    "scale_a_stride_mn",
    "scale_a_stride_k",
    "scale_b_stride_mn",
    "scale_b_stride_k",
    "d_stride_m",
    "c_stride_m",
    "m",
    "n",
    "k",
    "num_m_tiles",
    "num_n_tiles",
    "band",
    "alpha",
    "beta",
    "head_left",
    "head_mid",
    "head_right",
    "zero",
)
_GROUP_PARAMS = struct.Struct("<QQQQqqqqI16xIQ")
_GROUP_PARAMS_FIELDS = (
    "groups",
    "a",
    "b",
    "map_slots",
    "scale_a_stride_group",
    "scale_b_stride_group",
    "d_stride_group",
    "c_stride_group",
    "num_groups",
    "num_parts",
    "signals",
)
FP8_PROBLEM = _C.Problem("fp8_gemm", 1, 1, 1, scale_layout="any")


@dataclass
class StubDriver:
    """A child process with the stub; `call` runs a module-level function there."""

    pool: concurrent.futures.ProcessPoolExecutor
    log: Path

    def call(self, function: Callable, *arguments, **settings):
        """Return (result, events) of `function(*arguments)` under the stub's `settings` (FAKE_CUDA_* without the
        prefix).
        """
        self.log.write_text("")
        result = self.pool.submit(_run, function, arguments, settings).result(timeout=120)
        return result, [json.loads(line, strict=False) for line in self.log.read_text().splitlines()]


def _run(function: Callable, arguments: tuple, settings: dict):
    names = {f"FAKE_CUDA_{name.upper()}": str(value) for name, value in settings.items()}
    os.environ.update(names)
    try:
        return function(*arguments)
    finally:
        for name in names:
            os.environ.pop(name, None)


@contextlib.contextmanager
def start(folder: Path) -> Iterator[StubDriver]:
    """Start a child that has called nothing yet, with its files in `folder`; skips the test where there is no C
    compiler.
    """
    log = folder / "driver.log"
    variables = {"FAKE_CUDA_LOG": str(log), "DG_JIT_CACHE_DIR": str(folder / "cache"), "DG_SELECTOR": "analytic"}
    pool = concurrent.futures.ProcessPoolExecutor(
        1, mp_context=_start_server(), initializer=_replace_environment, initargs=({**os.environ, **variables},)
    )
    with pool:
        yield StubDriver(pool, log)


@functools.cache
def build_stubs() -> Path:
    """Build the stubs and return their folder; skips the test where there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the stub driver")
    folder = tempfile.mkdtemp(prefix="stub-driver-")
    atexit.register(shutil.rmtree, folder)
    for library, source in _SOURCES.items():
        path = Path(__file__).with_name(source)
        command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", f"{folder}/{library}", str(path)]
        subprocess.run(command, check=True, timeout=60)
    return Path(folder)


@functools.cache
def _start_server() -> multiprocessing.context.BaseContext:
    """Start the process that forks the children: it imports torch once, and has no driver yet."""
    folder = build_stubs()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with pytest.MonkeyPatch.context() as patch:
        # The loader reads the path once, when the server starts.
        patch.setenv("LD_LIBRARY_PATH", f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}")
        forkserver.ensure_running()
    return context


def _replace_environment(variables: dict[str, str]) -> None:
    """Give a child the variables of the test in place of the server's."""
    os.environ.clear()
    os.environ.update(variables)


def select(events: list[dict], call: str) -> list[dict]:
    """Return the events of one driver function, in order."""
    return [event for event in events if event["call"] == f"cu{call}"]


def read_params(launch: dict) -> dict:
    """Return the kernel's Params of a launch event by field name."""
    return dict(zip(PARAMS_FIELDS, _PARAMS.unpack(bytes.fromhex(launch["params"]))))


def read_group_params(launch: dict) -> dict:
    """Return the GroupParams of the launch event of a grouped kernel by field name; what is reserved must be zero."""
    data = bytes.fromhex(launch["groups"])
    assert not any(data[-28:-12])
    return dict(zip(_GROUP_PARAMS_FIELDS, _GROUP_PARAMS.unpack(data)))


def matrix(address: int, rows: int, columns: int, pitch: int, dtype: str, device: int = 0) -> "_C.TensorView":
    """Describe a row-major matrix in the memory of the stub's GPU, which nobody reads."""
    return _C.TensorView(address, [rows, columns], [pitch, 1], dtype, device)


def make_operands(m: int, n: int, k: int, device: int = 0) -> tuple:
    """Describe (a, scale_a, b, scale_b, d) of a product with padded rows, none overlapping another."""
    steps, blocks = -(-k // 128), -(-n // 128)
    pitch_k, pitch_n = -(-k // 16) * 16 + 16, -(-n // 8) * 8 + 8
    addresses = [1 << 40, 1 << 41, 1 << 42, 1 << 43, 1 << 44]
    shapes = [(m, k, pitch_k, "float8_e4m3fn"), (m, steps, steps + 3, "float32"), (n, k, pitch_k + 32, "float8_e4m3fn")]
    shapes += [(blocks, steps, steps + 5, "float32"), (m, n, pitch_n, "bfloat16")]
    return tuple(matrix(address, *shape, device) for address, shape in zip(addresses, shapes))


def load_kernel(
    config: "_C.Config", device: int = 0, cubin: bytes = b"cubin of the stub", problem: "_C.Problem" = FP8_PROBLEM
) -> "_C.Kernel":
    """Load a cubin that the stub accepts; by default, its kernel fits make_operands."""
    return _C.Kernel(cubin, f"deep_gemm_{problem.op}", problem, config, device)


def use_fake_build(refuse=()):
    """Let the planning of this process compile nothing; `refuse`: configs that do not compile.

    Returns the list of builds.
    """
    builds, salt = [], os.urandom(8).hex()  # kernels stay loaded: other bytes for each test

    def get_cubin(problem, config, compiler=None, *, second=None, is_refused=False):
        tiles = _C.name_tiles(config, second)
        builds.append((str(problem), tiles, is_refused))
        if config in refuse or second in refuse:
            raise CompileError("no such instruction\nlog")
        cubin = f"{salt} {problem.op} {tiles} {problem.compiled_dims} {sum(refused for *_, refused in builds)}".encode()
        return types.SimpleNamespace(
            cubin=cubin, kernel_name=f"deep_gemm_{problem.op}", compiler="nvrtc", compiler_version="13.0"
        )

    build.get_cubin = get_cubin
    plan.forget()
    _C.dispatch_clear()
    return builds


def run_op(m, n, k, device=0, **options):
    """Run the public op on described operands."""
    a, scale_a, b, scale_b, d = make_operands(m, n, k, device)
    deep_gemm.fp8_gemm_nt((a, scale_a), (b, scale_b), d, **options)
