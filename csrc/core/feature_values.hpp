// Values that features of several models are made of.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/legality.hpp"

namespace deep_gemm {

inline constexpr int64_t kMaxAlignment = 256;  // the largest tile edge; coarser alignment changes nothing

// std::frexp, without the call for normal numbers.
struct Split {
    double fraction;
    int exponent;
};
inline Split split_exponent(double x) {
    constexpr int kMantissaBits = 52, kHalf = 1022;  // the exponent of numbers in [1/2, 1)
    const uint64_t bits = std::bit_cast<uint64_t>(x), sign_and_exponent = bits >> kMantissaBits;
    if (sign_and_exponent - 1 >= 2 * kHalf + 2) {  // negative, zero, subnormal, infinite or none
        Split split;
        split.fraction = std::frexp(x, &split.exponent);
        return split;
    }
    const uint64_t mantissa = bits & ((uint64_t(1) << kMantissaBits) - 1);
    return {std::bit_cast<double>(mantissa | uint64_t(kHalf) << kMantissaBits), int(sign_and_exponent) - kHalf};
}

// log2 from additions, products and one quotient, so that every host gives the same double; C libraries differ.
// x = 2^e * f with f in [sqrt(1/2), sqrt(2)); ln f = 2 atanh(z), z = (f-1)/(f+1), |z| < 0.172: ten terms reach 1e-16.
inline double portable_log2(double x) {
    constexpr double kInvLn2 = 1.4426950408889634, kSqrtHalf = 0.70710678118654752;
    constexpr double kCoefficients[] = {1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11,
                                        1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3,  1.0};
    auto [fraction, exponent] = split_exponent(x);
    const bool is_low = fraction < kSqrtHalf;  // of no branch: it depends on the data
    fraction *= is_low ? 2.0 : 1.0;
    exponent -= is_low ? 1 : 0;
    const double z = (fraction - 1.0) / (fraction + 1.0), z2 = z * z;
    double sum = 0.0;
#pragma GCC unroll 10
    for (double coefficient : kCoefficients) sum = sum * z2 + coefficient;
    return exponent + 2.0 * kInvLn2 * z * sum;
}

inline double log2_alignment(int64_t value) { return double(std::countr_zero(uint64_t(value | kMaxAlignment))); }

// The boundaries of B-scale blocks, 128 columns each, inside a column tile, on average: of tiles that touch two blocks
// at most the share that touch two. 64x224 touches up to three.
inline double two_scale_share(int64_t n, int block_n, int64_t n_tiles) {
    const int64_t common = int64_t(kScaleBlock / scale_start_step(block_n)) * block_n;
    const int64_t inside = (n - 1) / kScaleBlock - (n - 1) / common;
    return double(inside) / double(n_tiles);
}

}  // namespace deep_gemm
