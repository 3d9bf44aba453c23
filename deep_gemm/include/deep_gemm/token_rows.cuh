// What the kernels share that move rows between tokens and their choices of experts: FP32 or BF16 rows of whole chunks
// of 16 bytes. `chunks` are those of a row, and index / chunks == __umulhi(index, magic) >> shift.
#pragma once

#include "deep_gemm/fp8_cast.cuh"
#include "deep_gemm/sm90/ptx/ptx.cuh"

namespace deep_gemm {

template <class Config>
struct TokenRows {
    static constexpr Element kElement = static_cast<Element>(Config::kElement);
    using Words = Elements<kElement>;
    static constexpr u32 kChunk = Words::kChunk;
    static_assert(kElement != Element::kFloat16, "sums may exceed what FP16 holds");

    __device__ static __forceinline__ void unpack(const uint4& chunk, float (&values)[kChunk]) {
        const u32 words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
        Words::unpack(words, values);
    }

    __device__ static __forceinline__ uint4 pack(const float (&values)[kChunk]) {
        u32 words[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            if constexpr (kElement == Element::kFloat32)
                words[i] = __float_as_uint(values[i]);
            else
                words[i] = ptx::pack_bf16(values[2 * i], values[2 * i + 1]);
        }
        return make_uint4(words[0], words[1], words[2], words[3]);
    }
};

}  // namespace deep_gemm
