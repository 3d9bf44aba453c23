// Accumulation onto D (C is D, FP32) by one warp of the producer warpgroup: it loads each tile of C into the D tile in
// shared memory while the tile's main loop runs; the math warps add to it there, and the same warp stores the sum.
//
// Where K is long TMA adds onto memory instead (Config::kReduceAdd); not with few steps: L2 adds FP32 at no more than
// 1.25 TB/s (H200, 32768 x 4096 x 512: 430 us), and nothing of it is asked for before the main loop ends; on the
// other hand a tile then needs 1,400 cycles besides its steps instead of 2,000 to 2,200. Each math warpgroup has two
// barriers: `loaded` (C is in shared memory) and `finished` (one arrival a warp: the sum is there).
#pragma once

#include "deep_gemm/sm90/epilogue/staged_store.cuh"

namespace deep_gemm {

template <class Config, class Scheduler>
struct Accumulation {
    using Layout = GemmLayout<Config>;
    using Store = StagedStore<Config, Scheduler>;
    static constexpr u32 kGroups = Layout::kMathGroups;

    Store d;
    u32 barriers;

    __device__ __forceinline__ u32 loaded(u32 group) const { return barriers + 8 * group; }
    __device__ __forceinline__ u32 finished(u32 group) const { return loaded(kGroups + group); }

    __device__ __forceinline__ void initialise_barriers() const {
#pragma unroll
        for (u32 group = 0; group < kGroups; ++group) {
            ptx::barrier_init(loaded(group), 1);
            ptx::barrier_init(finished(group), 4);
        }
    }

    // By the whole warp; one lane issues, always the same.
    template <class Walk>
    __device__ __forceinline__ void run(Walk walk) const {
        Tile tile = walk.first();
        load_group<0>(tile);
        if (kGroups == 2) load_group<kGroups - 1>(tile);
#pragma unroll 1
        for (u32 phase = 0; tile.is_valid(); phase ^= 1) {
            store_group<0>(tile, phase);
            if (kGroups == 2) store_group<kGroups - 1>(tile, phase);
            tile = walk.next();
            // The stores of the last tile must have read the D tile before this one's C overwrites it.
            if (ptx::elect_one()) ptx::tma_store_wait_read<kGroups - 1>();
            __syncwarp();
            load_group<0>(tile);
            if (ptx::elect_one()) ptx::tma_store_wait_read<0>();
            __syncwarp();
            if (kGroups == 2) load_group<kGroups - 1>(tile);
        }
    }

   private:
    template <u32 kGroup>
    __device__ __forceinline__ void load_group(const Tile& tile) const {
        if (tile.is_valid() && ptx::elect_one()) {
            u32 bytes = 0;
#pragma unroll
            for (u32 wave = 0; wave < Layout::kWaves; ++wave)
                bytes += d.part(tile, kGroup * Layout::kGroupRows + 64 * wave).exists ? Store::Parts::kBytes : 0;
            ptx::barrier_arrive_expect(loaded(kGroup), bytes);
#pragma unroll
            for (u32 wave = 0; wave < Layout::kWaves; ++wave) {
                const auto part = d.part(tile, kGroup * Layout::kGroupRows + 64 * wave);
                if (part.exists) d.load(part, tile.matrix_d, loaded(kGroup));
            }
        }
        __syncwarp();
    }

    template <u32 kGroup>
    __device__ __forceinline__ void store_group(const Tile& tile, u32 phase) const {
        ptx::barrier_wait(finished(kGroup), phase);
        if (ptx::elect_one()) {
#pragma unroll
            for (u32 wave = 0; wave < Layout::kWaves; ++wave) {
                const auto part = d.part(tile, kGroup * Layout::kGroupRows + 64 * wave);
                if (part.exists) d.store(part, tile.matrix_d);
            }
            ptx::tma_store_commit();
        }
        __syncwarp();
    }
};

}  // namespace deep_gemm
