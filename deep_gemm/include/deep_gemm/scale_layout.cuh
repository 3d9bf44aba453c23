// Makes FP32 scales [groups, mn, k], whose rows are contiguous, MN-major; with kPack, four columns become one word of their exponents (UE8M0).
//
// A CTA moves a tile of 128 rows x 32 words of the result through shared memory, so that both sides are coalesced.
#pragma once

#include "deep_gemm/types.cuh"

namespace deep_gemm {

template <class Config>
struct ScaleLayout {
    static constexpr bool kPack = Config::kPack, kAligned = Config::kAligned;  // rows start at 16 bytes and k is a multiple of 4; kPack only
    static constexpr u32 kThreads = 256, kCtasPerSm = kPack ? 4 : 8;
    static constexpr u32 kRows = 128, kColumns = 32, kSteps = kRows * kColumns / kThreads;

    const u32* in;  // [groups, mn, k]: bits
    u32* out;       // [groups, mn, k or ceil(k / 4)], column by column
    u32 mn, k;
    i64 in_group, in_row;          // words
    i64 out_group, out_column;

    // The exponents of columns `column` to `column` + 3; 0 for those beyond k.
    __device__ __forceinline__ u32 pack(const u32* row, u32 column) const {
        u32 bits[4] = {0, 0, 0, 0};
        if constexpr (kAligned) {
            const uint4 four = *reinterpret_cast<const uint4*>(row + column);
            bits[0] = four.x, bits[1] = four.y, bits[2] = four.z, bits[3] = four.w;
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; ++i)
                if (column + i < k) bits[i] = row[column + i];
        }
        u32 word = 0;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) word |= (bits[i] >> 23 & 0xFF) << 8 * i;
        return word;
    }

    __device__ __forceinline__ void run() const {
        __shared__ u32 tile[kRows][kColumns + 1];  // odd, so that a column of words meets every bank
        const u32 columns = kPack ? ceil_div(k, 4) : k, column_start = blockIdx.x * kColumns, row_start = blockIdx.y * kRows;
        const u32 column = column_start + threadIdx.x % kColumns;
        u32 words[kSteps];
#pragma unroll
        for (u32 i = 0; i < kSteps; ++i) {
            const u32 row = row_start + i * (kThreads / kColumns) + threadIdx.x / kColumns;
            const u32* source = in + blockIdx.z * in_group + row * in_row;
            words[i] = 0;
            if (row < mn && column < columns) words[i] = kPack ? pack(source, 4 * column) : source[column];
        }
#pragma unroll
        for (u32 i = 0; i < kSteps; ++i) tile[i * (kThreads / kColumns) + threadIdx.x / kColumns][threadIdx.x % kColumns] = words[i];
        __syncthreads();
        const u32 row = threadIdx.x % kRows;
#pragma unroll
        for (u32 i = 0; i < kSteps; ++i) {
            const u32 in_tile = i * (kThreads / kRows) + threadIdx.x / kRows;
            if (row_start + row < mn && column_start + in_tile < columns)
                out[blockIdx.z * out_group + (column_start + in_tile) * out_column + row_start + row] = tile[row][in_tile];
        }
    }
};

}  // namespace deep_gemm
