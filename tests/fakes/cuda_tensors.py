"""Tensors of torch that say to be on a GPU, on machines without one: nobody may read their memory.

For the children of stub_driver: `use_fakes` changes torch for the rest of the process.
"""

import ctypes
import hashlib
import types

import pytest
import torch

from deep_gemm import _C
from deep_gemm.jit import build
from tests.fakes import stub_driver

needs_exchange = pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="this torch has no exchange API of DLPack"
)
_CUDA = 2
_TYPES = {
    torch.float8_e4m3fn: (10, 8), torch.bfloat16: (4, 16), torch.float16: (2, 16), torch.float32: (2, 32),
    torch.int32: (0, 32), torch.uint8: (1, 8),
}  # fmt: skip
#: The handle of torch's current stream.
STREAM = 7
_STREAM_OFFSET = 48  # of the function that names it, in DLPack's table of functions
_kept: list = []  # what tensors and torch point to


class _Tensor(ctypes.Structure):
    """DLManagedTensor of DLPack 0.x, which torch takes."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device", ctypes.c_int32),
        ("rank", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    )  # fmt: skip


def _make_capsule(address: int, name: bytes) -> object:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return make(address, name, None)


def make_tensor(
    address: int, shape: tuple, dtype: torch.dtype, strides: tuple | None = None, device: int = 0
) -> torch.Tensor:
    """Return a tensor at `address` of a GPU; contiguous without `strides`."""
    strides = strides or torch.empty(shape, device="meta").stride()
    sizes = [(ctypes.c_int64 * len(shape))(*numbers) for numbers in (shape, strides)]
    places = [ctypes.addressof(numbers) for numbers in sizes]
    managed = _Tensor(address, _CUDA, device, len(shape), *_TYPES[dtype], 1, *places, 0, None, None)
    _kept.append((sizes, managed))
    return torch.utils.dlpack.from_dlpack(_make_capsule(ctypes.addressof(managed), b"dltensor"))


class Allocator:
    """Stands in for torch's allocator; `taken`: (address, shape, strides, dtype) of what it gave."""

    def __init__(self):
        self.taken: list[tuple] = []

    def take(self, shape: tuple, strides: tuple, dtype: torch.dtype) -> torch.Tensor:
        """Return memory that nobody reads, another one each time."""
        address = (1 << 46) + (len(self.taken) << 36)
        self.taken.append((address, shape, strides, dtype))
        return make_tensor(address, shape, dtype, strides)


_allocator = Allocator()


def use_fakes() -> Allocator:
    """Let torch have such tensors in this process, compile nothing, and let the native module take memory from the
    result, which has given nothing yet.
    """
    if not _kept:
        torch.cuda._lazy_init = lambda: None
        _replace_current_stream()
    _C.set_allocator(_allocator.take)
    stub_driver.use_fake_build()
    build.get_cubin_for_source = lambda source, name, **options: types.SimpleNamespace(
        cubin=hashlib.sha256(source.encode()).hexdigest().encode(), kernel_name=name
    )
    _allocator.taken = []
    return _allocator


def _replace_current_stream() -> None:
    """Let torch's table of functions for DLPack name STREAM, before the native module looks it up."""
    name = b"dlpack_exchange_api"
    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.restype, read.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    table = ctypes.create_string_buffer(ctypes.string_at(read(torch.Tensor.__dlpack_c_exchange_api__, name), 56), 56)

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
    def name_stream(kind: int, device: int, out: object) -> int:
        out[0] = STREAM
        return 0

    ctypes.c_void_p.from_buffer(table, _STREAM_OFFSET).value = ctypes.cast(name_stream, ctypes.c_void_p).value
    _kept.append((table, name_stream))
    torch.Tensor.__dlpack_c_exchange_api__ = _make_capsule(ctypes.addressof(table), name)
