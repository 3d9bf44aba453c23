// The GPUs of this process, by the ordinal of the CUDA runtime (and so of torch). The driver is not used before the
// first call.
#pragma once

#include <string>

#include "core/device.hpp"
#include "runtime/driver.hpp"

namespace deep_gemm {

struct Gpu {
    int ordinal = 0;
    driver::DeviceHandle handle = 0;
    Device device;
    std::string uuid;                           // "GPU-xxxxxxxx-xxxx-..."
    std::string unsupported;                    // why the kernels cannot run here; empty when they can
    mutable driver::Context context = nullptr;  // the primary context, retained by the first ContextGuard
};

// The GPU `ordinal`, queried once and kept for the life of the process. The GIL must be held.
// Throws Error(kDevice): no driver, no such GPU.
const Gpu& get_gpu(int ordinal);

// Likewise, and throws Error(kDevice) with the GPU's name where the kernels do not run on it.
const Gpu& get_supported_gpu(int ordinal);

// The ordinal of the GPU whose context is current on this thread; 0 without one. Throws Error(kDevice).
int current_ordinal();

// Whether `gpu` is the current device of this thread. Throws Error(kDevice).
bool is_current(const Gpu& gpu);

// Makes the primary context of `gpu` current for a scope, unless it is already.
class ContextGuard {
 public:
    explicit ContextGuard(const Gpu& gpu);
    ~ContextGuard();
    ContextGuard(const ContextGuard&) = delete;
    ContextGuard& operator=(const ContextGuard&) = delete;

 private:
    bool is_pushed_ = false;
};

}  // namespace deep_gemm
