// Promotion: final = fmaf(scale_a * scale_b, partial, final) once per 128 of K. FP8 tensor cores keep about 14 bits of a
// partial sum, so partial sums must not grow longer than that.
#pragma once

#include "deep_gemm/types.cuh"

namespace deep_gemm {

// A 64 x kBlockN accumulator: value 4 g + e of a thread lies in columns 8 g .. 8 g + 7, in its first row for e < 2 and in its
// second for e >= 2. Columns below kBoundary take the scales `low`, the others `high`. kBoundary is a compile-time constant,
// so that a tile that meets two B scales costs no selection per element.
template <u32 kBlockN, u32 kBoundary>
__device__ __forceinline__ void promote_at(float (&final)[kBlockN / 2], const float (&partial)[kBlockN / 2], const float (&low)[2], const float (&high)[2]) {
#pragma unroll
    for (u32 i = 0; i < kBlockN / 2; ++i) {
        const u32 second_row = i % 4 / 2;
        const float scale = i / 4 * 8 < kBoundary ? low[second_row] : high[second_row];
        final[i] = __fmaf_rn(scale, partial[i], final[i]);
    }
}

// Chooses promote_at for the boundary of this tile, which is a multiple of kUnit and the same for every thread of the CTA.
template <u32 kBlockN, u32 kUnit, u32 kBoundary = kUnit>
__device__ __forceinline__ void promote(float (&final)[kBlockN / 2], const float (&partial)[kBlockN / 2], const float (&low)[2], const float (&high)[2], u32 boundary) {
    if constexpr (kBoundary >= kBlockN) {
        promote_at<kBlockN, kBlockN>(final, partial, low, high);
    } else {
        if (boundary == kBoundary) {
            promote_at<kBlockN, kBoundary>(final, partial, low, high);
        } else {
            promote<kBlockN, kUnit, kBoundary + kUnit>(final, partial, low, high, boundary);
        }
    }
}

}  // namespace deep_gemm
