// The walk over tiles of groups of rows, group by group in bands, of which only those that are counted are visited: a
// running sum of the groups' tiles says which group a tile lies in.
#pragma once

#include "deep_gemm/sm90/scheduler/tile.cuh"

namespace deep_gemm {

// Moves a scheduler to its tile, `tile`, of `n_tiles` cluster tiles along n for each along m. By a whole warp, its
// `load_sums` counts the cluster tiles along m of 32 groups, a lane each, into `sums`; `start_pass` begins another walk
// over all groups, behind the last one, or says that there is none; `set_group` is told which lane's group the tile is
// of, and at which row in it the tile starts.
template <class Config, class Scheduler>
__device__ __forceinline__ void find_group_tile(Scheduler& walk) {
    u32 total = walk.sums.total();
#pragma unroll 1
    while (walk.tile >= (walk.sums.before + total) * walk.n_tiles) {
        walk.sums.before += total;
        walk.sums.first += 32;
        if (walk.sums.first >= walk.num_groups && !walk.start_pass()) {
            walk.state = 0;
            return;
        }
        walk.load_sums();
        total = walk.sums.total();
    }
    const u32 lane =
        __ffs(__ballot_sync(0xffffffff, walk.tile < (walk.sums.before + walk.sums.inclusive) * walk.n_tiles)) - 1;
    const u32 begin = walk.sums.begin_of(lane), end = walk.sums.end_of(lane);
    u32 m_tile, n_tile;
    locate_in_band(walk.tile - begin * walk.n_tiles, end - begin, walk.n_tiles, walk.band, m_tile, n_tile);
    walk.set_group(lane, (m_tile * Config::kClusterM + walk.rank_m) * Config::kBlockM);
    walk.n_start = (n_tile * Config::kClusterN + walk.rank_n) * Config::kBlockN;
}

}  // namespace deep_gemm
