// How many cluster tiles along m a kernel walks together (sm90/scheduler/band_walk.cuh).
#pragma once

#include <cstdint>

#include "core/config.hpp"

namespace deep_gemm {

// The cluster tiles of one matrix of D, or of all rows of groups that share them, and the grid that walks them.
struct WalkedTiles {
    int64_t m, n;         // cluster tiles
    int64_t clusters;     // clusters of the grid, not more than there are tiles
    int64_t group_tiles;  // tiles along m of a group on average, where groups begin and end anywhere in a band; else 0
    bool is_whole;        // these are all tiles of the launch
};

// The band, at least 1 and at most tiles.m, that lets the kernel read the fewest bytes of A and B:
// - by a wave, a block of tiles `band` high, since the L2 serves a wave's common reads of an operand at once;
// - in grids of few waves of single CTAs also by the CTAs that start one after the other, since these share a GPC.
int64_t choose_band(const Config& config, const WalkedTiles& tiles);

}  // namespace deep_gemm
