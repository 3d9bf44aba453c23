#include "core/second_tile.hpp"

#include <algorithm>
#include <array>
#include <iterator>

#include "core/candidates.hpp"
#include "core/heuristic.hpp"
#include "core/legality.hpp"
#include "core/loop_rule.hpp"
#include "core/text.hpp"

namespace deep_gemm {
namespace {

// What reading the rows before anything else costs.
constexpr double kChoiceUs = 0.5;
// The share of the time that a second tile must save, since each one is one more kernel to compile.
constexpr double kLeastGain = 0.02;
// By this a round of the second tile counts as longer, so that the first one is taken where they tie.
constexpr double kMargin = 1.02;
// The tiles that may be second ones, so that kernels of two tiles stay few: by the estimate with which they were
// chosen, before that of unfilled rounds, these gain 1.9 and 2.0 % of the time over all problems of one to four groups
// of 64 to 1,024 rows (BF16 and FP8), where any candidates would gain 2.3 and 2.4.
struct Sides {
    int m, n, swap;
};
constexpr Sides kSecondTiles[] = {{64, 64, 0},   {64, 128, 0},  {64, 192, 0}, {128, 128, 0},
                                  {128, 192, 0}, {128, 256, 0}, {80, 128, 1}, {112, 128, 1}};

bool may_be_second(const Config& tile) {
    return std::any_of(std::begin(kSecondTiles), std::end(kSecondTiles), [&](const Sides& sides) {
        return tile.block_m == sides.m && tile.block_n == sides.n && tile.swap_ab == sides.swap;
    });
}

// Of groups with ends: few tokens by many rows of the weight, which fit the threads of the tiles for groups that fill
// their alignment.
constexpr int kMostFewTokens = 32;
// The rows of such groups by which the second tile is chosen, and the shares of the alignment that groups may have on
// average, padding included, so that they may be so few.
constexpr int64_t kFewRows = 24;
constexpr double kMostAlignments = 1.5;

bool may_serve_few(const Problem& problem, const Config& tile, const Device& device) {
    return tile.swap_ab != 0 && tile.block_m <= kMostFewTokens && is_legal(problem, tile, device);
}

// What tiles of groups with ends are rated by: masked groups of few rows; of masked groups themselves.
std::optional<Problem> find_rated(const Problem& problem) {
    if (op_kind(problem.op).has_room()) return problem;
    Problem few = problem;
    few.expected_m = std::min(kFewRows, problem.m);
    return find_masked_twin(few);
}

double weigh(double first_ns, double second_ns) { return kMargin * second_ns / first_ns; }

// A tile with its time by draw of the rows.
struct RatedTile {
    double round_ns;
    std::array<double, kRowDraws> rounds, total_us;

    RatedTile(const Problem& problem, const Estimator& estimator, Tiler& tiler, const Config& tile) {
        const TileFacts facts = find_facts(problem, tile);
        const Tiling tiling = tiler.divide(tile, facts);
        EstimateTerms terms = estimator.terms(tile, facts, tiling);
        round_ns = tile_ns(terms);
        const RowDraws draws = draw_tiles(problem, tile.block_m);
        for (int i = 0; i < kRowDraws; ++i) {
            const Rounds drawn = count_rounds(draws.tiles[i] * double(tiling.n_tiles), double(tiling.slots));
            rounds[i] = drawn.count;
            terms.sm_us = rounds[i] * round_ns * 1e-3;
            if (facts.blocks_per_sm == 1) terms.memory_us = estimator.memory_us(drawn.unfilled);
            total_us[i] = deep_gemm::total_us(terms);
        }
    }

    double mean_us() const { return mean_with(*this); }

    // Of this tile and a second one, whichever the kernel takes.
    double mean_with(const RatedTile& second) const {
        const double weight = weigh(round_ns, second.round_ns);
        double sum = 0.0;
        for (int i = 0; i < kRowDraws; ++i)
            sum += second.rounds[i] * weight < rounds[i] ? second.total_us[i] : total_us[i];
        return sum / kRowDraws;
    }
};

std::string name(const char* role, const Config& config) { return role + (" = " + to_string(config)); }

}  // namespace

std::string tiles_reason(const Problem& problem, const Config& first, const std::optional<Config>& second,
                         const Device& device) {
    if (const std::string reason = legality_reason(problem, first, device); !reason.empty())
        return name("config", first) + ": " + reason;
    if (!second) return "";
    if (const std::string reason = legality_reason(problem, *second, device); !reason.empty())
        return name("second", *second) + ": " + reason;
    const std::string reason = second_tile_reason(problem, first, *second);
    return reason.empty() ? "" : name("config", first) + ", " + name("second", *second) + ": " + reason;
}

std::string second_tile_reason(const Problem& problem, const Config& first, const Config& second) {
    if (!op_kind(problem.op).expects_rows())
        return "op = " + std::string(op_name(problem.op)) +
               ": only kernels of masked groups, and of rows of groups with ends, hold two tiles; pass one config";
    if (!find_rated(problem))
        return "alignment = " + std::to_string(problem.alignment) +
               ", b_major = " + value_text(*find_problem_field("b_major"), problem) +
               ": no masked product has such operands, or rows so few; pass one config";
    for (const Config& config : {first, second})
        if (!is_single(config))
            return clause("CTAs of a cluster", config.cluster_m * config.cluster_n * config.split_k,
                          "must be 1 beside another tile; choose configs without clusters");
    if (num_threads(problem, first) != num_threads(problem, second))
        return clause("threads", num_threads(problem, second),
                      "must be the " + std::to_string(num_threads(problem, first)) +
                          " of the first tile; choose a tile with as many warpgroups");
    if (blocks_per_sm(problem, first) != blocks_per_sm(problem, second))
        return clause("CTAs of an SM", blocks_per_sm(problem, second),
                      "must be the " + std::to_string(blocks_per_sm(problem, first)) +
                          " of the first tile; choose another number of stages");
    return "";
}

double second_tile_weight(const Problem& problem, const Config& first, const Config& second, const Device& device) {
    const Problem rated = find_rated(problem).value();
    const Estimator estimator(rated, device);
    Tiler tiler(rated, estimator.sms());
    return weigh(RatedTile(rated, estimator, tiler, first).round_ns,
                 RatedTile(rated, estimator, tiler, second).round_ns);
}

namespace {

// The tile that takes least for groups of few rows, where the first one takes longer. It does not matter then how long
// both take with more rows: the kernel takes the first one.
std::optional<Config> find_tile_of_few(const Problem& problem, const Config& first, const Device& device) {
    const bool may_be_few = double(rows_per_group(problem)) < kMostAlignments * double(problem.alignment);
    const std::optional<Problem> rated = may_be_few && problem.expected_m == 0 ? find_rated(problem) : std::nullopt;
    if (!rated) return std::nullopt;
    const Estimator estimator(*rated, device);
    Tiler tiler(*rated, estimator.sms());
    double least_us = RatedTile(*rated, estimator, tiler, first).mean_us() * (1.0 - kLeastGain) - kChoiceUs;
    std::optional<Config> best;
    for_each_candidate(*rated, device, Space(*rated, device), [&](const SpaceTile& tile) {
        if (!may_serve_few(problem, tile.config, device)) return;
        const Config second = with_loop_knobs_of_tile(*rated, tile.config, device, estimator.k_steps());
        if (!second_tile_reason(problem, first, second).empty()) return;
        const double mean_us = RatedTile(*rated, estimator, tiler, tile.config).mean_us();
        if (mean_us < least_us) least_us = mean_us, best = second;
    });
    return best;
}

}  // namespace

std::optional<Config> find_second_tile(const Problem& problem, const Config& first, const Device& device) {
    if (problem.has_signals) return std::nullopt;
    if (op_kind(problem.op).grouping == Grouping::kMPsum) return find_tile_of_few(problem, first, device);
    if (!op_kind(problem.op).has_room() || problem.num_groups > kMostGroupsOfTwoTiles) return std::nullopt;
    const Estimator estimator(problem, device);
    Tiler tiler(problem, estimator.sms());
    const RatedTile own(problem, estimator, tiler, first);
    double least_us = own.mean_us() * (1.0 - kLeastGain) - kChoiceUs;
    std::optional<Config> best;
    for_each_candidate(problem, device, Space(problem, device), [&](const SpaceTile& tile) {
        if (!may_be_second(tile.config)) return;
        const Config second = with_loop_knobs_of_tile(problem, tile.config, device, estimator.k_steps());
        if (!second_tile_reason(problem, first, second).empty()) return;
        const double mean_us = own.mean_with(RatedTile(problem, estimator, tiler, tile.config));
        if (mean_us < least_us) least_us = mean_us, best = second;
    });
    return best;
}

std::string name_tiles(const Config& first, const std::optional<Config>& second) {
    return second ? to_string(first) + " or " + to_string(*second) : to_string(first);
}

}  // namespace deep_gemm
