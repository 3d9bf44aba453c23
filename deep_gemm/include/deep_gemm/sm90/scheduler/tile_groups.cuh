// The groups of the tiles of a cluster, where groups of rows lie one after the other. Each tile is of one group or has
// padding alone, but the two of a cluster along m may be of different ones.
//
// Both CTAs of such a cluster walk the same K steps, because a stage is free only when both have left it. So a tile of
// padding alone is multiplied like the other one, with that one's B, and its rows are then not stored as they come.
#pragma once

#include "deep_gemm/sm90/scheduler/tile.cuh"

namespace deep_gemm {

struct TileGroups {
    static constexpr u32 kNone = 0xffffffff;  // no rows but padding, or a group that does not exist
    u32 own = kNone, other = kNone;           // the same for a single CTA

    // `find(row)` gives the group of the tile that starts at a row; of this CTA's own tile last. Not unrolled: the warp
    // that finds tiles may have few registers.
    template <class Config, class Find>
    __device__ __forceinline__ static TileGroups of_cluster(const BandWalk<Config>& tiles, Find find) {
        TileGroups groups;
#pragma unroll 1
        for (u32 i = 1; i <= Config::kClusterM; ++i) {
            const u32 rank = (tiles.rank_m + i) % Config::kClusterM;
            groups.other = groups.own;
            groups.own = find(tiles.m_start + rank * Config::kBlockM - tiles.rank_m * Config::kBlockM);
        }
        if constexpr (Config::kClusterM == 1) groups.other = groups.own;
        return groups;
    }

    __device__ __forceinline__ bool has_steps() const { return own != kNone || other != kNone; }
    __device__ __forceinline__ u32 matrix_b() const { return own != kNone ? own : other != kNone ? other : 0; }
    __device__ __forceinline__ u32 state() const {
        return own != other && own != kNone && other != kNone ? Tile::kLoadsApart : 0;
    }
};

}  // namespace deep_gemm
