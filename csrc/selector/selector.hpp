// The learned choice of a config, from one artefact per SKU. Immutable after load, so threads share it freely.
//
// Metadata of an artefact (canonical JSON, exactly these members): arrays_sha256, created ("YYYY-MM-DD"),
// features_version, format (1), heuristic_version, ops, package_version, sku, sm_count, stale (null, or why it must not
// be used). ops maps an op kind to exactly: kernel_hash, margin, max_spread, num_portfolio, quarantined (ascending
// config indices), regime. Arrays of an op kind, prefixed with its name and a slash ("fp8_gemm/"): C configs (the first
// P are the portfolio), E exact entries, T trees with N nodes and L leaves, F features, G golden vectors:
//   configs         I32 [C,8]  block_m, block_n, block_k, num_stages, cluster_m, cluster_n, split_k, swap_ab; distinct,
//   each legal on
//                              the SKU for some variant of the op kind
//   exact_key       U64 [E]    ascending; first 8 bytes, big-endian, of the problem key     exact_config I32 [E] config
//   index tree_start      I32 [T+1]  nodes of tree t are tree_start[t]..tree_start[t+1]-1, the root first feature I32
//   [N]    -1 = leaf      threshold F64 [N] left, right     I32 [N]    absolute node index, after the parent; of a
//   leaf: row of leaf_value, and -1 leaf_value      F64 [L,P]  predicted log(time of config / time of the heuristic's
//   pick) feature_min, feature_max  F64 [F]  the hull of the training problems golden_features F32 [G,F], golden_scores
//   F64 [G,P], golden_choice I32 [G] (what decide() gives: config index, -1 = analytic)
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.hpp"
#include "core/device.hpp"
#include "core/heuristic.hpp"
#include "core/problem.hpp"
#include "selector/artifact.hpp"
#include "selector/forest.hpp"

namespace deep_gemm {

struct Choice {
    enum class Source { kExact, kLearned, kAnalytic };

    Config config;
    Source source = Source::kAnalytic;
    std::string reason;          // why this source answered, in a few words
    std::vector<Config> scored;  // the portfolio, where the forest was asked
    std::vector<double> scores;  // predicted log(time / time of the heuristic's pick), beside `scored`
};

const char* source_name(Choice::Source source);

enum class SelectionMode { kAuto, kModel };  // kModel leaves out the exact table

// Arrays of one op kind, as listed above.
inline constexpr size_t kNumOpArrays = 14;

// What one artefact knows of one op kind.
struct OpModel {
    Op op;
    std::string kernel_hash, regime;
    double margin, max_spread;
    std::vector<Config> configs;  // the first num_portfolio are the portfolio
    size_t num_portfolio;
    std::vector<bool> is_quarantined;
    std::vector<uint64_t> exact_keys;
    std::vector<int32_t> exact_configs;
    Forest forest;
    std::vector<double> feature_min, feature_max;
    std::vector<float> golden_features;
    std::vector<double> golden_scores;
    std::vector<int32_t> golden_choices;

    std::span<const Config> portfolio() const { return {configs.data(), num_portfolio}; }
};

// Read and check the arrays and metadata of one op kind for a device of the artefact's SKU; throws Error(kModel).
OpModel read_op_model(const Artifact& artifact, Op op, const JsonValue& metadata, const Device& device,
                      bool is_features_version_ours);

// The answer of an op's forest to one feature vector, with the guards applied.
struct Decision {
    int config = -1;         // index into the configs; -1 = a guard refused or the heuristic was predicted best
    bool is_refused = true;  // a guard refused
    std::string reason;
    std::vector<double> scores;  // empty where the hull guard refused before the walk
};

class Selector {
 public:
    // Throws Error(kModel) for anything that is not a well-formed artefact.
    explicit Selector(std::string_view content);

    // An answer for any legal device; every doubt leads to the heuristic. An empty `kernel_hash` is unknown, not a
    // mismatch.
    Choice choose(const Problem& problem, uint64_t key, const Device& device, SelectionMode mode,
                  std::string_view kernel_hash) const;

    // Predicted log ratios of the portfolio, without any guard but features_version; throws Error(kModel) where it
    // cannot score.
    std::vector<double> scores(const Problem& problem, const Device& device) const;

    // What the forest and the guards say of a feature vector when the whole portfolio is legal.
    Decision decide(Op op, std::span<const double> features) const;

    // Number of golden vectors whose scores (bit by bit) or choice differ from the recorded ones.
    int64_t replay_golden() const;

    const JsonValue& metadata() const { return metadata_; }
    const std::string& sku() const { return sku_; }
    const OpModel* find_model(Op op) const;

 private:
    std::string guard_artifact(const Problem& problem, const Device& device, std::string_view kernel_hash) const;
    std::string guard_versions() const;
    std::optional<Config> find_exact(const Problem& problem, uint64_t key, const Device& device) const;

    JsonValue metadata_;
    std::string sku_, heuristic_version_, stale_reason_;
    int64_t sm_count_, features_version_;
    std::map<Op, OpModel> models_;
};

}  // namespace deep_gemm
