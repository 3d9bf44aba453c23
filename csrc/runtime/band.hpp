// How many cluster tiles along m a kernel walks together (sm90/scheduler/band_walk.cuh).
#pragma once

#include <cstdint>

#include "core/config.hpp"

namespace deep_gemm {

// The cluster tiles of one matrix of D, or of all rows of groups that share them, and the grid that walks them.
struct WalkedTiles {
    int64_t m, n;         // cluster tiles
    int64_t clusters;     // clusters of the grid, not more than there are tiles
    int64_t all;          // cluster tiles of the launch
    int64_t group_tiles;  // tiles along m of a group on average, where groups begin and end anywhere in a band; else 0
    int64_t group_unit;   // every such group has a multiple of so many tiles along m
    bool is_dense;        // no groups, no batch
    bool may_have_less;   // m is room for rows, of which only the device knows how many there are
    int64_t k_bytes;      // of a row of A or B
    int64_t d_bytes;      // of an element of D that are read and written
};

// The band, at least 1 and at most tiles.m, that lets the kernel move the fewest bytes:
// - in grids of many waves, and where groups lie one after the other, of A and B to the GPCs, whose CTAs start one
//   after the other, and again from memory where the L2 has lost them since;
// - in grids of few waves of dense single CTAs, to the GPCs and to each wave, a block of tiles `band` high;
// - in all others, to each wave.
int64_t choose_band(const Config& config, const WalkedTiles& tiles);

}  // namespace deep_gemm
