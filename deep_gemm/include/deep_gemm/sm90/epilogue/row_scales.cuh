// Scales per row and per column of D (Recipe::kPerRow): they multiply the sum over all of K once.
#pragma once

#include "deep_gemm/sm90/gemm_layout.cuh"

namespace deep_gemm {

template <class Config>
struct RowScales {
    using Layout = GemmLayout<Config>;

    const Params& params;
    u32 m, n;

    // A thread's part of a 64-row accumulator; `row` and `column` are its first ones, of the multiplication, counted in
    // the matrix.
    __device__ __forceinline__ void apply(float (&final)[Layout::kAccumulators], u32 row, u32 column) const {
        const float* row_scales = Layout::kSwap ? params.scale_b : params.scale_a;
        const float* column_scales = Layout::kSwap ? params.scale_a : params.scale_b;
        const i64 row_stride = Layout::kSwap ? params.scale_b_stride_mn : params.scale_a_stride_mn;
        const i64 column_stride = Layout::kSwap ? params.scale_a_stride_mn : params.scale_b_stride_mn;
        const u32 num_rows = Layout::kSwap ? n : m, num_columns = Layout::kSwap ? m : n;
        const float low = row < num_rows ? row_scales[row * row_stride] : 0.0f,
                    high = row + 8 < num_rows ? row_scales[(row + 8) * row_stride] : 0.0f;
#pragma unroll
        for (u32 i = 0; i < Layout::kAccumulators; i += 4) {
#pragma unroll
            for (u32 e = 0; e < 2; ++e) {
                const u32 at = column + i * 2 + e;
                const float scale = at < num_columns ? column_scales[at * column_stride] : 0.0f;
                final[i + e] = __fmul_rn(__fmul_rn(low, scale), final[i + e]);
                final[i + e + 2] = __fmul_rn(__fmul_rn(high, scale), final[i + e + 2]);
            }
        }
    }

    // The same for the four values of one slot of a split tile.
    __device__ __forceinline__ void apply_slot(float (&value)[4], u32 row, u32 column) const {
#pragma unroll
        for (u32 e = 0; e < 4; ++e) {
            const u32 at_row = row + e / 2 * 8, at_column = column + e % 2;
            const u32 m_at = Layout::kSwap ? at_column : at_row, n_at = Layout::kSwap ? at_row : at_column;
            const bool exists = n_at < n && m_at < m;
            const float scale_a = exists ? params.scale_a[m_at * params.scale_a_stride_mn] : 0.0f;
            const float scale_b = exists ? params.scale_b[n_at * params.scale_b_stride_mn] : 0.0f;
            value[e] = __fmul_rn(__fmul_rn(scale_b, scale_a), value[e]);
        }
    }
};

}  // namespace deep_gemm
