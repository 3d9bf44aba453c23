#include "core/candidates.hpp"

#include <algorithm>

namespace deep_gemm {
namespace {

constexpr int kBlockMs[] = {64, 128, 256};
// Multiples of 8 up to 64 where decode shapes need fine steps, then of 16 where the tile legality allows it.
constexpr int kBlockNs[] = {8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 192};
constexpr int kClusters[][2] = {{1, 1}, {2, 1}, {1, 2}};
// More stages than this hold over 200 KB in flight for every tile, beyond what an SM can keep outstanding.
constexpr int kDeepestRing = 24;

// The deepest ring that fits shared memory, or 0. Stages are the last term of smem_bytes and add at most one barrier block.
int deepest_ring(Config config, const Device& device) {
    for (config.num_stages = kDeepestRing; config.num_stages >= kMinStages; --config.num_stages)
        if (smem_bytes(config) <= device.smem_bytes) return config.num_stages;
    return 0;
}

void append_rings(std::vector<Config>& space, Config config, const Device& device) {
    config.num_stages = deepest_ring(config, device);
    if (!is_legal(Problem{}, config, device)) return;
    space.push_back(config);
    // Half the ring shows whether depth pays at all; clusters would repeat the answer.
    const int half = config.num_stages / 2;
    if (config.cluster_m * config.cluster_n > 1 || half < kMinStages) return;
    config.num_stages = half;
    space.push_back(config);
}

}  // namespace

std::vector<Config> get_default_space(const Device& device) {
    std::vector<Config> space;
    space.reserve(kMaxCandidates);
    for (int block_m : kBlockMs)
        for (int block_n : kBlockNs)
            for (const auto& cluster : kClusters)
                append_rings(space, {.block_m = block_m, .block_n = block_n, .cluster_m = cluster[0], .cluster_n = cluster[1]}, device);
    return space;
}

const std::vector<Config>& sm90_default_space() {
    static const std::vector<Config> space = [] {
        Device device;
        device.sm_count = Problem::kMaxSms;
        return get_default_space(device);
    }();
    return space;
}

int smallest_cover(int64_t n) {
    const auto cover = std::lower_bound(std::begin(kBlockNs), std::end(kBlockNs), n);
    return cover == std::end(kBlockNs) ? kBlockNs[std::size(kBlockNs) - 1] : *cover;
}

std::vector<Config> get_candidates(const Problem& problem, const Device& device) {
    std::vector<Config> candidates;
    candidates.reserve(kMaxCandidates);
    for_each_candidate(problem, device, [&](const Config& config) { candidates.push_back(config); });
    return candidates;
}

}  // namespace deep_gemm
