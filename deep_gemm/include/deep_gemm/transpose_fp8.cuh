// Transposes the bytes of one or two operands, so that they become K-major (Hopper's FP8 WGMMA reads no other order).
//
// A CTA moves a tile of 128 x 128 bytes through shared memory, 16 bytes a load and a store. On both sides 8 threads
// beside each other take the 128 bytes of a row, which is a whole line of the cache; a warp that stores 16 bytes into
// each of 32 rows would write 32 halves of sectors. Between the sides each thread turns 4 x 4 blocks of bytes in
// registers (PTX ISA, "prmt"). CTAs walk the tiles in steps of the grid, whose size is the caller's choice; tiles count
// along the input's rows first, so that CTAs beside each other read neighbouring bytes of memory.
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

template <class Config>
struct TransposeFp8 {
    static constexpr u32 kTile = 128, kThreads = 256, kCtasPerSm = 8;
    static constexpr u32 kPieces = kTile / 16;     // of 16 bytes, in a row of the tile
    static constexpr u32 kPitch = kTile / 4;       // words
    // Rows that are loaded together, and how often.
    static constexpr u32 kStep = kThreads / kPieces, kLoads = kTile / kStep;

    // An operand: matrices [rows, columns], whose transposes are [columns, rows]. Addresses, pitches and distances are
    // multiples of 16 bytes.
    struct Matrices {
        const u8* in;
        u8* out;
        i64 in_pitch, out_pitch, in_group, out_group;  // bytes, from a row or a matrix to the next
        u32 rows, columns, groups;                     // without groups there is no operand

        __device__ __forceinline__ u32 column_tiles() const { return ceil_div(columns, kTile); }
        __device__ __forceinline__ u32 tiles() const { return ceil_div(rows, kTile) * column_tiles(); }  // of a matrix
    };

    Matrices a, b;

    // A tile, and where its first byte lies before and after.
    struct Tile {
        const u8* in;
        u8* out;
        i64 in_pitch, out_pitch;
        u32 rows, columns;  // from the tile's first ones to the last ones of the matrix

        __device__ __forceinline__ bool is_full() const { return rows >= kTile && columns >= kTile; }
    };

    __device__ __forceinline__ Tile find(u32 index) const {
        const u32 tiles_of_a = a.groups * a.tiles();
        const Matrices of = index < tiles_of_a ? a : b;
        if (index >= tiles_of_a) index -= tiles_of_a;
        const u32 group = index / of.tiles(), at = index % of.tiles();
        const u32 row = at / of.column_tiles() * kTile, column = at % of.column_tiles() * kTile;
        return {of.in + group * of.in_group + row * of.in_pitch + column,
                of.out + group * of.out_group + column * of.out_pitch + row,
                of.in_pitch,
                of.out_pitch,
                of.rows - row,
                of.columns - column};
    }

    // Where a piece lies in shared memory. Pieces of a row change places, so that neither eight of a row nor one column
    // of pieces of every 16th row meet a bank twice.
    __device__ static __forceinline__ u32 index_of(u32 row, u32 piece) {
        return row * kPitch + (piece ^ row / 16 % kPieces) * 4;
    }

    // Rows beyond the matrix become zeros; columns beyond it may be read as far as the 16 bytes that the pitch leaves,
    // and go nowhere.
    template <bool kFull>
    __device__ static __forceinline__ void load(const Tile& tile, u32* words) {
        const u32 row = threadIdx.x / kPieces, piece = threadIdx.x % kPieces;
        const u8* in = tile.in + row * tile.in_pitch + piece * 16;
        uint4 values[kLoads];
#pragma unroll
        for (u32 i = 0; i < kLoads; ++i) {
            const bool is_there = kFull || (row + i * kStep < tile.rows && piece * 16 < tile.columns);
            values[i] = make_uint4(0, 0, 0, 0);
            if (is_there) values[i] = *reinterpret_cast<const uint4*>(in + i * (kStep * tile.in_pitch));
        }
#pragma unroll
        for (u32 i = 0; i < kLoads; ++i)
            *reinterpret_cast<uint4*>(words + index_of(row + i * kStep, piece)) = values[i];
    }

    // A thread turns 16 rows by 4 columns into 4 output rows of 16 bytes; a warp has all rows of 16 columns.
    template <bool kFull>
    __device__ static __forceinline__ void store(const Tile& tile, const u32* words) {
        const u32 row = threadIdx.x % kPieces * 16, column = threadIdx.x / kPieces * 4;
        const u32* from = words + index_of(row, column / 16) + column / 4 % 4;
        u32 block[4][4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
#pragma unroll
            for (u32 j = 0; j < 4; ++j) block[i][j] = from[(4 * i + j) * kPitch];
            transpose_bytes(block[i]);
        }
        u8* out = tile.out + column * tile.out_pitch + row;
#pragma unroll
        for (u32 j = 0; j < 4; ++j)
            if (kFull || (row < tile.rows && column + j < tile.columns))
                *reinterpret_cast<uint4*>(out + j * tile.out_pitch) =
                    make_uint4(block[0][j], block[1][j], block[2][j], block[3][j]);
    }

    template <bool kFull>
    __device__ static __forceinline__ void move(const Tile& tile, u32* words) {
        load<kFull>(tile, words);
        __syncthreads();
        store<kFull>(tile, words);
        __syncthreads();  // the next tile takes the same memory
    }

    __device__ __forceinline__ void run() const {
        __shared__ uint4 pieces[kTile * kPieces];
        u32* words = reinterpret_cast<u32*>(pieces);
        const u32 tiles = a.groups * a.tiles() + b.groups * b.tiles();
        for (u32 index = blockIdx.x; index < tiles; index += gridDim.x) {
            const Tile tile = find(index);
            tile.is_full() ? move<true>(tile, words) : move<false>(tile, words);
        }
    }
};

}  // namespace deep_gemm
