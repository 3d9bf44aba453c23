#include "selector/selector.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "core/candidates.hpp"
#include "core/features.hpp"
#include "core/legality.hpp"
#include "selector/metadata.hpp"

namespace deep_gemm {
namespace {

constexpr double kHullSlack = 1e-6;  // relative; float32 rounding of a stored bound is 6e-8
constexpr size_t kMaxReasonBytes = 256;

// Where an artefact was made: enough of a device to judge its configs' legality.
Device artifact_device(const std::string& sku, int64_t sm_count) {
    Device device;
    device.name = device.sku = sku;
    device.sm_count = int32_t(sm_count);
    return device;
}

// An artefact with other features has no names to report.
std::string name_feature(const OpModel& model, size_t index) {
    const bool is_own = model.feature_min.size() == num_features(model.op, model.num_portfolio);
    return is_own ? feature_name(model.op, model.portfolio(), index) : "feature " + std::to_string(index);
}

// The index of the first feature outside the hull, or -1.
int find_outside(const OpModel& model, std::span<const double> features) {
    for (size_t i = 0; i < features.size(); ++i) {
        const double slack = kHullSlack * std::max(std::abs(model.feature_min[i]), std::abs(model.feature_max[i]));
        if (!(features[i] >= model.feature_min[i] - slack && features[i] <= model.feature_max[i] + slack))
            return int(i);
    }
    return -1;
}

// The first of the best-scored portfolio configs that `is_usable` allows, or -1.
template <typename IsUsable>
int find_best(const std::vector<double>& scores, IsUsable&& is_usable) {
    int best = -1;
    for (int i = 0; i < int(scores.size()); ++i)
        if (is_usable(size_t(i)) && (best < 0 || scores[size_t(i)] < scores[size_t(best)])) best = i;
    return best;
}

template <typename IsUsable>
Decision decide_with(const OpModel& model, std::span<const double> features, IsUsable&& is_usable) {
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
    decision.is_refused = model.forest.spread(leaves, size_t(best), score) > model.max_spread;
    if (!decision.is_refused && score < -model.margin) decision.config = best;
    decision.reason = decision.is_refused   ? "the trees disagree"
                      : decision.config < 0 ? "heuristic predicted best"
                                            : "predicted faster than the heuristic's pick";
    return decision;
}

}  // namespace

const char* source_name(Choice::Source source) {
    constexpr std::array kNames = {"exact", "learned", "analytic"};
    return kNames[size_t(source)];
}

Selector::Selector(std::string_view content) {
    const Artifact artifact = read_artifact(content);
    metadata_ = artifact.metadata;
    check_members(metadata_, {"arrays_sha256", "created", "features_version", "format", "heuristic_version", "ops",
                              "package_version", "sku", "sm_count", "stale"});
    member_integer(metadata_, "format", 1, 1);
    member_string(metadata_, "created", 32);
    member_string(metadata_, "package_version", 64);
    sku_ = member_string(metadata_, "sku", 128);
    sm_count_ = member_integer(metadata_, "sm_count", 1, Problem::kMaxSms);
    features_version_ = member_integer(metadata_, "features_version", 1, 1 << 20);
    heuristic_version_ = member_string(metadata_, "heuristic_version", 64);
    if (metadata_.find("stale")->type != JsonValue::Type::kNull)
        stale_reason_ = "stale: " + member_string(metadata_, "stale", kMaxReasonBytes);
    const Device device = artifact_device(sku_, sm_count_);
    for (const auto& [name, op_metadata] : member(metadata_, "ops", JsonValue::Type::kObject).object) {
        const auto op =
            std::find_if(std::begin(kOps), std::end(kOps), [&](Op known) { return name == op_name(known); });
        if (op == std::end(kOps)) refuse("unknown op kind");
        models_.emplace(*op, read_op_model(artifact, *op, op_metadata, device, features_version_ == kFeaturesVersion));
    }
    if (models_.empty() || artifact.arrays.size() != models_.size() * kNumOpArrays)
        refuse("there are arrays of no op kind, or no op kind");
}

const OpModel* Selector::find_model(Op op) const {
    const auto found = models_.find(op);
    return found == models_.end() ? nullptr : &found->second;
}

// What rules out the whole artefact for this problem and device, or "".
std::string Selector::guard_artifact(const Problem& problem, const Device& device, std::string_view kernel_hash) const {
    const OpModel* model = find_model(problem.op);
    if (device.sku != sku_ || device.sm_count != sm_count_)
        return "the selector is for " + sku_ + ", not " + device.sku;
    if (!stale_reason_.empty()) return stale_reason_;
    if (model == nullptr) return "the selector does not know this op kind";
    if (!kernel_hash.empty() && kernel_hash != model->kernel_hash)
        return "measured with other kernels (kernel hash differs)";
    return "";
}

// What rules out the forest, whose features hold the heuristic's estimates, or "".
std::string Selector::guard_versions() const {
    if (features_version_ != kFeaturesVersion) return "trained on other features (features version differs)";
    if (heuristic_version_ != heuristic_version())
        return "trained against another heuristic (heuristic version differs)";
    return "";
}

std::optional<Config> Selector::find_exact(const Problem& problem, uint64_t key, const Device& device) const {
    const OpModel& model = *find_model(problem.op);
    const auto found = std::lower_bound(model.exact_keys.begin(), model.exact_keys.end(), key);
    if (found == model.exact_keys.end() || *found != key) return std::nullopt;
    const size_t index = size_t(model.exact_configs[size_t(found - model.exact_keys.begin())]);
    if (model.is_quarantined[index] || !is_legal(problem, model.configs[index], device)) return std::nullopt;
    return model.configs[index];
}

Choice Selector::choose(const Problem& problem, uint64_t key, const Device& device, SelectionMode mode,
                        std::string_view kernel_hash) const {
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
    if (mode == SelectionMode::kAuto)
        if (const auto exact = find_exact(problem, key, device))
            return {.config = *exact,
                    .source = Choice::Source::kExact,
                    .reason = "measured best",
                    .scored = {},
                    .scores = {}};
    if (std::string reason = guard_versions(); !reason.empty()) return analytic(std::move(reason));
    const Estimator estimator(problem, device);
    const AnalyticChoice pick = choose_analytic(problem, estimator, device);
    std::vector<double> features(num_features(model.op, model.num_portfolio));
    write_features(problem, estimator, pick, model.portfolio(), features.data());
    Decision decision =
        decide_with(model, features, [&](const Config& config) { return is_worth_trying(problem, config, device); });
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
    if (model == nullptr || features_version_ != kFeaturesVersion)
        refuse("the selector cannot score this problem: other op kind or features version");
    const std::vector<double> features = get_features(problem, device, model->portfolio());
    const std::vector<float> rounded(features.begin(), features.end());
    std::vector<int32_t> leaves(model->forest.num_trees());
    std::vector<double> scores(model->num_portfolio);
    model->forest.score(rounded, leaves, scores);
    return scores;
}

Decision Selector::decide(Op op, std::span<const double> features) const {
    const OpModel* model = find_model(op);
    if (model == nullptr) refuse("the selector does not know this op kind");
    if (features.size() != model->feature_min.size())
        refuse("wrong number of features: " + std::to_string(model->feature_min.size()) + " are needed");
    return decide_with(*model, features, [](const Config&) { return true; });
}

int64_t Selector::replay_golden() const {
    int64_t mismatches = 0;
    for (const auto& [op, model] : models_) {
        const size_t width = model.feature_min.size(), outputs = model.num_portfolio;
        std::vector<int32_t> leaves(model.forest.num_trees());
        std::vector<double> scores(outputs);
        for (size_t row = 0; row < model.golden_choices.size(); ++row) {
            const std::span<const float> features(&model.golden_features[row * width], width);
            model.forest.score(features, leaves, scores);
            const std::vector<double> wide(features.begin(), features.end());
            const bool same_scores =
                std::equal(scores.begin(), scores.end(), &model.golden_scores[row * outputs],
                           [](double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); });
            const bool same_choice = decide(op, wide).config == model.golden_choices[row];
            mismatches += same_scores && same_choice ? 0 : 1;
        }
    }
    return mismatches;
}

}  // namespace deep_gemm
