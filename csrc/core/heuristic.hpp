// The analytic heuristic: a pure function from problem and device to a config. Predicted time = launch + a soft maximum
// of what memory, L2, the power limit and the busiest SM need; the busiest SM runs (tiles it gets) x (K steps x step +
// epilogue).
#pragma once

#include <array>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "core/device.hpp"
#include "core/heuristic_rates.hpp"
#include "core/legality.hpp"
#include "core/problem.hpp"
#include "core/row_draws.hpp"
#include "core/tile_facts.hpp"

namespace deep_gemm {

// How the tiles of a config divide a problem.
struct Tiling {
    int64_t m_tiles, n_tiles;
    int64_t m_cluster_tiles;  // clusters along m; none straddles two groups that have a D of their own and m rows each
    int64_t cluster_tiles;    // pieces of work: a cluster (the CTAs of a split are one) takes one at a time
    int64_t slots;            // clusters that fit the SMs at once, at least 1
    double rounds;            // pieces that the busiest slot takes; of masked groups, the mean over draws of their rows
    int blocks_per_sm;        // CTAs that share an SM
    int64_t parts = 1;        // of the sum over groups, each with tiles of its own
    double unfilled = 0.0;    // share of the rounds' slots that stay empty, in masked groups with room for a CTA an SM
};

// Divides one problem into tiles. It remembers counts of rows, because candidates share few of them and those of masked
// groups take several divisions each.
class Tiler {
 public:
    Tiler(const Problem& problem, int32_t sms) : problem_(problem), sms_(sms) {}

    Tiling divide(const Config& config, const TileFacts& facts);
    // The same, of heuristic.cpp alone.
    [[gnu::always_inline]] inline Tiling divide_inline(const Config& config, const TileFacts& facts);

 private:
    struct Rows {
        int32_t block_m = 0;
        int64_t tiles = 0, tiles_of_group = 0;
        // Of masked groups: the tiles of all of them by draw, those with equal tiles together.
        struct Draw {
            double tiles, share;
        };
        int num_draws = 0;
        std::array<Draw, kRowDraws> draws;
    };
    inline const Rows& count_rows(int32_t block_m);
    void draw_rows(Rows& rows) const;
    static Rounds mean_rounds(const Rows& rows, double columns, double slots);

    const Problem& problem_;
    int32_t sms_;
    std::array<Rows, 17> rows_;  // by block_m / 8, which few others share
};

// Sizes of the work of all groups together, as far as the host knows them; those of a dense product are its own.
struct Extent {
    int64_t rows;      // of A and D
    int64_t k;         // of one group
    int64_t matrices;  // of B
};

Extent extent_of(const Problem& problem);

// Bytes of A, B, their scales, C and D, each moved once.
double memory_bytes(const Problem& problem);

// What a predicted time is made of. Times of parts overlap, except launch and split.
struct EstimateTerms {
    double launch_us, split_us, memory_us, l2_us, power_us, sm_us;
    double math_ns, load_ns, latency_ns, step_ns;  // of one K step of a tile, the slowest part and more
    double steps, epilogue_ns;                     // of a tile; 0 for attention logits, as are those of a step
};

// The time of a tile, K and epilogue, and the predicted time of all parts.
inline double tile_ns(const EstimateTerms& terms) { return terms.steps * terms.step_ns + terms.epilogue_ns; }
double total_us(const EstimateTerms& terms);

// Predicts times of one problem on one device; holds what does not depend on the config. `facts` are find_facts of it.
class Estimator {
 public:
    // With base_rates of the device, or with others of the same meaning.
    Estimator(const Problem& problem, const Device& device);
    Estimator(const Problem& problem, const Device& device, const HeuristicRates& base);

    EstimateTerms terms(const Config& config, const TileFacts& facts, const Tiling& tiling) const;
    double time_us(const Config& config) const;
    // What memory needs where a share `unfilled` of the rounds' slots stays empty.
    double memory_us(double unfilled) const;
    // The time, or infinity where that is not below `limit`; of heuristic.cpp alone.
    [[gnu::always_inline]] inline double time_below(double limit, const Config& config, const TileFacts& facts,
                                                    const Tiling& tiling) const;

    int64_t k_steps() const { return k_steps_; }
    int32_t sms() const { return sms_; }

 private:
    // Of heuristic.cpp alone, inline because every candidate of a new problem passes through them.
    [[gnu::always_inline]] inline void write_own(const Config& config, const TileFacts& facts, const Tiling& tiling,
                                                 EstimateTerms& terms) const;
    [[gnu::always_inline]] inline void write_shared(const Config& config, const Tiling& tiling,
                                                    EstimateTerms& terms) const;
    [[gnu::always_inline]] inline double mma_ns(const Config& config, const TileFacts& facts) const;
    [[gnu::always_inline]] inline double ring_factor(const Config& config) const;
    [[gnu::always_inline]] inline void write_step(const Config& config, const TileFacts& facts, const Tiling& tiling,
                                                  EstimateTerms& terms) const;
    [[gnu::always_inline]] inline double epilogue_ns(const Config& config, const TileFacts& facts) const;
    [[gnu::always_inline]] inline double c_wait_ns(const Config& config, const TileFacts& facts,
                                                   const EstimateTerms& terms) const;
    [[gnu::always_inline]] inline double deep_ring_us(const Config& config) const;
    // Bytes read from L2 by all clusters (a multicast tile counts once).
    [[gnu::always_inline]] inline double l2_read_bytes(const Config& config, const Tiling& tiling) const;

    Problem problem_;
    Extent extent_;
    HeuristicRates rates_;
    int32_t sms_;
    double clock_ghz_, tensor_ratio_;
    int64_t k_steps_, group_rows_;
    bool pays_vector_loop_, waits_for_c_, is_masked_;
    double memory_us_, memory_fourth_;
    double l2_us_per_byte_, power_us_per_flop_, sm_ns_per_byte_;
};

struct AnalyticChoice {
    Config config;
    TileFacts facts;
    double time_us;
};

// The candidates with the smallest predicted times, at most `count` >= 1, best first, the earlier of equals first,
// without the knobs of loop_rule.hpp: the first one is the tile of get_analytic_config's. Throws Error(kDevice) where
// no config is legal.
std::vector<AnalyticChoice> rank_candidates(const Problem& problem, const Estimator& estimator, const Device& device,
                                            size_t count);

// Kinds of configs that became candidates later than the first artefacts, and whether trees know them. Trees are not
// asked about a kind of which they saw no row.
struct LateKinds {
    // Of BF16 those that add by TMA; of contiguous groups those in pairs along m; of FP8 those whose math warpgroups
    // stand side by side.
    bool adds = true, pairs = true, beside = true;

    bool has(const Problem& problem, const Config& config) const;
};

// A kind: its name; the feature that tells it, from the value `least` on, and that feature of a config; and in which
// products it came late. Other FP8 tiles with as many columns as those side by side do not fit the registers.
struct LateKind {
    const char* name;
    bool LateKinds::* is_known;
    const char* feature;
    int32_t (*value)(const Config&);
    int32_t least;
    bool (*is_late)(const OpKind&);
};
inline constexpr LateKind kLateKinds[] = {
    {"adds", &LateKinds::adds, "reduce_add", [](const Config& config) { return config.reduce_add; }, 1,
     [](const OpKind& kind) { return !kind.is_fp8; }},
    {"pairs", &LateKinds::pairs, "cluster_m", [](const Config& config) { return config.cluster_m; }, 2,
     [](const OpKind& kind) { return kind.m_is_shared(); }},
    {"beside", &LateKinds::beside, "column_side", [](const Config& config) { return int32_t(column_side(config)); },
     kMaxColumnsOfOne + 1, [](const OpKind& kind) { return kind.is_fp8 && !kind.is_logits(); }},
};

// Whether rows with at least `least` of a feature of whole numbers were among those of trees, by the hull of these rows
// as it is stored: widened on either side by this share of its extent (tuner/learn/learner.py).
inline constexpr double kTrainedSlack = 0.5;
inline bool has_seen(double low, double high, double least) {
    const double highest = high - (high - low) * kTrainedSlack / (1.0 + 2.0 * kTrainedSlack);
    return highest > least - 0.25;  // bounds are rounded
}

inline bool LateKinds::has(const Problem& problem, const Config& config) const {
    for (const LateKind& kind : kLateKinds)
        if (!(this->*kind.is_known) && kind.value(config) >= kind.least && kind.is_late(op_kind(problem.op)))
            return false;
    return true;
}

// The first of rank_candidates, each with the knobs of loop_rule.hpp and, where that differs, also without (BF16 groups
// of K that are added onto C with and without reduce_add), `count` >= 1 configs in all, those of unknown kinds left
// out: what the learned choice chooses from. The first one is get_analytic_config's, or what stands behind it.
std::vector<AnalyticChoice> make_shortlist(const Problem& problem, const Estimator& estimator, const Device& device,
                                           size_t count, const LateKinds& known = {});

// What features are relative to: the first of `ranked` tiles that was a candidate when the features of
// kHeuristicRevision were frozen. Trees of this revision must see the same numbers, whatever tiles come later.
const AnalyticChoice& find_feature_pick(const std::vector<AnalyticChoice>& ranked);

// make_shortlist with an estimator of its own, and its first config, the heuristic's choice; where a masked problem's
// tiles serve (find_masked_twin), of that one, as far as they fit the alignment.
std::vector<AnalyticChoice> make_legal_shortlist(const Problem& problem, const Device& device, size_t count,
                                                 const LateKinds& known = {});
Config get_analytic_config(const Problem& problem, const Device& device);

}  // namespace deep_gemm
