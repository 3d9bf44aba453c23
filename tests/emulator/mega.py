"""Kernels of a layer of experts across GPUs, on the emulator: the buffers of all GPUs are memory of the CPU.

Functions here run in the child process of the stub driver.
"""

from unittest import mock

from deep_gemm import planned
from deep_gemm.mega import dispatch
from tests.gpu import mega_steps

from .host import use_host_memory, view


def _get_kernel(name: str, threads: int, **constants: int):
    """Return the kernel, which takes CPU tensors."""
    kernel = planned.get_kernel(name, threads, **constants)
    return lambda grid, *arguments: kernel(grid, *map(view, arguments))


def compare_steps(*sizes: int) -> list[str]:
    """Return what mega_steps.compare_steps finds on a GPU of one SM."""
    use_host_memory()
    with (
        mock.patch.object(dispatch, "get_kernel", _get_kernel),
        mock.patch.object(dispatch, "_count_sms", return_value=1),
    ):
        return mega_steps.compare_steps(*sizes)
