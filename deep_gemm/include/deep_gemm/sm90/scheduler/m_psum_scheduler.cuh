// Tiles of an m-grouped product whose groups' rows lie one after the other, and of whose groups the end of each is
// known: a group starts at the end of the one before, rounded up to the alignment.
//
// The rows of a tile belong to one group, or are all padding, because groups start at multiples of an alignment that
// the tile divides. Rows behind the end of their group are padding. Where padding is to be zero, its tiles are walked,
// too, and stored as +0; else they are left out, and other padding is stored as it comes.
// Ends are not trusted: whatever they are, a tile lies within D, its group exists, and the walk ends.
//
// Single CTAs, and pairs along n, walk the tiles with rows, group by group, then those of padding: tiles lie evenly
// over the CTAs, however few of an alignment's tiles have rows (H200, 32 groups of about 4 rows, 4096 x 7168, tiles of
// 8 rows in a walk over all rows: 462 us, because every sixteenth tile had all the work). Pairs along m walk all rows
// instead: the two of a cluster may be of different groups, so that no group's last tile leaves half a pair idle.
#pragma once

#include "deep_gemm/sm90/scheduler/group_ends.cuh"
#include "deep_gemm/sm90/scheduler/group_walk.cuh"
#include "deep_gemm/sm90/scheduler/tile_groups.cuh"

namespace deep_gemm {

// What both walks say of a row.
struct PsumRows {
    static constexpr bool kMaySelectRows = true;
    static constexpr u32 kRowsShift = 8;  // `state` holds how many rows of this CTA's tile are no padding

    // Rows stand for themselves: whether one is padding its tile says. Padding becomes +0.
    __device__ __forceinline__ static int load_row(const GroupParams&, u32 row, u32) { return int(row); }
    __device__ __forceinline__ static bool keeps(int row, const Tile& tile) {
        return u32(row) - tile.m_start < tile.state >> kRowsShift;
    }
    __device__ __forceinline__ static float replacement(int) { return 0.0f; }

    // The state of a tile of kBlockM rows, of which `rows` are no padding.
    template <u32 kBlockM>
    __device__ __forceinline__ static u32 state_of(u32 rows, bool stores_padding) {
        static_assert(kBlockM < 1u << (32 - kRowsShift), "the rows of a tile fit the state");
        return Tile::kValid + (stores_padding && rows < kBlockM ? Tile::kSelectsRows : 0) + (rows << kRowsShift);
    }
};

// The largest value of this lane and those below it.
__device__ __forceinline__ u32 max_lanes_below(u32 value) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 distance = 1; distance < 32; distance *= 2) {
        const u32 other = __shfl_up_sync(0xffffffff, value, distance);
        if (lane >= distance && other > value) value = other;
    }
    return value;
}

// Group by group. A group starts behind the largest end before it, so that no row is of two groups.
template <class Config>
struct PsumGroupWalk : GroupWalk<Config, PsumGroupWalk<Config>>, PsumRows {
    using Walk = GroupWalk<Config, PsumGroupWalk<Config>>;
    using PsumRows::kMaySelectRows;
    using Walk::num_groups;
    using Walk::sums;
    static_assert(Config::kClusterM == 1, "the tiles of a pair may be of two groups");

    GroupEnds ends;
    u32 alignment, all_steps;
    bool stores_padding, is_padding;  // whether the tiles of padding are walked, and are being walked
    u32 highest;                      // the largest end of the groups before those of the lanes
    u32 start, rows;                  // of the lane's group: its first row, or that of its padding; rows from there on

    __device__ __forceinline__ PsumGroupWalk(const Params& params, const GroupParams& groups, u32 cluster_rank, u32 m,
                                             u32 all_steps)
        : Walk(params, groups, cluster_rank),
          ends{groups.groups, groups.num_groups, m},
          alignment(groups.reserved[kPsumAlignment]),
          all_steps(all_steps),
          stores_padding(groups.reserved[kPsumZeroPadding] != 0),
          is_padding(false),
          highest(0) {
        this->matrix_a = 0, this->matrix_d = 0;
        load_sums();
        this->locate();
    }

    // What the walk asks for.
    __device__ __forceinline__ void load_sums() {
        const u32 group = sums.first + threadIdx.x % 32;
        const u32 end = group < num_groups ? ends.end_of(group) : 0, below = max_lanes_below(end);
        const u32 last = below > highest ? below : highest;  // up to this group
        const u32 shifted = __shfl_up_sync(0xffffffff, last, 1), before = threadIdx.x % 32 == 0 ? highest : shifted;
        highest = __shfl_sync(0xffffffff, last, 31);
        start = align_to_group(before), rows = end > start ? end - start : 0;
        if (is_padding) find_padding(group + 1 < num_groups ? align_to_group(last) : ends.limit);
        sums.inclusive = add_lanes_below(group < num_groups ? ceil_div(rows, Config::kBlockM) : 0);
    }

    __device__ __forceinline__ bool start_pass() {
        const bool starts = stores_padding && !is_padding;
        if (starts) is_padding = true, highest = 0, sums.first = 0;
        return starts;
    }

    __device__ __forceinline__ void set_group(u32 lane, u32 row) {
        const u32 left = __shfl_sync(0xffffffff, rows, lane) - row;
        this->m_start = __shfl_sync(0xffffffff, start, lane) + row;
        this->matrix_b = sums.first + lane;
        this->num_steps = is_padding ? 0 : all_steps;  // without steps +0 is stored
        this->state = state_of<Config::kBlockM>(left < Config::kBlockM ? left : Config::kBlockM, stores_padding);
    }

 private:
    __device__ __forceinline__ u32 align_to_group(u32 row) const { return ceil_div(row, alignment) * alignment; }

    // The tiles between the lane's group and the `next` one, which may begin beyond D.
    __device__ __forceinline__ void find_padding(u32 next) {
        const u32 end = next < ends.limit ? next : ends.limit;
        start += ceil_div(rows, Config::kBlockM) * Config::kBlockM;
        rows = end > start ? end - start : 0;
    }
};

// Over all rows up to the last end, as those of a dense product.
template <class Config>
struct PsumRowWalk : TileScheduler, PsumRows {
    using PsumRows::kMaySelectRows;
    static constexpr bool kMayLoadApart = true;

    GroupEnds ends;
    u32 all_steps, alignment;
    bool stores_padding;
    BandWalk<Config> tiles;

    __device__ __forceinline__ PsumRowWalk(const Params& params, const GroupParams& groups, u32 cluster_rank, u32 m,
                                           u32 all_steps)
        : ends{groups.groups, groups.num_groups, m},
          all_steps(all_steps),
          alignment(groups.reserved[kPsumAlignment]),
          stores_padding(groups.reserved[kPsumZeroPadding] != 0),
          tiles(limit(params), cluster_rank) {
        matrix_a = 0, matrix_d = 0, first_step = 0;
        locate();
    }

    __device__ __forceinline__ void advance() {
        tiles.advance();
        locate();
    }

 private:
    // The launch's parameters with the tiles that are walked: at least one, which is left out where it has no rows.
    __device__ __forceinline__ Params limit(Params params) const {
        const u32 last = ends.end_of(ends.count - 1), used = ceil_div(last, Config::kBlockM);
        if (!stores_padding && used < params.num_m_tiles) params.num_m_tiles = used > 0 ? used : 1;
        return params;
    }

    __device__ __forceinline__ void locate() {
#pragma unroll 1
        for (; tiles.is_valid(); tiles.advance()) {
            const auto of = TileGroups::of_cluster(tiles, [&](u32 first_row) { return find_group(first_row); });
            if (!of.has_steps() && !stores_padding) continue;
            const u32 end = of.own != TileGroups::kNone ? ends.end_of(of.own) : 0;
            const u32 left = end > tiles.m_start ? end - tiles.m_start : 0;
            m_start = tiles.m_start, n_start = tiles.n_start;
            matrix_b = of.matrix_b();
            num_steps = of.has_steps() ? all_steps : 0;
            state = of.state() +
                    state_of<Config::kBlockM>(left < Config::kBlockM ? left : Config::kBlockM, stores_padding);
            return;
        }
        state = 0;
    }

    // The group of the tile that starts at `first_row`.
    __device__ __forceinline__ u32 find_group(u32 first_row) const {
        const u32 group = ends.find(first_row);
        return group < ends.count && ends.start_of(group, alignment) <= first_row ? group : TileGroups::kNone;
    }
};

// For the choice between two tiles (tile_choice.cuh). Tiles of padding that becomes zero are as small as the others:
// the first, large ones are for them.
struct PsumGroupRows {
    __device__ __forceinline__ static bool may_choose(const GroupParams& groups) {
        return groups.reserved[kPsumZeroPadding] == 0;
    }

    __device__ __forceinline__ static u32 count(const Params& params, const GroupParams& groups, u32 group) {
        const GroupEnds ends{groups.groups, groups.num_groups, params.m};
        const u32 start = ends.start_of(group, groups.reserved[kPsumAlignment]), end = ends.end_of(group);
        return end > start ? end - start : 0;
    }
};

template <class Config, bool kPairs = (Config::kClusterM > 1)>
struct PsumWalkOf {
    using Type = PsumGroupWalk<Config>;
};
template <class Config>
struct PsumWalkOf<Config, true> {
    using Type = PsumRowWalk<Config>;
};

template <class Config>
using MPsumScheduler = typename PsumWalkOf<Config>::Type;

}  // namespace deep_gemm
