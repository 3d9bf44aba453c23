// How an op is carried out: tile, stages, cluster, split of K, operand order. Immutable once made; a config may be
// illegal, is_legal decides (core/legality.hpp). Its key is made like a problem's.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/problem.hpp"
#include "core/sha256.hpp"

namespace deep_gemm {

struct Config {
    static constexpr int kNumFields = 8;
    static constexpr int64_t kMaxField = 65535;  // keeps every product of fields far inside 64 bits

    int32_t block_m = 64, block_n = 64, block_k = 128;
    int32_t num_stages = 2;
    int32_t cluster_m = 1;  // 2: two CTAs along M share (multicast) the B tile
    int32_t cluster_n = 1;  // 2: two CTAs along N share the A tile
    int32_t split_k = 1;    // CTAs of one cluster that share a tile, each with a part of K
    int32_t swap_ab =
        0;  // 1: the MMA's rows take n and its columns m; block_m always counts rows of D, block_n columns

    // In the order of kConfigFields, which is also the order of an artefact's config table.
    std::array<int32_t, kNumFields> values() const {
        return {block_m, block_n, block_k, num_stages, cluster_m, cluster_n, split_k, swap_ab};
    }
    static Config from_values(const std::array<int64_t, kNumFields>& values);  // throws Error(kConfig)

    bool operator==(const Config&) const = default;
};

extern const std::array<IntegerField, Config::kNumFields> kConfigFields;

std::string to_json(const Config& config);       // the fields that are not at their default
Config config_from_json(std::string_view text);  // throws Error(kConfig)
Sha256Digest config_digest(const Config& config, Op op);
size_t hash_value(const Config& config);
std::string to_string(const Config& config);  // "64x112x128 s5 c1x2", with " k4" for split_k and " swap" for swap_ab

}  // namespace deep_gemm
