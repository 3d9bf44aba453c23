// What a scheduler gives: tiles of D, one after the other; and what all schedulers share.
//
// A kernel has one scheduler, a class derived from TileScheduler: it is a tile itself, the current one, and `advance`
// makes it the next. Its constructor takes (params, groups, cluster_rank, m, all_steps): m rows in a matrix of D,
// all_steps K steps in the K of the operands.
#pragma once

#include "deep_gemm/sm90/mainloop/operand_maps.cuh"
#include "deep_gemm/sm90/ptx/grouped_ptx.cuh"
#include "deep_gemm/sm90/scheduler/band_walk.cuh"
#include "deep_gemm/sm90/scheduler/group_params.cuh"

namespace deep_gemm {

// A tile of one matrix of D. Matrices of A, B and D are counted from 0, and are all the first where they have no dim of
// groups.
struct Tile {
    u32 m_start, n_start;        // first row and column in the matrix of D; may lie beyond it
    u32 matrix_a, matrix_b, matrix_d;
    u32 first_step, num_steps;   // its steps of K: the first one's place in A and B
    u32 state;                   // a sum of the following; 0: there are no more tiles
    // kSelectsRows: not all of its rows are to be stored as they come.
    // kLoadsApart: the cluster's two tiles along m are of different groups, so that each CTA loads all of its own B.
    // kReadsOnce: no other tile reads its rows of B, and more of B is read than L2 could keep.
    static constexpr u32 kValid = 1, kSelectsRows = 2, kLoadsApart = 4, kReadsOnce = 8;

    __device__ __forceinline__ bool is_valid() const { return state != 0; }
};

// Where a K step of a tile lies in the operands.
struct StepPlace {
    u32 k_step, matrix_a, matrix_b;
};

// What a scheduler says of its tiles besides them; most leave it at this.
struct TileScheduler : Tile {
    // Tensors have rank 3, groups are read from memory, and one warp finds the tiles for all.
    static constexpr bool kIsGrouped = true;
    static constexpr bool kMaySelectRows = false;  // Tile::kSelectsRows occurs
    static constexpr bool kMayLoadApart = false;   // Tile::kLoadsApart occurs
    static constexpr bool kMayReadOnce = false;    // Tile::kReadsOnce occurs
    using OperandMaps = LaunchMaps;

    __device__ __forceinline__ static StepPlace place(const Tile& tile, u32 step, u32) {
        return {tile.first_step + step, tile.matrix_a, tile.matrix_b};
    }
};

// The sum over this lane and those below it.
__device__ __forceinline__ u32 add_lanes_below(u32 value) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 distance = 1; distance < 32; distance *= 2) {
        const u32 other = __shfl_up_sync(0xffffffff, value, distance);
        if (lane >= distance) value += other;
    }
    return value;
}

// Running sums over a list of counts, one for each group; a warp holds those of 32 groups and moves on. All lanes call
// everything together.
struct GroupSums {
    u32 first = 0, before = 0;  // the first group held, and the sum of all before it
    u32 inclusive = 0;          // the sum up to and including this lane's group

    __device__ __forceinline__ u32 total() const { return __shfl_sync(0xffffffff, inclusive, 31); }
    __device__ __forceinline__ u32 end_of(u32 lane) const { return before + __shfl_sync(0xffffffff, inclusive, lane); }
    __device__ __forceinline__ u32 begin_of(u32 lane) const {
        const u32 begin = __shfl_sync(0xffffffff, inclusive, (lane + 31) % 32);
        return before + (lane == 0 ? 0 : begin);
    }
};

}  // namespace deep_gemm
