// Tiles of a batched product: every group is a product of its own, all of one size, and no operand says where groups
// begin or end. Tiles are walked group by group, so that one wave of CTAs touches few matrices.
#pragma once

#include "deep_gemm/sm90/scheduler/matrix_walk.cuh"

namespace deep_gemm {

template <class Config>
struct BatchedScheduler : MatrixWalk<Config> {
    u32 num_groups;

    __device__ __forceinline__ BatchedScheduler(const Params& params, const GroupParams& groups, u32 cluster_rank, u32,
                                                u32 all_steps)
        : MatrixWalk<Config>(params, cluster_rank), num_groups(groups.num_groups) {
        this->first_step = 0, this->num_steps = all_steps;
        locate();
    }

    __device__ __forceinline__ void advance() {
        this->tile += this->step;
        locate();
    }

   private:
    __device__ __forceinline__ void locate() {
        const u32 group = this->find_place();
        this->matrix_a = this->matrix_b = this->matrix_d = group;
        this->state = group < num_groups ? Tile::kValid : 0;
    }
};

}  // namespace deep_gemm
