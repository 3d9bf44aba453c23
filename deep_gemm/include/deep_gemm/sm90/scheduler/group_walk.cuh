// The walk over tiles of groups of rows, group by group in bands, of which only those that are counted are visited: a
// running sum of the groups' tiles says which group a tile lies in.
#pragma once

#include "deep_gemm/sm90/scheduler/tile.cuh"

namespace deep_gemm {

// What a walk keeps to say Tile::kReadsOnce: the bytes of one group's B. Nothing where it never does, for a value that
// no one needs may change the machine code of the others.
template <bool kMayReadOnce>
struct GroupWeight {};
template <>
struct GroupWeight<true> {
    u64 weight_bytes;
};

// Most tokens of a tile that may say Tile::kReadsOnce.
constexpr u32 kMostTokensOnce = 64;

// Few tokens of each group: their tile holds all of them, and the kernel does little but read B. With 256 rows of B in
// a tile, or where an SM has the memory for three CTAs, Tile::kReadsOnce gained nothing (docs/experiments.md).
template <class Config>
__device__ __forceinline__ constexpr bool may_read_once() {
    constexpr u32 kSmBytes = 233472, kReserved = 1024;  // as in csrc/core/legality.hpp; the tile queue is left out
    return Config::kSwapAB && Config::kBlockM <= kMostTokensOnce && Config::kBlockN <= 128 &&
           3 * (Config::kSharedBytes + kReserved) > kSmBytes && Config::kClusterM * Config::kClusterN == 1 &&
           !Config::kMnMajorB;
}

// A scheduler that walks so; `Walk` is the class derived from it. By a whole warp, its `load_sums` counts the cluster
// tiles along m of 32 groups, a lane each, into `sums`; `start_pass` begins another walk over all groups, behind the
// last one, or says that there is none; `set_group` is told which lane's group the tile is of, and at which row in it
// the tile starts. Its constructor loads the first sums and locates the first tile.
template <class Config, class Walk>
struct GroupWalk : TileScheduler, GroupWeight<may_read_once<Config>()> {
    static constexpr u32 kClusterSize = Config::kClusterM * Config::kClusterN;
    static constexpr bool kMayReadOnce = may_read_once<Config>();
    // Bytes that are read of B, several times what L2 holds, from which on Tile::kReadsOnce gains: most tiles then take
    // 0.98 to 0.99 of the time on average, with 67 to 235 MB 0.99 to 1.01 (H200, docs/experiments.md).
    static constexpr u64 kLargeBytes = 250000000;

    u32 num_groups, n_tiles, band;  // n_tiles: cluster tiles along n for each along m
    u32 rank_m, rank_n;
    u32 tile, step;
    GroupSums sums;  // of cluster tiles along m

    __device__ __forceinline__ GroupWalk(const Params& params, const GroupParams& groups, u32 cluster_rank)
        : num_groups(groups.num_groups),
          n_tiles(ceil_div(params.num_n_tiles, Config::kClusterN)),
          band(params.band),
          rank_m(Config::kClusterM > 1 ? cluster_rank : 0),
          rank_n(Config::kClusterN > 1 ? cluster_rank : 0),
          tile(blockIdx.x / kClusterSize),
          step(gridDim.x / kClusterSize) {
        first_step = 0;
        if constexpr (kMayReadOnce) this->weight_bytes = u64(params.n) * params.k * Config::kElementBytes;
    }

    __device__ __forceinline__ void advance() {
        tile += step;
        locate();
    }

    // Makes `tile` the current one.
    __device__ __forceinline__ void locate() {
        Walk& walk = static_cast<Walk&>(*this);
        u32 total = sums.total();
#pragma unroll 1
        while (tile >= (sums.before + total) * n_tiles) {
            sums.before += total;
            sums.first += 32;
            if (sums.first >= num_groups && !walk.start_pass()) {
                state = 0;
                return;
            }
            walk.load_sums();
            total = sums.total();
        }
        const u32 lane = __ffs(__ballot_sync(0xffffffff, tile < (sums.before + sums.inclusive) * n_tiles)) - 1;
        const u32 begin = sums.begin_of(lane), end = sums.end_of(lane);
        u32 m_tile, n_tile;
        locate_in_band(tile - begin * n_tiles, end - begin, n_tiles, band, m_tile, n_tile);
        walk.set_group(lane, (m_tile * Config::kClusterM + rank_m) * Config::kBlockM);
        if constexpr (kMayReadOnce) {
            state = (state & ~kReadsOnce) | (reads_much_once() ? kReadsOnce : 0);
        }
        n_start = (n_tile * Config::kClusterN + rank_n) * Config::kBlockN;
    }

   private:
    // Whether the groups that have rows have much B, and one tile along m each: where some had two, most tiles took up
    // to 1.03 of the time. By the 32 groups held, as if the others were like them; by the whole warp.
    __device__ __forceinline__ bool reads_much_once() const {
        const u32 below = __shfl_up_sync(0xffffffff, sums.inclusive, 1);
        const bool has_rows = sums.inclusive > (threadIdx.x % 32 == 0 ? 0 : below);
        const u32 count = __popc(__ballot_sync(0xffffffff, has_rows));
        const u32 left = num_groups - sums.first, held = left < 32 ? left : 32;
        return sums.total() == count && count * this->weight_bytes * num_groups >= kLargeBytes * held;
    }
};

}  // namespace deep_gemm
