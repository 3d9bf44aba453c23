"""What lets the library launch on CPU tensors under the stub driver: tensors described as memory of a GPU.

Everything here runs in the child process of the stub driver.
"""

from typing import NamedTuple

import torch

from deep_gemm import _C, plan, stream
from deep_gemm.jit import build, generator

from .build import Defects, build_kernel

_kept: list[torch.Tensor] = []  # memory of views that the library has asked for
_defects: dict[str, tuple[str, str]] = {}  # of all kernels of this process


class Outcome(NamedTuple):
    """What came of a launch."""

    num_wrong: int  # elements of D that miss their reference
    num_dirty: int  # elements around D that were written
    error: str  # what the emulator found, or ""


def view(value: object) -> object:
    """Describe a CPU tensor as memory of the stub's GPU, also in tuples; anything else stays as it is."""
    if isinstance(value, tuple):
        return tuple(view(part) for part in value)
    if not isinstance(value, torch.Tensor):
        return value
    dtype = str(value.dtype).removeprefix("torch.")
    return _C.TensorView(value.data_ptr(), list(value.shape), list(value.stride()), dtype, 0)


class HostKernel:
    """A kernel of the emulator that is launched on CPU tensors, with the methods of _C.Kernel."""

    def __init__(self, cubin: bytes, problem: "_C.Problem", config: "_C.Config", second: "_C.Config | None" = None):
        use_host_memory()
        self.kernel = _C.Kernel(cubin, generator.kernel_name(problem.op), problem, config, 0, second)

    def launch(self, *operands, **options) -> None:
        """Launch on the operands of _C.Kernel.launch."""
        self.kernel.launch(*map(view, operands), **{name: view(value) for name, value in options.items()})

    def launch_logits(self, *operands, **options) -> None:
        """Launch on the operands of _C.Kernel.launch_logits."""
        self.kernel.launch_logits(*map(view, operands), **{name: view(value) for name, value in options.items()})


def use_host_memory(defects: Defects | None = None) -> None:
    """Let the library take its memory from the CPU, and its kernels from the emulator's compiler, with `defects` (as
    for build_kernel) where no earlier call of the process has loaded them.
    """
    _defects.update(defects or {})
    stream.empty_fp8 = _empty_fp8
    stream.make_logits = _make_logits
    build.get_cubin = _get_cubin
    build.get_cubin_for_source = _get_cubin_for_source
    plan.forget()


def _keep(tensor: torch.Tensor) -> "_C.TensorView":
    _kept.append(tensor)
    return view(tensor)


def _empty_fp8(rows: int, columns: int, ordinal: int, stream: int | None) -> "_C.TensorView":
    return _keep(torch.full((rows, columns), 0xFF, dtype=torch.uint8).view(torch.float8_e4m3fn))


def _make_logits(like, sizes, strides, is_bfloat16: int, ordinal: int, stream: int | None) -> "_C.TensorView":
    dtype = torch.bfloat16 if is_bfloat16 else torch.float32
    return _keep(torch.full((sizes[0], strides[0]), torch.nan, dtype=dtype)[:, : sizes[1]])


class _Compiled(NamedTuple):
    cubin: bytes
    kernel_name: str
    compiler: str = "emulator"
    compiler_version: str = ""


def _get_cubin(problem, config, compiler=None, *, second=None, is_refused: bool = False) -> _Compiled:
    return _get_cubin_for_source(generator.generate_source(problem, config, second), generator.kernel_name(problem.op))


def _get_cubin_for_source(source: str, kernel_name: str, compiler=None, *, is_refused: bool = False) -> _Compiled:
    return _Compiled(build_kernel(source, kernel_name, _defects), kernel_name)
