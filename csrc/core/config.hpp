// How an op is carried out: tile, stages, cluster, split of K, operand order. Immutable once made; a config may be
// illegal, is_legal decides (core/legality.hpp). Its key is made like a problem's.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "core/field.hpp"

namespace deep_gemm {

struct Config {
    static constexpr int64_t kMaxField = 65535;  // keeps every product of fields far inside 64 bits

    int32_t block_m = 64, block_n = 64, block_k = 128;
    int32_t num_stages = 2;
    int32_t cluster_m = 1, cluster_n = 1;
    int32_t split_k = 1;
    int32_t swap_ab = 0;
    int32_t loop = 0;
    int32_t scale_warp = 0, tile_barrier = 0, reduce_add = 0;

    bool operator==(const Config&) const = default;
};

struct ConfigField : Field {
    int32_t Config::* member;
};

namespace fields {

constexpr ConfigField make_tile(const char* name, int32_t Config::* member, const char* meaning) {
    return {{{name, 1, Config::kMaxField, 0, true}, FieldType::kInteger, FieldRole::kTile, {}, meaning}, member};
}
constexpr ConfigField make_knob(const IntegerField& range, int32_t Config::* member, const char* meaning) {
    return {{range, FieldType::kInteger, FieldRole::kKnob, {}, meaning}, member};
}

}  // namespace fields

// Every field of a config, in the order of as_dict() and of an artefact's config table.
// clang-format off
inline constexpr auto kConfigFields = std::to_array<ConfigField>({
    fields::make_tile("block_m", &Config::block_m, "Rows of D in a tile."),
    fields::make_tile("block_n", &Config::block_n, "Columns of D in a tile."),
    {{{"block_k", 1, Config::kMaxField, 128, false}, FieldType::kInteger, FieldRole::kTile, {},
      "K elements of one stage: 128 bytes."}, &Config::block_k},
    fields::make_tile("num_stages", &Config::num_stages, "Stages of the ring in shared memory."),
    fields::make_knob({"cluster_m", 1, Config::kMaxField, 1, false}, &Config::cluster_m,
        "2: two CTAs along M share the tile of B by multicast."),
    fields::make_knob({"cluster_n", 1, Config::kMaxField, 1, false}, &Config::cluster_n,
        "2: two CTAs along N share the tile of A by multicast."),
    fields::make_knob({"split_k", 1, Config::kMaxField, 1, false}, &Config::split_k,
        "CTAs of one cluster that share a tile, each with a part of K."),
    fields::make_knob({"swap_ab", 0, 1, 0, false}, &Config::swap_ab,
        "1: the MMA's rows take n and its columns m; block_m always counts rows of D."),
    fields::make_knob({"loop", 0, 1, 0, false}, &Config::loop,
        "1: the main loop goes step by step with the stages unrolled; 0: by the tile (is_pipelined)."),
    fields::make_knob({"scale_warp", 0, 1, 0, false}, &Config::scale_warp,
        "1: a warp copies the block scales of whole tiles, a tile ahead; 0: they come stage by stage."),
    fields::make_knob({"tile_barrier", 0, 1, 0, false}, &Config::tile_barrier,
        "1: the math warpgroups meet before each tile."),
    fields::make_knob({"reduce_add", 0, 1, 0, false}, &Config::reduce_add,
        "1: TMA adds the tile onto D in memory; 0: D is loaded into shared memory and added to there."),
});
// clang-format on

inline constexpr size_t kNumConfigFields = kConfigFields.size();
using ConfigValues = std::array<int64_t, kNumConfigFields>;  // in the order of kConfigFields

ConfigValues config_values(const Config& config);
Config make_config(const ConfigValues& values);  // throws Error(kConfig)

size_t hash_value(const Config& config);

// Whether each CTA has tiles of its own.
inline constexpr bool is_single(const Config& config) {
    return config.cluster_m * config.cluster_n * config.split_k == 1;
}

// The knobs of the main loop and its epilogue, each with its word in to_string.
struct LoopKnob {
    int32_t Config::* member;
    const char* word;
};
inline constexpr LoopKnob kLoopKnobs[] = {{&Config::loop, "loop"},
                                          {&Config::scale_warp, "warp"},
                                          {&Config::tile_barrier, "barrier"},
                                          {&Config::reduce_add, "add"}};

inline bool has_loop_knobs(const Config& config) {
    for (const LoopKnob& knob : kLoopKnobs)
        if (config.*knob.member != 0) return true;
    return false;
}

const char* name_knob(const LoopKnob& knob);  // the field's

// "64x112x128 s5 c1x2", then the knobs that are used: " k4", " swap", " loop", " warp", " barrier", " add".
std::string to_string(const Config& config);

}  // namespace deep_gemm
