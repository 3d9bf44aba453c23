// The part of the CUDA driver API that a launch needs, opened lazily from libcuda.so.1. The types are our own
// declarations of CUDA 12.0's ABI, which later drivers keep. Where a toolkit is found, tests compare every size, offset
// and value with its cuda.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/error.hpp"

namespace deep_gemm::driver {

using Result = int;        // CUresult
using DeviceHandle = int;  // CUdevice
using DevicePointer = unsigned long long;
using Context = struct ContextTag*;
using Library = struct LibraryTag*;
using Kernel = struct KernelTag*;
using Function = struct FunctionTag*;  // a Kernel may be passed as one (cuLaunchKernelEx, cuOccupancyMaxActiveClusters)
using Stream = struct StreamTag*;

// The version for which symbols are requested, so that a newer driver returns the same prototypes.
inline constexpr int kApiVersion = 12000;

enum ResultCode : int {
    kSuccess = 0,
    kErrorInvalidValue = 1,
    kErrorOutOfMemory = 2,
    kErrorNotInitialized = 3,
    kErrorStubLibrary = 34,
    kErrorNoDevice = 100,
    kErrorInvalidDevice = 101,
    kErrorInvalidImage = 200,
    kErrorNoBinaryForGpu = 209,
    kErrorUnsupportedPtxVersion = 222,
    kErrorInvalidSource = 300,
    kErrorNotFound = 500,
    kErrorIllegalAddress = 700,
    kErrorLaunchTimeout = 702,
    kErrorContextIsDestroyed = 709,
    kErrorAssert = 710,
    kErrorHardwareStack = 714,
    kErrorIllegalInstruction = 715,
    kErrorMisalignedAddress = 716,
    kErrorInvalidAddressSpace = 717,
    kErrorInvalidPc = 718,
    kErrorLaunchFailed = 719,
    kErrorSystemDriverMismatch = 803,
    kErrorCompatNotSupported = 804,
};

enum DeviceAttribute : int {
    kClockRateKhz = 13,
    kMultiprocessorCount = 16,
    kMemoryClockRateKhz = 36,
    kMemoryBusWidthBits = 37,
    kL2CacheBytes = 38,
    kComputeCapabilityMajor = 75,
    kComputeCapabilityMinor = 76,
    kMaxSharedMemoryPerBlockOptin = 97,
};

enum FunctionAttribute : int {
    kLocalSizeBytes = 3,
    kNumRegisters = 4,
    kMaxDynamicSharedSizeBytes = 8,
};

enum TensorMapDataType : int { kUint8 = 0, kFloat32 = 7, kBfloat16 = 9 };
enum TensorMapInterleave : int { kInterleaveNone = 0 };
enum TensorMapSwizzle : int { kSwizzleNone = 0, kSwizzle32B = 1, kSwizzle64B = 2, kSwizzle128B = 3 };
enum TensorMapL2Promotion : int { kL2PromotionNone = 0, kL2Promotion128B = 2, kL2Promotion256B = 3 };
enum TensorMapOobFill : int { kOobFillZeros = 0 };

enum CaptureMode : int { kCaptureModeGlobal = 0, kCaptureModeThreadLocal = 1, kCaptureModeRelaxed = 2 };

enum LaunchAttributeId : int { kLaunchClusterDimension = 4, kLaunchProgrammaticStreamSerialization = 6 };

struct LaunchAttribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        struct {
            unsigned x, y, z;
        } cluster;
        int is_stream_serialization_programmatic;
    } value;
};

struct LaunchConfig {
    unsigned grid_x, grid_y, grid_z;
    unsigned block_x, block_y, block_z;
    unsigned shared_bytes;
    Stream stream;
    LaunchAttribute* attributes;
    unsigned num_attributes;
};

struct Uuid {
    unsigned char bytes[16];
};

// CUtensorMap: 128 opaque bytes; the driver wants them 64-byte aligned.
struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

struct Api {
    Result (*init)(unsigned flags);
    Result (*driver_get_version)(int* version);
    Result (*get_error_name)(Result result, const char** text);
    Result (*get_error_string)(Result result, const char** text);
    Result (*device_get_count)(int* count);
    Result (*device_get)(DeviceHandle* device, int ordinal);
    Result (*device_get_name)(char* name, int size, DeviceHandle device);
    Result (*device_get_uuid)(Uuid* uuid, DeviceHandle device);
    Result (*device_get_pci_bus_id)(char* text, int size, DeviceHandle device);
    Result (*device_get_attribute)(int* value, int attribute, DeviceHandle device);
    Result (*primary_context_retain)(Context* context, DeviceHandle device);
    Result (*context_get_current)(Context* context);
    Result (*context_get_device)(DeviceHandle* device);
    Result (*context_push_current)(Context context);
    Result (*context_pop_current)(Context* context);
    Result (*thread_exchange_capture_mode)(int* mode);
    Result (*library_load_data)(Library* library, const void* code, int* jit_options, void** jit_values,
                                unsigned num_jit_options, int* library_options, void** library_values,
                                unsigned num_library_options);
    Result (*library_get_kernel)(Kernel* kernel, Library library, const char* name);
    Result (*kernel_get_function)(Function* function, Kernel kernel);
    Result (*kernel_get_attribute)(int* value, int attribute, Kernel kernel, DeviceHandle device);
    Result (*kernel_set_attribute)(int attribute, int value, Kernel kernel, DeviceHandle device);
    Result (*occupancy_max_active_clusters)(int* clusters, Function function, const LaunchConfig* config);
    Result (*tensor_map_encode_tiled)(TensorMap* map, int data_type, uint32_t rank, void* address, const uint64_t* dims,
                                      const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides,
                                      int interleave, int swizzle, int l2_promotion, int oob_fill);
    Result (*launch_kernel_ex)(const LaunchConfig* config, Function function, void** parameters, void** extra);
    Result (*memset_d2d8_async)(DevicePointer address, size_t pitch, unsigned char value, size_t width, size_t height,
                                Stream stream);

    int version;  // CUDA version that the driver supports, e.g. 13000
};

// The opened and initialised driver. The first call opens it; after a failure the next call tries again.
// Throws Error(kDevice): no driver, no GPU, or a driver older than CUDA 12.0.
const Api& api();

// "CUDA_ERROR_INVALID_VALUE (invalid argument)".
std::string describe(const Api& api, Result result);

// "13.0" of 13000.
std::string version_text(int version);

// Whether `result` says that the context is lost for the rest of this process.
bool is_sticky(Result result);

// Throw an Error of `kind` that names `call`, unless `result` is success.
void check(const Api& api, Result result, const char* call, ErrorKind kind = ErrorKind::kLaunch);

}  // namespace deep_gemm::driver
