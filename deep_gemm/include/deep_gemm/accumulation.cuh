// Accumulation onto D (C is D, FP32): one warp of the producer warpgroup loads each tile of C into the D tile in shared memory while the
// tile's main loop runs; the math warps add to it there, and the same warp stores the sum.
//
// TMA could add onto memory instead, but L2 adds FP32 at no more than 1.25 TB/s (H200, 32768 x 4096 x 512: 430 us), and nothing of it is
// asked for before the main loop ends. Each math warpgroup has two barriers: `loaded` (C is in shared memory) and `finished` (one arrival a
// warp: the sum is there).
#pragma once

#include "deep_gemm/epilogue.cuh"
#include "deep_gemm/scheduler.cuh"

namespace deep_gemm {

template <class Config>
struct Accumulation {
    using Layout = GemmLayout<Config>;
    using Tile = StoreTile<Layout::kColumns, Layout::kSwap, Config::kFloatD>;
    using Scheduler = TileScheduler<Config>;
    static constexpr u32 kGroups = Layout::kMathGroups;

    const TensorMap* map;  // of D, in the boxes in which it is stored
    u32 shared, barriers;
    u32 m, whole;  // rows; columns that the map covers

    __device__ __forceinline__ u32 loaded(u32 group) const { return barriers + 8 * group; }
    __device__ __forceinline__ u32 finished(u32 group) const { return loaded(kGroups + group); }

    __device__ __forceinline__ void initialise_barriers() const {
#pragma unroll
        for (u32 group = 0; group < kGroups; ++group) {
            ptx::barrier_init(loaded(group), 1);
            ptx::barrier_init(finished(group), 4);
        }
    }

    // By the whole warp.
    __device__ __forceinline__ void run(Scheduler tile) const {
        if (ptx::elect_one()) {
            if (tile.is_valid()) load_group<0>(tile);
            if (tile.is_valid() && kGroups == 2) load_group<kGroups - 1>(tile);
#pragma unroll 1
            for (u32 phase = 0; tile.is_valid(); phase ^= 1) {
                store_group<0>(tile, phase);
                if (kGroups == 2) store_group<kGroups - 1>(tile, phase);
                tile.advance();
                // The stores of this tile must have read the D tile before the next tile's C overwrites it.
                ptx::tma_store_wait_read<kGroups - 1>();
                if (tile.is_valid()) load_group<0>(tile);
                ptx::tma_store_wait_read<0>();
                if (tile.is_valid() && kGroups == 2) load_group<kGroups - 1>(tile);
            }
        }
        __syncwarp();
    }

   private:
    struct Place {
        u32 from, n_start, m_start;
        bool exists;
    };

    __device__ __forceinline__ Place place(const Scheduler& tile, u32 wave_row) const {
        const u32 m_start = tile.m_start + (Layout::kSwap ? 0 : wave_row), n_start = tile.n_start + (Layout::kSwap ? wave_row : 0);
        return {shared + wave_row / 64 * Tile::kBytes, n_start, m_start, m_start < m && n_start < whole};
    }

    template <u32 kGroup>
    __device__ __forceinline__ void load_group(const Scheduler& tile) const {
        u32 bytes = 0;
#pragma unroll
        for (u32 wave = 0; wave < Layout::kWaves; ++wave) bytes += place(tile, kGroup * Layout::kGroupRows + 64 * wave).exists ? Tile::kBytes : 0;
        ptx::barrier_arrive_expect(loaded(kGroup), bytes);
#pragma unroll
        for (u32 wave = 0; wave < Layout::kWaves; ++wave) {
            const Place at = place(tile, kGroup * Layout::kGroupRows + 64 * wave);
            if (at.exists) Tile::load(map, loaded(kGroup), at.from, at.n_start, at.m_start);
        }
    }

    template <u32 kGroup>
    __device__ __forceinline__ void store_group(const Scheduler& tile, u32 phase) const {
        ptx::barrier_wait(finished(kGroup), phase);
#pragma unroll
        for (u32 wave = 0; wave < Layout::kWaves; ++wave) {
            const Place at = place(tile, kGroup * Layout::kGroupRows + 64 * wave);
            if (at.exists) Tile::store(map, at.from, at.n_start, at.m_start);
        }
        ptx::tma_store_commit();
    }
};

}  // namespace deep_gemm
