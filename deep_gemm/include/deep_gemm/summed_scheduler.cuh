// Tiles of a sum of products: D = sum over g of A[g] . B[g]^T. The K steps of all groups together are one long K, which is cut into as many
// parts as the host says: as many as the grid has clusters for each tile, or a number that depends on neither m nor n. Every part has tiles of
// its own and a matrix of D of its own; adding those up is another kernel's (sum_parts.cuh). CTAs of one part work on the same steps at the same
// time, so that all but the first read them from L2.
#pragma once

#include "deep_gemm/grouped_producer.cuh"
#include "deep_gemm/matrix_walk.cuh"

namespace deep_gemm {

template <class Config>
struct SummedScheduler : MatrixWalk<Config> {
    static constexpr u32 kPartsAt = 4;  // of GroupParams::reserved; the host's twin has a name for it (csrc/runtime/launch.hpp)

    u32 parts, sum_steps;

    __device__ __forceinline__ SummedScheduler(const Params& params, const GroupParams& groups, u32 cluster_rank, u32, u32 all_steps)
        : MatrixWalk<Config>(params, cluster_rank), parts(groups.reserved[kPartsAt]), sum_steps(groups.num_groups * all_steps) {
        this->matrix_a = this->matrix_b = 0;  // they change from step to step: load_stage
        locate();
    }

    __device__ __forceinline__ void advance() {
        this->tile += this->step;
        locate();
    }

   private:
    __device__ __forceinline__ void locate() {
        const u32 part = this->place();
        this->matrix_d = part;
        this->first_step = u32(u64(part) * sum_steps / parts);
        this->num_steps = u32(u64(part + 1) * sum_steps / parts) - this->first_step;
        this->state = part < parts ? GroupTile::kValid : 0;
    }
};

// The load of one of these steps: it lies in the matrices that its number says, not in those of the tile. The generated source has defined
// Config before this header, so that the one function in which the producer differs can be replaced.
template <>
__device__ __forceinline__ void GroupedProducer<Config, SummedScheduler<Config>>::load_stage(u32 stage, u32 step, const GroupTile& tile) const {
    const u32 barrier = stages.full_barrier(stage), k_step = tile.first_step + step;
    const u32 steps = ceil_div(Config::kShapeK ? Config::kShapeK : params.k, Layout::kBlockK);
    const u32 matrix = k_step / steps, k = (k_step - matrix * steps) * Layout::kBlockK;
    if (ptx::elect_one()) {
        ptx::barrier_arrive_expect(barrier, kLoadBytes);
        load_operand<Config::kMnMajorA, (Config::kClusterN > 1), Layout::kBlockM>(&maps.a, barrier, stages.stage_a(stage), k, tile.m_start, matrix);
        load_operand<Config::kMnMajorB, (Config::kClusterM > 1), Layout::kBlockN>(&maps.b, barrier, stages.stage_b(stage), k, tile.n_start, matrix);
    }
}

}  // namespace deep_gemm
