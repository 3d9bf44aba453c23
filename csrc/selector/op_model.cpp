// Reading and checking what an artefact holds of one op kind (format: selector/selector.hpp).
#include <algorithm>
#include <array>
#include <cmath>

#include "core/features.hpp"
#include "core/legality.hpp"
#include "selector/metadata.hpp"
#include "selector/selector.hpp"

namespace deep_gemm {
namespace {

// A deployment's warm-up builds every config of an artefact, hence few.
constexpr int64_t kMaxConfigs = 32, kMaxGolden = 65536, kMaxFeatures = 4096;
constexpr double kMaxGuard = 1e3;  // margin and spread are log ratios

void check_finite(std::span<const double> values, const char* what) {
    for (double value : values)
        if (!std::isfinite(value)) refuse(std::string(what) + " holds a number that is not finite");
}

std::vector<Config> read_configs(const Artifact& artifact, const std::string& prefix, Op op, const Device& device) {
    const int64_t count = array_size(artifact, prefix + "configs", 0);
    if (count < 1 || count > kMaxConfigs) refuse("an op kind must have 1 to 32 configs");
    const auto numbers = take_array<int32_t>(artifact, prefix + "configs", {count, int64_t(kNumConfigFields)});
    std::vector<Config> configs;
    for (int64_t row = 0; row < count; ++row) {
        const int32_t* v = &numbers[size_t(row) * kNumConfigFields];
        for (size_t i = 0; i < kNumConfigFields; ++i)
            if (v[i] < kConfigFields[i].minimum || v[i] > kConfigFields[i].maximum)
                refuse("a config has a field out of range");
        ConfigValues values;
        std::copy(v, v + kNumConfigFields, values.begin());
        const Config config = make_config(values);
        const std::string reason = impossible_reason(op, config, device);
        if (!reason.empty()) refuse("config " + to_string(config) + " is not legal: " + reason);
        if (std::find(configs.begin(), configs.end(), config) != configs.end())
            refuse("config " + to_string(config) + " is there twice");
        configs.push_back(config);
    }
    return configs;
}

std::vector<bool> read_quarantine(const JsonValue& metadata, size_t num_configs) {
    std::vector<bool> is_quarantined(num_configs, false);
    int64_t previous = -1;
    for (const JsonValue& index : member(metadata, "quarantined", JsonValue::Type::kArray).array) {
        if (index.type != JsonValue::Type::kInt || index.integer <= previous || index.integer >= int64_t(num_configs))
            refuse("quarantined must be ascending config indices");
        is_quarantined[size_t(index.integer)] = true;
        previous = index.integer;
    }
    return is_quarantined;
}

void check_exact(const OpModel& model) {
    for (size_t i = 1; i < model.exact_keys.size(); ++i)
        if (model.exact_keys[i - 1] >= model.exact_keys[i]) refuse("exact_key must ascend");
    for (int32_t config : model.exact_configs)
        if (config < 0 || config >= int64_t(model.configs.size())) refuse("exact_config points outside the configs");
}

void check_hull(const OpModel& model) {
    check_finite(model.feature_min, "feature_min");
    check_finite(model.feature_max, "feature_max");
    for (size_t i = 0; i < model.feature_min.size(); ++i)
        if (model.feature_min[i] > model.feature_max[i]) refuse("feature_min is above feature_max");
}

void check_golden(const OpModel& model) {
    check_finite(model.golden_scores, "golden_scores");
    for (float value : model.golden_features)
        if (!std::isfinite(value)) refuse("golden_features holds a number that is not finite");
    for (int32_t choice : model.golden_choices)
        if (choice < -1 || choice >= int64_t(model.num_portfolio)) refuse("golden_choice points outside the portfolio");
}

void check_op_metadata(const JsonValue& metadata) {
    check_members(metadata, {"kernel_hash", "margin", "max_spread", "num_portfolio", "quarantined", "regime"});
    check_hex(member_string(metadata, "kernel_hash", 64), 64, "kernel_hash");
}

}  // namespace

OpModel read_op_model(const Artifact& artifact, Op op, const JsonValue& metadata, const Device& device,
                      bool is_features_version_ours) {
    check_op_metadata(metadata);
    const std::string prefix = std::string(op_name(op)) + '/';
    const auto own = [&](const auto& entry) { return entry.first.starts_with(prefix); };
    if (std::count_if(artifact.arrays.begin(), artifact.arrays.end(), own) != int64_t(kNumOpArrays))
        refuse("an op kind must have exactly its 14 arrays");
    const auto configs = read_configs(artifact, prefix, op, device);
    const int64_t portfolio = member_integer(metadata, "num_portfolio", 1, int64_t(configs.size()));
    const int64_t features = array_size(artifact, prefix + "feature_min", 0),
                  exact = array_size(artifact, prefix + "exact_key", 0);
    const int64_t golden = array_size(artifact, prefix + "golden_choice", 0);
    if (features < 1 || features > kMaxFeatures || golden > kMaxGolden) refuse("too many features or golden vectors");
    if (is_features_version_ours && num_features(op, size_t(portfolio)) != size_t(features))
        refuse("the number of features is not that of the portfolio");
    OpModel model{.op = op,
                  .kernel_hash = member_string(metadata, "kernel_hash", 64),
                  .regime = member_string(metadata, "regime", 64),
                  .margin = member_number(metadata, "margin", 0.0, kMaxGuard),
                  .max_spread = member_number(metadata, "max_spread", 0.0, kMaxGuard),
                  .configs = configs,
                  .num_portfolio = size_t(portfolio),
                  .is_quarantined = read_quarantine(metadata, configs.size()),
                  .exact_keys = take_array<uint64_t>(artifact, prefix + "exact_key", {exact}),
                  .exact_configs = take_array<int32_t>(artifact, prefix + "exact_config", {exact}),
                  .forest = Forest(artifact, prefix, features, portfolio),
                  .feature_min = take_array<double>(artifact, prefix + "feature_min", {features}),
                  .feature_max = take_array<double>(artifact, prefix + "feature_max", {features}),
                  .golden_features = take_array<float>(artifact, prefix + "golden_features", {golden, features}),
                  .golden_scores = take_array<double>(artifact, prefix + "golden_scores", {golden, portfolio}),
                  .golden_choices = take_array<int32_t>(artifact, prefix + "golden_choice", {golden})};
    check_exact(model);
    check_hull(model);
    check_golden(model);
    return model;
}

}  // namespace deep_gemm
