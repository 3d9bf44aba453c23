// The walk over the tiles of one matrix of D. The grid is persistent: cluster c takes cluster tiles c, c + clusters,
// c + 2 clusters, ... Tiles are numbered band by band: `band` cluster tiles along m are walked for each n before the
// next n, so that one wave of CTAs touches few distinct rows of A and B and they stay in L2. With split K all CTAs of a
// cluster work on one tile, and the grid has a cluster for each.
#pragma once

#include "deep_gemm/types.cuh"

namespace deep_gemm {

// Where cluster tile `index` of `m_tiles` x `n_tiles` lies: `band` tiles along m are walked for each n before the next
// n. A division takes some 200 cycles, ahead of a kernel's first load: one band, or one tile along m, needs none.
__device__ __forceinline__ void locate_in_band(u32 index, u32 m_tiles, u32 n_tiles, u32 band, u32& m_tile,
                                               u32& n_tile) {
    const u32 band_tiles = band * n_tiles;
    u32 first = 0, row = 0;
    if (index >= band_tiles) {
        const u32 band_index = index / band_tiles;
        first = band_index * band;
        index -= band_index * band_tiles;
    }
    const u32 left = m_tiles - first, rows = left < band ? left : band;
    n_tile = index;
    if (rows != 1) {
        n_tile = index / rows;
        row = index - n_tile * rows;
    }
    m_tile = first + row;
}

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
        if (is_valid()) locate();  // else a division would delay the end of the CTA
    }

    __device__ __forceinline__ void locate() {
        u32 m_tile, n_tile;
        locate_in_band(tile, m_cluster_tiles, n_cluster_tiles, band, m_tile, n_tile);
        m_start = (m_tile * Config::kClusterM + rank_m) * Config::kBlockM;
        n_start = (n_tile * Config::kClusterN + rank_n) * Config::kBlockN;
    }
};

}  // namespace deep_gemm
