// Tiles of an m-grouped product whose groups' rows lie one after the other: the walk is that of a dense product, and the matrix of B is that
// of the rows.
//
// The rows of a cluster's tile belong to one group, because groups start at multiples of an alignment that the tile divides; any of them may
// be padding (a negative index), wherever it lies. The tile's group is that of its first row that is no padding. A tile of padding alone, or of a
// group that does not exist, has no K steps. The indices of the next tile's first rows are asked for one tile ahead.
#pragma once

#include "deep_gemm/group_tile.cuh"
#include "deep_gemm/scheduler.cuh"

namespace deep_gemm {

template <class Config>
struct ContiguousScheduler : GroupTile {
    using Tiles = TileScheduler<Config>;
    static constexpr bool kMaySelectRows = true;
    static constexpr u32 kRows = Config::kBlockM * Config::kClusterM;
    static constexpr u32 kChunks = ceil_div(kRows, 32), kHeld = kChunks < 4 ? kChunks : 4;  // more would not fit the loading warp's registers

    const int* indices;  // the group of each row
    u32 m, num_groups, all_steps;
    Tiles tiles, next;
    int held[kHeld];  // the next tile's indices: of row 32 i + lane, or where there is no such row, of another

    __device__ __forceinline__ ContiguousScheduler(const Params& params, const GroupParams& groups, u32 cluster_rank, u32 m, u32 all_steps)
        : indices(groups.groups), m(m), num_groups(groups.num_groups), all_steps(all_steps), tiles(params, cluster_rank), next(tiles) {
        matrix_a = 0, matrix_d = 0, first_step = 0;
        hold_next();
        advance();
    }

    __device__ __forceinline__ void advance() {
        int index[kHeld];
#pragma unroll
        for (u32 i = 0; i < kHeld; ++i) index[i] = held[i];
        tiles = next;
        next.advance();
        hold_next();
        locate(index);
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
    // This lane's row in 32 of the cluster's tile, and whether it exists.
    __device__ __forceinline__ static u32 row_of(const Tiles& at, u32 chunk) {
        return at.m_start - at.rank_m * Config::kBlockM + 32 * chunk + threadIdx.x % 32;
    }
    __device__ __forceinline__ bool exists(u32 chunk) const {
        return (kRows % 32 == 0 || 32 * chunk + threadIdx.x % 32 < kRows) && row_of(tiles, chunk) < m;
    }

    // Always a load, never a choice between one and a constant: that would wait for the load at once.
    __device__ __forceinline__ int load_chunk(const Tiles& at, u32 chunk) const {
        const u32 row = row_of(at, chunk);
        return ptx::load_index(indices + (row < m ? row : m - 1));
    }

    __device__ __forceinline__ void hold_next() {
#pragma unroll
        for (u32 i = 0; i < kHeld; ++i) held[i] = load_chunk(next, i);
    }

    __device__ __forceinline__ void locate(const int (&index)[kHeld]) {
        state = 0;
        if (!tiles.is_valid()) return;
        m_start = tiles.m_start, n_start = tiles.n_start;
        int group = -1;
        bool is_uniform = true;
#pragma unroll
        for (u32 i = 0; i < kHeld; ++i) add_chunk(index[i], exists(i), group, is_uniform);
#pragma unroll 4
        for (u32 i = kHeld; i < kChunks; ++i) add_chunk(load_chunk(tiles, i), exists(i), group, is_uniform);
        const bool has_group = group >= 0 && u32(group) < num_groups;
        matrix_b = has_group ? u32(group) : 0;
        num_steps = has_group ? all_steps : 0;
        state = kValid + (has_group && is_uniform ? 0 : kSelectsRows);
    }

    // `group` becomes the index of the first row that is no padding, `is_uniform` false where a row is padding or differs from it.
    __device__ __forceinline__ static void add_chunk(int index, bool exists, int& group, bool& is_uniform) {
        const u32 found = __ballot_sync(0xffffffff, exists && index >= 0);
        const int first = __shfl_sync(0xffffffff, index, found == 0 ? 0 : __ffs(found) - 1);
        if (group < 0 && found != 0) group = first;
        is_uniform = is_uniform && __all_sync(0xffffffff, !exists || (index >= 0 && index == group));
    }
};

}  // namespace deep_gemm
