// The rows of masked groups, which the host does not know: what the estimate assumes of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/problem.hpp"

namespace deep_gemm {

inline constexpr int kRowDraws = 16;

// Tiles along m of all groups together: by draw, ascending, and on average.
struct RowDraws {
    std::array<double, kRowDraws> tiles;
    double mean;
};

RowDraws draw_tiles(const Problem& problem, int32_t block_m);

// std::ceil of what is not negative, without a call of the C library; at most 2^53.
inline double round_up(double value) {
    const int64_t whole = int64_t(std::min(value, 0x1p53));
    return double(whole + (double(whole) < value));
}

// Rounds that tiles take, and the share of all slots of these that stay empty, in the last one.
struct Rounds {
    double count, unfilled;
};

inline Rounds count_rounds(double tiles, double slots) {
    const double filled = tiles / slots, count = round_up(filled);
    return {count, count > 0.0 ? 1.0 - filled / count : 0.0};
}

}  // namespace deep_gemm
