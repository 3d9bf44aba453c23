// Adds up the parts that hc_prenorm.cuh left where it cut K among CTAs, in their order: one number a thread.
#pragma once

#include "deep_gemm/types.cuh"

namespace deep_gemm {

template <class Config>
struct HcPrenormSum {
    static constexpr u32 kThreads = 256, kCtasPerSm = 4;

    const float* parts;          // [num_parts, m, n]
    const float* squares_parts;  // [num_parts, m]
    float* d;                    // [m, n]
    float* squares;              // [m]
    i64 d_pitch;
    u32 num_parts, m, n;

    __device__ __forceinline__ void run() const {
        const u64 products = u64(m) * n;
#pragma unroll 1
        for (u64 at = u64(blockIdx.x) * kThreads + threadIdx.x; at < products + m; at += u64(gridDim.x) * kThreads) {
            if (at < products) {
                d[at / n * d_pitch + at % n] = add(parts + at, products);
            } else {
                squares[at - products] = add(squares_parts + (at - products), m);
            }
        }
    }

   private:
    __device__ __forceinline__ float add(const float* from, u64 pitch) const {
        float sum = 0.0f;
#pragma unroll 8
        for (u32 part = 0; part < num_parts; ++part) sum = __fadd_rn(sum, from[part * pitch]);
        return sum;
    }
};

}  // namespace deep_gemm
