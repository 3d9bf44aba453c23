// Epilogue: a 64 x kBlockN FP32 accumulator of one math warpgroup -> BF16 -> shared memory (stmatrix) -> global memory (TMA).
//
// In shared memory the tile lies as slabs of kSlab columns (the largest power of two up to 64 that divides kBlockN), each slab
// 64 rows of 2 kSlab bytes, swizzled as the tensor map of D says, which keeps stmatrix free of bank conflicts.
#pragma once

#include "deep_gemm/ptx.cuh"

namespace deep_gemm {

template <u32 kBlockN>
struct StoreTile {
    static constexpr u32 kSlab = gcd(kBlockN, 64);
    static constexpr u32 kRowBytes = 2 * kSlab;
    static constexpr u32 kSlabBytes = 64 * kRowBytes;
    static constexpr u32 kBytes = 64 * kBlockN * 2;
    static constexpr u32 kChunks = kSlab / 8;  // 16-byte chunks in a row of a slab

    // Byte offset of the 16-byte chunk that holds columns 8 `group` .. 8 `group` + 7 of `row`. The swizzle XORs the chunk's index with
    // the number of the 128-byte line in its 8-line atom (PTX ISA, "Swizzling modes").
    __device__ static __forceinline__ u32 offset(u32 row, u32 group) {
        const u32 chunk = group % kChunks;
        const u32 swizzled = chunk ^ (row / (8 / kChunks) % kChunks);
        return group / kChunks * kSlabBytes + row * kRowBytes + swizzled * 16;
    }

    __device__ static __forceinline__ void write(u32 tile, const float (&final)[kBlockN / 2], float alpha) {
        const u32 lane = threadIdx.x % 32;
        const u32 row = threadIdx.x / 32 % 4 * 16 + lane % 16;  // lanes 0-15 address the left matrices, 16-31 the right ones
#pragma unroll
        for (u32 group = 0; group + 1 < kBlockN / 8; group += 2) {
            const float* value = final + 4 * group;
            ptx::store_matrix_x4(tile + offset(row, group + lane / 16), pack(value, alpha), pack(value + 2, alpha), pack(value + 4, alpha), pack(value + 6, alpha));
        }
        if constexpr (kBlockN / 8 % 2 == 1) {
            const float* value = final + kBlockN / 2 - 4;
            ptx::store_matrix_x2(tile + offset(row, kBlockN / 8 - 1), pack(value, alpha), pack(value + 2, alpha));
        }
    }

    __device__ static __forceinline__ void store(const TensorMap* map, u32 tile, u32 n_start, u32 m_start) {
#pragma unroll
        for (u32 slab = 0; slab < kBlockN / kSlab; ++slab) ptx::tma_store(map, tile + slab * kSlabBytes, n_start + slab * kSlab, m_start);
    }

    // Store columns first .. n - 1 of the rows that exist, from shared memory, one row a thread: TMA clips a store at whole 16 bytes, so
    // it would write beyond column n - 1. `first` is a multiple of 8 inside this tile.
    __device__ static __forceinline__ void store_tail(const Params& params, u32 tile, u32 n_start, u32 m_start, u32 first, u32 n, u32 m) {
        const u32 row = threadIdx.x % 128;
        if (row >= 64 || m_start + row >= m) return;
        const u32 source = tile + offset(row, (first - n_start) / 8);
        u16* destination = params.d + (m_start + row) * params.d_stride_m + first;
        for (u32 i = 0; i < n - first; ++i) destination[i] = ptx::load_shared_u16(source + 2 * i);
    }

   private:
    __device__ static __forceinline__ u32 pack(const float* value, float alpha) {
        return ptx::pack_bf16(__fmul_rn(alpha, value[0]), __fmul_rn(alpha, value[1]));
    }
};

}  // namespace deep_gemm
