// Which of a tile's scales of B the columns of a math warpgroup take.
#pragma once

#include "deep_gemm/sm90/gemm_layout.cuh"

namespace deep_gemm {

// Of warpgroup `group` in a tile that begins at column n_start. Two numbers instead of one struct: with a struct the
// assembler orders the instructions of some other kernels otherwise.
template <class Config>
struct ColumnScales {
    using Layout = GemmLayout<Config>;

    // Its first column that takes the second block scale.
    __device__ __forceinline__ static u32 boundary(u32 n_start, u32 group) {
        return 128 - (Layout::kBeside ? n_start + group * Layout::kColumnStep : n_start) % 128;
    }

    // Bytes from the tile's first scale to its first one; 0 unless warpgroups stand side by side.
    __device__ __forceinline__ static u32 offset(u32 n_start, u32 group) {
        if constexpr (!Layout::kBeside) return 0;
        const u32 first = group * Layout::kColumnStep;
        return Layout::kVectorB ? 4 * first : (n_start % 128 + first) / 128 * Layout::kBlockStride;
    }
};

}  // namespace deep_gemm
