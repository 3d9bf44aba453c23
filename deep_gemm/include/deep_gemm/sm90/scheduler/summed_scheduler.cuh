// Tiles of a sum of products: D = sum over g of A[g] . B[g]^T. The K steps of all groups together are one long K, which
// is cut into as many parts as the host says: as many as the grid has clusters for each tile, or a number that depends
// on neither m nor n. Every part has tiles of its own and a matrix of D of its own; adding those up is another kernel's
// (sum_parts.cuh). CTAs of one part work on the same steps at the same time, so that all but the first read them from
// L2.
#pragma once

#include "deep_gemm/sm90/scheduler/matrix_walk.cuh"

namespace deep_gemm {

template <class Config>
struct SummedScheduler : MatrixWalk<Config> {
    // Of GroupParams::reserved; the host's twin has a name for it (csrc/runtime/launch.hpp).
    static constexpr u32 kPartsAt = 4;

    u32 parts, sum_steps;

    __device__ __forceinline__ SummedScheduler(const Params& params, const GroupParams& groups, u32 cluster_rank, u32,
                                               u32 all_steps)
        : MatrixWalk<Config>(params, cluster_rank),
          parts(groups.reserved[kPartsAt]),
          sum_steps(groups.num_groups * all_steps) {
        this->matrix_a = this->matrix_b = 0;  // they change from step to step: place
        locate();
    }

    __device__ __forceinline__ void advance() {
        this->tile += this->step;
        locate();
    }

    // A step lies in the matrices that its number says.
    __device__ __forceinline__ static StepPlace place(const Tile& tile, u32 step, u32 all_steps) {
        const u32 at = tile.first_step + step, matrix = at / all_steps;
        return {at - matrix * all_steps, matrix, matrix};
    }

   private:
    __device__ __forceinline__ void locate() {
        const u32 part = this->find_place();
        this->matrix_d = part;
        this->first_step = u32(u64(part) * sum_steps / parts);
        this->num_steps = u32(u64(part + 1) * sum_steps / parts) - this->first_step;
        this->state = part < parts ? Tile::kValid : 0;
    }
};

}  // namespace deep_gemm
