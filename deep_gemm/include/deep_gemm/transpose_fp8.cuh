// Transposes a matrix of bytes, so that FP8 operands become K-major (Hopper's FP8 WGMMA reads no other order).
//
// A CTA of 256 threads moves a 128 x 128 tile through shared memory: reads of 16 bytes along input rows, writes of 16 bytes along output rows.
// Between them each thread turns 4 x 4 blocks of bytes in registers (PTX ISA, "prmt"). CTAs walk the tiles in steps of the grid, whose size is
// the caller's choice; tiles count along the input's rows first, so that CTAs beside each other read neighbouring bytes of memory.
#pragma once

#include "deep_gemm/types.cuh"

namespace deep_gemm {

// Transpose the 4 x 4 bytes in four words.
__device__ __forceinline__ void transpose_bytes(u32 (&w)[4]) {
    const u32 a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140);
    const u32 c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
    w[0] = __byte_perm(a, b, 0x5410);
    w[1] = __byte_perm(a, b, 0x7632);
    w[2] = __byte_perm(c, d, 0x5410);
    w[3] = __byte_perm(c, d, 0x7632);
}

struct TransposeFp8 {
    static constexpr u32 kTile = 128, kThreads = 256;
    static constexpr u32 kCtasPerSm = 8;          // all 2048 threads of an SM: loads in flight hide memory's latency
    static constexpr u32 kPitch = kTile / 4 + 1;  // words; odd, so that a column of words meets every bank

    const u8* in;   // [rows, columns], 16-byte aligned rows
    u8* out;        // [columns, rows], 16-byte aligned rows
    i64 in_pitch, out_pitch;  // bytes
    u32 rows, columns;
    u32 (*tile)[kPitch];

    // Rows beyond the matrix become zeros; columns beyond it may be read as far as the 16 bytes that the pitch leaves, and go nowhere.
    __device__ __forceinline__ void load(u32 row_start, u32 column_start) const {
#pragma unroll
        for (u32 i = 0; i < kTile * kTile / 16 / kThreads; ++i) {
            const u32 index = i * kThreads + threadIdx.x, row = index / 8, column = index % 8 * 16;
            uint4 value = make_uint4(0, 0, 0, 0);
            if (row_start + row < rows && column_start + column < columns)
                value = *reinterpret_cast<const uint4*>(in + (row_start + row) * in_pitch + column_start + column);
            tile[row][column / 4] = value.x;
            tile[row][column / 4 + 1] = value.y;
            tile[row][column / 4 + 2] = value.z;
            tile[row][column / 4 + 3] = value.w;
        }
    }

    // A thread turns 16 rows by 4 columns into 4 output rows of 16 bytes.
    __device__ __forceinline__ void store(u32 row_start, u32 column_start) const {
        const u32 word = threadIdx.x % 32, row = threadIdx.x / 32 * 16;
        u32 block[4][4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
#pragma unroll
            for (u32 j = 0; j < 4; ++j) block[i][j] = tile[row + 4 * i + j][word];
            transpose_bytes(block[i]);
        }
        if (row_start + row >= rows) return;
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            const u32 column = column_start + 4 * word + j;
            if (column < columns)
                *reinterpret_cast<uint4*>(out + column * out_pitch + row_start + row) = make_uint4(block[0][j], block[1][j], block[2][j], block[3][j]);
        }
    }

    __device__ __forceinline__ void run() const {
        const u32 column_tiles = ceil_div(columns, kTile), tiles = ceil_div(rows, kTile) * column_tiles;
        for (u32 tile_index = blockIdx.x; tile_index < tiles; tile_index += gridDim.x) {
            const u32 row_start = tile_index / column_tiles * kTile, column_start = tile_index % column_tiles * kTile;
            load(row_start, column_start);
            __syncthreads();
            store(row_start, column_start);
            __syncthreads();  // the next tile takes the same memory
        }
    }
};

}  // namespace deep_gemm
