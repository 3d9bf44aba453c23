// The walk over the tiles of several matrices D of one size: matrix by matrix, in bands, in steps of the grid's
// clusters.
#pragma once

#include "deep_gemm/sm90/scheduler/tile.cuh"

namespace deep_gemm {

template <class Config>
struct MatrixWalk : TileScheduler {
    static constexpr u32 kClusterSize = Config::kClusterM * Config::kClusterN;

    u32 m_tiles, n_tiles, band;  // cluster tiles of one matrix
    u32 rank_m, rank_n;
    u32 tile, step;

    __device__ __forceinline__ MatrixWalk(const Params& params, u32 cluster_rank)
        : m_tiles(ceil_div(params.num_m_tiles, Config::kClusterM)),
          n_tiles(ceil_div(params.num_n_tiles, Config::kClusterN)),
          band(params.band),
          rank_m(Config::kClusterM > 1 ? cluster_rank : 0),
          rank_n(Config::kClusterN > 1 ? cluster_rank : 0),
          tile(blockIdx.x / kClusterSize),
          step(gridDim.x / kClusterSize) {}

   protected:
    // Sets where the tile lies in its matrix; returns which of them that is, beyond the last one at the end.
    __device__ __forceinline__ u32 find_place() {
        const u32 matrix_tiles = m_tiles * n_tiles, matrix = tile / matrix_tiles;
        u32 m_tile, n_tile;
        locate_in_band(tile - matrix * matrix_tiles, m_tiles, n_tiles, band, m_tile, n_tile);
        m_start = (m_tile * Config::kClusterM + rank_m) * Config::kBlockM;
        n_start = (n_tile * Config::kClusterN + rank_n) * Config::kBlockN;
        return matrix;
    }
};

}  // namespace deep_gemm
