// Accumulation onto D (C is D, FP32) by one warp of the producer warpgroup: it loads each tile of C into a D tile in
// shared memory while the tile's main loop runs; the math warps add to it there, and the same warp stores the sum.
// Where two D tiles fit (Layout::kTilesD), C is loaded one tile ahead, into the one that the sum before has left.
//
// Where K is long TMA adds onto memory instead (Config::kReduceAdd); not with few steps: L2 adds FP32 at no more than
// 1.25 TB/s (H200, 32768 x 4096 x 512: 430 us), and nothing of it is asked for before the main loop ends; on the
// other hand a tile then needs 1,400 cycles besides its steps instead of 2,000 to 2,200. For each D tile, each math
// warpgroup has two barriers: `loaded` (C is in shared memory) and `finished` (one arrival a warp: the sum is there).
#pragma once

#include "deep_gemm/sm90/epilogue/staged_store.cuh"
#include "deep_gemm/sm90/mainloop/ring.cuh"

namespace deep_gemm {

template <class Config, class Scheduler>
struct Accumulation {
    using Layout = GemmLayout<Config>;
    using Store = StagedStore<Config, Scheduler>;
    using Place = Ring<Layout::kTilesD>;
    static constexpr u32 kGroups = Layout::kMathGroups;
    static constexpr bool kAhead = Layout::kTilesD == 2;

    Store d;
    u32 barriers;

    __device__ __forceinline__ u32 loaded(u32 group, u32 place) const {
        return barriers + 8 * (group + 2 * kGroups * place);
    }
    __device__ __forceinline__ u32 finished(u32 group, u32 place) const { return loaded(kGroups + group, place); }

    __device__ __forceinline__ void initialise_barriers() const {
#pragma unroll
        for (u32 place = 0; place < Layout::kTilesD; ++place)
#pragma unroll
            for (u32 group = 0; group < kGroups; ++group) {
                ptx::barrier_init(loaded(group, place), 1);
                ptx::barrier_init(finished(group, place), 4);
            }
    }

    // By the whole warp; one lane issues, always the same.
    template <class Walk>
    __device__ __forceinline__ void run(Walk walk) const {
        Place place;
        Tile tile = walk.first(), last = tile;  // to be stored next; asked for last
        load_group<0>(tile, 0);
        if (kGroups == 2) load_group<kGroups - 1>(tile, 0);
        if (kAhead && tile.is_valid()) {
            last = walk.next();
            load_group<0>(last, 1);
            if (kGroups == 2) load_group<kGroups - 1>(last, 1);
        }
#pragma unroll 1
        for (; tile.is_valid(); place.advance()) {
            store_group<0>(tile, place);
            if (kGroups == 2) store_group<kGroups - 1>(tile, place);
            tile = last;
            if (!kAhead || last.is_valid()) last = walk.next();  // nothing follows a tile that is not valid
            if (!kAhead) tile = last;
            // The stores of a tile must have read the D tile before the next C overwrites it.
            if (ptx::elect_one()) ptx::tma_store_wait_read<kGroups - 1>();
            __syncwarp();
            load_group<0>(last, place.stage);
            if (ptx::elect_one()) ptx::tma_store_wait_read<0>();
            __syncwarp();
            if (kGroups == 2) load_group<kGroups - 1>(last, place.stage);
        }
    }

   private:
    template <u32 kGroup>
    __device__ __forceinline__ void load_group(const Tile& tile, u32 place) const {
        if (tile.is_valid() && ptx::elect_one()) {
            u32 bytes = 0;
#pragma unroll
            for (u32 wave = 0; wave < Layout::kWaves; ++wave)
                bytes += d.part(tile, place, kGroup, wave).exists ? Store::Parts::kBytes : 0;
            ptx::barrier_arrive_expect(loaded(kGroup, place), bytes);
#pragma unroll
            for (u32 wave = 0; wave < Layout::kWaves; ++wave) {
                const auto part = d.part(tile, place, kGroup, wave);
                if (part.exists) d.load(part, tile.matrix_d, loaded(kGroup, place));
            }
        }
        __syncwarp();
    }

    template <u32 kGroup>
    __device__ __forceinline__ void store_group(const Tile& tile, const Place& place) const {
        ptx::barrier_wait(finished(kGroup, place.stage), place.phase);
        if (ptx::elect_one()) {
#pragma unroll
            for (u32 wave = 0; wave < Layout::kWaves; ++wave) {
                const auto part = d.part(tile, place.stage, kGroup, wave);
                if (part.exists) d.store(part, tile.matrix_d);
            }
            ptx::tma_store_commit();
        }
        __syncwarp();
    }
};

}  // namespace deep_gemm
