// Quantises to FP8 with one scale per kGran rows and kGran columns, or (kPerColumn) per kGran rows and one column, in
// one pass.
//
// A CTA holds kGran rows x 128 columns in registers: the tile is read, its magnitudes meet in shared memory, and it is
// written.
#pragma once

#include "deep_gemm/fp8_cast.cuh"

namespace deep_gemm {

template <class Config>
struct CastBlocks {
    static constexpr Element kElement = static_cast<Element>(Config::kElement);
    using Words = Elements<kElement>;
    static constexpr u32 kGran = Config::kGran, kChunk = Words::kChunk;
    // Products beyond 448 become NaN.
    static constexpr bool kUe8m0 = Config::kUe8m0, kUnbounded = kUe8m0 && !Config::kSaturates;
    static constexpr bool kPerColumn = Config::kPerColumn, kAligned = Config::kAligned;
    static constexpr u32 kColumns = 128, kLanes = kColumns / kChunk;  // threads of a row of the tile
    static constexpr u32 kRowThreads = 16, kThreads = kLanes * kRowThreads;
    static constexpr u32 kCtasPerSm = !kAligned ? 512 / kThreads : Words::kBytes == 4 ? 2 : 3;  // no spills
    static constexpr u32 kRows = kGran / kRowThreads;  // chunks of a thread
    // Threads of a row that share a scale; scales of the tile.
    static constexpr u32 kScaleLanes = kGran / kChunk, kScales = kColumns / kGran;
    static_assert(kGran == 32 || kGran == 64 || kGran == 128, "scales divide the tile");

    const void* x;  // [groups, m, n]
    u8* out;        // [groups, m, n], contiguous
    float* scales;  // [groups, ceil(m / kGran), ceil(n / kGran) or n]
    u32 m, n;
    i64 x_group, x_row;  // bytes
    i64 scale_group, scale_row, scale_column;  // elements

    __device__ __forceinline__ u32 row_of(u32 i) const {
        return blockIdx.y * kGran + i * kRowThreads + threadIdx.x / kLanes;
    }
    __device__ __forceinline__ u32 column() const { return blockIdx.x * kColumns + threadIdx.x % kLanes * kChunk; }

    __device__ __forceinline__ void load(u32 (&words)[kRows][4]) const {
#pragma unroll
        for (u32 i = 0; i < kRows; ++i) {
            const u8* row = static_cast<const u8*>(x) + blockIdx.z * x_group + row_of(i) * x_row;
            Words::template load<kAligned>(row, column(), row_of(i) < m ? n : 0, words[i]);
        }
    }

    __device__ __forceinline__ void store(const u32 (&words)[kRows][4], const float (&factors)[kChunk],
                                          bool is_unbounded) const {
#pragma unroll
        for (u32 i = 0; i < kRows; ++i) {
            float values[kChunk];
            u32 bytes[2];
            Words::unpack(words[i], values);
            quantise(values, factors, is_unbounded, bytes);
            if (row_of(i) < m)
                Words::template store<kAligned>(out + (u64(blockIdx.z) * m + row_of(i)) * n, column(), n, bytes);
        }
    }

    __device__ __forceinline__ void store_scale(u32 index, float scale) const {
        scales[blockIdx.z * scale_group + blockIdx.y * scale_row + index * scale_column] = scale;
    }

    __device__ __forceinline__ void run_blocks() const {
        __shared__ u32 largest[kRowThreads][kScales];
        u32 words[kRows][4], word = 0;
        load(words);
#pragma unroll
        for (u32 i = 0; i < kRows; ++i) word = Words::max_of_words(word, Words::max_of_chunk(words[i]));
#pragma unroll
        for (u32 lanes = kScaleLanes / 2; lanes > 0; lanes /= 2)
            word = Words::max_of_words(word, __shfl_xor_sync(0xFFFFFFFF, word, lanes));
        const u32 lane = threadIdx.x % kLanes, scale_index = lane / kScaleLanes;
        if (lane % kScaleLanes == 0) largest[threadIdx.x / kLanes][scale_index] = word;
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < kRowThreads; ++i) word = Words::max_of_words(word, largest[i][scale_index]);
        const float amax = Words::max_of_word(word), scale = scale_of<kUe8m0>(amax), factor = __frcp_rn(scale);
        float factors[kChunk];
#pragma unroll
        for (u32 i = 0; i < kChunk; ++i) factors[i] = factor;
        store(words, factors, kUnbounded && __float_as_uint(amax) >= kInfinityBits);
        const u32 block = blockIdx.x * kScales + scale_index;
        if (threadIdx.x < kLanes && lane % kScaleLanes == 0 && block * kGran < n) store_scale(block, scale);
    }

    // The scale of a column of the tile, and its reciprocal for all threads. Returns whether it is of no finite number.
    __device__ __forceinline__ bool finish_column(u32 in_tile, float amax, float (&factors)[kColumns]) const {
        const float scale = scale_of<kUe8m0>(amax);
        factors[in_tile] = __frcp_rn(scale);
        if (blockIdx.x * kColumns + in_tile < n) store_scale(blockIdx.x * kColumns + in_tile, scale);
        return __float_as_uint(amax) >= kInfinityBits;
    }

    __device__ __forceinline__ void run_columns() const {
        constexpr u32 kWords = 4 * kLanes;  // of a row of the tile
        __shared__ u32 largest[kRowThreads][kWords];
        __shared__ float factors_of_tile[kColumns];
        u32 words[kRows][4];
        load(words);
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            u32 word = 0;
#pragma unroll
            for (u32 i = 0; i < kRows; ++i) word = Words::max_of_words(word, Words::magnitudes(words[i][j]));
            largest[threadIdx.x / kLanes][j * kLanes + threadIdx.x % kLanes] = word;
        }
        __syncthreads();
        bool is_unbounded = false;
        if (threadIdx.x < kWords) {
            u32 word = 0;
#pragma unroll
            for (u32 i = 0; i < kRowThreads; ++i) word = Words::max_of_words(word, largest[i][threadIdx.x]);
            const u32 first = threadIdx.x % kLanes * kChunk + threadIdx.x / kLanes * (kChunk / 4);
            is_unbounded = finish_column(first, Words::low(word), factors_of_tile);
            if (Words::kBytes == 2) is_unbounded |= finish_column(first + 1, Words::high(word), factors_of_tile);
        }
        is_unbounded = __syncthreads_or(is_unbounded);
        float factors[kChunk];
#pragma unroll
        for (u32 i = 0; i < kChunk; ++i) factors[i] = factors_of_tile[threadIdx.x % kLanes * kChunk + i];
        store(words, factors, kUnbounded && is_unbounded);
    }

    __device__ __forceinline__ void run() const {
        if constexpr (kPerColumn)
            run_columns();
        else
            run_blocks();
    }
};

}  // namespace deep_gemm
