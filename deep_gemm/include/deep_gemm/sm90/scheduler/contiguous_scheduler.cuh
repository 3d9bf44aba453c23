// Tiles of an m-grouped product whose groups' rows lie one after the other: the walk is that of a dense product, and
// the matrix of B is that of the rows.
//
// The rows of a tile belong to one group, because groups start at multiples of an alignment that the tile divides; any
// of them may be padding (a negative index), wherever it lies. The tile's group is that of its first row that is no
// padding. Where no tile of the cluster has a group that exists, there are no K steps.
#pragma once

#include "deep_gemm/sm90/scheduler/tile_groups.cuh"

namespace deep_gemm {

template <class Config>
struct ContiguousScheduler : TileScheduler {
    static constexpr bool kMaySelectRows = true, kMayLoadApart = Config::kClusterM > 1;
    static constexpr u32 kRows = Config::kBlockM, kChunks = ceil_div(kRows, 32);

    const int* indices;  // the group of each row
    u32 m, num_groups, all_steps;
    BandWalk<Config> tiles;

    __device__ __forceinline__ ContiguousScheduler(const Params& params, const GroupParams& groups, u32 cluster_rank,
                                                   u32 m, u32 all_steps)
        : indices(groups.groups),
          m(m),
          num_groups(groups.num_groups),
          all_steps(all_steps),
          tiles(params, cluster_rank) {
        matrix_a = 0, matrix_d = 0, first_step = 0;
        locate();
    }

    __device__ __forceinline__ void advance() {
        tiles.advance();
        locate();
    }

    // Whether a row with this index is stored as it comes. Rows of another group than their tile's were put there by
    // mistake: they become NaN, because a number that looks right would hide it. Padding becomes +0.
    __device__ __forceinline__ static bool keeps(int row_index, const Tile& tile) {
        return u32(row_index) == tile.matrix_b && tile.num_steps > 0;
    }
    __device__ __forceinline__ static float replacement(int row_index) {
        return row_index < 0 ? 0.0f : __uint_as_float(0x7fffffff);
    }

    // The index of a row; rows beyond the last are never stored.
    __device__ __forceinline__ static int load_row(const GroupParams& groups, u32 row, u32 m) {
        return row < m ? ptx::load_index(groups.groups + row) : -1;
    }

   private:
    __device__ __forceinline__ void locate() {
        state = 0;
        if (!tiles.is_valid()) return;
        m_start = tiles.m_start, n_start = tiles.n_start;
        bool is_uniform = true;  // of this CTA's own tile, which is asked for last
        const auto of = TileGroups::of_cluster(tiles, [&](u32 first_row) {
            is_uniform = true;
            return find_group(first_row, is_uniform);
        });
        matrix_b = of.matrix_b();
        num_steps = of.has_steps() ? all_steps : 0;
        state = kValid + (of.own != TileGroups::kNone && is_uniform ? 0 : kSelectsRows) + of.state();
    }

    // The group of the tile that starts at `first_row`; `is_uniform` becomes false where one of its rows is padding or
    // of another group. A warp looks at 32 rows at once.
    __device__ __forceinline__ u32 find_group(u32 first_row, bool& is_uniform) const {
        int group = -1;
#pragma unroll 4
        for (u32 chunk = 0; chunk < kChunks; ++chunk) {
            const u32 in_tile = 32 * chunk + threadIdx.x % 32, row = first_row + in_tile;
            const bool exists = (kRows % 32 == 0 || in_tile < kRows) && row < m;
            add_chunk(ptx::load_index(indices + (row < m ? row : m - 1)), exists, group, is_uniform);
        }
        return group >= 0 && u32(group) < num_groups ? u32(group) : TileGroups::kNone;
    }

    // `group` becomes the index of the first row that is no padding, `is_uniform` false where a row is padding or
    // differs from it.
    __device__ __forceinline__ static void add_chunk(int index, bool exists, int& group, bool& is_uniform) {
        const u32 found = __ballot_sync(0xffffffff, exists && index >= 0);
        const int first = __shfl_sync(0xffffffff, index, found == 0 ? 0 : __ffs(found) - 1);
        if (group < 0 && found != 0) group = first;
        is_uniform = is_uniform && __all_sync(0xffffffff, !exists || (index >= 0 && index == group));
    }
};

}  // namespace deep_gemm
