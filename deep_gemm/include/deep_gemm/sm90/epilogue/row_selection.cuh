// Rows of D that are not stored as they come: padding, and rows of a group that is not their tile's. Few tiles have
// some, so this is to be short rather than fast: what the math warps step over costs their instruction cache. All of a
// warpgroup calls it together.
#pragma once

#include "deep_gemm/sm90/epilogue/staged_store.cuh"
#include "deep_gemm/sm90/mainloop/pipeline.cuh"

namespace deep_gemm {

template <class Config, class Scheduler>
struct RowSelection {
    using Layout = GemmLayout<Config>;
    using Store = StagedStore<Config, Scheduler>;
    using Parts = typename Store::Parts;

    const GroupParams& groups;
    u32 m;

    // In the D tile, where a wave's part has been written by every thread; one thread a row.
    __device__ __forceinline__ void apply(const typename Store::Part& part, const Tile& tile) const {
#pragma unroll 1
        for (u32 row = threadIdx.x % 128; row < Parts::kTileM; row += 128) {
            const int index = Scheduler::load_row(groups, part.m_start + row, m);
            if (Scheduler::keeps(index, tile)) continue;
            const float value = Scheduler::replacement(index);
            const u32 word = Config::kFloatD ? __float_as_uint(value) : ptx::pack_bf16(value, value);
#pragma unroll 1
            for (u32 chunk = 0; chunk < Parts::kTileN / Parts::kChunkElements; ++chunk) {
                // Neighbouring rows mostly start at different banks.
                const u32 in_slab = (chunk + row) % Parts::kChunks;
                ptx::store_shared_words(part.address + chunk / Parts::kChunks * Parts::kSlabBytes +
                                            row * Parts::kRowBytes + in_slab * 16,
                                        word, word, word, word);
            }
        }
    }

    // In registers, where nothing is staged. `row`: the warpgroup's first row of the multiplication in the tile.
    __device__ __forceinline__ void apply(float (&final)[Layout::kWaves][Layout::kAccumulators], const Tile& tile,
                                          u32 row) const {
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
    __device__ __forceinline__ static void select(float& value, int index, const Tile& tile) {
        value = Scheduler::keeps(index, tile) ? value : Scheduler::replacement(index);
    }

    __device__ __forceinline__ void select_rows(float (&final)[Layout::kAccumulators], const Tile& tile,
                                                u32 row) const {
        const int low = Scheduler::load_row(groups, row, m), high = Scheduler::load_row(groups, row + 8, m);
#pragma unroll
        for (u32 i = 0; i < Layout::kAccumulators; ++i) select(final[i], i % 4 < 2 ? low : high, tile);
    }

    __device__ __forceinline__ void select_columns(float (&final)[Layout::kAccumulators], const Tile& tile) const {
        const u32 first = tile.m_start + threadIdx.x % 4 * 2;
#pragma unroll
        for (u32 i = 0; i < Layout::kAccumulators; ++i)
            select(final[i], Scheduler::load_row(groups, first + i / 4 * 8 + i % 2, m), tile);
    }
};

}  // namespace deep_gemm
