// A tile of D between the D tile in shared memory and its matrix, by TMA, in the parts of one 64-row wave of a math
// warpgroup each.
#pragma once

#include "deep_gemm/sm90/epilogue/store_tile.cuh"
#include "deep_gemm/sm90/gemm_layout.cuh"
#include "deep_gemm/sm90/mainloop/tensor_access.cuh"
#include "deep_gemm/sm90/scheduler/tile.cuh"

namespace deep_gemm {

template <class Config, class Scheduler>
struct StagedStore {
    using Layout = GemmLayout<Config>;
    using Access = TensorAccess<Scheduler::kIsGrouped>;
    using Parts = StoreTile<Layout::kColumns, Layout::kSwap, Config::kFloatD,
                            (Config::kBlockM > 64 || Layout::kBeside)>;

    const TensorMap* map;
    u32 shared;     // the D tiles
    u32 m, whole;   // rows; columns that the map covers

    // A wave's part: where it lies in shared memory and in D, and whether any of it exists.
    struct Part {
        u32 address, n_start, m_start;
        bool exists;
    };

    // The last whole 16 bytes of a row of n columns: where the map of D ends.
    __device__ __forceinline__ static u32 count_whole(u32 n) {
        return n / Parts::kChunkElements * Parts::kChunkElements;
    }

    // `place`: which D tile.
    __device__ __forceinline__ Part part(const Tile& tile, u32 place, u32 group, u32 wave) const {
        const u32 row = group * Layout::kRowStep + 64 * wave, column = group * Layout::kColumnStep,
                  index = Layout::kBeside ? group : row / 64;
        const u32 m_start = tile.m_start + (Layout::kSwap ? 0 : row),
                  n_start = tile.n_start + (Layout::kSwap ? row : column);
        return {shared + place * Layout::kTileBytesD + index * Parts::kBytes, n_start, m_start,
                m_start < m && n_start < whole};
    }

    __device__ __forceinline__ void store(const Part& part, u32 matrix) const {
#pragma unroll
        for (u32 slab = 0; slab < Parts::kTileN / Parts::kSlab; ++slab) {
            const u32 from = part.address + slab * Parts::kSlabBytes, column = part.n_start + slab * Parts::kSlab;
            if constexpr (Layout::kAdds && !Layout::kLoadsC) {
                Access::add(map, from, column, part.m_start, matrix);
            } else {
                Access::store(map, from, column, part.m_start, matrix);
            }
        }
    }

    // Completes Parts::kBytes at `barrier`, whatever part of the tile exists.
    __device__ __forceinline__ void load(const Part& part, u32 matrix, u32 barrier) const {
#pragma unroll
        for (u32 slab = 0; slab < Parts::kTileN / Parts::kSlab; ++slab)
            Access::load(map, barrier, part.address + slab * Parts::kSlabBytes, part.n_start + slab * Parts::kSlab,
                         part.m_start, matrix);
    }
};

}  // namespace deep_gemm
