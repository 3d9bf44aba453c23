#include "core/legality.hpp"

#include <algorithm>

namespace deep_gemm {
namespace {

// Two math warpgroups: setmaxnreg divides 168 x 384 registers into 40 x 128 (producer) + 232 x 256. One: a thread of 256 may use 255,
// and what the compiler keeps for itself is left out.
constexpr int kRegisterLimitTwoWarpgroups = 232, kRegisterLimitOneWarpgroup = 248;
// Addresses, descriptors, scales and loop state beside the accumulators. A pipelined tile keeps less of them live at once. Tiles at the
// limit (64x144 and 128x128 pipelined, 128x192, 256x128) compile without spills.
constexpr int kRegisterOverhead = 40, kPipelinedRegisterOverhead = 16;
constexpr int kScaleSteps = 8;            // K steps in a buffer of the scale ring: the 32-byte sector of a row-major row
constexpr int kMaxChainedBlockN = 64;     // wider tiles hide the latency of a chain by themselves
// Two partial accumulators of more columns do not fit beside the final one.
constexpr int kMaxPipelinedBlockNOneWarpgroup = 144, kMaxPipelinedBlockNTwoWarpgroups = 128;

int64_t align_up(int64_t value, int64_t alignment) { return (value + alignment - 1) / alignment * alignment; }

// The rules, in the order in which they are reported; each is one clause of legality.
enum class Rule {
    kNone,
    kArchitecture,
    kBlockM,
    kBlockN,
    kBlockK,
    kStages,
    kCluster,
    kClusterBlockN,
    kClusterSms,
    kScaleBlocks,
    kRegisters,
    kSmem
};

bool is_cluster_shape(const Config& config) {
    const bool in_range = config.cluster_m >= 1 && config.cluster_m <= 2 && config.cluster_n >= 1 && config.cluster_n <= 2;
    return in_range && config.cluster_m * config.cluster_n <= 2;
}

Rule broken_geometry_rule(const Config& config) {
    if (config.block_m != 64 && config.block_m != 128 && config.block_m != 256) return Rule::kBlockM;
    if (config.block_n < 8 || config.block_n > kMaxBlockN || config.block_n % 8 != 0) return Rule::kBlockN;
    if (config.block_k != kBlockK) return Rule::kBlockK;
    if (config.num_stages < kMinStages || config.num_stages > kMaxStages) return Rule::kStages;
    if (!is_cluster_shape(config)) return Rule::kCluster;
    // Each CTA of the pair loads half of B, and half a tile must keep the 8-row swizzle pattern.
    if (config.cluster_m == 2 && config.block_n % 16 != 0) return Rule::kClusterBlockN;
    if (max_b_scale_blocks(config.block_n) > 2) return Rule::kScaleBlocks;
    return Rule::kNone;
}

Rule broken_rule(const Problem& problem, const Config& config, const Device& device) {
    if (device.compute_major != 9) return Rule::kArchitecture;
    const Rule geometry = broken_geometry_rule(config);
    if (geometry != Rule::kNone) return geometry;
    if (usable_sms(problem, device) < config.cluster_m * config.cluster_n) return Rule::kClusterSms;
    const int limit = math_warpgroups(config) == 1 ? kRegisterLimitOneWarpgroup : kRegisterLimitTwoWarpgroups;
    if (estimate_registers(config) > limit) return Rule::kRegisters;
    if (smem_bytes(config) > device.smem_bytes) return Rule::kSmem;
    return Rule::kNone;
}

std::string clause(const char* name, int64_t value, const std::string& rule) {
    return std::string(name) + " = " + std::to_string(value) + ": " + rule;
}

std::string describe(Rule rule, const Config& config, const Device& device) {
    switch (rule) {
        case Rule::kNone: return "";
        case Rule::kArchitecture:
            return "compute capability = " + std::to_string(device.compute_major) + '.' + std::to_string(device.compute_minor) + " (" +
                   device.name + "): the kernels need 9.0; use a Hopper GPU";
        case Rule::kBlockM: return clause("block_m", config.block_m, "must be 64, 128 or 256; choose one of them");
        case Rule::kBlockN: return clause("block_n", config.block_n, "must be a multiple of 8 within 8..192; choose such a width");
        case Rule::kBlockK: return clause("block_k", config.block_k, "must be 128, the granularity of the scales; leave it out");
        case Rule::kStages: return clause("num_stages", config.num_stages, "must be within 2..32; choose such a number");
        case Rule::kCluster:
            return "cluster = " + std::to_string(config.cluster_m) + 'x' + std::to_string(config.cluster_n) +
                   ": must be 1x1, 2x1 or 1x2; choose one of them";
        case Rule::kClusterBlockN:
            return clause("block_n", config.block_n, "must be a multiple of 16 with cluster_m = 2; use cluster_m = 1");
        case Rule::kClusterSms: return "a cluster of two CTAs does not fit the SMs that may be used; use a 1x1 cluster";
        case Rule::kScaleBlocks:
            return clause("block_n", config.block_n, "a tile may touch at most two 128-column scale blocks; choose another width");
        case Rule::kRegisters: return clause("registers", estimate_registers(config), "more than a math thread has; choose a smaller tile");
        case Rule::kSmem:
            return clause("shared memory", smem_bytes(config),
                          "more than the " + std::to_string(device.smem_bytes) + " bytes of a block; use fewer stages");
    }
    return "";
}

}  // namespace

bool is_pipelined(const Config& config) {
    if (rows_per_warpgroup(config) != 64) return false;
    return config.block_n <= (math_warpgroups(config) == 1 ? kMaxPipelinedBlockNOneWarpgroup : kMaxPipelinedBlockNTwoWarpgroups);
}

int wgmma_chains(const Config& config) {
    // Two groups of chains hold their stages before the first is released: a smaller ring would wait for itself for ever.
    return is_pipelined(config) && config.block_n <= kMaxChainedBlockN && config.num_stages >= 4 ? 2 : 1;
}

int estimate_registers(const Config& config) {
    const int final_accumulators = rows_per_warpgroup(config) / 64 * config.block_n / 2;
    if (!is_pipelined(config)) return final_accumulators + config.block_n / 2 + kRegisterOverhead;
    return final_accumulators + 2 * wgmma_chains(config) * config.block_n / 2 + kPipelinedRegisterOverhead;
}

int64_t smem_bytes(const Config& config) {
    const int64_t scale_buffers = config.block_m == 64 ? 4 : 2;
    const int64_t scales = scale_buffers * kScaleSteps * (int64_t(config.block_m) + 2) * 4;
    const int64_t barriers = align_up((config.num_stages + scale_buffers) * 2 * 8, 128);
    const int64_t d_tile = align_up(int64_t(config.block_m) * config.block_n * 2, kSmemAlignment);
    const int64_t stage = (int64_t(config.block_m) + config.block_n) * config.block_k;
    return kSmemAlignment + d_tile + config.num_stages * stage + barriers + scales;
}

int max_b_scale_blocks(int block_n) { return (block_n + kScaleBlock - scale_start_step(block_n) + kScaleBlock - 1) / kScaleBlock; }

int32_t usable_sms(const Problem& problem, const Device& device) {
    return problem.num_sms == 0 ? device.sm_count : std::min(problem.num_sms, device.sm_count);
}

bool is_legal(const Problem& problem, const Config& config, const Device& device) {
    return broken_rule(problem, config, device) == Rule::kNone;
}

std::string legality_reason(const Problem& problem, const Config& config, const Device& device) {
    return describe(broken_rule(problem, config, device), config, device);
}

}  // namespace deep_gemm
