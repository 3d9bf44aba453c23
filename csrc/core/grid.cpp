#include "core/grid.hpp"

#include <algorithm>

namespace deep_gemm {
namespace {

// One CTA an SM takes so much more time for the same tiles of an SM: its own ring bounds what is in flight.
constexpr double kAlone = 1.25;

}  // namespace

// A dense product of a few tokens reads its weight once, by one tile along m, and all SMs should read until the end. So
// it has the number of CTAs with which the busiest SM gets the fewest tiles, of equal ones the larger; tiles of one CTA
// an SM count kAlone. Of 42 kernels (144 to 2,020 tiles of 64 rows of the weight, rings for two and three CTAs, H200)
// that takes 0.94 of the time of one CTA an SM, 0.76 to 1.00, and 1.002 of the best number's; in graphs of them in a
// row 0.92 (docs/experiments.md). Dense products of more tiles along m were not timed: one.
int dense_blocks_per_sm(int64_t m_tiles, int64_t tiles, int32_t sms, int most) {
    if (m_tiles > 1 || sms < 1) return 1;
    int best = 1;
    double fewest = kAlone * double(ceil_div(tiles, int64_t(sms)));
    for (int ctas = 2; ctas <= most; ++ctas) {
        const double of_sm = double(ctas * ceil_div(tiles, int64_t(sms) * ctas));
        if (of_sm <= fewest) best = ctas, fewest = of_sm;
    }
    return best;
}

// Groups: all that fit.
int grid_blocks_per_sm(const Problem& problem, const Config& config, int64_t m_tiles, int64_t tiles, int32_t sms,
                       int register_blocks) {
    const int fitting = blocks_per_sm(problem, config);
    if (is_grouped(problem.op)) return fitting;
    if (config.cluster_m * config.cluster_n > 1) return 1;
    return dense_blocks_per_sm(m_tiles, tiles, sms, std::min(fitting, register_blocks));
}

int grid_revision(const OpKind& kind) { return kind.is_grouped() || kind.is_logits() ? 1 : 2; }

}  // namespace deep_gemm
