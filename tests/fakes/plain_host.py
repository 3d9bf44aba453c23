"""Plain kernels executed on the CPU, in place of the builtins of _C.make_plain_kernel (plain_host.cpp)."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from deep_gemm import cast_kernels, planned
from deep_gemm.jit.plain_kernels import PLAIN_KERNELS, plain_source, plain_symbol

_ROOT = Path(__file__).parents[2]
_SOURCE = Path(__file__).with_suffix(".cpp")
#: What outputs hold before a kernel writes them.
POISON = 0x5A


def use_host_kernels(patch: pytest.MonkeyPatch) -> None:
    """Let the plans of deep_gemm.cast_kernels hold kernels that run on the CPU (run_plan)."""
    if not (shutil.which("g++") or shutil.which("c++")):
        pytest.skip("no C++ compiler")
    patch.setattr(cast_kernels, "_sm_count", lambda x: 132)
    patch.setattr(cast_kernels, "get_kernel", make_kernel)
    patch.setattr(torch, "empty_strided", _poisoned(torch.empty_strided))


def run_plan(plan: planned.Plan | None, *arguments: object):
    """Return the results of a plan for CPU tensors, whose memory starts as POISON bytes; None without a plan."""
    return None if plan is None else planned.run(plan, *arguments)


def _poisoned(take: Callable) -> Callable:
    def empty_strided(*arguments: object, **options: object) -> torch.Tensor:
        out = take(*arguments, **options)
        if out.numel():
            torch.tensor([], dtype=torch.uint8).set_(out.untyped_storage()).fill_(POISON)
        return out

    return empty_strided


@functools.cache
def make_kernel(name: str, threads: int, **constants: int) -> Callable:
    """Return the kernel compiled for the CPU, called as the builtin is; a call returns how many threads let kernels
    behind it start early.
    """

    def call(grid: tuple[int, ...], *arguments: object) -> int:
        launch = _compile(name, tuple((key, int(value)) for key, value in constants.items()))
        counts = (ctypes.c_uint * 3)(*grid, *[1] * (3 - len(grid)))
        values = (ctypes.c_longlong * len(arguments))(*map(_number, arguments))
        assert len(arguments) == len(PLAIN_KERNELS[name].parameters)
        return launch(counts, threads, values)

    return call


def _number(argument: object) -> int:
    return argument.data_ptr() if isinstance(argument, torch.Tensor) else int(argument or 0)


@functools.cache
def _compile(name: str, constants: tuple) -> Callable:
    arguments = ", ".join(f"({kind})a[{i}]" for i, kind in enumerate(PLAIN_KERNELS[name].parameters))
    return compile_host(plain_source(name, dict(constants)), f"{plain_symbol(name)}({arguments})")


def compile_host(source: str, call: str) -> Callable:
    """Return the launch of device code, compiled for the CPU: launch(grid, threads, a), whose threads make `call`."""
    folder = Path(tempfile.mkdtemp(prefix="plain_host_"))
    kernel, library = folder / "kernel.cu", folder / "kernel.so"
    kernel.write_text(source)
    command = [
        shutil.which("g++") or "c++", "-std=c++20", "-O1", "-ffp-contract=off", "-fno-strict-aliasing",
        "-fno-gnu-unique",  # the shared memory of kernels of one name stays their own
        "-shared", "-fPIC", "-pthread", f"-I{_SOURCE.parent / 'host_include'}", f"-I{_ROOT / 'deep_gemm' / 'include'}",
        f'-DKERNEL="{kernel}"', f"-DCALL={call}", "-o", str(library), str(_SOURCE),
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=120)
    function = ctypes.CDLL(str(library)).launch
    shutil.rmtree(folder)
    return function
