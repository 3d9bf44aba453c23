// Tiles of an m-grouped product whose groups have room for m rows each, and as many as the device says: only tiles with
// such rows are walked, group by group.
#pragma once

#include "deep_gemm/sm90/scheduler/group_walk.cuh"

namespace deep_gemm {

template <class Config>
struct MaskedScheduler : TileScheduler {
    static constexpr u32 kClusterSize = Config::kClusterM * Config::kClusterN;

    const int* sizes;  // rows of each group
    u32 m, num_groups, n_tiles, band;  // n_tiles: cluster tiles along n
    u32 rank_m, rank_n;
    u32 tile, step;
    GroupSums sums;  // of cluster tiles along m

    __device__ __forceinline__ MaskedScheduler(const Params& params, const GroupParams& groups, u32 cluster_rank, u32 m,
                                               u32 all_steps)
        : sizes(groups.groups),
          m(m),
          num_groups(groups.num_groups),
          n_tiles(ceil_div(params.num_n_tiles, Config::kClusterN)),
          band(params.band),
          rank_m(Config::kClusterM > 1 ? cluster_rank : 0),
          rank_n(Config::kClusterN > 1 ? cluster_rank : 0),
          tile(blockIdx.x / kClusterSize),
          step(gridDim.x / kClusterSize) {
        first_step = 0, num_steps = all_steps, state = kValid;
        load_sums();
        locate();
    }

    __device__ __forceinline__ void advance() {
        tile += step;
        locate();
    }

    // What find_group_tile asks for.
    __device__ __forceinline__ void load_sums() {
        const u32 group = sums.first + threadIdx.x % 32;
        const int size = group < num_groups ? ptx::load_index(sizes + group) : 0;
        const u32 rows = size < 0 ? 0 : u32(size) < m ? u32(size) : m;
        sums.inclusive = add_lanes_below(ceil_div(rows, Config::kBlockM * Config::kClusterM));
    }
    __device__ __forceinline__ static bool start_pass() { return false; }
    __device__ __forceinline__ void set_group(u32 lane, u32 row) {
        matrix_a = matrix_b = matrix_d = sums.first + lane;
        m_start = row;
    }

 private:
    __device__ __forceinline__ void locate() { find_group_tile<Config>(*this); }
};

}  // namespace deep_gemm
