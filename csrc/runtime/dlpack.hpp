// DLPack's C exchange API (DLPack 1.2 and later): a way to read a tensor's memory without linking its library. Declared
// from the public specification (dmlc/dlpack, "Python specification for DLPack", C exchange API).
#pragma once

#include <cstdint>

namespace deep_gemm::dlpack {

inline constexpr const char* kCapsuleName = "dlpack_exchange_api";
inline constexpr const char* kTypeAttribute = "__dlpack_c_exchange_api__";
inline constexpr uint32_t kMajorVersion = 1;  // another major version may lay the structs out differently

enum DeviceType : int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
enum TypeCode : uint8_t { kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4, kFloat8E4M3Fn = 10 };

struct Tensor {
    void* data;
    int32_t device_type;
    int32_t device_id;
    int32_t ndim;
    uint8_t type_code;
    uint8_t type_bits;
    uint16_t type_lanes;
    int64_t* shape;
    int64_t* strides;  // elements
    uint64_t byte_offset;
};

struct ExchangeApi {
    uint32_t major, minor;
    ExchangeApi* previous;
    void* allocate;
    void* managed_from_object;
    void* managed_to_object;
    // Borrows: `out` is valid while the object is alive and the GIL is held. Returns 0, or -1 with a Python error set.
    // May be null.
    int (*tensor_from_object)(void* object, Tensor* out);
    int (*current_work_stream)(int32_t device_type, int32_t device_id, void** stream);
};

static_assert(sizeof(Tensor) == 48 && sizeof(ExchangeApi) == 56, "the layout of DLPack 1.x on 64-bit machines");

}  // namespace deep_gemm::dlpack
