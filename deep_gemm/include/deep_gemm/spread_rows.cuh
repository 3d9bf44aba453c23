// Copies the row of every token to the rows of its choices, with kWeighted times the weight of each choice: what the
// experts of a layer multiply. Rows of no choice stay as they are.
//
// A chunk of 16 bytes of a token belongs to a thread, which reads it once and stores it top_k times.
#pragma once

#include "deep_gemm/token_rows.cuh"

namespace deep_gemm {

template <class Config>
struct SpreadRows {
    using Chunks = TokenRows<Config>;
    static constexpr u32 kThreads = 256, kCtasPerSm = 4, kChunk = Chunks::kChunk;
    static constexpr bool kWeighted = Config::kWeighted;

    const u8* x;           // [tokens, n]
    const i64* rows;       // [tokens, top_k]
    const float* weights;  // [tokens, top_k]; kWeighted only
    u8* out;               // [num_rows, n], contiguous
    u32 tokens, top_k, chunks, magic, shift, num_rows;  // see TokenRows
    i64 x_row;                                          // bytes

    __device__ __forceinline__ void run() const {
        const u32 index = blockIdx.x * kThreads + threadIdx.x;
        if (index >= tokens * chunks) return;
        const u32 token = __umulhi(index, magic) >> shift;
        const u64 column = u64(index - token * chunks) * 16;
        const uint4 chunk = *reinterpret_cast<const uint4*>(x + token * x_row + column);
        for (u32 choice = token * top_k; choice < (token + 1) * top_k; ++choice) {
            const u64 row = u64(rows[choice]);
            if (row >= num_rows) continue;
            uint4 scaled = chunk;
            if constexpr (kWeighted) {
                float values[kChunk];
                Chunks::unpack(chunk, values);
#pragma unroll
                for (u32 i = 0; i < kChunk; ++i) values[i] = __fmul_rn(values[i], weights[choice]);
                scaled = Chunks::pack(values);
            }
            *reinterpret_cast<uint4*>(out + row * chunks * 16 + column) = scaled;
        }
    }
};

}  // namespace deep_gemm
