#include "selector/selector.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/config_features.hpp"
#include "core/heuristic.hpp"
#include "core/legality.hpp"
#include "selector/lanes.hpp"

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

// Which rows' features all lie in the hull: all bits, else 0.
using Flags = std::array<uint32_t, FeatureTable::kRows>;
Flags find_inside(const OpModel& model, const FeatureTable& table) {
    constexpr size_t kLanes = 4;
    Lanes<kLanes>::Bits inside[FeatureTable::kRows / kLanes];
    std::memset(inside, 0xff, sizeof inside);
    for (size_t feature = 0; feature < table.num_features(); ++feature) {
        const float *rows = table.rows(feature), low = model.hull_min[feature], high = model.hull_max[feature];
#pragma GCC unroll 3
        for (size_t i = 0; i < std::size(inside); ++i) {
            Lanes<kLanes>::Floats values;
            std::memcpy(&values, rows + i * kLanes, sizeof values);
            inside[i] &= Lanes<kLanes>::Bits(values >= low) & Lanes<kLanes>::Bits(values <= high);
        }
    }
    return std::bit_cast<Flags>(inside);
}

// The name of the first feature of row 0 outside.
std::string name_outside(const OpModel& model, const FeatureTable& table) {
    size_t i = 0;
    while (table.at(i, 0) >= model.hull_min[i] && table.at(i, 0) <= model.hull_max[i]) ++i;
    return name_feature(model, i);
}

// `table`: the features of `count` candidates, the heuristic's pick first; the last feature is the logarithm of the
// estimate. The prediction is the estimate times exp(residual). Rows outside the hull have an infinite score, and with
// the pick outside there is nothing to compare with.
template <typename IsUsable>
Decision decide(const OpModel& model, const FeatureTable& table, size_t count, IsUsable&& is_usable,
                size_t lanes = FeatureTable::kMostLanes) {
    const Flags inside = find_inside(model, table);
    Decision decision;
    if (!inside[0]) {
        decision.reason = "outside the training hull: " + name_outside(model, table);
        return decision;
    }
    const Forest::Sums residuals = model.forest.predict(table, lanes);
    const auto predict = [&](size_t row) {
        return double(table.at(table.num_features() - 1, row)) +
               std::clamp(residuals[row], -kMaxResidual, kMaxResidual);
    };
    const double pick = predict(0);
    decision.scores.assign(count, 0.0);
    for (size_t i = 1; i < count; ++i) {
        decision.scores[i] = inside[i] ? predict(i) - pick : INFINITY;
        if (decision.scores[i] < decision.scores[decision.best] && is_usable(i)) decision.best = i;
    }
    decision.is_refused = false;
    if (!(decision.scores[decision.best] < -model.parts.margin)) decision.best = 0;
    decision.reason = decision.best == 0 ? "heuristic predicted best" : "predicted faster than the heuristic's pick";
    return decision;
}

std::optional<Config> find_exact(const OpModel& model, uint64_t key, const Problem& problem, const Device& device) {
    const auto& keys = model.parts.exact_key;
    const auto found = std::lower_bound(keys.begin(), keys.end(), key);
    if (found == keys.end() || *found != key) return std::nullopt;
    const size_t index = size_t(model.parts.exact_config[size_t(found - keys.begin())]);
    const Config& config = model.configs[index];
    const bool is_banned = model.is_quarantined[index] && model.is_banned(problem, config);
    return is_banned || !is_legal(problem, config, device) ? std::nullopt : std::optional(config);
}

// Whether the trees give the recorded scores of a golden problem, bit by bit, and the guards its recorded choice.
bool is_golden(const OpModel& model, size_t problem, size_t lanes) {
    const OpParts& parts = model.parts;
    const size_t begin = size_t(parts.golden_start[problem]), count = size_t(parts.golden_start[problem + 1]) - begin;
    FeatureTable table(model.num_features());
    const float* value = &parts.golden_features[begin * model.num_features()];
    for (size_t row = 0; row < count; ++row)
        for (size_t feature = 0; feature < model.num_features(); ++feature) table.at(feature, row) = *value++;
    const Forest::Sums scores = model.forest.predict(table, lanes);
    if (std::memcmp(scores.data(), &parts.golden_scores[begin], count * sizeof(double)) != 0) return false;
    const Decision decision = decide(model, table, count, [](size_t) { return true; }, lanes);
    return decision.best == size_t(parts.golden_choice[problem]);
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
    if ((device.sku != origin_.sku && base_sku(device.sku) != origin_.sku) || device.sm_count != origin_.sm_count)
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
    if (!model.parts.has_own_estimate)
        return "trained against another estimate of this op kind (estimate revision differs)";
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
    const std::vector<AnalyticChoice> shortlist = make_shortlist(problem, estimator, device, kNumRanked, model.known);
    ConfigFeatures features(problem, estimator, find_feature_pick(shortlist));
    FeatureTable table(kNumConfigRow);
    for (size_t i = 0; i < kNumSharedFeatures; ++i) table.fill(i, float(features.shared()[i]));
    for (size_t row = 0; row < shortlist.size(); ++row)
        features.write_own(shortlist[row], &table.at(kNumSharedFeatures, row), FeatureTable::kMostLanes);
    Decision decision = decide(model, table, shortlist.size(),
                               [&](size_t i) { return !model.is_banned(problem, shortlist[i].config); });
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

int64_t Selector::replay_golden(size_t lanes) const {
    int64_t mismatches = 0;
    for (const auto& [op, model] : models_)
        for (size_t i = 0; i < model.parts.golden_choice.size(); ++i) mismatches += is_golden(model, i, lanes) ? 0 : 1;
    return mismatches;
}

}  // namespace deep_gemm
