// The numbers that the learned selector sees of a problem: the same code for training (through Python) and at run time.
// They depend on m, n, k, num_sms, the groups, the variant, the device and the portfolio, but not on what the driver
// reports of a known SKU.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "core/device.hpp"
#include "core/heuristic.hpp"
#include "core/problem.hpp"

namespace deep_gemm {

// Raise it when a feature is added, removed or changed; artefacts of another version are not used.
inline constexpr int kFeaturesVersion = 2;

// Grouped ops and attention logits have some more than dense products.
inline constexpr size_t kNumDenseFeatures = 20, kNumGroupFeatures = 4, kNumLogitsFeatures = 3;
inline constexpr size_t kNumConfigFeatures = 6;

inline constexpr size_t num_problem_features(Op op) {
    const OpKind& kind = op_kind(op);
    return kNumDenseFeatures + (kind.is_grouped() ? kNumGroupFeatures : kind.is_logits() ? kNumLogitsFeatures : 0);
}
inline constexpr size_t num_features(Op op, size_t num_portfolio) {
    return num_problem_features(op) + kNumConfigFeatures * num_portfolio;
}

// The name of feature `index` < num_features(op, portfolio.size()), and all of them.
std::string feature_name(Op op, std::span<const Config> portfolio, size_t index);
std::vector<std::string> feature_names(Op op, std::span<const Config> portfolio);

// Write num_features(problem.op, portfolio.size()) numbers to `out`; `pick` is the heuristic's choice for the problem.
void write_features(const Problem& problem, const Estimator& estimator, const AnalyticChoice& pick,
                    std::span<const Config> portfolio, double* out);

std::vector<double> get_features(const Problem& problem, const Device& device, std::span<const Config> portfolio);

}  // namespace deep_gemm
