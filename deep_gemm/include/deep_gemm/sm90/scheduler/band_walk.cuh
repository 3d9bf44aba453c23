// The walk over the tiles of one matrix of D. The grid is persistent: cluster c takes cluster tiles c, c + clusters,
// c + 2 clusters, ... Tiles are numbered band by band: `band` cluster tiles along m are walked for each n before the
// next n, so that one wave of CTAs touches few distinct rows of A and B and they stay in L2. With split K all CTAs of a
// cluster work on one tile, and the grid has a cluster for each.
#pragma once

#include "deep_gemm/types.cuh"

namespace deep_gemm {

template <class Config>
struct BandWalk {
    static constexpr u32 kClusterSize = Config::kClusterM * Config::kClusterN * Config::kSplitK;

    u32 tile, num_tiles, step;
    u32 m_cluster_tiles, n_cluster_tiles, band;
    u32 rank_m, rank_n;
    u32 m_start, n_start;  // first row and column of the current tile; may lie beyond the matrix for an odd tile count

    __device__ __forceinline__ BandWalk(const Params& params, u32 cluster_rank)
        : tile(blockIdx.x / kClusterSize),
          step(gridDim.x / kClusterSize),
          m_cluster_tiles(ceil_div(params.num_m_tiles, Config::kClusterM)),
          n_cluster_tiles(ceil_div(params.num_n_tiles, Config::kClusterN)),
          band(params.band),
          rank_m(Config::kClusterM > 1 ? cluster_rank : 0),
          rank_n(Config::kClusterN > 1 ? cluster_rank : 0) {
        num_tiles = m_cluster_tiles * n_cluster_tiles;
        locate();
    }

    __device__ __forceinline__ bool is_valid() const { return tile < num_tiles; }

    __device__ __forceinline__ void advance() {
        tile += step;
        locate();
    }

    __device__ __forceinline__ void locate() {
        const u32 band_tiles = band * n_cluster_tiles;
        const u32 band_first = tile / band_tiles * band;
        const u32 in_band = tile % band_tiles;
        const u32 left = m_cluster_tiles - band_first;
        const u32 rows = left < band ? left : band;
        const u32 m_tile = (band_first + in_band % rows) * Config::kClusterM + rank_m;
        const u32 n_tile = in_band / rows * Config::kClusterN + rank_n;
        m_start = m_tile * Config::kBlockM;
        n_start = n_tile * Config::kBlockN;
    }
};

}  // namespace deep_gemm
