// Tiles of an m-grouped product whose groups have room for m rows each, and as many as the device says: only tiles with
// such rows are walked, group by group.
#pragma once

#include "deep_gemm/sm90/scheduler/tile.cuh"

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

   private:
    __device__ __forceinline__ void load_sums() {
        const u32 group = sums.first + threadIdx.x % 32;
        const int size = group < num_groups ? ptx::load_index(sizes + group) : 0;
        const u32 rows = size < 0 ? 0 : u32(size) < m ? u32(size) : m;
        sums.inclusive = add_lanes_below(ceil_div(rows, Config::kBlockM * Config::kClusterM));
    }

    __device__ __forceinline__ void locate() {
        u32 total = sums.total();
#pragma unroll 1
        while (tile >= (sums.before + total) * n_tiles) {
            sums.before += total;
            sums.first += 32;
            if (sums.first >= num_groups) {
                state = 0;
                return;
            }
            load_sums();
            total = sums.total();
        }
        const u32 lane = __ffs(__ballot_sync(0xffffffff, tile < (sums.before + sums.inclusive) * n_tiles)) - 1;
        const u32 begin = sums.begin_of(lane), end = sums.end_of(lane);
        u32 m_tile, n_tile;
        locate_in_band(tile - begin * n_tiles, end - begin, n_tiles, band, m_tile, n_tile);
        matrix_a = matrix_b = matrix_d = sums.first + lane;
        m_start = (m_tile * Config::kClusterM + rank_m) * Config::kBlockM;
        n_start = (n_tile * Config::kClusterN + rank_n) * Config::kBlockN;
    }
};

}  // namespace deep_gemm
