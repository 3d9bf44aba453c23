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

// What reading the rows before anything else costs, and the share of the time that a second tile must save: each is one
// more kernel to compile.
constexpr double kChoiceUs = 0.5, kLeastGain = 0.02;
constexpr double kMargin = 1.02;
// A bound on the kernels that are compiled. Of sizes drawn at random fewer gain the more groups there are: 2.3 % with
// eight, 1.7 with nine, 0.5 with sixteen.
constexpr int32_t kMostGroups = 8;

// The tiles that stand beside others, so that kernels of pairs stay few: by the estimate these gain 1.9 and 2.0 % over
// one to four groups of 64 to 1,024 rows (BF16 and FP8), where any candidates would gain 2.3 and 2.4.
struct Sides {
    int m, n, swap;
};
constexpr Sides kSecondTiles[] = {{64, 64, 0},   {64, 128, 0},  {64, 192, 0}, {128, 128, 0},
                                  {128, 192, 0}, {128, 256, 0}, {80, 128, 1}, {112, 128, 1}};

bool may_stand_beside(const Config& tile) {
    return std::any_of(std::begin(kSecondTiles), std::end(kSecondTiles), [&](const Sides& sides) {
        return tile.block_m == sides.m && tile.block_n == sides.n && tile.swap_ab == sides.swap;
    });
}

// A tile with its time by draw of the rows.
struct RatedTile {
    double tile_us;  // of one round
    std::array<double, kRowDraws> rounds, total_us;

    RatedTile(const Problem& problem, const Estimator& estimator, Tiler& tiler, const Config& tile) {
        const TileFacts facts = find_facts(problem, tile);
        const Tiling tiling = tiler.divide(tile, facts);
        EstimateTerms terms = estimator.terms(tile, facts, tiling);
        tile_us = tile_ns(terms) * 1e-3;
        const RowDraws draws = draw_tiles(problem, tile.block_m);
        for (int i = 0; i < kRowDraws; ++i) {
            rounds[i] = round_up(draws.tiles[i] * double(tiling.n_tiles) / double(tiling.slots));
            terms.sm_us = rounds[i] * tile_us;
            total_us[i] = deep_gemm::total_us(terms);
        }
    }

    double mean_us() const { return mean_with(*this); }

    // Of this tile and a second one, whichever the kernel takes.
    double mean_with(const RatedTile& second) const {
        const double weight = kMargin * second.tile_us / tile_us;
        double sum = 0.0;
        for (int i = 0; i < kRowDraws; ++i)
            sum += second.rounds[i] * weight < rounds[i] ? second.total_us[i] : total_us[i];
        return sum / kRowDraws;
    }
};

double estimate_tile_ns(const Problem& problem, const Estimator& estimator, const Config& config) {
    const TileFacts facts = find_facts(problem, config);
    return tile_ns(estimator.terms(config, facts, Tiler(problem, estimator.sms()).divide(config, facts)));
}

std::string describe_cluster(const Config& config) {
    return "config = " + to_string(config) +
           ": has clusters of more than one CTA, and two tiles need CTAs by themselves; choose a config without";
}

}  // namespace

std::string second_tile_reason(const Problem& problem, const Config& first, const Config& second) {
    if (!op_kind(problem.op).has_room())
        return "op = " + std::string(op_name(problem.op)) +
               ": only kernels of masked groups hold two tiles; pass one config";
    for (const Config& config : {first, second})
        if (!is_single(config)) return describe_cluster(config);
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
    const Estimator estimator(problem, device);
    return kMargin * estimate_tile_ns(problem, estimator, second) / estimate_tile_ns(problem, estimator, first);
}

std::optional<Config> find_second_tile(const Problem& problem, const Config& first, const Device& device) {
    if (!op_kind(problem.op).has_room() || problem.num_groups > kMostGroups) return std::nullopt;
    const Estimator estimator(problem, device);
    Tiler tiler(problem, estimator.sms());
    const RatedTile own(problem, estimator, tiler, first);
    double least_us = own.mean_us() * (1.0 - kLeastGain) - kChoiceUs;
    std::optional<Config> best;
    for (const Config& tile : get_candidates(problem, device)) {
        if (!may_stand_beside(tile)) continue;
        const Config second = with_loop_knobs_of_tile(problem, tile, device, estimator.k_steps());
        if (!second_tile_reason(problem, first, second).empty()) continue;
        const double mean_us = own.mean_with(RatedTile(problem, estimator, tiler, tile));
        if (mean_us < least_us) least_us = mean_us, best = second;
    }
    return best;
}

std::string name_tiles(const Config& first, const std::optional<Config>& second) {
    return second ? to_string(first) + " or " + to_string(*second) : to_string(first);
}

}  // namespace deep_gemm
