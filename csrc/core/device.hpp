// What selection needs to know of a GPU. Plain data; asking the driver is csrc/runtime's business.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deep_gemm {

// Largest shared memory of one CTA on SM90: 227 KiB (CUDA programming guide, table of compute capabilities).
inline constexpr int64_t kSm90SmemBytes = 232448;

// With fewer SMs a GPU counts as a slice of one: it may have no GPC with room for a cluster of eight CTAs.
inline constexpr int kWholeGpuSms = 64;

struct Device {
    std::string name;
    std::string sku;  // slug(name)-sm<count>[-mig<profile>][-<watts>w], see power_suffix
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

// What the SKU of a board ends with: "-500w" where its power limit is more than 5 % below the default of its model, and
// nothing else; nothing also where one of the two is unknown (0). Both in milliwatts. It is written to the nearest 10
// W, far less than changes a choice: boards of one setting share a SKU although their limits read a watt or two apart.
std::string power_suffix(uint32_t limit_mw, uint32_t default_mw);

// `sku` without such an end: that of the boards of its model at their default power limit.
std::string_view base_sku(std::string_view sku);

// Fill in `sku` (where empty) and `tensor_ratio`, and check the numbers; throws Error(kDevice).
Device make_device(Device device);

// A well-known SM90 GPU by its SKU or short name (h200, h100, h800, h20, gh200), in any case, either followed by a
// power suffix, which then ends its SKU and changes nothing else; throws Error(kDevice).
Device known_device(std::string_view sku_or_short_name);
std::vector<std::string> known_device_names();  // short ones, the reference GPU first

}  // namespace deep_gemm
