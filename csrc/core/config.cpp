#include "core/config.hpp"

#include "core/error.hpp"

namespace deep_gemm {

ConfigValues config_values(const Config& config) {
    ConfigValues values;
    for (size_t i = 0; i < kNumConfigFields; ++i) values[i] = config.*kConfigFields[i].member;
    return values;
}

Config make_config(const ConfigValues& values) {
    Config config;
    for (size_t i = 0; i < kNumConfigFields; ++i) {
        const ConfigField& field = kConfigFields[i];
        if (values[i] < field.minimum || values[i] > field.maximum)
            throw Error(ErrorKind::kConfig, std::string(field.name) + " = " + std::to_string(values[i]) +
                                                ": must be within " + range_text(field) +
                                                "; pass a number in this range");
        config.*field.member = int32_t(values[i]);
    }
    return config;
}

// Multiplication by an odd constant spreads small sizes over all bits; the tables that use it need no more.
size_t hash_value(const Config& config) {
    uint64_t hash = 1;
    for (const ConfigField& field : kConfigFields) {
        hash = (hash ^ uint64_t(config.*field.member)) * 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 29;
    }
    return size_t(hash);
}

const char* name_knob(const LoopKnob& knob) {
    for (const ConfigField& field : kConfigFields)
        if (field.member == knob.member) return field.name;
    return "";
}

std::string to_string(const Config& config) {
    std::string text = std::to_string(config.block_m) + 'x' + std::to_string(config.block_n) + 'x' +
                       std::to_string(config.block_k) + " s" + std::to_string(config.num_stages) + " c" +
                       std::to_string(config.cluster_m) + 'x' + std::to_string(config.cluster_n) +
                       (config.split_k == 1 ? "" : " k" + std::to_string(config.split_k)) +
                       (config.swap_ab == 0 ? "" : " swap");
    for (const LoopKnob& knob : kLoopKnobs)
        if (config.*knob.member != 0) text += std::string(" ") + knob.word;
    return text;
}

}  // namespace deep_gemm
