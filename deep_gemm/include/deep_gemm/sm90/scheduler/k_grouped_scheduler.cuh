// Tiles of a product whose groups divide K: every group has a D of its own, all of one size, and its own number of K
// steps. A cluster's tile lies in one group.
#pragma once

#include "deep_gemm/sm90/mainloop/group_maps.cuh"
#include "deep_gemm/sm90/scheduler/tile.cuh"

namespace deep_gemm {

template <class Config>
struct KGroupedScheduler : TileScheduler {
    using OperandMaps = typename Choose<Config::kGroupBlocks, GroupMaps<Config>, LaunchMaps>::Type;
    static constexpr u32 kClusterSize = Config::kClusterM * Config::kClusterN;

    const int* sizes;  // K of each group
    u32 num_groups, m_tiles, n_tiles, band;  // cluster tiles of one group
    u32 rank_m, rank_n;
    u32 tile, step, all_steps;
    u32 group;
    GroupSums sums;  // of K steps

    __device__ __forceinline__ KGroupedScheduler(const Params& params, const GroupParams& groups, u32 cluster_rank, u32,
                                                 u32 all_steps)
        : sizes(groups.groups),
          num_groups(groups.num_groups),
          m_tiles(ceil_div(params.num_m_tiles, Config::kClusterM)),
          n_tiles(ceil_div(params.num_n_tiles, Config::kClusterN)),
          band(params.band),
          rank_m(Config::kClusterM > 1 ? cluster_rank : 0),
          rank_n(Config::kClusterN > 1 ? cluster_rank : 0),
          tile(blockIdx.x / kClusterSize),
          step(gridDim.x / kClusterSize),
          all_steps(all_steps) {
        matrix_a = matrix_b = 0, state = kValid;
        load_sums();
        locate();
    }

    __device__ __forceinline__ void advance() {
        tile += step;
        locate();
    }

   private:
    __device__ __forceinline__ void load_sums() {
        const u32 mine = sums.first + threadIdx.x % 32;
        const int size = mine < num_groups ? ptx::load_index(sizes + mine) : 0;
        sums.inclusive = add_lanes_below(size < 0 ? 0 : u32(size) / Config::kBlockK);
    }

    // The K steps of `group`; never beyond those that the operands have, whatever the sizes add up to.
    __device__ __forceinline__ void find_steps() {
#pragma unroll 1
        while (group >= sums.first + 32) {
            sums.before += sums.total();
            sums.first += 32;
            load_sums();
        }
        const u32 begin = sums.begin_of(group % 32), end = sums.end_of(group % 32);
        first_step = begin < all_steps ? begin : all_steps;
        const u32 last = end < all_steps ? end : all_steps;
        num_steps = last > first_step ? last - first_step : 0;
    }

    // Tiles without K steps are left out where they would add nothing to what D holds.
    __device__ __forceinline__ void locate() {
        const u32 group_tiles = m_tiles * n_tiles;
#pragma unroll 1
        for (;; tile += step) {
            group = tile / group_tiles;
            if (group >= num_groups) {
                state = 0;
                return;
            }
            find_steps();
            if (Config::kCMode != CMode::kAccumulate || num_steps > 0) break;
        }
        u32 m_tile, n_tile;
        locate_in_band(tile % group_tiles, m_tiles, n_tiles, band, m_tile, n_tile);
        matrix_d = group;
        m_start = (m_tile * Config::kClusterM + rank_m) * Config::kBlockM;
        n_start = (n_tile * Config::kClusterN + rank_n) * Config::kBlockN;
    }
};

}  // namespace deep_gemm
