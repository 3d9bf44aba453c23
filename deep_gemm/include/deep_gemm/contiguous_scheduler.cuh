// Tiles of an m-grouped product whose groups' rows lie one after the other: the walk is that of a dense product, and the matrix of B is that
// of the rows.
//
// The rows of a cluster's tile belong to one group, because groups start at multiples of an alignment that the tile divides; any of them may
// be padding (a negative index), wherever it lies. The tile's group is that of its first row that is no padding. A tile of padding alone, or of a
// group that does not exist, has no K steps.
#pragma once

#include "deep_gemm/group_tile.cuh"
#include "deep_gemm/scheduler.cuh"

namespace deep_gemm {

template <class Config>
struct ContiguousScheduler : GroupTile {
    using Tiles = TileScheduler<Config>;
    static constexpr bool kMaySelectRows = true;
    static constexpr u32 kRows = Config::kBlockM * Config::kClusterM;

    const int* indices;  // the group of each row
    u32 m, num_groups, all_steps;
    Tiles tiles;

    __device__ __forceinline__ ContiguousScheduler(const Params& params, const GroupParams& groups, u32 cluster_rank, u32 m, u32 all_steps)
        : indices(groups.groups), m(m), num_groups(groups.num_groups), all_steps(all_steps), tiles(params, cluster_rank) {
        matrix_a = 0, matrix_d = 0, first_step = 0;
        locate();
    }

    __device__ __forceinline__ void advance() {
        tiles.advance();
        locate();
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
    __device__ __forceinline__ void locate() {
        state = 0;
        if (!tiles.is_valid()) return;
        m_start = tiles.m_start, n_start = tiles.n_start;
        bool is_uniform = true;
        const int group = find_group(is_uniform);
        const bool has_group = group >= 0 && u32(group) < num_groups;
        matrix_b = has_group ? u32(group) : 0;
        num_steps = has_group ? all_steps : 0;
        state = kValid + (has_group && is_uniform ? 0 : kSelectsRows);
    }

    // The index of the tile's first row that is no padding, or -1; `is_uniform` becomes false where another row differs from it. Four rows a lane are
    // asked for at once, which the loading warp has the time to wait for.
    __device__ __forceinline__ int find_group(bool& is_uniform) const {
        const u32 start = tiles.m_start - tiles.rank_m * Config::kBlockM, lane = threadIdx.x % 32;
        int group = -1;
#pragma unroll 4
        for (u32 row = 0; row < kRows; row += 32) {
            const bool exists = kRows % 32 == 0 || row + lane < kRows;
            const int mine = exists && start + row + lane < m ? ptx::load_index(indices + start + row + lane) : -1;
            const u32 found = __ballot_sync(0xffffffff, mine >= 0);
            const int first = __shfl_sync(0xffffffff, mine, found == 0 ? 0 : __ffs(found) - 1);
            if (group < 0) group = first;
            is_uniform = is_uniform && __all_sync(0xffffffff, !exists || mine == group);
        }
        return group;
    }
};

}  // namespace deep_gemm
