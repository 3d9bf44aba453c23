// Tiles of an m-grouped product whose groups' rows lie one after the other: the walk is that of a dense product, and the matrix of B is that
// of the rows.
//
// The rows of a cluster's tile belong to one group, because groups start at multiples of an alignment that the tile divides; any of them may
// be padding (a negative index), wherever it lies. The tile's group is that of its first row that is no padding. A tile of padding alone, or of a
// group that does not exist, has no K steps. The index of the next tile's first row is asked for one tile ahead.
#pragma once

#include "deep_gemm/group_tile.cuh"
#include "deep_gemm/scheduler.cuh"

namespace deep_gemm {

template <class Config>
struct ContiguousScheduler : GroupTile {
    using Tiles = TileScheduler<Config>;
    static constexpr bool kSelectsRows = true;
    static constexpr u32 kClusterRows = Config::kBlockM * Config::kClusterM;

    const int* indices;  // the group of each row
    u32 m, num_groups, all_steps;
    Tiles tiles, next;
    int next_index;  // of the next tile's first row
    int index;       // of the tile; what its rows must have

    __device__ __forceinline__ ContiguousScheduler(const Params& params, const GroupParams& groups, u32 cluster_rank, u32 m, u32 all_steps)
        : indices(groups.groups), m(m), num_groups(groups.num_groups), all_steps(all_steps), tiles(params, cluster_rank), next(tiles) {
        const int first = load_first(tiles);
        prepare_next();
        locate(first);
    }

    __device__ __forceinline__ bool is_valid() const { return tiles.is_valid(); }

    __device__ __forceinline__ void advance() {
        const int first = next_index;
        tiles = next;
        prepare_next();
        locate(first);
    }

    // What a row of D with index `row_index` holds for `value` of the product: rows of another group than the tile's were put there by mistake,
    // and a number that looks right would hide it.
    __device__ __forceinline__ float select(float value, int row_index) const {
        if (row_index < 0) return 0.0f;
        return row_index == index && num_steps == all_steps ? value : __uint_as_float(0x7fffffff);
    }

    __device__ __forceinline__ int load_row(u32 row) const { return row < m ? ptx::load_index(indices + row) : -1; }

   private:
    __device__ __forceinline__ static u32 first_row(const Tiles& at) { return at.m_start - at.rank_m * Config::kBlockM; }
    __device__ __forceinline__ int load_first(const Tiles& at) const { return at.is_valid() ? load_row(first_row(at)) : -1; }

    __device__ __forceinline__ void prepare_next() {
        next.advance();
        next_index = load_first(next);
    }

    // The index of the first row of the tile that is no padding, or -1.
    __device__ __forceinline__ int find_index() const {
        const u32 start = first_row(tiles), lane = threadIdx.x % 32;
#pragma unroll 1
        for (u32 row = 0; row < kClusterRows; row += 32) {
            const int mine = row + lane < kClusterRows ? load_row(start + row + lane) : -1;
            const u32 found = __ballot_sync(0xffffffff, mine >= 0);
            if (found != 0) return __shfl_sync(0xffffffff, mine, __ffs(found) - 1);
        }
        return -1;
    }

    __device__ __forceinline__ void locate(int first) {
        if (!tiles.is_valid()) return;
        index = first >= 0 ? first : find_index();
        const bool has_group = index >= 0 && u32(index) < num_groups;
        m_start = tiles.m_start, n_start = tiles.n_start;
        matrix_a = 0, matrix_b = has_group ? u32(index) : 0, matrix_d = 0;
        first_step = 0, num_steps = has_group ? all_steps : 0;
    }
};

}  // namespace deep_gemm
