// Tiles of an m-grouped product whose groups have room for m rows each, and as many as the device says: only tiles with
// such rows are walked, group by group.
#pragma once

#include "deep_gemm/sm90/scheduler/group_walk.cuh"

namespace deep_gemm {

template <class Config>
struct MaskedScheduler : GroupWalk<Config, MaskedScheduler<Config>> {
    using Walk = GroupWalk<Config, MaskedScheduler<Config>>;
    using Walk::sums;

    const int* sizes;  // rows of each group
    u32 m;

    __device__ __forceinline__ MaskedScheduler(const Params& params, const GroupParams& groups, u32 cluster_rank, u32 m,
                                               u32 all_steps)
        : Walk(params, groups, cluster_rank), sizes(groups.groups), m(m) {
        this->num_steps = all_steps, this->state = Tile::kValid;
        load_sums();
        this->locate();
    }

    // What the walk asks for.
    __device__ __forceinline__ void load_sums() {
        const u32 group = sums.first + threadIdx.x % 32;
        const int size = group < this->num_groups ? ptx::load_index(sizes + group) : 0;
        const u32 rows = size < 0 ? 0 : u32(size) < m ? u32(size) : m;
        sums.inclusive = add_lanes_below(ceil_div(rows, Config::kBlockM * Config::kClusterM));
    }
    __device__ __forceinline__ static bool start_pass() { return false; }
    __device__ __forceinline__ void set_group(u32 lane, u32 row) {
        this->matrix_a = this->matrix_b = this->matrix_d = sums.first + lane;
        this->m_start = row;
    }
};

}  // namespace deep_gemm
