// Adds up matrices of FP32 in their order: D[m,n] = parts[0] + parts[1] + ... + C, rounded once to the type of D.
//
// Four neighbouring columns a thread, whose loads of a few parts are under way together. The parts come from the kernel
// before this one and are mostly still in L2.
#pragma once

#include "deep_gemm/sm90/ptx/ptx.cuh"

namespace deep_gemm {

// Config: kFloatD (else BF16), kHasC. Pitches are in elements; those of the parts are multiples of 4.
template <class Config>
struct SumParts {
    static constexpr u32 kThreads = 256, kCtasPerSm = 4, kColumns = 4, kAhead = 8;  // kAhead: loads under way

    const float* parts;  // [num_parts, m, n]
    const float* c;      // [m, n], or null
    void* d;
    i64 part_pitch, pitch, c_pitch, d_pitch;
    u32 num_parts, m, n;

    __device__ __forceinline__ void run() const {
        const u32 row_vectors = ceil_div(n, kColumns);
        const u64 all = u64(m) * row_vectors;
#pragma unroll 1
        for (u64 at = u64(blockIdx.x) * kThreads + threadIdx.x; at < all; at += u64(gridDim.x) * kThreads) {
            const u32 row = u32(at / row_vectors), column = u32(at % row_vectors) * kColumns;
            float total[kColumns] = {};
            add_all(total, parts + row * pitch + column);
            store(total, row, column);
        }
    }

   private:
    __device__ __forceinline__ static void add(float (&total)[kColumns], const float4& part) {
        total[0] = __fadd_rn(total[0], part.x), total[1] = __fadd_rn(total[1], part.y);
        total[2] = __fadd_rn(total[2], part.z), total[3] = __fadd_rn(total[3], part.w);
    }

    __device__ __forceinline__ void add_all(float (&total)[kColumns], const float* from) const {
        u32 part = 0;
#pragma unroll 1
        for (; part + kAhead <= num_parts; part += kAhead) {
            float4 loaded[kAhead];
#pragma unroll
            for (u32 i = 0; i < kAhead; ++i)
                loaded[i] = *reinterpret_cast<const float4*>(from + (part + i) * part_pitch);
#pragma unroll
            for (u32 i = 0; i < kAhead; ++i) add(total, loaded[i]);
        }
#pragma unroll 1
        for (; part < num_parts; ++part) add(total, *reinterpret_cast<const float4*>(from + part * part_pitch));
    }

    __device__ __forceinline__ void store(const float (&total)[kColumns], u32 row, u32 column) const {
#pragma unroll
        for (u32 i = 0; i < kColumns; ++i) {
            if (column + i >= n) break;
            float value = total[i];
            if constexpr (Config::kHasC != 0) value = __fadd_rn(value, c[row * c_pitch + column + i]);
            if constexpr (Config::kFloatD != 0) {
                static_cast<float*>(d)[row * d_pitch + column + i] = value;
            } else {
                static_cast<u16*>(d)[row * d_pitch + column + i] = u16(ptx::pack_bf16(value, 0.0f));
            }
        }
    }
};

}  // namespace deep_gemm
