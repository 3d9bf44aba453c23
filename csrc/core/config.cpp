#include "core/config.hpp"

#include <algorithm>
#include <stdexcept>

#include "core/error.hpp"

namespace deep_gemm {

const std::array<IntegerField, Config::kNumFields> kConfigFields = {{
    {"block_m", 1, Config::kMaxField, 0, true},
    {"block_n", 1, Config::kMaxField, 0, true},
    {"block_k", 1, Config::kMaxField, 128, false},
    {"num_stages", 1, Config::kMaxField, 0, true},
    {"cluster_m", 1, Config::kMaxField, 1, false},
    {"cluster_n", 1, Config::kMaxField, 1, false},
    {"split_k", 1, Config::kMaxField, 1, false},
    {"swap_ab", 0, 1, 0, false},
}};

namespace {

constexpr JsonLimits kLimits = {4096, 2, false};
// Indices of kConfigFields in ascending order of the names, for canonical JSON.
constexpr size_t kSortedFields[Config::kNumFields] = {2, 0, 1, 4, 5, 3, 6, 7};

size_t field_index(std::string_view name) {
    for (size_t i = 0; i < kConfigFields.size(); ++i)
        if (name == kConfigFields[i].name) return i;
    throw std::invalid_argument("field " + std::string(name.substr(0, 32)) +
                                " is unknown; write the fields of Config.as_dict() only");
}

Config parse_config(std::string_view text) {
    const JsonValue root = parse_json(text, kLimits);
    if (root.type != JsonValue::Type::kObject)
        throw std::invalid_argument("a config must be a JSON object of its fields");
    for (const auto& member : root.object) field_index(member.first);
    std::array<int64_t, Config::kNumFields> values;
    for (size_t i = 0; i < values.size(); ++i) {
        const IntegerField& field = kConfigFields[i];
        const JsonValue* value = root.find(field.name);
        if (value == nullptr && field.is_required) throw std::invalid_argument(std::string(field.name) + " is missing");
        values[i] = value == nullptr ? field.default_value : check_integer_field(field, *value);
    }
    return Config::from_values(values);
}

}  // namespace

Config Config::from_values(const std::array<int64_t, kNumFields>& values) {
    try {
        for (size_t i = 0; i < values.size(); ++i) check_integer_range(kConfigFields[i], values[i]);
    } catch (const std::invalid_argument& error) {
        throw Error(ErrorKind::kConfig, error.what());
    }
    std::array<int32_t, kNumFields> v;
    std::copy(values.begin(), values.end(), v.begin());
    return {.block_m = v[0],
            .block_n = v[1],
            .block_k = v[2],
            .num_stages = v[3],
            .cluster_m = v[4],
            .cluster_n = v[5],
            .split_k = v[6],
            .swap_ab = v[7]};
}

std::string to_json(const Config& config) {
    const auto values = config.values();
    std::string out = "{";
    for (size_t i : kSortedFields) {
        const IntegerField& field = kConfigFields[i];
        if (!field.is_required && values[i] == field.default_value) continue;
        if (out.size() > 1) out += ',';
        out += '"' + std::string(field.name) + "\":" + std::to_string(values[i]);
    }
    return out + '}';
}

Config config_from_json(std::string_view text) {
    try {
        return parse_config(text);
    } catch (const std::invalid_argument& error) {
        throw Error(ErrorKind::kConfig, error.what());
    }
}

Sha256Digest config_digest(const Config& config, Op op) {
    const std::string text = "{\"fields\":" + to_json(config) + ",\"op\":\"" + std::string(op_name(op)) + "\"}";
    return sha256(text.data(), text.size());
}

size_t hash_value(const Config& config) {
    uint64_t hash = 1;
    for (int32_t value : config.values()) {
        hash = (hash ^ uint64_t(value)) * 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 29;
    }
    return size_t(hash);
}

std::string to_string(const Config& config) {
    return std::to_string(config.block_m) + 'x' + std::to_string(config.block_n) + 'x' +
           std::to_string(config.block_k) + " s" + std::to_string(config.num_stages) + " c" +
           std::to_string(config.cluster_m) + 'x' + std::to_string(config.cluster_n) +
           (config.split_k == 1 ? "" : " k" + std::to_string(config.split_k)) + (config.swap_ab == 0 ? "" : " swap");
}

}  // namespace deep_gemm
