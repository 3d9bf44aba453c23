// Pieces of the kernels that quantise to FP8 (E4M3), each rounded as torch's CUDA kernels round the formula of
// deep_gemm/quantize.py.
//
// A chunk is 16 bytes of the input, four words. Magnitudes are compared as integers: bits of non-negative floats are in
// the order of the floats, and NaN lies above all of them, so that it reaches the scale as it does in torch.
#pragma once

#include "deep_gemm/fp8_ptx.cuh"
#include "deep_gemm/types.cuh"

namespace deep_gemm {

enum class Element : u32 { kFloat32, kFloat16, kBfloat16 };

constexpr u32 kInfinityBits = 0x7F800000;

// What torch before 2.13 makes of magnitudes that round to more than 448, infinity included: NaN of the same sign.
__device__ __forceinline__ u32 to_fp8_unbounded(float value) {
    const u32 bits = __float_as_uint(value);
    const bool is_finite = (bits & 0x7FFFFFFF) <= 0x43E80000;  // 464, which rounds to 448
    return is_finite ? to_fp8_pair(value, 0.0f) & 0xFF : 0x7F | (bits >> 24 & 0x80);
}

// expf of CUDA takes the exponent of exp(-gate) from the lowest bits of this number, which it computes by way of a
// clamped one.
__device__ __forceinline__ float shift_exponent(float gate) { return __fmaf_rd(-gate, 1.4426950216f, 12583039.0f); }

// 1 + expf(-gate) for moderate gates, equal to the bit: exponent (a test compares those of all gates), remainder and
// instructions are those of expf, and the sum is rounded once because the product is exact.
__device__ __forceinline__ float add_exponential(float gate) {
    const float shifted = shift_exponent(gate), exponent = __fadd_rn(shifted, -12583039.0f);
    const float remainder = __fmaf_rn(-gate, 1.925963033500011e-08f, __fmaf_rn(-gate, 1.4426950216f, -exponent));
    return __fmaf_rn(__uint_as_float(__float_as_uint(shifted) << 23), approximate_power_of_two(remainder), 1.0f);
}

// gate / divisor, correctly rounded, for moderate gates, divisor = 1 + exp(-gate) with up to eight units of error in
// the last place of exp, and `reciprocal` = 1 / divisor with up to one. (A test divides all of them. Zeros, infinities
// and quotients beside a power of two would need what __fdiv_rn does besides.)
__device__ __forceinline__ float divide_gate(float gate, float divisor, float reciprocal) {
    const float quotient = __fmul_rn(gate, reciprocal);
    return __fmaf_rn(-__fmaf_rn(divisor, quotient, -gate), reciprocal, quotient);
}

// Words of elements of one type.
template <Element kElement>
struct Elements {
    static constexpr u32 kBytes = kElement == Element::kFloat32 ? 4 : 2;
    static constexpr u32 kChunk = 16 / kBytes;  // elements

    __device__ static __forceinline__ float to_float(u32 half) {
        return kElement == Element::kBfloat16 ? __uint_as_float(half << 16) : half_to_float(static_cast<u16>(half));
    }

    __device__ static __forceinline__ void unpack(const u32 (&words)[4], float (&values)[kChunk]) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            if constexpr (kBytes == 4) {
                values[i] = __uint_as_float(words[i]);
            } else {
                values[2 * i] = to_float(words[i] & 0xFFFF);
                values[2 * i + 1] = to_float(words[i] >> 16);
            }
        }
    }

    // Magnitudes of a word's elements, and the larger ones of two words of magnitudes.
    __device__ static __forceinline__ u32 magnitudes(u32 word) {
        return word & (kBytes == 4 ? 0x7FFFFFFF : 0x7FFF7FFF);
    }
    __device__ static __forceinline__ u32 max_of_words(u32 a, u32 b) {
        return kBytes == 4 ? max_of(a, b) : max_halves(a, b);
    }

    __device__ static __forceinline__ u32 max_of_chunk(const u32 (&words)[4]) {
        return max_of_words(max_of_words(magnitudes(words[0]), magnitudes(words[1])),
                            max_of_words(magnitudes(words[2]), magnitudes(words[3])));
    }

    // Whether all elements of a chunk are moderate gates, for which the short forms hold: of magnitudes from 2^-18
    // (BF16) or 2^-14 (FP16) to 64. Compares doubled magnitudes less the least: what a sign adds to the half above is
    // less than a step there, and a half that is less than the least takes from the one above, but is itself beyond the
    // range.
    __device__ static __forceinline__ bool are_moderate(const u32 (&words)[4]) {
        constexpr bool kIsBfloat16 = kElement == Element::kBfloat16;
        constexpr u32 kLow = 2 * (kIsBfloat16 ? 0x3680 : 0x0400), kRange = 2 * (kIsBfloat16 ? 0x4280 : 0x5400) - kLow;
        if constexpr (kBytes == 4) return false;
        u32 above[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) above[i] = 2 * words[i] - kLow * 0x10001;
        const u32 largest = max_halves(max_halves(above[0], above[1]), max_halves(above[2], above[3]));
        return largest < kRange << 16 && (largest & 0xFFFF) < kRange;
    }

    // The magnitudes of a word as FP32.
    __device__ static __forceinline__ float low(u32 word) {
        return kBytes == 4 ? __uint_as_float(word) : to_float(word & 0xFFFF);
    }
    __device__ static __forceinline__ float high(u32 word) {
        return kBytes == 4 ? __uint_as_float(word) : to_float(word >> 16);
    }
    __device__ static __forceinline__ float max_of_word(u32 word) {
        return kBytes == 4 ? __uint_as_float(word) : to_float(max_of(word & 0xFFFF, word >> 16));
    }

    // Load the chunk at element `column` of a row of n elements; elements beyond the row are 0. `kIsAligned`: rows
    // start at 16 bytes and n is a multiple of the chunk. No hint: to evict the lines first costs 5 to 9 % of the
    // kernel.
    template <bool kIsAligned>
    __device__ static __forceinline__ void load(const void* row, u32 column, u32 n, u32 (&words)[4]) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) words[i] = 0;
        if constexpr (kIsAligned) {
            if (column >= n) return;
            const uint4 chunk = *reinterpret_cast<const uint4*>(static_cast<const u8*>(row) + u64(column) * kBytes);
            words[0] = chunk.x, words[1] = chunk.y, words[2] = chunk.z, words[3] = chunk.w;
        } else {
#pragma unroll
            for (u32 i = 0; i < kChunk; ++i) {
                if (column + i >= n) continue;
                if constexpr (kBytes == 4)
                    words[i] = static_cast<const u32*>(row)[column + i];
                else
                    words[i / 2] |= u32(static_cast<const u16*>(row)[column + i]) << 16 * (i % 2);
            }
        }
    }

    // Store the chunk's FP8 bytes, of which there are kChunk.
    template <bool kIsAligned>
    __device__ static __forceinline__ void store(u8* row, u32 column, u32 n, const u32 (&bytes)[2]) {
        if constexpr (kIsAligned) {
            if (column >= n) return;
            if constexpr (kBytes == 4)
                *reinterpret_cast<u32*>(row + column) = bytes[0];
            else
                *reinterpret_cast<uint2*>(row + column) = make_uint2(bytes[0], bytes[1]);
        } else {
#pragma unroll
            for (u32 i = 0; i < kChunk; ++i)
                if (column + i < n) row[column + i] = static_cast<u8>(bytes[i / 4] >> 8 * (i % 4));
        }
    }
};

// amax clamped at 1e-4, over 448 (torch multiplies by the reciprocal of a Python number), rounded up to a power of two
// where asked.
template <bool kUe8m0>
__device__ __forceinline__ float scale_of(float amax) {
    const float scale = __fmul_rn(amax < 1e-4f ? 1e-4f : amax, 1.0f / 448.0f);
    if (!kUe8m0) return scale;
    const u32 bits = __float_as_uint(scale);
    if ((bits & 0x7FFFFFFF) >= kInfinityBits) return 1.0f;  // frexp gives no exponent
    return __uint_as_float((bits + 0x7FFFFF) & 0xFF800000);
}

// Quantise a chunk by factors 1 / scale. `is_unbounded`: products may exceed 448 and then become NaN. Else they are at
// most 448 but for rounding, because the scale is of the largest magnitude; a scale that is not finite leaves zeros and
// NaN, or (UE8M0) any products.
template <u32 kChunk>
__device__ __forceinline__ void quantise(const float (&values)[kChunk], const float (&factors)[kChunk],
                                         bool is_unbounded, u32 (&bytes)[2]) {
    float products[kChunk];
#pragma unroll
    for (u32 i = 0; i < kChunk; ++i) products[i] = __fmul_rn(values[i], factors[i]);
    bytes[0] = bytes[1] = 0;
#pragma unroll
    for (u32 i = 0; i < kChunk; i += 2) bytes[i / 4] |= to_fp8_pair(products[i], products[i + 1]) << 8 * (i % 4);
    if (!is_unbounded) return;
    bytes[0] = bytes[1] = 0;
#pragma unroll
    for (u32 i = 0; i < kChunk; ++i) bytes[i / 4] |= to_fp8_unbounded(products[i]) << 8 * (i % 4);
}

}  // namespace deep_gemm
