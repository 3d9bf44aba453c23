// The space of configs that is searched. The default space of a variant on a device is at most 176 legal configs; a
// problem's candidates are those of them that its num_sms, groups and batch_invariant allow and that are not pointless
// for its m, n and k.
#pragma once

#include <vector>

#include "core/config.hpp"
#include "core/device.hpp"
#include "core/legality.hpp"
#include "core/problem.hpp"
#include "core/tile_facts.hpp"

namespace deep_gemm {

inline constexpr size_t kMaxCandidates = 176;

// Tiles that became candidates after the features of the heuristic's revision were frozen (find_feature_pick).
inline constexpr bool is_late_tile(const Config& config) {
    const auto has_sides = [&](int m, int n) { return config.block_m == m && config.block_n == n; };
    const bool is_late_split = config.split_k > 1 && (has_sides(64, 40) || has_sides(64, 48));
    return has_sides(256, 112) || has_sides(128, 152) || is_late_split || is_beside(config);
}

// The union of all candidates of problems of `variant`'s variant, legal on `device` when all its SMs may be used. In a
// fixed order: rows on m before swapped, whole before split, then by tile (64x40 last), cluster, deeper rings first, so
// that of two equal estimates the simpler config with the deeper ring wins.
std::vector<Config> get_default_space(const Problem& variant, const Device& device);

struct SpaceTile {
    Config config;
    TileFacts facts;
};

// The same list with the facts of each. That of SM90 GPUs as sold is built once a variant (and head size of attention
// logits) and never freed: selection walks it for every new problem.
class Space {
 public:
    Space(const Problem& variant, const Device& device);
    Space(const Space&) = delete;

    const std::vector<SpaceTile>& tiles() const { return tiles_; }

 private:
    std::vector<SpaceTile> own_;
    const std::vector<SpaceTile>& tiles_;
};

// What decides which configs of the default space a problem on a device leaves out.
struct Pruning {
    Pruning(const Problem& problem, const Device& device);

    // Whether the SMs allow the config, no smaller tile, cluster or split does the same work with less waste, and its
    // ring, but for one of a split, leaves no memory for a third CTA that never comes. `fitting`: CTAs that an SM holds
    // at once.
    bool keeps(const Config& config, int fitting) const {
        if (config.cluster_m * config.cluster_n * config.split_k > sms) return false;
        if (!fits_alignment(alignment, config)) return false;
        if (config.swap_ab == 0) return keeps_plain(config);
        return keeps_swapped(config) && !(fitting > 2 && is_dense && is_alone(config, fitting));
    }

 private:
    bool keeps_plain(const Config& config) const {
        if (config.block_n > cover_n || (config.block_m > 64 && m <= config.block_m / 2)) return false;
        if (is_beside(config) && m <= config.block_m) return false;
        if (config.block_m * config.block_n < kSmallTile && config.block_n < widest_n &&
            num_tiles(config) > kMaxSmallWaves * sms)
            return false;
        if (config.split_k > 1 && !keeps_split(config)) return false;
        return (config.cluster_m == 1 || m > config.block_m) && (config.cluster_n == 1 || n > config.block_n);
    }
    bool keeps_swapped(const Config& config) const {
        if (config.block_m > kMostTokens) return keeps_wide(config);
        if (config.block_m > cover_m || m > std::max<int64_t>(kMaxTokenTiles * config.block_m, few_rows) ||
            (config.block_n > 64 && n <= config.block_n / 2))
            return false;
        return config.split_k == 1 || keeps_split(config);
    }
    bool keeps_split(const Config& config) const;
    // Whether the grid of a dense product has one CTA an SM, though `fitting` of this swapped tile fit; false of a
    // split. Of 251 rings for three CTAs timed there (141 were dropped early, as slow) none was the best of its problem
    // by confirmed times; of 181 in grids of two or three CTAs an SM 89 were (H200).
    bool is_alone(const Config& config, int fitting) const;
    // Of swapped tiles of more tokens: whether a dense product wastes fewer rows with them than with plain tiles of 128
    // rows, or masked groups may be about as large.
    bool keeps_wide(const Config& config) const;
    // Of all groups; a product of three sizes may need more than 64 bits.
    double num_tiles(const Config& config) const {
        return double(num_groups * ceil_div(m, config.block_m)) * double(ceil_div(n, config.block_n));
    }

    // Tiles below 128x64 reload too much over many waves; with more than a few tiles of tokens the weight is read too
    // often.
    static constexpr int kSmallTile = 128 * 64, kMaxSmallWaves = 4, kMaxTokenTiles = 4, kMostTokens = 64;
    // The host does not know how much of a contiguous group is padding: up to this many rows may be a few tokens. Where
    // no plain tile fits the alignment, any number of rows may.
    static constexpr int kPaddedRows = 512;

    int64_t m, n, k_steps;  // m: of one group
    int64_t num_groups, few_rows;
    int32_t sms, alignment;  // see group_alignment
    int cover_m;             // the smallest token tile that covers the problem with one tile
    bool takes_wide;         // swapped tiles of more than kMostTokens
    int wide_m;              // the most tokens of such a tile for groups of about m rows; 0: there are just m rows
    int cover_n;             // the smallest width of a tile that covers n
    int widest_n;            // of the tiles of 64 rows up to that width
    bool may_split, is_dense;
    bool is_limited;  // to num_sms
};

// Whether no smaller tile holds all tokens of a problem of attention logits.
inline bool keeps_tokens(const Problem& problem, const Config& config) {
    return config.block_m == 1 || config.block_m / 2 < problem.m;
}

std::vector<Config> get_candidates(const Problem& problem, const Device& device);

// Whether a config of any default space is legal for this problem and not pointless: the pruning keeps it, and a deeper
// ring would cost an SM a CTA. The learned choice is among these; its portfolio comes from the spaces of all variants.
bool is_worth_trying(const Problem& problem, const Config& config, const Device& device);

// Call `visit` with each candidate's SpaceTile of `space`, in the order of get_candidates.
template <typename Visit>
void for_each_candidate(const Problem& problem, const Device& device, const Space& space, Visit&& visit) {
    if (is_logits(problem)) {
        for (const SpaceTile& tile : space.tiles())
            if (keeps_tokens(problem, tile.config)) visit(tile);
        return;
    }
    const Pruning pruning(problem, device);
    for (const SpaceTile& tile : space.tiles())
        if (pruning.keeps(tile.config, tile.facts.blocks_per_sm)) visit(tile);
}

}  // namespace deep_gemm
