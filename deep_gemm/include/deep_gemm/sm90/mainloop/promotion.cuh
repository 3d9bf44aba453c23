// Promotion: final = fmaf(scale_a * scale_b, partial, final) once per 128 of K. FP8 tensor cores keep about 14 bits of
// a partial sum, so partial sums must not grow longer than that.
//
// A 64 x kColumns accumulator: value 4 g + e of a thread lies in columns 8 g .. 8 g + 7, in its first row for e < 2 and
// in its second for e >= 2; within the group in column 2 (lane % 4) + e % 2.
#pragma once

#include "deep_gemm/sm90/gemm_layout.cuh"
#include "deep_gemm/sm90/ptx/ptx.cuh"

namespace deep_gemm {

// Add `partial`, a 64 x kColumns accumulator, times its block scale to `final`: columns from `boundary` on take `high`,
// the others `low` (of the thread's first and second row). The boundary is a multiple of kRun, so runs of that many
// columns share a scale and one selection each; a branch over the possible boundaries costs more (H200, tile 64x136:
// 23.6 us against 17.7).
template <u32 kColumns, u32 kRun>
__device__ __forceinline__ void add_blocks(float* final, const float (&partial)[kColumns / 2], const float (&low)[2],
                                           const float (&high)[2], u32 boundary) {
#pragma unroll
    for (u32 start = 0; start < kColumns; start += kRun) {
        const bool second = start > 0 && start >= boundary;
        const float scale[2] = {second ? high[0] : low[0], second ? high[1] : low[1]};
#pragma unroll
        for (u32 i = start / 2; i < (start + kRun) / 2 && i < kColumns / 2; ++i)
            final[i] = __fmaf_rn(scale[i % 4 / 2], partial[i], final[i]);
    }
}

// The scales of one wave and K step. They are read well before they are multiplied where registers allow: WGMMA keeps
// shared memory busy, and a read can take as long as a small tile's multiplication (H200, tile 64x128: 57 ns a step).
// Vectors of column scales that leave no registers (kLate) are read during promotion instead, so the stage must be held
// until then.
template <class Config>
struct WaveScales {
    using Layout = GemmLayout<Config>;
    static constexpr bool kRowVector = !Layout::kSwap || Layout::kVectorB,
                          kColumnVector = Layout::kSwap || Layout::kVectorB;
    static constexpr u32 kMaxHeld = 176;  // registers for accumulators and column scales, beside some 40 others
    static constexpr u32 kColumns = Layout::kColumns, kAccumulators = Layout::kAccumulators;
    static constexpr u32 kPartials = Config::kPipelined ? 2 : 1;
    static constexpr u32 kAccumulatorRegisters = (Layout::kWaves + kPartials) * kAccumulators;
    static constexpr bool kLate =
        Layout::kHasScales && kColumnVector && kAccumulatorRegisters + kPartials * kColumns / 4 > kMaxHeld;
    static constexpr u32 kHeld = kColumnVector ? (kLate ? 1 : kColumns / 4) : Layout::kBlocksOfGroup;

    float row[2], column[kHeld];
    u32 late;  // shared address of this thread's first column scale

    // `row_index` is the first of the thread's two rows of the multiplication, counted in the tile.
    __device__ __forceinline__ void read_rows(u32 address_a, u32 address_b, u32 row_index) {
        const u32 rows = Layout::kSwap ? address_b : address_a;
        if constexpr (Layout::kHasScales && kRowVector) {
            row[0] = ptx::load_shared(rows + 4 * row_index);
            row[1] = ptx::load_shared(rows + 4 * row_index + 32);
        } else if constexpr (Layout::kHasScales) {
            row[0] = ptx::load_shared(rows + row_index / 128 * Layout::kBlockStride);
        }
    }

    // All waves of a K step share them.
    __device__ __forceinline__ void read_columns(u32 address_a, u32 address_b) {
        const u32 columns = Layout::kSwap ? address_a : address_b;
        if constexpr (kLate) {
            late = columns + threadIdx.x % 4 * 8;
        } else if constexpr (Layout::kHasScales && kColumnVector) {
#pragma unroll
            for (u32 g = 0; g < kColumns / 8; ++g)
                ptx::load_shared_2(column[2 * g], column[2 * g + 1], columns + threadIdx.x % 4 * 8 + 32 * g);
        } else if constexpr (Layout::kHasScales) {
#pragma unroll
            for (u32 block = 0; block < kHeld; ++block)
                column[block] = ptx::load_shared(columns + Layout::kBlockStride * block);
        }
    }

    // The bits of all scales that have been read so far, for Pipeline::release.
    __device__ __forceinline__ u32 bits() const {
        u32 all = 0;
        if constexpr (Layout::kHasScales) {
            all = __float_as_uint(row[0]) | (kRowVector ? __float_as_uint(row[1]) : 0);
            if constexpr (!kLate) {
#pragma unroll
                for (u32 i = 0; i < kHeld; ++i) all |= __float_as_uint(column[i]);
            }
        }
        return all;
    }

    // Add the scaled partial sums to `final`; returns the bits of the column scales that were read here.
    __device__ __forceinline__ u32 promote_wave(float (&final)[kAccumulators], const float (&partial)[kAccumulators],
                                                u32 boundary) const {
        u32 late_bits = 0;
        if constexpr (!Layout::kHasScales) {
#pragma unroll
            for (u32 i = 0; i < kAccumulators; ++i) final[i] = __fadd_rn(final[i], partial[i]);
        } else if constexpr (kColumnVector) {
            late_bits = promote_columns(final, partial);
        } else {
            promote_blocks(final, partial, boundary);
        }
        return late_bits;
    }

   private:
    __device__ __forceinline__ u32 promote_columns(float (&final)[kAccumulators],
                                                   const float (&partial)[kAccumulators]) const {
        u32 late_bits = 0;
#pragma unroll
        for (u32 g = 0; g < kColumns / 8; ++g) {
            float pair[2];
            if constexpr (kLate) {
                ptx::load_shared_2(pair[0], pair[1], late + 32 * g);
                late_bits |= __float_as_uint(pair[0]) | __float_as_uint(pair[1]);
            } else {
                pair[0] = column[2 * g];
                pair[1] = column[2 * g + 1];
            }
            float scale[4];
#pragma unroll
            for (u32 e = 0; e < 4; ++e)
                scale[e] =
                    kRowVector || e < 2 ? ptx::multiply_here(row[kRowVector ? e / 2 : 0], pair[e % 2]) : scale[e - 2];
#pragma unroll
            for (u32 e = 0; e < 4; ++e) final[4 * g + e] = __fmaf_rn(scale[e], partial[4 * g + e], final[4 * g + e]);
        }
        return late_bits;
    }

    __device__ __forceinline__ void promote_blocks(float (&final)[kAccumulators], const float (&partial)[kAccumulators],
                                                   u32 boundary) const {
        constexpr u32 kRun = Layout::kBlocksOfGroup > 1 ? Layout::kScaleUnit : kColumns;
        const float low[2] = {ptx::multiply_here(row[0], column[0]), ptx::multiply_here(row[1], column[0])};
        float high[2] = {low[0], low[1]};
        if constexpr (Layout::kBlocksOfGroup > 1) {
            high[0] = ptx::multiply_here(row[0], column[1]);
            high[1] = ptx::multiply_here(row[1], column[1]);
        }
        add_blocks<kColumns, kRun>(final, partial, low, high, boundary);
    }
};

}  // namespace deep_gemm
