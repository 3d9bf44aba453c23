// The instructions of the quantising kernels in C++, for tests on the CPU.
#pragma once

#include <cmath>

#include "deep_gemm/types.cuh"

namespace deep_gemm {

inline void launch_early() { ++early_starts; }

inline u32 max_halves(u32 a, u32 b) {
    const u32 low = (a & 0xFFFF) > (b & 0xFFFF) ? a & 0xFFFF : b & 0xFFFF, high = a >> 16 > b >> 16 ? a >> 16 : b >> 16;
    return high << 16 | low;
}

inline float max_or_nan(float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : std::fmax(a, b); }

inline float approximate_reciprocal(float value) { return 1.0f / value; }

inline float approximate_power_of_two(float value) { return std::exp2(value); }

inline float half_to_float(u16 bits) {
    _Float16 value;
    __builtin_memcpy(&value, &bits, 2);
    return float(value);
}

// One E4M3 number: 3 bits of mantissa, exponents from -6, subnormals below; rounds to even, clamps at 448.
inline u32 to_fp8(float value) {
    if (std::isnan(value)) return 0x7F;
    const u32 sign = std::signbit(value) ? 0x80 : 0;
    const float magnitude = std::fmin(std::fabs(value), 448.0f);
    if (magnitude == 0.0f) return sign;
    int exponent = std::ilogb(magnitude);
    exponent = exponent < -6 ? -6 : exponent;
    const float steps = std::nearbyint(std::ldexp(magnitude, 3 - exponent));  // of an eighth of the exponent's power
    return sign | u32(int(steps) + (exponent + 6) * 8);
}

inline u32 to_fp8_pair(float low, float high) { return to_fp8(low) | to_fp8(high) << 8; }

}  // namespace deep_gemm
