#include "runtime/driver.hpp"

#include <dlfcn.h>

namespace deep_gemm::driver {
namespace {

constexpr const char* kLibraryName = "libcuda.so.1";
constexpr const char* kRemedy =
    "install the NVIDIA driver (CUDA 12.0 or newer), or pass CPU tensors to run the reference";

using GetProcAddress = Result (*)(const char* symbol, void** function, int version, uint64_t flags, int* status);

[[noreturn]] void fail(const std::string& what) { throw Error(ErrorKind::kDevice, what + "; " + kRemedy + "."); }

GetProcAddress open_library() {
    void* library = dlopen(kLibraryName, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) fail(std::string("no CUDA driver: ") + dlerror());
    // Present since CUDA 12.0.
    void* entry = dlsym(library, "cuGetProcAddress_v2");
    if (entry == nullptr)
        fail(std::string(kLibraryName) + " has no cuGetProcAddress_v2: the driver is older than CUDA 12.0");
    return reinterpret_cast<GetProcAddress>(entry);
}

struct Resolver {
    GetProcAddress get_proc_address;

    template <class FunctionPointer>
    void operator()(FunctionPointer& slot, const char* symbol) const {
        void* function = nullptr;
        int status = 0;
        const Result result = get_proc_address(symbol, &function, kApiVersion, 0, &status);
        if (result != kSuccess || function == nullptr)
            fail(std::string(kLibraryName) + " has no " + symbol + ": the driver is older than CUDA 12.0");
        slot = reinterpret_cast<FunctionPointer>(function);
    }
};

void resolve_devices(Api& api, const Resolver& resolve) {
    resolve(api.init, "cuInit");
    resolve(api.driver_get_version, "cuDriverGetVersion");
    resolve(api.get_error_name, "cuGetErrorName");
    resolve(api.get_error_string, "cuGetErrorString");
    resolve(api.device_get_count, "cuDeviceGetCount");
    resolve(api.device_get, "cuDeviceGet");
    resolve(api.device_get_name, "cuDeviceGetName");
    resolve(api.device_get_uuid, "cuDeviceGetUuid");
    resolve(api.device_get_pci_bus_id, "cuDeviceGetPCIBusId");
    resolve(api.device_get_attribute, "cuDeviceGetAttribute");
    resolve(api.primary_context_retain, "cuDevicePrimaryCtxRetain");
    resolve(api.context_get_current, "cuCtxGetCurrent");
    resolve(api.context_get_device, "cuCtxGetDevice");
    resolve(api.context_push_current, "cuCtxPushCurrent");
    resolve(api.context_pop_current, "cuCtxPopCurrent");
}

void resolve_kernels(Api& api, const Resolver& resolve) {
    resolve(api.thread_exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
    resolve(api.library_load_data, "cuLibraryLoadData");
    resolve(api.library_get_kernel, "cuLibraryGetKernel");
    resolve(api.kernel_get_function, "cuKernelGetFunction");
    resolve(api.kernel_get_attribute, "cuKernelGetAttribute");
    resolve(api.kernel_set_attribute, "cuKernelSetAttribute");
    resolve(api.occupancy_max_active_clusters, "cuOccupancyMaxActiveClusters");
    resolve(api.tensor_map_encode_tiled, "cuTensorMapEncodeTiled");
    resolve(api.launch_kernel_ex, "cuLaunchKernelEx");
    resolve(api.memset_d2d8_async, "cuMemsetD2D8Async");
}

Api open_driver() {
    const Resolver resolve{open_library()};
    Api api{};
    resolve_devices(api, resolve);
    // Works before cuInit, so that the error names an old driver, and not what cuInit would say of it.
    if (api.driver_get_version(&api.version) != kSuccess) fail("the CUDA driver does not report its version");
    if (api.version < kApiVersion) fail("the driver supports CUDA " + version_text(api.version) + " only");
    resolve_kernels(api, resolve);
    const Result result = api.init(0);
    if (result == kErrorNoDevice) fail("no CUDA GPU is visible to this process (CUDA_VISIBLE_DEVICES may hide it)");
    if (result != kSuccess) fail("the CUDA driver did not initialise: " + describe(api, result));
    return api;
}

}  // namespace

const Api& api() {
    static const Api instance = open_driver();
    return instance;
}

std::string describe(const Api& api, Result result) {
    const char* name = nullptr;
    const char* text = nullptr;
    if (api.get_error_name(result, &name) != kSuccess || name == nullptr) return "CUDA error " + std::to_string(result);
    api.get_error_string(result, &text);
    return std::string(name) + " (" + (text ? text : "no description") + ")";
}

std::string version_text(int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

bool is_sticky(Result result) {
    switch (result) {
        case kErrorIllegalAddress:
        case kErrorLaunchTimeout:
        case kErrorContextIsDestroyed:
        case kErrorAssert:
        case kErrorHardwareStack:
        case kErrorIllegalInstruction:
        case kErrorMisalignedAddress:
        case kErrorInvalidAddressSpace:
        case kErrorInvalidPc:
        case kErrorLaunchFailed: return true;
        default: return false;
    }
}

void check(const Api& api, Result result, const char* call, ErrorKind kind) {
    if (result == kSuccess) return;
    throw Error(kind, std::string(call) + ": " + describe(api, result) +
                          "; check the GPU with nvidia-smi, and restart the process if its context is lost.");
}

}  // namespace deep_gemm::driver
