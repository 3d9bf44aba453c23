// What is known of one config of one problem before it runs: the numbers that the learned selector sees, the same code
// for training (through Python) and at run time. All op kinds have the same ones.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "core/heuristic.hpp"
#include "core/problem.hpp"

namespace deep_gemm {

// Raise it when a feature is added, removed or changed for all op kinds; of artefacts of another version only the exact
// tables are used. A feature that changes for some op kinds alone raises their estimate_revision.
inline constexpr int kFeaturesVersion = 5;

inline constexpr size_t kNumSharedFeatures = 36, kNumConfigFeatures = 16, kNumTileFeatures = 21;
inline constexpr size_t kNumOwnFeatures = kNumConfigFeatures + kNumTileFeatures;
inline constexpr size_t kNumConfigRow = kNumSharedFeatures + kNumOwnFeatures;

// The names of a row's numbers; the last is log(predicted time / that of find_feature_pick's tile).
std::vector<std::string> config_feature_names();

// Writes the rows of one problem; what configs share is computed once.
class ConfigFeatures {
 public:
    // Both must outlive this object; `pick` is find_feature_pick's.
    ConfigFeatures(const Problem& problem, const Estimator& estimator, const AnalyticChoice& pick);

    // The kNumSharedFeatures numbers that a row starts with, and the kNumOwnFeatures numbers after them, `stride`
    // apart. A tile is rated once for configs that follow one another and differ in the knobs of the main loop alone.
    const double* shared() const { return shared_; }
    template <typename Number>
    void write_own(const AnalyticChoice& choice, Number* out, size_t stride);

 private:
    void rate(const AnalyticChoice& choice);

    const Problem& problem_;
    Tiler tiler_;
    const Estimator& estimator_;
    double pick_us_;
    bool counts_d_tiles_;
    double useful_;
    double shared_[kNumSharedFeatures];
    std::optional<Config> rated_;  // whose tile has the numbers below
    double blocks_per_sm_ = 0.0, tile_features_[kNumTileFeatures];
};

}  // namespace deep_gemm
