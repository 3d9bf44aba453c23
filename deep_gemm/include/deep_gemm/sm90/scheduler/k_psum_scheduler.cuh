// Tiles of a product whose groups divide K, and of whose groups the end of each is known: a group starts at the end of
// the one before, rounded up to 128. Every group has a D of its own, all of one size; a cluster's tile lies in one
// group.
//
// What lies between the end of a group and the next start is never multiplied: the tensor maps of a group end with it
// (psum_maps.cuh). Ends are not trusted: a group lies within the K of the operands, whatever they are.
#pragma once

#include "deep_gemm/sm90/scheduler/tile.cuh"
#include "deep_gemm/sm90/mainloop/psum_maps.cuh"
#include "deep_gemm/sm90/scheduler/group_ends.cuh"

namespace deep_gemm {

template <class Config>
struct KPsumScheduler : TileScheduler {
    using OperandMaps = PsumMaps<Config>;
    static constexpr u32 kClusterSize = Config::kClusterM * Config::kClusterN;
    static constexpr u32 kAlignment = 128;  // of the groups' starts: the K of one scale
    static_assert(kAlignment % Config::kBlockK == 0, "a group starts with a K step");

    GroupEnds ends;
    u32 m_tiles, n_tiles, band;  // cluster tiles of one group
    u32 rank_m, rank_n;
    u32 tile, step;

    __device__ __forceinline__ KPsumScheduler(const Params& params, const GroupParams& groups, u32 cluster_rank, u32,
                                              u32)
        : ends{groups.groups, groups.num_groups, params.k},
          m_tiles(ceil_div(params.num_m_tiles, Config::kClusterM)),
          n_tiles(ceil_div(params.num_n_tiles, Config::kClusterN)),
          band(params.band),
          rank_m(Config::kClusterM > 1 ? cluster_rank : 0),
          rank_n(Config::kClusterN > 1 ? cluster_rank : 0),
          tile(blockIdx.x / kClusterSize),
          step(gridDim.x / kClusterSize) {
        matrix_a = matrix_b = 0;
        locate();
    }

    __device__ __forceinline__ void advance() {
        tile += step;
        locate();
    }

   private:
    __device__ __forceinline__ void find_steps(u32 group) {
        const u32 start = ends.start_of(group, kAlignment), end = ends.end_of(group), k = end > start ? end - start : 0;
        first_step = k > 0 ? start / Config::kBlockK : 0;
        num_steps = ceil_div(k, Config::kBlockK);
        state = kValid + (num_steps * Config::kBlockK - k << PsumMaps<Config>::kTailShift);
    }

    // Tiles without K steps are left out where they would add nothing to what D holds.
    __device__ __forceinline__ void locate() {
        const u32 group_tiles = m_tiles * n_tiles;
#pragma unroll 1
        for (;; tile += step) {
            matrix_d = tile / group_tiles;
            if (matrix_d >= ends.count) {
                state = 0;
                return;
            }
            find_steps(matrix_d);
            if (Config::kCMode != CMode::kAccumulate || num_steps > 0) break;
        }
        u32 m_tile, n_tile;
        locate_in_band(tile % group_tiles, m_tiles, n_tiles, band, m_tile, n_tile);
        m_start = (m_tile * Config::kClusterM + rank_m) * Config::kBlockM;
        n_start = (n_tile * Config::kClusterN + rank_n) * Config::kBlockN;
    }
};

}  // namespace deep_gemm
