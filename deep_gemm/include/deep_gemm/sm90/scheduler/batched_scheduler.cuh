// Tiles of a batched product: every group is a product of its own, all of one size, and no operand says where groups begin or end. Tiles are
// walked group by group, so that one wave of CTAs touches few matrices.
#pragma once

#include "deep_gemm/sm90/scheduler/tile.cuh"

namespace deep_gemm {

template <class Config>
struct BatchedScheduler : TileScheduler {
    static constexpr u32 kClusterSize = Config::kClusterM * Config::kClusterN;

    u32 num_groups, m_tiles, n_tiles, band;  // cluster tiles of one group
    u32 rank_m, rank_n;
    u32 tile, step;

    __device__ __forceinline__ BatchedScheduler(const Params& params, const GroupParams& groups, u32 cluster_rank, u32, u32 all_steps)
        : num_groups(groups.num_groups),
          m_tiles(ceil_div(params.num_m_tiles, Config::kClusterM)),
          n_tiles(ceil_div(params.num_n_tiles, Config::kClusterN)),
          band(params.band),
          rank_m(Config::kClusterM > 1 ? cluster_rank : 0),
          rank_n(Config::kClusterN > 1 ? cluster_rank : 0),
          tile(blockIdx.x / kClusterSize),
          step(gridDim.x / kClusterSize) {
        first_step = 0, num_steps = all_steps;
        locate();
    }

    __device__ __forceinline__ void advance() {
        tile += step;
        locate();
    }

   private:
    __device__ __forceinline__ void locate() {
        const u32 group_tiles = m_tiles * n_tiles, group = tile / group_tiles;
        u32 m_tile, n_tile;
        locate_in_band(tile - group * group_tiles, m_tiles, n_tiles, band, m_tile, n_tile);
        matrix_a = matrix_b = matrix_d = group;
        m_start = (m_tile * Config::kClusterM + rank_m) * Config::kBlockM;
        n_start = (n_tile * Config::kClusterN + rank_n) * Config::kBlockN;
        state = group < num_groups ? kValid : 0;
    }
};

}  // namespace deep_gemm
