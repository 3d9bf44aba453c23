// Makes FP32 scales [groups, mn, k], whose rows are contiguous, MN-major; with kPack, four columns become one word of
// their exponents (UE8M0). Groups may say how many of their rows there are: only tiles with such rows are copied.
//
// A CTA moves a tile of kRows rows x `width` words of the result through shared memory, so that both sides are
// coalesced. A tile is as wide as the result where it can be: then its rows are read whole. Threads walk the tile's
// words row by row: rows are as short as 14 words, and a warp for each row would leave most lanes idle. The loads carry
// no hint: the line in which a row ends is read again by who reads the next row or tile.
#pragma once

#include "deep_gemm/types.cuh"

namespace deep_gemm {

template <class Config>
struct ScaleLayout {
    // Rows start at 16 bytes, k (not kPack: and width) is a multiple of 4.
    static constexpr bool kPack = Config::kPack, kAligned = Config::kAligned;
    static constexpr u32 kThreads = 256, kCtasPerSm = 8;
    static constexpr u32 kRows = 64, kMostColumns = 64;
    // Of a load, and what becomes of it.
    static constexpr u32 kWords = kPack || kAligned ? 4 : 1, kResults = kPack ? 1 : kWords;
    static constexpr u32 kUnderWay = kWords == 1 ? 8 : 2;  // loads of a thread

    const u32* in;  // [groups, mn, k]: bits
    u32* out;       // [groups, mn, k or ceil(k / 4)], column by column
    const int* sizes;  // rows of each group; null: mn
    u32 mn, k;
    u32 width;      // of a tile, at most kMostColumns
    i64 in_group, in_row;          // words
    i64 out_group, out_column;

    // A thread's load within the tile; a step is that of all threads.
    struct Place {
        u32 row, at;

        __device__ __forceinline__ void advance(u32 rows, u32 loads, u32 loads_of_row) {
            row += rows;
            at += loads;
            if (at >= loads_of_row) at -= loads_of_row, ++row;
        }
    };

    // Words from `column` on: zeros for those beyond k.
    __device__ __forceinline__ void load(const u32* row, u32 column, bool is_there, u32 (&bits)[kWords]) const {
        if constexpr (kAligned) {
            const uint4 four = is_there ? *reinterpret_cast<const uint4*>(row + column) : uint4{0, 0, 0, 0};
            bits[0] = four.x, bits[1] = four.y, bits[2] = four.z, bits[3] = four.w;
        } else {
#pragma unroll
            for (u32 i = 0; i < kWords; ++i) bits[i] = is_there && column + i < k ? row[column + i] : 0;
        }
    }

    // Where a word lies in the tile: column by column; fours of rows change places, so that loads beside each other
    // meet other banks.
    __device__ static __forceinline__ u32 index_of(u32 row, u32 column) {
        return column * kRows + (row ^ column / kResults % 8 * 4);
    }

    __device__ static __forceinline__ void put(u32* tile, u32 row, u32 column, const u32 (&bits)[kWords]) {
        if constexpr (kPack) {
            tile[index_of(row, column)] = (bits[0] >> 23 & 0xFF) | (bits[1] >> 23 & 0xFF) << 8 |
                                          (bits[2] >> 23 & 0xFF) << 16 | (bits[3] >> 23 & 0xFF) << 24;
        } else {
#pragma unroll
            for (u32 i = 0; i < kWords; ++i) tile[index_of(row, column + i)] = bits[i];
        }
    }

    // All loads of a round before what is made of them: they are under way together.
    __device__ __forceinline__ void read(u32* tile, u32 row_start, u32 column_start) const {
        const u32* source = in + blockIdx.z * in_group;
        const u32 loads = width / kResults, step_rows = kThreads / loads, step_loads = kThreads % loads;
        const u32 first_column = column_start / kResults * kWords;
        Place place{threadIdx.x / loads, threadIdx.x % loads};
#pragma unroll 1
        while (place.row < kRows) {
            u32 bits[kUnderWay][kWords];
            Place ahead = place;
#pragma unroll
            for (u32 i = 0; i < kUnderWay; ++i, ahead.advance(step_rows, step_loads, loads)) {
                const u32 row = row_start + ahead.row, column = first_column + ahead.at * kWords;
                load(source + row * in_row, column, ahead.row < kRows && row < mn && column < k, bits[i]);
            }
#pragma unroll
            for (u32 i = 0; i < kUnderWay; ++i, place.advance(step_rows, step_loads, loads))
                if (place.row < kRows) put(tile, place.row, place.at * kResults, bits[i]);
        }
    }

    // Store as many rows at a time as a Unit holds words, a multiple of which there is.
    template <class Unit>
    __device__ __forceinline__ void write(const u32* tile, u32 row_start, u32 column_start, u32 columns) const {
        constexpr u32 kUnit = sizeof(Unit) / sizeof(u32), kUnits = kRows / kUnit;
        const u32 row = threadIdx.x % kUnits * kUnit,
                  last = columns - column_start < width ? columns - column_start : width;
        u32* target = out + blockIdx.z * out_group + row_start + row;
        if (row_start + row >= mn) return;
#pragma unroll 4
        for (u32 column = threadIdx.x / kUnits; column < last; column += kThreads / kUnits)
            *reinterpret_cast<Unit*>(target + (column_start + column) * out_column) =
                *reinterpret_cast<const Unit*>(tile + index_of(row, column));
    }

    __device__ __forceinline__ void run() const {
        alignas(16) __shared__ u32 tile[kRows * kMostColumns];
        const u32 columns = kPack ? ceil_div(k, 4) : k, column_start = blockIdx.x * width,
                  row_start = blockIdx.y * kRows;
        if (sizes != nullptr && int(row_start) >= sizes[blockIdx.z]) return;
        read(tile, row_start, column_start);
        __syncthreads();
        if (row_start + kRows <= mn)
            write<uint4>(tile, row_start, column_start, columns);
        else
            write<u32>(tile, row_start, column_start, columns);
    }
};

}  // namespace deep_gemm
