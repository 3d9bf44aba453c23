// The space of configs that is searched. The default space of a device is at most 160 legal configs; a problem's candidates
// are those of them that are not pointless for its m and n.
#pragma once

#include <vector>

#include "core/config.hpp"
#include "core/device.hpp"
#include "core/legality.hpp"
#include "core/problem.hpp"

namespace deep_gemm {

inline constexpr size_t kMaxCandidates = 160;

// The union of all candidates, legal on `device` when all its SMs may be used. In a fixed order: by block_m, block_n, cluster,
// then deeper rings first, so that of two equal estimates the smaller tile with the deeper ring wins.
std::vector<Config> get_default_space(const Device& device);

// The same list for SM90 GPUs as sold, built once: selection walks it for every new problem.
const std::vector<Config>& sm90_default_space();

// The smallest block_n of the default space that covers n columns with one tile, or the largest of all.
int smallest_cover(int64_t n);

// Whether a smaller tile or a smaller cluster does the same work with less waste; `cover` is smallest_cover(problem.n).
inline bool is_pointless(const Problem& problem, const Config& config, int cover) {
    if (config.block_n > cover || (config.block_m > 64 && problem.m <= config.block_m / 2)) return true;
    return (config.cluster_m == 2 && problem.m <= config.block_m) || (config.cluster_n == 2 && problem.n <= config.block_n);
}

std::vector<Config> get_candidates(const Problem& problem, const Device& device);

// Call `visit(config)` for each candidate, in the order of get_candidates, without building a list.
template <typename Visit>
void for_each_candidate(const Problem& problem, const Device& device, Visit&& visit) {
    const bool is_common = device.smem_bytes == kSm90SmemBytes && device.compute_major == 9;
    const std::vector<Config> own = is_common ? std::vector<Config>() : get_default_space(device);
    // In the default space only the cluster rule can still fail: it depends on the SMs that the problem may use.
    const int32_t sms = usable_sms(problem, device);
    const int cover = smallest_cover(problem.n);
    for (const Config& config : is_common ? sm90_default_space() : own)
        if (config.cluster_m * config.cluster_n <= sms && !is_pointless(problem, config, cover)) visit(config);
}

}  // namespace deep_gemm
