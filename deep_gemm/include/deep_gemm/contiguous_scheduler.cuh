// Tiles of an m-grouped product whose groups' rows lie one after the other: the walk is that of a dense product, and the matrix of B is that
// of the rows.
//
// The rows of a cluster's tile belong to one group, because groups start at multiples of an alignment that the tile divides; any of them may
// be padding (a negative index), wherever it lies. The tile's group is that of its first row that is no padding. A tile of padding alone, or of a
// group that does not exist, has no K steps. A warp's lanes hold the indices of all rows of a tile, and ask for them one tile ahead.
#pragma once

#include "deep_gemm/group_tile.cuh"
#include "deep_gemm/scheduler.cuh"

namespace deep_gemm {

template <class Config>
struct ContiguousScheduler : GroupTile {
    using Tiles = TileScheduler<Config>;
    static constexpr bool kMaySelectRows = true;
    static constexpr u32 kRows = Config::kBlockM * Config::kClusterM, kHeld = ceil_div(kRows, 32);

    const int* indices;  // the group of each row
    u32 m, num_groups, all_steps;
    Tiles next;
    int next_index[kHeld];  // of the next tile's rows; row 32 i + lane

    __device__ __forceinline__ ContiguousScheduler(const Params& params, const GroupParams& groups, u32 cluster_rank, u32 m, u32 all_steps)
        : indices(groups.groups), m(m), num_groups(groups.num_groups), all_steps(all_steps), next(params, cluster_rank) {
        load_next();
        advance();
    }

    __device__ __forceinline__ void advance() {
        const bool exists = next.is_valid();
        m_start = next.m_start, n_start = next.n_start;
        int index[kHeld];
#pragma unroll
        for (u32 i = 0; i < kHeld; ++i) index[i] = next_index[i];
        next.advance();
        load_next();
        if (exists) {
            locate(index);
        } else {
            state = 0;
        }
    }

    // What row `row` of D holds for `value` of the product. Rows of another group than their tile's were put there by mistake: a number that looks
    // right would hide it.
    __device__ __forceinline__ static float select(float value, int row_index, const GroupTile& tile) {
        if (row_index < 0) return 0.0f;
        return u32(row_index) == tile.matrix_b && tile.num_steps > 0 ? value : __uint_as_float(0x7fffffff);
    }

    // The index of a row; rows beyond the last are never stored.
    __device__ __forceinline__ static int load_row(const GroupParams& groups, u32 row, u32 m) { return row < m ? ptx::load_index(groups.groups + row) : -1; }

   private:
    __device__ __forceinline__ void load_next() {
        const u32 first = next.m_start - next.rank_m * Config::kBlockM, lane = threadIdx.x % 32;
#pragma unroll
        for (u32 i = 0; i < kHeld; ++i) {
            const u32 row = 32 * i + lane;
            next_index[i] = next.is_valid() && row < kRows && first + row < m ? ptx::load_index(indices + first + row) : -1;
        }
    }

    // The index of the tile's first row that is no padding, or -1.
    __device__ __forceinline__ static int find_first(const int (&index)[kHeld]) {
        int first = -1;
#pragma unroll
        for (u32 i = kHeld; i-- > 0;) {
            const u32 found = __ballot_sync(0xffffffff, index[i] >= 0);
            const int candidate = __shfl_sync(0xffffffff, index[i], found == 0 ? 0 : __ffs(found) - 1);
            if (found != 0) first = candidate;
        }
        return first;
    }

    __device__ __forceinline__ void locate(const int (&index)[kHeld]) {
        const int group = find_first(index);
        const bool has_group = group >= 0 && u32(group) < num_groups;
        bool is_uniform = has_group;
#pragma unroll
        for (u32 i = 0; i < kHeld; ++i) is_uniform = is_uniform && (32 * i + threadIdx.x % 32 >= kRows || index[i] == group);
        matrix_a = 0, matrix_b = has_group ? u32(group) : 0, matrix_d = 0;
        first_step = 0, num_steps = has_group ? all_steps : 0;
        state = kValid + (__all_sync(0xffffffff, is_uniform) ? 0 : kSelectsRows);
    }
};

}  // namespace deep_gemm
