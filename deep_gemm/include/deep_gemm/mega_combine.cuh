// Adds up what the experts of a token's choices made of it, times the weights of the choices: BF16 rows in the memory
// of the GPUs that have the experts, in FP32, one choice after the other.
//
// A CTA has a token. Choices of no expert that there is add nothing.
#pragma once

#include "deep_gemm/mega_rows.cuh"
#include "deep_gemm/sm90/ptx/ptx.cuh"

namespace deep_gemm {

template <class Config>
struct MegaCombine {
    static constexpr u32 kThreads = 256, kCtasPerSm = 4, kWarps = kThreads / 32, kMaxChoices = 32;

    const i64* buffers;    // [ranks]: addresses of the GPUs' buffers
    const i64* experts;    // [tokens, top_k]
    const float* weights;  // [tokens, top_k]
    const int* positions;  // [tokens, top_k]
    const int* counts;     // [num_experts]
    u8* y;                 // [tokens, hidden], BF16
    i64 y_row;             // bytes
    i64 rows_offset;       // bytes: of the experts' rows in a buffer
    u32 top_k, hidden;
    u32 num_experts, local;  // of all GPUs, and of each
    u32 alignment;

    // The address of a choice's row, or 0 where it has none; by all lanes of a warp.
    __device__ __forceinline__ u64 find_row(u32 choice) const {
        const i64 expert = experts[choice];
        if (expert < 0 || expert >= i64(num_experts)) return 0;
        const u32 rank = u32(expert) / local;
        const u32 first = first_row_of(counts + rank * local, u32(expert) % local, alignment);
        return u64(buffers[rank] + rows_offset) + u64(first + u32(positions[choice])) * hidden * 2;
    }

    __device__ static __forceinline__ void add(u32 word, float weight, float& low, float& high) {
        low = __fadd_rn(low, __fmul_rn(weight, __uint_as_float(word << 16)));
        high = __fadd_rn(high, __fmul_rn(weight, __uint_as_float(word & 0xFFFF0000)));
    }

    __device__ __forceinline__ void run() const {
        __shared__ u64 rows[kMaxChoices];
        __shared__ float weight[kMaxChoices];
        const u32 token = blockIdx.x;
        for (u32 i = threadIdx.x / 32; i < top_k; i += kWarps) {
            const u64 row = find_row(token * top_k + i);
            if (threadIdx.x % 32 == 0) rows[i] = row, weight[i] = weights[token * top_k + i];
        }
        __syncthreads();
        uint4* out = reinterpret_cast<uint4*>(y + token * y_row);
        for (u32 i = threadIdx.x; i < hidden / 8; i += kThreads) {
            float sum[8] = {};
#pragma unroll 4
            for (u32 k = 0; k < top_k; ++k) {
                if (rows[k] == 0) continue;
                const uint4 chunk = reinterpret_cast<const uint4*>(rows[k])[i];
                add(chunk.x, weight[k], sum[0], sum[1]);
                add(chunk.y, weight[k], sum[2], sum[3]);
                add(chunk.z, weight[k], sum[4], sum[5]);
                add(chunk.w, weight[k], sum[6], sum[7]);
            }
            out[i] = uint4{ptx::pack_bf16(sum[0], sum[1]), ptx::pack_bf16(sum[2], sum[3]),
                           ptx::pack_bf16(sum[4], sum[5]), ptx::pack_bf16(sum[6], sum[7])};
        }
    }
};

}  // namespace deep_gemm
