#include "core/device.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "core/text.hpp"

namespace deep_gemm {
namespace {

struct KnownDevice {
    const char* short_name;
    const char* name;
    int32_t sm_count;
    int64_t l2_bytes;
    double clock_mhz, memory_gbps, tensor_ratio;
};

constexpr int64_t kMiB = 1 << 20;

// Vendor data sheets (SXM boards); names as the driver reports them. The H20 computes 296 FP8 TFLOPS with 78 SMs.
constexpr KnownDevice kKnownDevices[] = {
    {"h200", "NVIDIA H200", 132, 60 * kMiB, 1980, 4800, 1.0},
    {"h100", "NVIDIA H100 80GB HBM3", 132, 50 * kMiB, 1980, 3350, 1.0},
    {"h800", "NVIDIA H800", 132, 50 * kMiB, 1980, 3350, 1.0},
    {"h20", "NVIDIA H20", 78, 60 * kMiB, 1980, 4000, 0.25},
    {"gh200", "NVIDIA GH200 480GB", 132, 60 * kMiB, 1980, 4000, 1.0},
};

// Whether a board's name is a model's, alone or followed by what tells its variants apart ("NVIDIA H20-3e"). An H200 is
// no H20.
bool is_model(std::string_view name, std::string_view model) {
    if (!name.starts_with(model)) return false;
    return name.size() == model.size() || name[model.size()] == ' ' || name[model.size()] == '-';
}

double tensor_ratio_of(std::string_view name) {
    for (const KnownDevice& known : kKnownDevices)
        if (is_model(name, known.name)) return known.tensor_ratio;
    return 1.0;
}

[[noreturn]] void fail(const std::string& field, const std::string& value, const char* rule) {
    throw Error(ErrorKind::kDevice, field + " = " + value + ": must be " + rule + "; describe a real GPU");
}

// A SKU becomes part of a file name.
bool is_sku(std::string_view sku) {
    if (sku.size() > 128) return false;
    for (char c : sku)
        if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && c != '-') return false;
    return true;
}

void check_device(const Device& device) {
    if (!is_sku(device.sku)) fail("sku", quote(device.sku), "lower-case letters, digits and dashes");
    if (device.name.empty() || device.name.size() > 256) fail("name", quote(device.name), "1 to 256 characters long");
    if (device.sm_count < 1 || device.sm_count > 65535)
        fail("sm_count", std::to_string(device.sm_count), "within 1..65535");
    if (device.smem_bytes < 0 || device.smem_bytes > (1 << 30))
        fail("smem_bytes", std::to_string(device.smem_bytes), "within 0..2^30");
    if (device.l2_bytes < 0 || device.l2_bytes > (int64_t(1) << 40))
        fail("l2_bytes", std::to_string(device.l2_bytes), "within 0..2^40");
    if (!(device.clock_mhz > 0 && device.clock_mhz < 1e6))
        fail("clock_mhz", std::to_string(device.clock_mhz), "positive and below 1e6");
    if (!(device.memory_gbps > 0 && device.memory_gbps < 1e6))
        fail("memory_gbps", std::to_string(device.memory_gbps), "positive and below 1e6");
}

}  // namespace

std::string slug(std::string_view name) {
    std::string out;
    for (char c : name) {
        const bool is_upper = c >= 'A' && c <= 'Z';
        const bool is_kept = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
        if (is_upper || is_kept) {
            out += is_upper ? char(c - 'A' + 'a') : c;
        } else if (!out.empty() && out.back() != '-') {
            out += '-';
        }
    }
    if (!out.empty() && out.back() == '-') out.pop_back();
    return out;
}

std::string power_suffix(uint32_t limit_mw, uint32_t default_mw) {
    constexpr uint64_t kStepMw = 10000;
    if (limit_mw < kStepMw || uint64_t(limit_mw) * 100 >= uint64_t(default_mw) * 95) return "";
    return "-" + std::to_string((limit_mw + kStepMw / 2) / kStepMw * (kStepMw / 1000)) + "w";
}

std::string_view base_sku(std::string_view sku) {
    constexpr size_t kMaxDigits = 7;  // of 32 bits of milliwatts
    const size_t dash = sku.rfind('-');
    if (dash == sku.npos || !sku.ends_with("0w")) return sku;
    const std::string_view watts = sku.substr(dash + 1, sku.size() - dash - 2);
    const bool is_number = std::all_of(watts.begin(), watts.end(), [](char c) { return c >= '0' && c <= '9'; });
    return is_number && watts.front() != '0' && watts.size() <= kMaxDigits ? sku.substr(0, dash) : sku;
}

Device make_device(Device device) {
    check_device(device);
    device.tensor_ratio = tensor_ratio_of(device.name);
    if (device.sku.empty()) {
        device.sku = slug(device.name) + "-sm" + std::to_string(device.sm_count);
        if (!device.mig.empty()) device.sku += "-mig" + slug(device.mig);
    }
    return device;
}

std::vector<std::string> known_device_names() {
    std::vector<std::string> names;
    for (const KnownDevice& known : kKnownDevices) names.push_back(known.short_name);
    return names;
}

Device known_device(std::string_view sku_or_short_name) {
    const std::string full = slug(sku_or_short_name);
    const std::string_view name = base_sku(full);
    std::string choices;
    for (const KnownDevice& known : kKnownDevices) {
        Device device;
        device.name = known.name;
        device.sm_count = known.sm_count;
        device.l2_bytes = known.l2_bytes;
        device.clock_mhz = known.clock_mhz;
        device.memory_gbps = known.memory_gbps;
        device = make_device(device);
        if (name == known.short_name || name == device.sku) {
            device.sku += full.substr(name.size());
            return device;
        }
        choices += (choices.empty() ? "" : ", ") + std::string(known.short_name);
    }
    throw Error(ErrorKind::kDevice, quote(sku_or_short_name) + ": not a known GPU; use one of " + choices +
                                        " or describe the GPU with Device(...)");
}

}  // namespace deep_gemm
