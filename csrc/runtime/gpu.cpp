#include "runtime/gpu.hpp"

#include <memory>
#include <vector>

#include "core/error.hpp"
#include "runtime/power_limit.hpp"

namespace deep_gemm {
namespace {

using driver::api;

constexpr std::string_view kMigMark = " MIG ";  // "NVIDIA H200 MIG 1g.18gb"

[[noreturn]] void fail(const std::string& message) { throw Error(ErrorKind::kDevice, message); }

void check(driver::Result result, const char* call) { driver::check(api(), result, call, ErrorKind::kDevice); }

int read_attribute(driver::DeviceHandle handle, driver::DeviceAttribute attribute) {
    int value = 0;
    check(api().device_get_attribute(&value, attribute, handle), "cuDeviceGetAttribute");
    return value;
}

std::string read_uuid(driver::DeviceHandle handle) {
    driver::Uuid uuid{};
    check(api().device_get_uuid(&uuid, handle), "cuDeviceGetUuid");
    std::string text = "GPU-";
    for (int i = 0; i < 16; ++i) {
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += "0123456789abcdef"[uuid.bytes[i] >> 4];
        text += "0123456789abcdef"[uuid.bytes[i] & 15];
    }
    return text;
}

// Empty where the driver does not say; only the power limit needs it.
std::string read_bus_id(driver::DeviceHandle handle) {
    char text[32] = "";
    if (api().device_get_pci_bus_id(text, sizeof text, handle) != driver::kSuccess) return {};
    text[sizeof text - 1] = '\0';
    return text;
}

void split_name(driver::DeviceHandle handle, Device& device) {
    char name[256] = "";
    check(api().device_get_name(name, sizeof name, handle), "cuDeviceGetName");
    name[sizeof name - 1] = '\0';
    device.name = name;
    const size_t mark = device.name.find(kMigMark);
    if (mark == std::string::npos) return;
    device.mig = device.name.substr(mark + kMigMark.size());
    device.name.resize(mark);
}

// A virtual GPU may hide its clocks (0). Selection needs some, so it takes those of an H100.
void read_rates(driver::DeviceHandle handle, Device& device) {
    device.clock_mhz = read_attribute(handle, driver::kClockRateKhz) / 1e3;
    if (!(device.clock_mhz > 0)) device.clock_mhz = 1980;
    // Two transfers per memory clock.
    const double transfers = 2.0 * read_attribute(handle, driver::kMemoryClockRateKhz) * 1e3;
    device.memory_gbps = transfers * read_attribute(handle, driver::kMemoryBusWidthBits) / 8 / 1e9;
    if (!(device.memory_gbps > 0)) device.memory_gbps = 3350;
}

Device probe_device(driver::DeviceHandle handle) {
    Device device;
    split_name(handle, device);
    device.sm_count = read_attribute(handle, driver::kMultiprocessorCount);
    device.smem_bytes = read_attribute(handle, driver::kMaxSharedMemoryPerBlockOptin);
    device.l2_bytes = read_attribute(handle, driver::kL2CacheBytes);
    device.compute_major = read_attribute(handle, driver::kComputeCapabilityMajor);
    device.compute_minor = read_attribute(handle, driver::kComputeCapabilityMinor);
    read_rates(handle, device);
    return make_device(device);
}

// Selection was trained with the data sheet's figures of a known GPU, so use the same here, whatever clocks this GPU
// reports.
Device with_known_figures(const Device& probed) {
    try {
        return known_device(probed.sku);
    } catch (const Error&) {
        return probed;
    }
}

std::string unsupported_reason(const Device& device) {
    if (device.compute_major == 9 && device.compute_minor == 0) return {};
    return device.name + " (compute capability " + std::to_string(device.compute_major) + "." +
           std::to_string(device.compute_minor) +
           "): the kernels need compute capability 9.0 (H100, H200, H800, H20, GH200); use such a GPU, or pass CPU "
           "tensors to run the reference.";
}

std::unique_ptr<Gpu> open_gpu(int ordinal) {
    auto gpu = std::make_unique<Gpu>();
    gpu->ordinal = ordinal;
    check(api().device_get(&gpu->handle, ordinal), "cuDeviceGet");
    gpu->uuid = read_uuid(gpu->handle);
    const Device probed = probe_device(gpu->handle);
    gpu->unsupported = unsupported_reason(probed);
    gpu->device = gpu->unsupported.empty() ? with_known_figures(probed) : probed;
    // A MIG slice has no power limit of its own.
    if (gpu->unsupported.empty() && probed.mig.empty()) gpu->device.sku += read_power_suffix(read_bus_id(gpu->handle));
    return gpu;
}

int count_gpus() {
    int count = 0;
    check(api().device_get_count(&count), "cuDeviceGetCount");
    return count;
}

driver::Context primary_context(const Gpu& gpu) {
    if (gpu.context == nullptr)
        check(api().primary_context_retain(&gpu.context, gpu.handle), "cuDevicePrimaryCtxRetain");
    return gpu.context;
}

}  // namespace

const Gpu& get_gpu(int ordinal) {
    static std::vector<std::unique_ptr<Gpu>> gpus;
    if (ordinal >= 0 && size_t(ordinal) < gpus.size() && gpus[ordinal]) return *gpus[ordinal];
    const int count = count_gpus();
    if (ordinal < 0 || ordinal >= count)
        fail("device = " + std::to_string(ordinal) + ": this process sees " + std::to_string(count) +
             " GPU(s); pass 0.." + std::to_string(count - 1) + ".");
    if (gpus.size() < size_t(count)) gpus.resize(count);
    gpus[ordinal] = open_gpu(ordinal);
    return *gpus[ordinal];
}

const Gpu& get_supported_gpu(int ordinal) {
    const Gpu& gpu = get_gpu(ordinal);
    if (!gpu.unsupported.empty()) fail(gpu.unsupported);
    return gpu;
}

int current_ordinal() {
    driver::DeviceHandle current = 0;
    if (api().context_get_device(&current) != driver::kSuccess) return 0;  // no context yet
    for (int ordinal = 0; ordinal < count_gpus(); ++ordinal) {
        driver::DeviceHandle handle = -1;
        if (api().device_get(&handle, ordinal) == driver::kSuccess && handle == current) return ordinal;
    }
    return 0;
}

bool is_current(const Gpu& gpu) {
    driver::Context current = nullptr;
    check(api().context_get_current(&current), "cuCtxGetCurrent");
    // A thread that has not used the GPU yet has no context; its device is the first one.
    return current == nullptr ? gpu.ordinal == 0 : current == primary_context(gpu);
}

ContextGuard::ContextGuard(const Gpu& gpu) {
    const driver::Context wanted = primary_context(gpu);
    driver::Context current = nullptr;
    check(api().context_get_current(&current), "cuCtxGetCurrent");
    if (current == wanted) return;
    check(api().context_push_current(wanted), "cuCtxPushCurrent");
    is_pushed_ = true;
}

ContextGuard::~ContextGuard() {
    driver::Context popped = nullptr;
    if (is_pushed_) api().context_pop_current(&popped);
}

}  // namespace deep_gemm
