// Which of the two tiles of a kernel for groups of rows runs: the one whose rounds take less with the rows that the
// groups have. The host, which knows at most how many are expected, chose both (csrc/core/second_tile.hpp).
#pragma once

#include "deep_gemm/sm90/gemm_layout.cuh"
#include "deep_gemm/sm90/scheduler/tile.cuh"

namespace deep_gemm {

// What the second tile has of its own; all of it stays in constant memory. The host's twin is in
// csrc/runtime/launch.hpp; both sides change together.
struct SecondTile {
    TensorMap a, b, d, scale_a, scale_b, a_tail;
    Params params;
    float weight;  // what a round of it counts in rounds of the first tile
};

static_assert(sizeof(SecondTile) == 960, "the host passes 960 bytes");

// By one lane: descriptors of both tiles come while the rows are read. Without it TMA waited for them afterwards (H200,
// 0.4 us): prefetch_maps of sm90/gemm.cuh comes too late.
template <class Config>
__device__ __forceinline__ void prefetch_operands(const TensorMap& a, const TensorMap& b, const TensorMap& a_tail,
                                                  const TensorMap& scale_a) {
    ptx::prefetch_map(&b);
    ptx::prefetch_map(&a);
    ptx::prefetch_map(&a_tail);
    if constexpr (GemmLayout<Config>::kStageScales) ptx::prefetch_map(&scale_a);
}

// The rows of masked groups.
struct MaskedRows {
    __device__ __forceinline__ static bool may_choose(const GroupParams&) { return true; }

    __device__ __forceinline__ static u32 count(const Params& params, const GroupParams& groups, u32 group) {
        const int size = ptx::load_index(groups.groups + group);
        return size < 0 ? 0 : u32(size) < params.m ? u32(size) : params.m;
    }
};

// Whether the second tile takes less. Every warp reads the same rows, so that the whole grid takes the same tile.
// Rows: whether a launch may take it at all, and the rows of a group.
template <class First, class Second, class Rows = MaskedRows>
__device__ __forceinline__ bool takes_second(const Maps& maps, const Params& params, const GroupParams& groups,
                                             const SecondTile& second) {
    static_assert(First::kThreads == Second::kThreads, "both tiles run with the threads of one launch");
    if (!Rows::may_choose(groups)) return false;
    if (__shfl_sync(0xffffffff, threadIdx.x / 32, 0) == 0 && ptx::elect_one()) {
        prefetch_operands<First>(maps.a, maps.b, maps.a_tail, maps.scale_a);
        prefetch_operands<Second>(second.a, second.b, second.a_tail, second.scale_a);
    }
    __syncwarp();
    ptx::wait_for_dependencies();
    u32 first_tiles = 0, second_tiles = 0;  // along m, of this lane's groups
#pragma unroll 1
    for (u32 group = threadIdx.x % 32; group < groups.num_groups; group += 32) {
        const u32 rows = Rows::count(params, groups, group);
        first_tiles += ceil_div(rows, First::kBlockM), second_tiles += ceil_div(rows, Second::kBlockM);
    }
    const auto count_rounds = [](u32 m_tiles, u32 n_tiles) {
        return float(ceil_div(__reduce_add_sync(0xffffffff, m_tiles) * n_tiles, gridDim.x));
    };
    return count_rounds(second_tiles, second.params.num_n_tiles) * second.weight <
           count_rounds(first_tiles, params.num_n_tiles);
}

}  // namespace deep_gemm
