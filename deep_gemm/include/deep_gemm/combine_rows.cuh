// Adds up the rows of every token's choices, with kWeighted times their weights, in FP32 and in the order of the
// choices: what the experts of a layer make of a token.
//
// A chunk of 16 bytes of a token belongs to a thread. Choices of no row that there is add nothing.
#pragma once

#include "deep_gemm/token_rows.cuh"

namespace deep_gemm {

template <class Config>
struct CombineRows {
    using Chunks = TokenRows<Config>;
    static constexpr u32 kThreads = 256, kCtasPerSm = 4, kChunk = Chunks::kChunk;
    static constexpr bool kWeighted = Config::kWeighted;
    static constexpr u32 kAhead = 8;  // loads under way

    const u8* y;           // [num_rows, n]
    const i64* rows;       // [tokens, top_k]
    const float* weights;  // [tokens, top_k]; kWeighted only
    u8* out;               // [tokens, n], contiguous
    u32 tokens, top_k, chunks, magic, shift, num_rows;  // see TokenRows
    i64 y_row;                                          // bytes

    // Add up to kAhead choices from `first` on.
    __device__ __forceinline__ void add(u32 first, u32 count, u64 column, float (&sum)[kChunk]) const {
        uint4 loaded[kAhead];
#pragma unroll
        for (u32 i = 0; i < kAhead; ++i) {
            loaded[i] = make_uint4(0, 0, 0, 0);
            const u64 row = i < count ? u64(rows[first + i]) : num_rows;
            if (row < num_rows) loaded[i] = *reinterpret_cast<const uint4*>(y + row * y_row + column);
        }
#pragma unroll
        for (u32 i = 0; i < kAhead; ++i) {
            if (i >= count) continue;
            const float weight = kWeighted ? weights[first + i] : 1.0f;
            float values[kChunk];
            Chunks::unpack(loaded[i], values);
#pragma unroll
            for (u32 j = 0; j < kChunk; ++j)
                sum[j] = __fadd_rn(sum[j], kWeighted ? __fmul_rn(values[j], weight) : values[j]);
        }
    }

    __device__ __forceinline__ void run() const {
        const u32 index = blockIdx.x * kThreads + threadIdx.x;
        if (index >= tokens * chunks) return;
        const u32 token = __umulhi(index, magic) >> shift;
        const u64 column = u64(index - token * chunks) * 16;
        float sum[kChunk] = {};
        for (u32 done = 0; done < top_k; done += kAhead)
            add(token * top_k + done, top_k - done < kAhead ? top_k - done : kAhead, column, sum);
        *reinterpret_cast<uint4*>(out + u64(index) * 16) = Chunks::pack(sum);
    }
};

}  // namespace deep_gemm
