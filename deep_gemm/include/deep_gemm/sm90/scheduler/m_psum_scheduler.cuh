// Tiles of an m-grouped product whose groups' rows lie one after the other, and of whose groups the end of each is
// known: a group starts at the end of the one before, rounded up to the alignment. The walk is that of a dense product
// over the rows up to the last end.
//
// The rows of a tile belong to one group, or are all padding, because groups start at multiples of an alignment that
// the tile divides. Rows behind the end of their group are padding. Where padding is to be zero, it is walked, too, and
// stored as +0; else clusters of padding alone are left out, and other padding is stored as it comes.
// Ends are not trusted: whatever they are, a tile lies within D, its group exists, and the walk ends.
#pragma once

#include "deep_gemm/sm90/scheduler/group_ends.cuh"
#include "deep_gemm/sm90/scheduler/tile_groups.cuh"

namespace deep_gemm {

template <class Config>
struct MPsumScheduler : TileScheduler {
    static constexpr bool kMaySelectRows = true, kMayLoadApart = Config::kClusterM > 1;
    static constexpr u32 kRowsShift = 8;  // `state` holds how many rows of this CTA's tile are no padding
    static_assert(Config::kBlockM < 1u << (32 - kRowsShift), "the rows of a tile fit the state");

    GroupEnds ends;
    u32 m, all_steps, alignment;
    bool stores_padding;
    BandWalk<Config> tiles;

    __device__ __forceinline__ MPsumScheduler(const Params& params, const GroupParams& groups, u32 cluster_rank, u32 m,
                                              u32 all_steps)
        : ends{groups.groups, groups.num_groups, m},
          m(m),
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

    // Rows stand for themselves: whether one is padding its tile says. Padding becomes +0.
    __device__ __forceinline__ static int load_row(const GroupParams&, u32 row, u32) { return int(row); }
    __device__ __forceinline__ static bool keeps(int row, const Tile& tile) {
        return u32(row) - tile.m_start < tile.state >> kRowsShift;
    }
    __device__ __forceinline__ static float replacement(int) { return 0.0f; }

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
            const u32 rows = left < Config::kBlockM ? left : Config::kBlockM;
            m_start = tiles.m_start, n_start = tiles.n_start;
            matrix_b = of.matrix_b();
            num_steps = of.has_steps() ? all_steps : 0;
            state = kValid + (stores_padding && rows < Config::kBlockM ? kSelectsRows : 0) + of.state() +
                    (rows << kRowsShift);
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

}  // namespace deep_gemm
