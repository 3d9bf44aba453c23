"""The stub driver refuses what the real one refuses, and launches whose kernel would follow a null pointer."""

import ctypes
import struct

import pytest

from deep_gemm import _C
from tests.fakes.stub_driver import load_kernel, make_operands, matrix, select

INVALID_VALUE = 1
CLUSTER, MAX_SHARED = 4, 8  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
FIRST_KERNEL = 1001  # what the stub calls the kernel of the first library
GRID, BLOCK, SHARED = (132, 1, 1), (384, 1, 1), 200_000
#: Launches that fit, with the cluster, and those that do not.
FIT = [(GRID, BLOCK, SHARED, 1), (GRID, BLOCK, SHARED, 2), (GRID, BLOCK, 232_448, 4), ((1, 1, 1), (1024, 1, 1), 0, 1)]
UNFIT = [
    ((0, 1, 1), BLOCK, SHARED, 1),
    ((1, 65536, 1), BLOCK, SHARED, 1),
    (GRID, (1025, 1, 1), SHARED, 1),
    (GRID, (0, 1, 1), SHARED, 1),
    ((131, 1, 1), BLOCK, SHARED, 2),
    (GRID, BLOCK, SHARED, 16),
    (GRID, BLOCK, 232_449, 1),
]


def get_entry(name: bytes):
    """Return a function of the driver."""
    found = ctypes.c_void_p()
    ctypes.CDLL("libcuda.so.1").cuGetProcAddress_v2(name, ctypes.byref(found), 12000, 0, None)
    return ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(found.value)


def launch(grid, block, shared_bytes, cluster, has_kernel=True, params=(8, 8, 8, 0)) -> int:
    """Launch a kernel as the library does, with the first four pointers of its parameters; return the result."""
    load_kernel(_C.Config(128, 112, 4))
    attribute = struct.pack("<i4xIII52x", CLUSTER, cluster, 1, 1)
    attributes = ctypes.create_string_buffer(attribute)
    config = struct.pack("<7I4xQQI4x", *grid, *block, shared_bytes, 0, ctypes.addressof(attributes), 1)
    memory = ctypes.create_string_buffer(struct.pack("<4Q", *params) + bytes(200))
    pointers = (ctypes.c_void_p * 9)(*[ctypes.addressof(memory)] * 9)
    kernel = FIRST_KERNEL if has_kernel else 0
    get_entry(b"cuKernelSetAttribute")(MAX_SHARED, 232_448, FIRST_KERNEL, 0)
    return get_entry(b"cuLaunchKernelEx")(config, kernel, ctypes.addressof(pointers), None)


@pytest.mark.parametrize("values", FIT)
def test_a_launch_that_fits(driver, values):
    result, events = driver.call(launch, *values)
    assert result == 0 and not [event for event in events if event["call"] == "refused launch"]


@pytest.mark.parametrize("values", UNFIT)
def test_a_launch_that_does_not_fit(driver, values):
    result, events = driver.call(launch, *values)
    assert result == INVALID_VALUE and not select(events, "LaunchKernelEx")


def test_a_launch_of_no_kernel(driver):
    assert driver.call(launch, *FIT[0], False)[0] == INVALID_VALUE


@pytest.mark.parametrize("place, name", list(enumerate(("scale_a", "scale_b", "d"))))
def test_a_null_operand(driver, place, name):
    params = [8, 8, 8, 0]
    params[place] = 0
    result, events = driver.call(launch, *FIT[0], True, params)
    assert result == INVALID_VALUE and not select(events, "LaunchKernelEx"), name


def launch_described(place: int) -> str:
    """Launch a product one of whose operands is at address 0; return the error."""
    operands = list(make_operands(64, 128, 128))
    rows, columns = (1, 1) if place in (1, 3) else (64, 128)
    operands[place] = matrix(
        0, rows, columns, 128, ("float8_e4m3fn", "float32", "float8_e4m3fn", "float32", "bfloat16")[place]
    )
    try:
        load_kernel(_C.Config(128, 112, 4)).launch(*operands)
    except Exception as error:
        return type(error).__name__
    return ""


@pytest.mark.parametrize("place", range(5))
def test_no_operand_at_address_0_reaches_the_driver(driver, place):
    error, events = driver.call(launch_described, place)
    assert error and not select(events, "LaunchKernelEx")
