// Tiles of one product. With split K the CTAs of a cluster work on one tile, each on its share of the K steps.
#pragma once

#include "deep_gemm/sm90/scheduler/band_walk.cuh"
#include "deep_gemm/sm90/scheduler/tile.cuh"

namespace deep_gemm {

template <class Config>
struct DenseScheduler : TileScheduler {
    static constexpr bool kIsGrouped = false;

    BandWalk<Config> walk;

    __device__ __forceinline__ DenseScheduler(const Params& params, const GroupParams&, u32 cluster_rank, u32,
                                              u32 all_steps)
        : walk(params, cluster_rank) {
        matrix_a = matrix_b = matrix_d = 0;
        first_step = Config::kSplitK > 1 ? cluster_rank * all_steps / Config::kSplitK : 0;
        num_steps = Config::kSplitK > 1 ? (cluster_rank + 1) * all_steps / Config::kSplitK - first_step : all_steps;
        locate();
    }

    __device__ __forceinline__ void advance() {
        walk.advance();
        locate();
    }

   private:
    __device__ __forceinline__ void locate() {
        m_start = walk.m_start, n_start = walk.n_start;
        state = walk.is_valid() ? kValid : 0;
    }
};

}  // namespace deep_gemm
