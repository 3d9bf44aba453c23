// Epilogue of grouped kernels: the tiles of epilogue.cuh and the stores of epilogue_direct.cuh, into one matrix of a tensor of rank 3.
//
// In C's accumulation (C is D) one warp of the producer warpgroup loads C into the D tile and stores the sum, as accumulation.cuh says.
#pragma once

#include "deep_gemm/accumulation.cuh"
#include "deep_gemm/epilogue.cuh"
#include "deep_gemm/epilogue_direct.cuh"
#include "deep_gemm/tile_queue.cuh"

namespace deep_gemm {

// The wave-sized parts of a tile of D between shared memory and its matrix.
template <class Config>
struct GroupedStore {
    using Layout = GemmLayout<Config>;
    using Tile = StoreTile<Layout::kColumns, Layout::kSwap, Config::kFloatD>;

    const TensorMap* map;
    u32 shared;     // the D tile
    u32 m, whole;   // rows; columns that the map covers

    // A wave's part: where it lies in shared memory and in D, and whether any of it exists.
    struct Part {
        u32 address, n_start, m_start;
        bool exists;
    };

    __device__ __forceinline__ Part part(const GroupTile& tile, u32 row) const {
        const u32 m_start = tile.m_start + (Layout::kSwap ? 0 : row), n_start = tile.n_start + (Layout::kSwap ? row : 0);
        return {shared + row / 64 * Tile::kBytes, n_start, m_start, m_start < m && n_start < whole};
    }

    __device__ __forceinline__ void store(const Part& part, u32 matrix) const {
#pragma unroll
        for (u32 slab = 0; slab < Tile::kTileN / Tile::kSlab; ++slab)
            ptx::tma_store_3d(map, part.address + slab * Tile::kSlabBytes, part.n_start + slab * Tile::kSlab, part.m_start, matrix);
    }

    // Completes Tile::kBytes at `barrier`, whatever part of the tile exists.
    __device__ __forceinline__ void load(const Part& part, u32 matrix, u32 barrier) const {
#pragma unroll
        for (u32 slab = 0; slab < Tile::kTileN / Tile::kSlab; ++slab)
            ptx::tma_load_3d(map, barrier, part.address + slab * Tile::kSlabBytes, part.n_start + slab * Tile::kSlab, part.m_start, matrix);
    }
};

// What the warp does that loads C and stores the sum; all lanes call everything together, one issues.
template <class Config>
struct GroupedAccumulation {
    using Layout = GemmLayout<Config>;
    using Queue = TileQueue<Config>;
    using Store = GroupedStore<Config>;
    static constexpr u32 kGroups = Layout::kMathGroups;

    const Accumulation<Config>& barriers;
    Store d;

    __device__ __forceinline__ void run(const Queue& queue) const {
        Ring<Queue::kDepth> places;
        GroupTile tile = queue.take(places);
        load_all(tile);
#pragma unroll 1
        for (u32 phase = 0; tile.is_valid(); phase ^= 1) {
            store_group<0>(tile, phase);
            if (kGroups == 2) store_group<kGroups - 1>(tile, phase);
            tile = queue.take(places);
            if (ptx::elect_one()) ptx::tma_store_wait_read<0>();  // the sums must have left the D tile before the next tile's C overwrites it
            __syncwarp();
            load_all(tile);
        }
    }

   private:
    __device__ __forceinline__ void load_all(const GroupTile& tile) const {
        if (!tile.is_valid()) return;
        load_group<0>(tile);
        if (kGroups == 2) load_group<kGroups - 1>(tile);
    }

    template <u32 kGroup>
    __device__ __forceinline__ void load_group(const GroupTile& tile) const {
        if (ptx::elect_one()) {
            u32 bytes = 0;
#pragma unroll
            for (u32 wave = 0; wave < Layout::kWaves; ++wave) bytes += d.part(tile, kGroup * Layout::kGroupRows + 64 * wave).exists ? Store::Tile::kBytes : 0;
            ptx::barrier_arrive_expect(barriers.loaded(kGroup), bytes);
#pragma unroll
            for (u32 wave = 0; wave < Layout::kWaves; ++wave) {
                const auto part = d.part(tile, kGroup * Layout::kGroupRows + 64 * wave);
                if (part.exists) d.load(part, tile.matrix_d, barriers.loaded(kGroup));
            }
        }
        __syncwarp();
    }

    template <u32 kGroup>
    __device__ __forceinline__ void store_group(const GroupTile& tile, u32 phase) const {
        ptx::barrier_wait(barriers.finished(kGroup), phase);
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

// Rows of D that are not stored as they come: padding, and rows of a group that is not their tile's. Few tiles have some, so this is to be short
// rather than fast: what the math warps step over costs their instruction cache. All of a warpgroup calls it together.
template <class Config, class Scheduler>
struct RowSelection {
    using Layout = GemmLayout<Config>;
    using Tile = typename GroupedStore<Config>::Tile;

    const GroupParams& groups;
    u32 m;

    // In the D tile, where a wave's part has been written by every thread; one thread a row.
    __device__ __forceinline__ void apply(const typename GroupedStore<Config>::Part& part, const GroupTile& tile) const {
#pragma unroll 1
        for (u32 row = threadIdx.x % 128; row < Tile::kTileM; row += 128) {
            const int index = Scheduler::load_row(groups, part.m_start + row, m);
            if (Scheduler::keeps(index, tile)) continue;
            const float value = Scheduler::replacement(index);
            const u32 word = Config::kFloatD ? __float_as_uint(value) : ptx::pack_bf16(value, value);
#pragma unroll 1
            for (u32 chunk = 0; chunk < Tile::kTileN / Tile::kChunkElements; ++chunk) {
                const u32 in_slab = (chunk + row) % Tile::kChunks;  // neighbouring rows start at different banks
                ptx::store_shared_words(part.address + chunk / Tile::kChunks * Tile::kSlabBytes + row * Tile::kRowBytes + in_slab * 16, word, word, word, word);
            }
        }
    }

    // In registers, where nothing is staged. `row`: the warpgroup's first row of the multiplication in the tile.
    __device__ __forceinline__ void apply(float (&final)[Layout::kWaves][Layout::kAccumulators], const GroupTile& tile, u32 row) const {
#pragma unroll
        for (u32 wave = 0; wave < Layout::kWaves; ++wave) {
            if constexpr (Layout::kSwap) {
                select_columns(final[wave], tile);
            } else {
                select_rows(final[wave], tile, thread_row(tile.m_start + row + 64 * wave));
            }
        }
    }

   private:
    __device__ __forceinline__ static void select(float& value, int index, const GroupTile& tile) {
        value = Scheduler::keeps(index, tile) ? value : Scheduler::replacement(index);
    }

    __device__ __forceinline__ void select_rows(float (&final)[Layout::kAccumulators], const GroupTile& tile, u32 row) const {
        const int low = Scheduler::load_row(groups, row, m), high = Scheduler::load_row(groups, row + 8, m);
#pragma unroll
        for (u32 i = 0; i < Layout::kAccumulators; ++i) select(final[i], i % 4 < 2 ? low : high, tile);
    }

    __device__ __forceinline__ void select_columns(float (&final)[Layout::kAccumulators], const GroupTile& tile) const {
        const u32 first = tile.m_start + threadIdx.x % 4 * 2;
#pragma unroll
        for (u32 i = 0; i < Layout::kAccumulators; ++i) select(final[i], Scheduler::load_row(groups, first + i / 4 * 8 + i % 2, m), tile);
    }
};

}  // namespace deep_gemm
