// Direct epilogue: D from the registers of the math threads to global memory, element by element where need be. It
// serves what TMA cannot: any C with alpha and beta (C may be D), columns remapped by heads, tiles too large to stage,
// and the shares of split K.
//
//     D = alpha * final + beta * C,  the sum in FP32 with one rounding, then rounded to the type of D.
#pragma once

#include "deep_gemm/sm90/ptx/ptx.cuh"

namespace deep_gemm {

template <bool kFloat>
struct OutputType {
    using Type = u16;
    __device__ static __forceinline__ u16 from_float(float value) { return u16(ptx::pack_bf16(value, 0.0f)); }
    __device__ static __forceinline__ float to_float(u16 value) { return __uint_as_float(u32(value) << 16); }
};

template <>
struct OutputType<true> {
    using Type = float;
    __device__ static __forceinline__ float from_float(float value) { return value; }
    __device__ static __forceinline__ float to_float(float value) { return value; }
};

template <class Config>
struct DirectStore {
    using Output = OutputType<Config::kFloatD>;
    using Type = typename Output::Type;
    static constexpr bool kSwap = Config::kSwapAB,
                          kAdds = Config::kCMode == CMode::kGeneral || Config::kCMode == CMode::kAccumulate;

    const Params& params;
    u32 m, n;

    // Store values 4 g .. 4 g + 3 of a thread's accumulator: `row` and `row` + 8 of the multiplication by `column` and
    // `column` + 1 (both counted in the matrix).
    __device__ __forceinline__ void write(const float* value, u32 row, u32 column) const {
        // Or addresses of all groups are computed at once and take registers that there are not.
        asm volatile("" : "+r"(row), "+r"(column));
        if constexpr (kSwap) {
            write_one(column, row, value[0]);
            write_one(column + 1, row, value[1]);
            write_one(column, row + 8, value[2]);
            write_one(column + 1, row + 8, value[3]);
        } else {
            write_two(row, column, value);
            write_two(row + 8, column, value + 2);
        }
    }

   private:
    __device__ __forceinline__ u32 remap(u32 column) const {
        if constexpr (Config::kCMode != CMode::kHeadSplit) return column;
        return column + (column + params.head_right) / (params.head_left + params.head_right) * params.head_mid;
    }

    __device__ __forceinline__ float finish(float value, Type c) const {
        const float scaled = __fmul_rn(params.alpha, value);
        return kAdds ? __fmaf_rn(params.beta, Output::to_float(c), scaled) : scaled;
    }

    __device__ __forceinline__ void write_one(u32 row, u32 column, float value) const {
        if (row >= m || column >= n) return;
        const Type c = kAdds ? static_cast<const Type*>(params.c)[row * params.c_stride_m + column] : Type(0);
        static_cast<Type*>(params.d)[row * params.d_stride_m + remap(column)] = Output::from_float(finish(value, c));
    }

    // Two neighbouring columns, the first one even: rows of D start 16-byte aligned, so both go in one store where both
    // exist and stay neighbours.
    __device__ __forceinline__ void write_two(u32 row, u32 column, const float* value) const {
        if (row >= m || column + 1 >= n || Config::kCMode == CMode::kHeadSplit) {
            write_one(row, column, value[0]);
            write_one(row, column + 1, value[1]);
            return;
        }
        struct alignas(2 * sizeof(Type)) Pair {
            Type first, second;
        };
        Pair c = {};
        if constexpr (kAdds) {  // one by one: C may have any row stride
            const Type* from = static_cast<const Type*>(params.c) + row * params.c_stride_m + column;
            c = {from[0], from[1]};
        }
        const Pair d = {Output::from_float(finish(value[0], c.first)), Output::from_float(finish(value[1], c.second))};
        *reinterpret_cast<Pair*>(static_cast<Type*>(params.d) + row * params.d_stride_m + column) = d;
    }
};

}  // namespace deep_gemm
