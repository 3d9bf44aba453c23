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
    int64_t group_tiles;  // of groups that lie one after the other along m: tiles of one on average; of all others 0
    int64_t group_unit;  // such groups begin at multiples of so many tiles; 1 where a tile is larger than the alignment
    bool is_dense;       // no groups, no batch
    bool may_have_less;  // m is room for rows, of which only the device knows how many there are
    int64_t k_bytes;     // of a row of A or B
    int64_t d_bytes;     // of an element of D that are read and written
    double memory_gbps;  // of the GPU; 0 where it is not known
};

// The band, at least 1 and at most tiles.m, with which the least is read. What counts:
// - in grids of many waves, and for groups that lie one after the other, the bytes that the GPCs read, and those that
//   are read from memory again because the L2 has lost them; the former count less for dense products on an H200;
// - in few waves of dense single CTAs, the rows that each GPC and each wave touch;
// - in all else (split K, masked groups, clusters or batches in few waves), the rows that each wave touches.
int64_t choose_band(const Config& config, const WalkedTiles& tiles);

}  // namespace deep_gemm
