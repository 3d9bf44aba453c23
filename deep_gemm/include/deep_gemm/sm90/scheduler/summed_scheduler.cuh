// Tiles of a sum of products: D = sum over g of A[g] . B[g]^T. The K steps of all groups together are one long K, which is cut into parts, as
// many as the grid has clusters for each tile. Every part has tiles of its own and a matrix of D of its own; adding those up is another kernel's
// (sum_parts.cuh). CTAs of one part work on the same steps at the same time, so that all but the first read them from L2.
#pragma once

#include "deep_gemm/sm90/scheduler/tile.cuh"

namespace deep_gemm {

template <class Config>
struct SummedScheduler : TileScheduler {
    static constexpr u32 kClusterSize = Config::kClusterM * Config::kClusterN;

    u32 m_tiles, n_tiles, band;  // cluster tiles of one part
    u32 rank_m, rank_n;
    u32 tile, step;
    u32 parts, sum_steps;

    __device__ __forceinline__ SummedScheduler(const Params& params, const GroupParams& groups, u32 cluster_rank, u32, u32 all_steps)
        : m_tiles(ceil_div(params.num_m_tiles, Config::kClusterM)),
          n_tiles(ceil_div(params.num_n_tiles, Config::kClusterN)),
          band(params.band),
          rank_m(Config::kClusterM > 1 ? cluster_rank : 0),
          rank_n(Config::kClusterN > 1 ? cluster_rank : 0),
          tile(blockIdx.x / kClusterSize),
          step(gridDim.x / kClusterSize),
          parts(max_of(step / (m_tiles * n_tiles), 1)),
          sum_steps(groups.num_groups * all_steps) {
        matrix_a = matrix_b = 0;  // they change from step to step: place
        locate();
    }

    __device__ __forceinline__ void advance() {
        tile += step;
        locate();
    }

    // A step lies in the matrices that its number says.
    __device__ __forceinline__ static StepPlace place(const Tile& tile, u32 step, u32 all_steps) {
        const u32 at = tile.first_step + step, matrix = at / all_steps;
        return {at - matrix * all_steps, matrix, matrix};
    }

   private:
    __device__ __forceinline__ void locate() {
        const u32 part_tiles = m_tiles * n_tiles, part = tile / part_tiles;
        u32 m_tile, n_tile;
        locate_in_band(tile - part * part_tiles, m_tiles, n_tiles, band, m_tile, n_tile);
        matrix_d = part;
        first_step = u32(u64(part) * sum_steps / parts);
        num_steps = u32(u64(part + 1) * sum_steps / parts) - first_step;
        m_start = (m_tile * Config::kClusterM + rank_m) * Config::kBlockM;
        n_start = (n_tile * Config::kClusterN + rank_n) * Config::kBlockN;
        state = part < parts ? kValid : 0;
    }
};

}  // namespace deep_gemm
