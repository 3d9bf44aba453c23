#include "selector/selector.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/config_features.hpp"
#include "core/heuristic.hpp"
#include "core/legality.hpp"

namespace deep_gemm {
namespace {

// The answer of an op kind's trees to the rows of one problem, the heuristic's pick first, with the guards applied.
struct Decision {
    size_t best = 0;  // place of the chosen row; 0 is the heuristic's pick
    bool is_refused = true;
    std::string reason;
    std::vector<double> scores;  // empty where the hull guard refused
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
    if (model.num_features() != kNumConfigRow) return "feature " + std::to_string(index);
    return config_feature_names()[index];
}

bool is_inside(const OpModel& model, std::span<const float> features, size_t i) {
    return features[i] >= model.hull_min[i] && features[i] <= model.hull_max[i];
}

// Whether all features lie in the hull; without a branch, so that the compiler compares several at once.
bool is_inside(const OpModel& model, std::span<const float> features) {
    int inside = 1;
    for (size_t i = 0; i < features.size(); ++i)
        inside &= int(features[i] >= model.hull_min[i]) & int(features[i] <= model.hull_max[i]);
    return inside != 0;
}

// The name of the first feature outside.
std::string name_outside(const OpModel& model, std::span<const float> features) {
    size_t i = 0;
    while (i < features.size() && is_inside(model, features, i)) ++i;
    return name_feature(model, i);
}

// The estimates of rows times exp(residual), as logarithms. The last feature is that of the estimate.
std::vector<double> predict(const OpModel& model, std::span<const float> rows) {
    const size_t width = model.num_features();
    std::vector<double> predicted(rows.size() / width);
    model.forest.predict(rows, width, predicted);
    for (size_t i = 0; i < predicted.size(); ++i)
        predicted[i] = double(rows[(i + 1) * width - 1]) + std::clamp(predicted[i], -kMaxResidual, kMaxResidual);
    return predicted;
}

// `rows`: the features of each candidate, the heuristic's pick first. Rows outside the hull have an infinite score, and
// with the pick outside there is nothing to compare with.
template <typename IsUsable>
Decision decide(const OpModel& model, std::span<const float> rows, IsUsable&& is_usable) {
    const size_t width = model.num_features();
    const auto row = [&](size_t i) { return rows.subspan(i * width, width); };
    Decision decision;
    if (!is_inside(model, row(0))) {
        decision.reason = "outside the training hull: " + name_outside(model, row(0));
        return decision;
    }
    decision.scores = predict(model, rows);
    const double pick = std::exchange(decision.scores[0], 0.0);
    for (size_t i = 1; i < decision.scores.size(); ++i) {
        decision.scores[i] = is_inside(model, row(i)) ? decision.scores[i] - pick : INFINITY;
        if (decision.scores[i] < decision.scores[decision.best] && is_usable(i)) decision.best = i;
    }
    decision.is_refused = false;
    if (!(decision.scores[decision.best] < -model.parts.margin)) decision.best = 0;
    decision.reason = decision.best == 0 ? "heuristic predicted best" : "predicted faster than the heuristic's pick";
    return decision;
}

bool is_quarantined(const OpModel& model, const Config& config) {
    for (int64_t index : model.parts.quarantined)
        if (model.configs[size_t(index)] == config) return true;
    return false;
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
    const size_t width = model.num_features();
    int64_t mismatches = 0;
    for (size_t problem = 0; problem < parts.golden_choice.size(); ++problem) {
        const size_t begin = size_t(parts.golden_start[problem]), end = size_t(parts.golden_start[problem + 1]);
        const std::span<const float> rows(&parts.golden_features[begin * width], (end - begin) * width);
        std::vector<double> scores(end - begin);
        model.forest.predict(rows, width, scores);
        const bool is_same =
            std::memcmp(scores.data(), &parts.golden_scores[begin], scores.size() * sizeof(double)) == 0;
        const Decision decision = decide(model, rows, [](size_t) { return true; });
        mismatches += is_same && decision.best == size_t(parts.golden_choice[problem]) ? 0 : 1;
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
    return ask_trees(model, problem, device);
}

Choice Selector::ask_trees(const OpModel& model, const Problem& problem, const Device& device) const {
    const Estimator estimator(problem, device);
    const std::vector<AnalyticChoice> shortlist = make_shortlist(problem, estimator, device, kNumRanked);
    const ConfigFeatures features(problem, estimator, shortlist.front());
    std::vector<float> rows(shortlist.size() * kNumConfigRow);
    for (size_t i = 0; i < shortlist.size(); ++i) {
        double row[kNumConfigRow];
        features.write(shortlist[i].config, row);
        std::copy_n(row, kNumConfigRow, &rows[i * kNumConfigRow]);
    }
    Decision decision = decide(model, rows, [&](size_t i) { return !is_quarantined(model, shortlist[i].config); });
    Choice choice{.config = shortlist[decision.best].config,
                  .source = decision.is_refused ? Choice::Source::kAnalytic : Choice::Source::kLearned,
                  .reason = std::move(decision.reason),
                  .scored = {},
                  .scores = std::move(decision.scores)};
    choice.scored.reserve(choice.scores.size());
    for (size_t i = 0; i < choice.scores.size(); ++i) choice.scored.push_back(shortlist[i].config);
    return choice;
}

Choice Selector::choose_learned(const Problem& problem, const Device& device) const {
    const OpModel* model = find_model(problem.op);
    if (model == nullptr || !origin_.has_own_features)
        refuse("the selector cannot score this problem: other op kind or features version");
    return ask_trees(*model, problem, device);
}

int64_t Selector::replay_golden() const {
    int64_t mismatches = 0;
    for (const auto& [op, model] : models_) mismatches += replay_golden_of(model);
    return mismatches;
}

}  // namespace deep_gemm
