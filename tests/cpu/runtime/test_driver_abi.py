"""The hand-declared binary interfaces: the CUDA driver API against a toolkit's cuda.h, DLPack against torch's header,
the kernel's parameters against the device headers. Compiled as static assertions; nothing runs.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from tests.fakes.stub_driver import PARAMS_FIELDS

ROOT = Path(__file__).parents[3]
DRIVER = "deep_gemm::driver"

CUDA_SIZES = {
    "CUlaunchConfig": "LaunchConfig",
    "CUlaunchAttribute": "LaunchAttribute",
    "CUtensorMap": "TensorMap",
    "CUuuid": "Uuid",
    "CUdeviceptr": "DevicePointer",
    "CUdevice": "DeviceHandle",
    "CUresult": "Result",
    "CUcontext": "Context",
    "CUlibrary": "Library",
    "CUkernel": "Kernel",
    "CUfunction": "Function",
    "CUstream": "Stream",
    "CUlaunchAttributeID": "LaunchAttributeId",
    "CUstreamCaptureMode": "CaptureMode",
    "CUfunction_attribute": "FunctionAttribute",
    "CUdevice_attribute": "DeviceAttribute",
    "CUtensorMapDataType": "TensorMapDataType",
    "CUtensorMapSwizzle": "TensorMapSwizzle",
}
CUDA_OFFSETS = {
    "gridDimX": "grid_x",
    "gridDimY": "grid_y",
    "gridDimZ": "grid_z",
    "blockDimX": "block_x",
    "blockDimY": "block_y",
    "blockDimZ": "block_z",
    "sharedMemBytes": "shared_bytes",
    "hStream": "stream",
    "attrs": "attributes",
    "numAttrs": "num_attributes",
}
CUDA_VALUES = {
    "CUDA_SUCCESS": "kSuccess",
    "CUDA_ERROR_INVALID_VALUE": "kErrorInvalidValue",
    "CUDA_ERROR_OUT_OF_MEMORY": "kErrorOutOfMemory",
    "CUDA_ERROR_NOT_INITIALIZED": "kErrorNotInitialized",
    "CUDA_ERROR_STUB_LIBRARY": "kErrorStubLibrary",
    "CUDA_ERROR_NO_DEVICE": "kErrorNoDevice",
    "CUDA_ERROR_INVALID_DEVICE": "kErrorInvalidDevice",
    "CUDA_ERROR_INVALID_IMAGE": "kErrorInvalidImage",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "kErrorNoBinaryForGpu",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "kErrorUnsupportedPtxVersion",
    "CUDA_ERROR_INVALID_SOURCE": "kErrorInvalidSource",
    "CUDA_ERROR_NOT_FOUND": "kErrorNotFound",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "kErrorIllegalAddress",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "kErrorLaunchTimeout",
    "CUDA_ERROR_CONTEXT_IS_DESTROYED": "kErrorContextIsDestroyed",
    "CUDA_ERROR_ASSERT": "kErrorAssert",
    "CUDA_ERROR_HARDWARE_STACK_ERROR": "kErrorHardwareStack",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": "kErrorIllegalInstruction",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "kErrorMisalignedAddress",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": "kErrorInvalidAddressSpace",
    "CUDA_ERROR_INVALID_PC": "kErrorInvalidPc",
    "CUDA_ERROR_LAUNCH_FAILED": "kErrorLaunchFailed",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "kErrorSystemDriverMismatch",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "kErrorCompatNotSupported",
    "CU_DEVICE_ATTRIBUTE_CLOCK_RATE": "kClockRateKhz",
    "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": "kMultiprocessorCount",
    "CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE": "kMemoryClockRateKhz",
    "CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH": "kMemoryBusWidthBits",
    "CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE": "kL2CacheBytes",
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": "kComputeCapabilityMajor",
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": "kComputeCapabilityMinor",
    "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": "kMaxSharedMemoryPerBlockOptin",
    "CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES": "kLocalSizeBytes",
    "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": "kMaxDynamicSharedSizeBytes",
    "CU_TENSOR_MAP_DATA_TYPE_UINT8": "kUint8",
    "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16": "kBfloat16",
    "CU_TENSOR_MAP_DATA_TYPE_FLOAT32": "kFloat32",
    "CU_TENSOR_MAP_INTERLEAVE_NONE": "kInterleaveNone",
    "CU_TENSOR_MAP_SWIZZLE_NONE": "kSwizzleNone",
    "CU_TENSOR_MAP_SWIZZLE_32B": "kSwizzle32B",
    "CU_TENSOR_MAP_SWIZZLE_64B": "kSwizzle64B",
    "CU_TENSOR_MAP_SWIZZLE_128B": "kSwizzle128B",
    "CU_TENSOR_MAP_L2_PROMOTION_NONE": "kL2PromotionNone",
    "CU_TENSOR_MAP_L2_PROMOTION_L2_256B": "kL2Promotion256B",
    "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE": "kOobFillZeros",
    "CU_STREAM_CAPTURE_MODE_GLOBAL": "kCaptureModeGlobal",
    "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL": "kCaptureModeThreadLocal",
    "CU_STREAM_CAPTURE_MODE_RELAXED": "kCaptureModeRelaxed",
    "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION": "kLaunchClusterDimension",
    "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION": "kLaunchProgrammaticStreamSerialization",
    "CU_TENSOR_MAP_L2_PROMOTION_L2_128B": "kL2Promotion128B",
}
#: Our function pointer -> the driver's function; they must take as many arguments of the same sizes.
CUDA_FUNCTIONS = {
    "init": "cuInit",
    "driver_get_version": "cuDriverGetVersion",
    "get_error_name": "cuGetErrorName",
    "get_error_string": "cuGetErrorString",
    "device_get_count": "cuDeviceGetCount",
    "device_get": "cuDeviceGet",
    "device_get_name": "cuDeviceGetName",
    "device_get_uuid": "cuDeviceGetUuid",
    "device_get_pci_bus_id": "cuDeviceGetPCIBusId",
    "device_get_attribute": "cuDeviceGetAttribute",
    "primary_context_retain": "cuDevicePrimaryCtxRetain",
    "context_get_current": "cuCtxGetCurrent",
    "context_get_device": "cuCtxGetDevice",
    "context_push_current": "cuCtxPushCurrent",
    "context_pop_current": "cuCtxPopCurrent",
    "thread_exchange_capture_mode": "cuThreadExchangeStreamCaptureMode",
    "library_load_data": "cuLibraryLoadData",
    "library_get_kernel": "cuLibraryGetKernel",
    "kernel_get_function": "cuKernelGetFunction",
    "kernel_get_attribute": "cuKernelGetAttribute",
    "kernel_set_attribute": "cuKernelSetAttribute",
    "occupancy_max_active_clusters": "cuOccupancyMaxActiveClusters",
    "tensor_map_encode_tiled": "cuTensorMapEncodeTiled",
    "launch_kernel_ex": "cuLaunchKernelEx",
    "memset_d2d8_async": "cuMemsetD2D8Async",
}

CUDA_PROGRAM = """
#include <cuda.h>
#include <type_traits>
#include "runtime/driver.hpp"

// Same number of arguments and, one by one, the same kind: both pointers, or both integers or enums of one size.
template <class A, class B>
constexpr bool alike = std::is_pointer_v<A> == std::is_pointer_v<B> && sizeof(A) == sizeof(B);
template <class A, class B> struct Alike : std::false_type {};
template <class R, class... A, class S, class... B> struct Alike<R (*)(A...), S (*)(B...)> {
    static constexpr bool value = [] {
        if constexpr (sizeof...(A) == sizeof...(B)) return alike<R, S> && (alike<A, B> && ...);
        else return false;
    }();
};
"""

DLPACK_PROGRAM = """
#include <ATen/dlpack.h>
#include <cstddef>
#include "runtime/dlpack.hpp"
"""
DLPACK_OFFSETS = {
    ("DLTensor", "Tensor"): {
        "data": "data",
        "ndim": "ndim",
        "shape": "shape",
        "strides": "strides",
        "byte_offset": "byte_offset",
    },
    ("DLPackExchangeAPI", "ExchangeApi"): {
        "dltensor_from_py_object_no_sync": "tensor_from_object",
        "current_work_stream": "current_work_stream",
    },
}
DLPACK_VALUES = {
    "kDLCPU": "kCpu",
    "kDLCUDA": "kCuda",
    "kDLCUDAHost": "kCudaHost",
    "kDLCUDAManaged": "kCudaManaged",
    "kDLFloat": "kFloat",
    "kDLBfloat": "kBfloat",
    "kDLFloat8_e4m3fn": "kFloat8E4M3Fn",
    "DLPACK_MAJOR_VERSION": "kMajorVersion",
}

PARAMS_PROGRAM = """
#define __device__
#define __forceinline__ inline
#include <cstddef>
// Both sides name their enums alike, so the device's go by another namespace here.
#define deep_gemm device
#include "deep_gemm/types.cuh"
#undef deep_gemm
#include "runtime/launch.hpp"
"""


def compile_assertions(tmp_path: Path, program: str, assertions: list[str], includes: list[Path]) -> None:
    """Compile `program` with static assertions; fails with the compiler's words."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source = tmp_path / "check.cpp"
    source.write_text(program + "".join(f"static_assert({assertion});\n" for assertion in assertions))
    flags = [
        flag for path in (ROOT / "csrc", *includes) for flag in ("-isystem" if path in includes else "-I", str(path))
    ]
    done = subprocess.run(
        [compiler, "-std=c++20", "-fsyntax-only", *flags, str(source)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def find_toolkit() -> Path:
    """Return the include folder of a CUDA toolkit of version 12 or later; skips without one."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [Path(home) / "include" for home in homes if home]
    found = next((folder for folder in folders if (folder / "cuda.h").is_file()), None)
    if found is None:
        pytest.skip("no CUDA toolkit to compare with")
    return found


def test_driver_interface(tmp_path):
    assertions = [f"sizeof({theirs}) == sizeof({DRIVER}::{ours})" for theirs, ours in CUDA_SIZES.items()]
    assertions += [
        f"offsetof(CUlaunchConfig, {theirs}) == offsetof({DRIVER}::LaunchConfig, {ours})"
        for theirs, ours in CUDA_OFFSETS.items()
    ]
    assertions += [f"offsetof(CUlaunchAttribute, value) == offsetof({DRIVER}::LaunchAttribute, value)"]
    assertions += [f"int({theirs}) == int({DRIVER}::{ours})" for theirs, ours in CUDA_VALUES.items()]
    assertions += [
        f"Alike<decltype({DRIVER}::Api::{ours}), decltype(&{theirs})>::value" for ours, theirs in CUDA_FUNCTIONS.items()
    ]
    compile_assertions(tmp_path, CUDA_PROGRAM, assertions, [find_toolkit()])


def test_every_driver_function_is_compared():
    text = (ROOT / "csrc" / "runtime" / "driver.cpp").read_text(encoding="utf-8")
    assert all(f'resolve(api.{ours}, "{theirs}")' in text for ours, theirs in CUDA_FUNCTIONS.items())
    assert text.count("resolve(api.") == len(CUDA_FUNCTIONS)


def test_dlpack_interface(tmp_path):
    includes = Path(torch.__file__).parent / "include"
    header = includes / "ATen" / "dlpack.h"
    if not header.is_file() or "DLPackExchangeAPI" not in header.read_text(encoding="utf-8"):
        pytest.skip("this torch has no header of the exchange API")
    ours = "deep_gemm::dlpack"
    assertions = [f"sizeof({theirs}) == sizeof({ours}::{name})" for theirs, name in DLPACK_OFFSETS]
    for (theirs, name), members in DLPACK_OFFSETS.items():
        assertions += [f"offsetof({theirs}, {a}) == offsetof({ours}::{name}, {b})" for a, b in members.items()]
    assertions += [f"offsetof(DLTensor, device.device_id) == offsetof({ours}::Tensor, device_id)"]
    assertions += [
        f"offsetof(DLTensor, dtype.{a}) == offsetof({ours}::Tensor, type_{a})" for a in ("code", "bits", "lanes")
    ]
    assertions += [f"offsetof(DLPackExchangeAPI, header.prev_api) == offsetof({ours}::ExchangeApi, previous)"]
    assertions += [f"int({theirs}) == int({ours}::{name})" for theirs, name in DLPACK_VALUES.items()]
    compile_assertions(tmp_path, DLPACK_PROGRAM, assertions, [includes])


def test_kernel_parameters(tmp_path):
    assertions = []
    for name in PARAMS_FIELDS:
        assertions += [f"offsetof(device::Params, {name}) == offsetof(deep_gemm::GemmParams, {name})"]
        assertions += [f"sizeof(device::Params::{name}) == sizeof(deep_gemm::GemmParams::{name})"]
    assertions += [
        "sizeof(device::Params) == sizeof(deep_gemm::GemmParams)",
        "sizeof(device::TensorMap) == sizeof(deep_gemm::driver::TensorMap)",
    ]
    assertions += ["alignof(device::TensorMap) == alignof(deep_gemm::driver::TensorMap)"]
    compile_assertions(
        tmp_path, PARAMS_PROGRAM, assertions, [ROOT / "deep_gemm" / "include", Path(get_python_include())]
    )


def get_python_include() -> str:
    import sysconfig

    return sysconfig.get_path("include")
