// Staged epilogue: a 64-row FP32 accumulator of one math warpgroup -> shared memory -> global memory by TMA (store, or
// add onto FP32).
//
// A wave's part of D is kTileM rows by kTileN columns: 64 x kColumns, or with swapped operands kColumns x 64. In shared
// memory it lies as slabs of kSlab columns, each slab kTileM rows, as the tensor map of D says. Rows of 32 to 128 bytes
// are swizzled, which keeps stmatrix free of bank conflicts. Where the width allows only slabs of 16 bytes, these would
// leave in pieces smaller than a sector of L2, so the part is one slab of whole rows without a swizzle (H100, 256x136,
// 7069 x 2368 x 512 in BF16: 59 and 37 us). Such a pitch, an odd multiple of 16 bytes, has no conflicts either. Slabs
// of 32 bytes are as slow to leave as they are many: tiles of more than 64 rows or of two parts side by side, and parts
// of more than 128 columns, have whole rows in their place (128x144: 0.85 to 0.96 of the time with few steps, 128x112
// 0.87 to 0.93), though two rows meet on the same banks. Smaller tiles keep them: whole rows gained nothing there that
// was certain (64x48 to 64x112, one wave).
#pragma once

#include "deep_gemm/sm90/ptx/ptx.cuh"

namespace deep_gemm {

// kTall: the tile has more than 64 rows, or two parts side by side.
template <u32 kColumns, bool kSwap, bool kFloat, bool kTall>
struct StoreTile {
    static constexpr u32 kElementBytes = kFloat ? 4 : 2;
    static constexpr u32 kTileM = kSwap ? kColumns : 64, kTileN = kSwap ? 64 : kColumns;
    static constexpr u32 kFitting = gcd(kTileN * kElementBytes, 128);  // bytes of a slab that divides the part
    static constexpr bool kWhole = kFitting < 32 || (kFitting == 32 && (kTall || kTileN > 128));
    static constexpr u32 kRowBytes = kWhole ? kTileN * kElementBytes : kFitting;
    static constexpr u32 kSlab = kRowBytes / kElementBytes;
    static constexpr u32 kSlabBytes = kTileM * kRowBytes;
    static constexpr u32 kBytes = 64 * kColumns * kElementBytes;
    static constexpr u32 kChunks = kRowBytes / 16;                    // 16-byte chunks in a row of a slab
    static constexpr u32 kChunkElements = 16 / kElementBytes;

    // Byte offset of the chunk that holds column `column` of row `row`, and of the element. The swizzle XORs the
    // chunk's index with the number of the 128-byte line in its 8-line atom (PTX ISA, "Swizzling modes").
    __device__ static __forceinline__ u32 chunk_offset(u32 row, u32 column) {
        u32 chunk = column % kSlab / kChunkElements;
        if constexpr (!kWhole) chunk ^= row / (8 / kChunks) % kChunks;
        return column / kSlab * kSlabBytes + row * kRowBytes + chunk * 16;
    }
    __device__ static __forceinline__ u32 offset(u32 row, u32 column) {
        return chunk_offset(row, column) + column % kChunkElements * kElementBytes;
    }

    // With kAdds (FP32 only) the result is added to what the tile holds.
    template <bool kAdds>
    __device__ static __forceinline__ void write(u32 tile, const float (&final)[kColumns / 2], float alpha) {
        static_assert(kFloat || !kAdds, "a sum is FP32");
        if constexpr (kFloat) {
            write_float<kAdds>(tile, final, alpha);
        } else {
            write_bf16(tile, final, alpha);
        }
    }

    // Store columns first .. n - 1 of the rows that exist, from shared memory: TMA clips a store at whole 16 bytes, so
    // it would write beyond column n - 1. `first` is a multiple of 16 bytes inside this tile.
    __device__ static __forceinline__ void store_tail(const Params& params, u32 tile, u32 n_start, u32 m_start,
                                                      u32 first, u32 n, u32 m, bool adds) {
        for (u32 row = threadIdx.x % 128; row < kTileM && m_start + row < m; row += 128) {
            const i64 at = (m_start + row) * params.d_stride_m;
            for (u32 column = first; column < n; ++column) {
                const u32 source = tile + offset(row, column - n_start);
                if constexpr (kFloat) {
                    float* destination = static_cast<float*>(params.d) + at + column;
                    const float value = ptx::load_shared(source);
                    *destination = adds ? __fadd_rn(*destination, value) : value;
                } else {
                    static_cast<u16*>(params.d)[at + column] = ptx::load_shared_u16(source);
                }
            }
        }
    }

   private:
    template <bool kAdds>
    __device__ static __forceinline__ void write_one(u32 address, float value) {
        ptx::store_shared(address, kAdds ? __fadd_rn(ptx::load_shared(address), value) : value);
    }

    __device__ static __forceinline__ u32 pack(const float* value, float alpha) {
        return ptx::pack_bf16(__fmul_rn(alpha, value[0]), __fmul_rn(alpha, value[1]));
    }

    // Lanes address the rows of the 8x8 matrices that stmatrix stores: rows of D, or with swapped operands tokens,
    // whose eight neighbouring columns of D come from the eight rows of a transposed matrix.
    __device__ static __forceinline__ void write_bf16(u32 tile, const float (&final)[kColumns / 2], float alpha) {
        const u32 lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 % 4 * 16;
#pragma unroll
        for (u32 group = 0; group + 1 < kColumns / 8; group += 2) {
            const float* value = final + 4 * group;
            if constexpr (kSwap) {
                const u32 address =
                    tile + chunk_offset(8 * group + lane / 16 * 8 + lane % 8, warp_row + lane / 8 % 2 * 8);
                ptx::store_matrix_x4_transposed(address, pack(value, alpha), pack(value + 2, alpha),
                                                pack(value + 4, alpha), pack(value + 6, alpha));
            } else {
                const u32 address = tile + chunk_offset(warp_row + lane % 16, 8 * (group + lane / 16));
                ptx::store_matrix_x4(address, pack(value, alpha), pack(value + 2, alpha), pack(value + 4, alpha),
                                     pack(value + 6, alpha));
            }
        }
        if constexpr (kColumns / 8 % 2 == 1) {
            constexpr u32 kLast = kColumns / 8 - 1;
            const float* value = final + 4 * kLast;
            if constexpr (kSwap) {
                ptx::store_matrix_x2_transposed(tile + chunk_offset(8 * kLast + lane % 8, warp_row + lane / 8 % 2 * 8),
                                                pack(value, alpha), pack(value + 2, alpha));
            } else {
                ptx::store_matrix_x2(tile + chunk_offset(warp_row + lane % 16, 8 * kLast), pack(value, alpha),
                                     pack(value + 2, alpha));
            }
        }
    }

    template <bool kAdds>
    __device__ static __forceinline__ void write_float(u32 tile, const float (&final)[kColumns / 2], float alpha) {
        const u32 lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
        for (u32 pair = 0; pair < kColumns / 4; ++pair) {  // two neighbouring columns of one row
            const u32 at_row = row + pair % 2 * 8, at_column = pair / 2 * 8 + column;
            const float first = __fmul_rn(alpha, final[2 * pair]), second = __fmul_rn(alpha, final[2 * pair + 1]);
            if constexpr (kSwap) {
                write_one<kAdds>(tile + offset(at_column, at_row), first);
                write_one<kAdds>(tile + offset(at_column + 1, at_row), second);
            } else {
                float old[2] = {0.0f, 0.0f};
                const u32 address = tile + offset(at_row, at_column);
                if constexpr (kAdds) ptx::load_shared_2(old[0], old[1], address);
                ptx::store_shared_2(address, kAdds ? __fadd_rn(old[0], first) : first,
                                    kAdds ? __fadd_rn(old[1], second) : second);
            }
        }
    }
};

}  // namespace deep_gemm
