#include "selector/op_model.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/config_features.hpp"
#include "core/error.hpp"
#include "core/legality.hpp"

namespace deep_gemm {
namespace {

Config read_config(std::span<const int32_t> row, Op op, const Device& device) {
    ConfigValues values;
    for (size_t i = 0; i < values.size(); ++i) {
        if (row[i] < kConfigFields[i].minimum || row[i] > kConfigFields[i].maximum)
            refuse("a config has a field out of range");
        values[i] = row[i];
    }
    const Config config = make_config(values);
    const std::string reason = impossible_reason(op, config, device);
    if (!reason.empty()) refuse("config " + to_string(config) + " is not legal: " + reason);
    return config;
}

std::vector<Config> make_configs(const std::vector<int32_t>& numbers, Op op, const Device& device) {
    if (numbers.size() % kNumConfigFields != 0) refuse("configs must have a column per field of a config");
    std::vector<Config> configs;
    for (size_t begin = 0; begin < numbers.size(); begin += kNumConfigFields) {
        const Config config = read_config({&numbers[begin], kNumConfigFields}, op, device);
        if (std::find(configs.begin(), configs.end(), config) != configs.end())
            refuse("config " + to_string(config) + " is there twice");
        configs.push_back(config);
    }
    return configs;
}

std::vector<bool> mark_quarantined(const std::vector<int64_t>& indices, size_t num_configs) {
    std::vector<bool> is_quarantined(num_configs, false);
    int64_t previous = -1;
    for (int64_t index : indices) {
        if (index <= previous || index >= int64_t(num_configs)) refuse("quarantined must be ascending config indices");
        is_quarantined[size_t(index)] = true;
        previous = index;
    }
    return is_quarantined;
}

void check_built(const OpParts& parts, Op op) {
    if (parts.built.size() != parts.quarantined.size()) refuse("quarantined and built differ in length");
    for (const auto& variants : parts.built)
        for (const Problem& variant : variants)
            if (variant.op != op || variant != kernel_identity(variant)) refuse("quarantined must name variants");
}

template <typename T>
void check_finite(const std::vector<T>& values, const char* what) {
    for (T value : values)
        if (!std::isfinite(value)) refuse(std::string(what) + " holds a number that is not finite");
}

void check_exact(const OpModel& model) {
    const auto& keys = model.parts.exact_key;
    if (keys.size() != model.parts.exact_config.size()) refuse("exact_key and exact_config differ in length");
    for (size_t i = 1; i < keys.size(); ++i)
        if (keys[i - 1] >= keys[i]) refuse("exact_key must ascend");
    for (int32_t config : model.parts.exact_config)
        if (config < 0 || config >= int64_t(model.configs.size())) refuse("exact_config points outside the configs");
}

void check_hull(const OpModel& model, bool has_own_features) {
    const auto &low = model.parts.feature_min, &high = model.parts.feature_max;
    if (low.empty() || low.size() != high.size()) refuse("feature_min and feature_max differ in length or are empty");
    if (has_own_features && low.size() != kNumConfigRow) refuse("the number of features is not that of this package");
    check_finite(low, "feature_min");
    check_finite(high, "feature_max");
    for (size_t i = 0; i < low.size(); ++i)
        if (low[i] > high[i]) refuse("feature_min is above feature_max");
}

void widen_hull(OpModel& model) {
    for (size_t i = 0; i < model.num_features(); ++i) {
        const double low = model.parts.feature_min[i], high = model.parts.feature_max[i];
        const double slack = kHullSlack * std::max(std::abs(low), std::abs(high));
        model.hull_min.push_back(-round_down(slack - low)), model.hull_max.push_back(round_down(high + slack));
    }
}

// Whether configs of a kind were among the rows that the trees were trained on.
bool knows(const OpModel& model, const LateKind& kind) {
    static const std::vector<std::string> names = config_feature_names();
    const size_t index = size_t(std::find(names.begin(), names.end(), kind.feature) - names.begin());
    return index < model.num_features() &&
           has_seen(model.parts.feature_min[index], model.parts.feature_max[index], kind.least);
}

void check_golden(const OpModel& model) {
    const OpParts& parts = model.parts;
    const size_t rows = parts.golden_scores.size();
    const auto& starts = parts.golden_start;
    if (parts.golden_features.size() != rows * model.num_features())
        refuse("the golden vectors differ in number or width");
    if (starts.size() != parts.golden_choice.size() + 1 || starts.front() != 0 || starts.back() != int64_t(rows))
        refuse("golden_start must cover all golden vectors");
    check_finite(parts.golden_features, "golden_features");
    check_finite(parts.golden_scores, "golden_scores");
    for (size_t i = 0; i + 1 < starts.size(); ++i) {
        if (starts[i] >= starts[i + 1]) refuse("golden_start must ascend");
        if (size_t(starts[i + 1] - starts[i]) > FeatureTable::kRows)
            refuse("a golden problem has more vectors than a choice asks about");
        if (parts.golden_choice[i] < 0 || parts.golden_choice[i] >= starts[i + 1] - starts[i])
            refuse("golden_choice points outside its problem's vectors");
    }
}

}  // namespace

bool OpModel::is_banned(const Problem& problem, const Config& config) const {
    for (size_t i = 0; i < parts.quarantined.size(); ++i)
        if (configs[size_t(parts.quarantined[i])] == config) {
            const auto& built = parts.built[i];
            return std::find(built.begin(), built.end(), kernel_identity(problem)) == built.end();
        }
    return false;
}

void refuse(const std::string& what) { throw Error(ErrorKind::kModel, what + "; export the selector again"); }

OpModel::OpModel(Op kind, OpParts given, const Device& device, bool has_own_features)
    : op(kind),
      parts(std::move(given)),
      configs(make_configs(parts.configs, op, device)),
      is_quarantined(mark_quarantined(parts.quarantined, configs.size())),
      forest(std::move(parts.forest), parts.feature_min.size()) {
    check_built(parts, op);
    check_exact(*this);
    check_hull(*this, has_own_features);
    widen_hull(*this);
    for (const LateKind& kind : kLateKinds) known.*kind.is_known = knows(*this, kind);
    check_golden(*this);
}

}  // namespace deep_gemm
