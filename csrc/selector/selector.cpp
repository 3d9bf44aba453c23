#include "selector/selector.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/candidates.hpp"
#include "core/features.hpp"
#include "core/heuristic.hpp"
#include "core/legality.hpp"

namespace deep_gemm {
namespace {

constexpr double kHullSlack = 1e-6;  // relative; float32 rounding of a stored bound is 6e-8

// The answer of an op kind's forest to one feature vector, with the guards applied.
struct Decision {
    int config = -1;         // index into the configs; -1 = a guard refused or the heuristic was predicted best
    bool is_refused = true;  // a guard refused
    std::string reason;
    std::vector<double> scores;  // empty where the hull guard refused before the walk
};

// The device that an artefact was made on, as far as the legality of its configs depends on it.
Device origin_device(const Origin& origin) {
    Device device;
    device.name = device.sku = origin.sku;
    device.sm_count = origin.sm_count;
    return device;
}

// The names of features are known only where the artefact has as many as this package.
std::string name_feature(const OpModel& model, size_t index) {
    const bool is_own = model.num_features() == num_features(model.op, model.num_portfolio);
    return is_own ? feature_name(model.op, model.portfolio(), index) : "feature " + std::to_string(index);
}

// The index of the first feature outside the hull, or -1.
int find_outside(const OpModel& model, std::span<const double> features) {
    for (size_t i = 0; i < features.size(); ++i) {
        const double low = model.parts.feature_min[i], high = model.parts.feature_max[i];
        const double slack = kHullSlack * std::max(std::abs(low), std::abs(high));
        if (!(features[i] >= low - slack && features[i] <= high + slack)) return int(i);
    }
    return -1;
}

// The first of the best-scored portfolio configs that `is_usable` allows, or -1. It costs more than a comparison, so
// only configs that would be the best so far are asked about.
template <typename IsUsable>
int find_best(const std::vector<double>& scores, IsUsable&& is_usable) {
    int best = -1;
    for (int i = 0; i < int(scores.size()); ++i)
        if ((best < 0 || scores[size_t(i)] < scores[size_t(best)]) && is_usable(size_t(i))) best = i;
    return best;
}

template <typename IsUsable>
Decision decide(const OpModel& model, std::span<const double> features, IsUsable&& is_usable) {
    Decision decision;
    const int outside = find_outside(model, features);
    if (outside >= 0) {
        decision.reason = "outside the training hull: " + name_feature(model, size_t(outside));
        return decision;
    }
    const std::vector<float> rounded(features.begin(), features.end());
    std::vector<int32_t> leaves(model.forest.num_trees());
    decision.scores.resize(model.num_portfolio);
    model.forest.score(rounded, leaves, decision.scores);
    const int best =
        find_best(decision.scores, [&](size_t i) { return !model.is_quarantined[i] && is_usable(model.configs[i]); });
    if (best < 0) {
        decision.reason = "no usable config in the portfolio";
        return decision;
    }
    const double score = decision.scores[size_t(best)];
    decision.is_refused = model.forest.spread(leaves, size_t(best), score) > model.parts.max_spread;
    if (!decision.is_refused && score < -model.parts.margin) decision.config = best;
    decision.reason = decision.is_refused   ? "the trees disagree"
                      : decision.config < 0 ? "heuristic predicted best"
                                            : "predicted faster than the heuristic's pick";
    return decision;
}

std::optional<Config> find_exact(const OpModel& model, uint64_t key, const Problem& problem, const Device& device) {
    const auto& keys = model.parts.exact_key;
    const auto found = std::lower_bound(keys.begin(), keys.end(), key);
    if (found == keys.end() || *found != key) return std::nullopt;
    const size_t index = size_t(model.parts.exact_config[size_t(found - keys.begin())]);
    if (model.is_quarantined[index] || !is_legal(problem, model.configs[index], device)) return std::nullopt;
    return model.configs[index];
}

int64_t replay_golden_of(const OpModel& model) {
    const OpParts& parts = model.parts;
    int64_t mismatches = 0;
    for (size_t row = 0; row < parts.golden_choice.size(); ++row) {
        const std::span<const float> recorded(&parts.golden_features[row * model.num_features()], model.num_features());
        const std::vector<double> features(recorded.begin(), recorded.end());
        std::vector<int32_t> leaves(model.forest.num_trees());
        std::vector<double> scores(model.num_portfolio);
        model.forest.score(recorded, leaves, scores);
        const bool same_scores =
            std::memcmp(scores.data(), &parts.golden_scores[row * scores.size()], scores.size() * sizeof(double)) == 0;
        const Decision decision = decide(model, features, [](const Config&) { return true; });
        mismatches += same_scores && decision.config == parts.golden_choice[row] ? 0 : 1;
    }
    return mismatches;
}

}  // namespace

const char* source_name(Choice::Source source) {
    constexpr std::array kNames = {"exact", "learned", "analytic"};
    return kNames[size_t(source)];
}

Selector::Selector(Origin origin, std::map<Op, OpParts> ops) : origin_(std::move(origin)) {
    if (ops.empty()) refuse("there is no op kind");
    const Device device = origin_device(origin_);
    for (auto& [op, parts] : ops) models_.emplace(op, OpModel(op, std::move(parts), device, origin_.has_own_features));
}

const OpModel* Selector::find_model(Op op) const {
    const auto found = models_.find(op);
    return found == models_.end() ? nullptr : &found->second;
}

// What rules out the whole artefact for this problem and device, or "".
std::string Selector::guard_artifact(const Problem& problem, const Device& device, std::string_view kernel_hash) const {
    const OpModel* model = find_model(problem.op);
    if (device.sku != origin_.sku || device.sm_count != origin_.sm_count)
        return "the selector is for " + origin_.sku + ", not " + device.sku;
    if (std::string fault = guard_kernels(model, kernel_hash); !fault.empty()) return fault;
    return model == nullptr ? "the selector does not know this op kind" : "";
}

// What rules out the part of an op kind on any device, or "".
std::string Selector::guard_kernels(const OpModel* model, std::string_view kernel_hash) const {
    if (!origin_.stale_reason.empty()) return origin_.stale_reason;
    if (model != nullptr && !kernel_hash.empty() && kernel_hash != model->parts.kernel_hash)
        return "measured with other kernels (kernel hash differs)";
    return "";
}

// What rules out the forest, whose features hold the heuristic's estimates, or "".
std::string Selector::guard_versions(const OpModel& model) const {
    if (!origin_.has_own_features) return "trained on other features (features version differs)";
    if (!origin_.has_own_heuristic) return "trained against another heuristic (heuristic version differs)";
    if (!model.parts.has_own_estimate) return "trained against another estimate of logits (estimate revision differs)";
    return "";
}

std::string Selector::find_fault(Op op, std::string_view kernel_hash) const {
    const OpModel* model = find_model(op);
    std::string fault = guard_kernels(model, kernel_hash);
    return fault.empty() && model != nullptr ? guard_versions(*model) : fault;
}

Choice Selector::choose(const Problem& problem, const Device& device, std::string_view kernel_hash,
                        std::optional<uint64_t> exact_key) const {
    const auto analytic = [&](std::string reason) {
        return Choice{.config = get_analytic_config(problem, device),
                      .source = Choice::Source::kAnalytic,
                      .reason = std::move(reason),
                      .scored = {},
                      .scores = {}};
    };
    if (std::string reason = guard_artifact(problem, device, kernel_hash); !reason.empty())
        return analytic(std::move(reason));
    const OpModel& model = *find_model(problem.op);
    if (exact_key.has_value())
        if (const auto exact = find_exact(model, *exact_key, problem, device))
            return {.config = *exact,
                    .source = Choice::Source::kExact,
                    .reason = "measured best",
                    .scored = {},
                    .scores = {}};
    if (std::string reason = guard_versions(model); !reason.empty()) return analytic(std::move(reason));
    const Estimator estimator(problem, device);
    const AnalyticChoice pick = choose_analytic(problem, estimator, device);
    std::vector<double> features(num_features(model.op, model.num_portfolio));
    write_features(problem, estimator, pick, model.portfolio(), features.data());
    Decision decision =
        decide(model, features, [&](const Config& config) { return is_worth_trying(problem, config, device); });
    const Config config = decision.config < 0 ? pick.config : model.configs[size_t(decision.config)];
    const auto scored = model.portfolio().first(decision.scores.size());
    return {.config = config,
            .source = decision.is_refused ? Choice::Source::kAnalytic : Choice::Source::kLearned,
            .reason = std::move(decision.reason),
            .scored = {scored.begin(), scored.end()},
            .scores = std::move(decision.scores)};
}

std::vector<double> Selector::scores(const Problem& problem, const Device& device) const {
    const OpModel* model = find_model(problem.op);
    if (model == nullptr || !origin_.has_own_features)
        refuse("the selector cannot score this problem: other op kind or features version");
    const std::vector<double> features = get_features(problem, device, model->portfolio());
    const std::vector<float> rounded(features.begin(), features.end());
    std::vector<int32_t> leaves(model->forest.num_trees());
    std::vector<double> scores(model->num_portfolio);
    model->forest.score(rounded, leaves, scores);
    return scores;
}

int64_t Selector::replay_golden() const {
    int64_t mismatches = 0;
    for (const auto& [op, model] : models_) mismatches += replay_golden_of(model);
    return mismatches;
}

}  // namespace deep_gemm
