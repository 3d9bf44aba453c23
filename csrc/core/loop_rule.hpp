// Which knobs of the main loop the heuristic gives the tile that it has chosen. The time that it predicts knows one of
// them, the loop for two vectors of scales: the others are a few percent of a tile's time, and what they cost depends
// on the K steps of a tile.
#pragma once

#include "core/config.hpp"
#include "core/device.hpp"
#include "core/problem.hpp"

namespace deep_gemm {

// `config` with the knobs that pay for the problem, as far as they are legal with its tile and stages; knobs that it
// has already stay.
Config with_loop_knobs(const Problem& problem, const Config& config, const Device& device);

// The same for a tile that is legal on `device`; `k_steps`: of the whole K of a group.
Config with_loop_knobs_of_tile(const Problem& problem, const Config& tile, const Device& device, int64_t k_steps);

// Whether tiles of 128 rows, of the columns below, get the unrolled loop where columns have scales of their own: so
// large a gain that the tile is chosen by it.
bool pays_vector_loop(const Problem& problem, int64_t steps);
inline constexpr int kMinVectorLoopColumns = 96, kMaxVectorLoopColumns = 152;

// The tile alone, which is what candidates are chosen and rated by.
inline Config without_loop_knobs(Config config) {
    for (const LoopKnob& knob : kLoopKnobs) config.*knob.member = 0;
    return config;
}

// Whether two configs are the same without these knobs.
inline bool has_same_tile(const Config& a, const Config& b) {
    return a.block_m == b.block_m && a.block_n == b.block_n && a.block_k == b.block_k && a.num_stages == b.num_stages &&
           a.cluster_m == b.cluster_m && a.cluster_n == b.cluster_n && a.split_k == b.split_k && a.swap_ab == b.swap_ab;
}

}  // namespace deep_gemm
