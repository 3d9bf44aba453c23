#include "core/row_draws.hpp"

#include <cmath>

namespace deep_gemm {
namespace {

// The rows of a group are assumed to lie anywhere between these shares of the rows expected, as after a router that is
// trained to balance its experts.
constexpr double kLeast = 0.7, kMost = 1.3;
// From so many tiles between least and most on, a uniform spread is near enough; a sum over them would cost every
// estimate time.
constexpr double kMostSteps = 16.0;
// Quantiles of a standard normal distribution: the middles of kRowDraws equal parts.
constexpr std::array<double, kRowDraws> kQuantiles = {
    -1.862731867421652, -1.318010897303537, -1.009990169249582, -0.776421761147928,
    -0.579132162255556, -0.402250065321725, -0.237202109328788, -0.078412412733112,
    0.078412412733112,  0.237202109328788,  0.402250065321725,  0.579132162255556,
    0.776421761147928,  1.009990169249582,  1.318010897303537,  1.862731867421652};

// Of a negative value, 0.
double round_half_up(double value) { return double(int64_t(std::clamp(value + 0.5, 0.0, 0x1p53))); }

// The tiles along m of one group: least, most, mean and variance.
struct GroupTiles {
    double least, most, mean, variance;
};

GroupTiles count_group_tiles(double expected, double room, double block_m) {
    const auto tiles_of = [&](double rows) { return round_up(std::min(round_half_up(rows), room) / block_m); };
    const double least = tiles_of(kLeast * expected), most = tiles_of(kMost * expected);
    if (most - least > kMostSteps) {  // groups below their room are about uniform
        const double low = kLeast * expected / block_m, high = std::min(kMost * expected, room) / block_m;
        const double below = most - 0.5 * (low + high + 1.0), spread = high - low;
        const double full = std::clamp((kMost - room / expected) / (kMost - kLeast), 0.0, 1.0), others = 1.0 - full;
        return {least, most, most - others * below, others * (spread * spread / 12.0 + full * below * below)};
    }
    // `share`: of the groups that have at most `tiles` tiles. Mean and variance follow from sums of it. Rows are whole
    // numbers, hence the 0.5.
    double below = 0.0, weighted = 0.0;
    for (double tiles = least; tiles < most; tiles += 1.0) {
        const double rows = (tiles * block_m + 0.5) / expected;
        const double share = std::clamp((rows - kLeast) / (kMost - kLeast), 0.0, 1.0);
        below += share;
        weighted += share * (2.0 * (most - tiles) - 1.0);
    }
    return {least, most, most - below, std::max(0.0, weighted - below * below)};
}

// One group alone is not normal, and keeps its own draws. Its rows are not rounded: trees and rates know them so.
void draw_one_group(double expected, double room, double block_m, RowDraws& draws) {
    double sum = 0.0;
    for (int i = 0; i < kRowDraws; ++i) {
        const double share = kLeast + (kMost - kLeast) * (i + 0.5) / kRowDraws;
        sum += draws.tiles[i] = round_up(std::min(expected * share, room) / block_m);
    }
    draws.mean = sum / kRowDraws;
}

// Groups are drawn apart from each other, so that the tiles of all of them are about normal.
void draw_groups(double groups, const GroupTiles& one, RowDraws& draws) {
    const double deviation = std::sqrt(groups * one.variance);
    draws.mean = groups * one.mean;
    for (int i = 0; i < kRowDraws; ++i) {
        const double tiles = round_half_up(draws.mean + deviation * kQuantiles[i]);
        draws.tiles[i] = std::clamp(tiles, groups * one.least, groups * one.most);
    }
}

}  // namespace

// Few groups fill the last round of tiles in some draws and begin another one in others. With these draws the heuristic
// loses less than with the mean alone, or with sums of the shape of one group's tiles (docs/search.md).
RowDraws draw_tiles(const Problem& problem, int32_t block_m) {
    const double expected = double(rows_per_group(problem)), room = double(problem.m);
    RowDraws draws;
    if (problem.num_groups == 1)
        draw_one_group(expected, room, double(block_m), draws);
    else
        draw_groups(double(problem.num_groups), count_group_tiles(expected, room, double(block_m)), draws);
    return draws;
}

}  // namespace deep_gemm
