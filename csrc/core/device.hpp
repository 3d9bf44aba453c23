// What selection needs to know of a GPU. Plain data; asking the driver is csrc/runtime's business.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deep_gemm {

// Largest shared memory of one CTA on SM90: 227 KiB (CUDA programming guide, table of compute capabilities).
inline constexpr int64_t kSm90SmemBytes = 232448;

struct Device {
    std::string name;
    std::string sku;  // slug(name)-sm<count>[-mig<profile>]
    std::string mig;  // MIG profile, or empty
    int32_t sm_count = 0;
    int64_t smem_bytes = kSm90SmemBytes;
    int64_t l2_bytes = 0;
    int32_t compute_major = 9, compute_minor = 0;
    double clock_mhz = 0.0;     // highest SM clock
    double memory_gbps = 0.0;   // 1e9 bytes a second, as specified
    double tensor_ratio = 1.0;  // FP8 tensor rate of one SM and clock, over that of an H100 (an H20's is a quarter)

    bool operator==(const Device&) const = default;
};

// Lower-case letters and digits of `name`, everything else as single dashes.
std::string slug(std::string_view name);

// Fill in `sku` (where empty) and `tensor_ratio`, and check the numbers; throws Error(kDevice).
Device make_device(Device device);

// A well-known SM90 GPU by its SKU or short name (h200, h100, h800, h20, gh200), in any case; throws
// Error(kDevice).
Device known_device(std::string_view sku_or_short_name);
std::vector<std::string> known_device_names();  // short ones, the reference GPU first

}  // namespace deep_gemm
