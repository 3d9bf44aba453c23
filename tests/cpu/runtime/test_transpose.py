"""The transposing pass: its kernel executed on the CPU on every grid, and the code that compilers generate for it.

Its launches are in test_launch_variants.py.
"""

import ctypes
import functools
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from benchmarks import stale
from benchmarks.stamp import OPS
from deep_gemm.jit import compile, hashing, plain_kernels
from tests.fakes.compiler import isolate, require_compiler

ROOT = Path(__file__).parents[3]
HOST = ROOT / "tests" / "fakes" / "transpose_host.cpp"
LAUNCH = ROOT / "csrc" / "runtime" / "transpose.cpp"
HEADER = ROOT / "deep_gemm" / "include" / "deep_gemm" / "transpose_fp8.cuh"
TILE = 128


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """Return the kernel, compiled for the CPU."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("transpose")
    kernel, library = folder / "kernel.cu", folder / "kernel.so"
    kernel.write_text(plain_kernels.plain_source("transpose_fp8"))
    flags = [
        "-std=c++20",
        "-O1",
        "-fno-strict-aliasing",
        "-shared",
        "-fPIC",
        "-pthread",
        f"-I{ROOT / 'deep_gemm' / 'include'}",
        f'-DKERNEL="{kernel}"',
    ]
    subprocess.run([compiler, *flags, "-o", str(library), str(HOST)], check=True, timeout=120)
    function = ctypes.CDLL(str(library)).launch
    function.argtypes = [
        ctypes.c_uint,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_longlong,
        ctypes.c_longlong,
        ctypes.c_uint,
        ctypes.c_uint,
    ]
    return function


def align(value: int) -> int:
    """Round up to 16."""
    return -(-value // 16) * 16


@pytest.mark.parametrize("rows, columns", [(1, 1), (128, 128), (129, 300), (300, 129), (16, 1000), (1000, 3)])
def test_every_grid_transposes_everything(launch, rows, columns):
    """Rows of the result are columns, zeros up to 16 bytes behind them, and nothing further is written."""
    memory = torch.randint(0, 256, (rows, align(columns) + 16), dtype=torch.uint8)
    expected = torch.full((columns, align(rows) + 32), 99, dtype=torch.uint8)
    expected[:, : align(rows)] = torch.nn.functional.pad(memory[:, :columns].T, (0, align(rows) - rows))
    tiles = -(-rows // TILE) * -(-columns // TILE)
    for grid in sorted({1, 2, 3, tiles, tiles + 2}):
        found = torch.full_like(expected, 99)
        launch(grid, memory.data_ptr(), found.data_ptr(), memory.stride(0), found.stride(0), rows, columns)
        assert torch.equal(found, expected), grid


def test_the_launch_has_the_kernels_tile_and_threads():
    kernel, host = HEADER.read_text(encoding="utf-8"), LAUNCH.read_text(encoding="utf-8")
    for name in ("kTile", "kThreads"):
        assert re.search(rf"{name} = (\d+)", kernel)[1] == re.search(rf"{name} = (\d+)", host)[1]


def test_records_of_it_are_stale_once_it_changes_and_not_with_other_kernels(few_sources, monkeypatch):
    monkeypatch.setattr(hashing, "kernel_hash", functools.cache(hashing.kernel_hash.__wrapped__))
    monkeypatch.setattr(stale, "current_kernel_hash", stale.current_kernel_hash.__wrapped__)
    before = {name: hashing.kernel_hash(name) for name in (*OPS, plain_kernels.TRANSPOSE_KERNEL)}
    assert stale.current_hashes(before) == before and len(set(before.values())) == len(before)
    read = hashing._read_header
    monkeypatch.setattr(
        hashing, "_read_header", lambda name: read(name) + "int x;" * name.endswith("transpose_fp8.cuh")
    )
    changed = {name for name in before if hashing.kernel_hash.__wrapped__(name) != before[name]}
    assert changed == {plain_kernels.TRANSPOSE_KERNEL}


@pytest.mark.parametrize("compiler", ["nvrtc", "nvcc"])
def test_it_compiles_without_spills_and_fills_an_sm(monkeypatch, tmp_path, compiler):
    require_compiler(compiler)
    isolate(monkeypatch, tmp_path)
    result = compile.compile_source(
        plain_kernels.plain_source("transpose_fp8"), plain_kernels.TRANSPOSE_KERNEL, compiler
    )
    assert (result.spill_bytes, result.local_bytes, list(result.warnings)) == (0, 0, [])
    threads = int(re.search(r"kThreads = (\d+)", HEADER.read_text(encoding="utf-8"))[1])
    ctas = int(re.search(r"kCtasPerSm = (\d+)", HEADER.read_text(encoding="utf-8"))[1])
    assert threads * ctas == 2048 and result.registers * threads * ctas <= 65536
