// The learned choice of a config, from one artefact per SKU. Immutable once made, so threads share it freely.
// deep_gemm/selector.py makes it from an artefact's content, whose format deep_gemm/artifact.py describes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.hpp"
#include "core/device.hpp"
#include "core/problem.hpp"
#include "selector/op_model.hpp"

namespace deep_gemm {

struct Choice {
    enum class Source { kExact, kLearned, kAnalytic };

    Config config;
    Source source = Source::kAnalytic;
    std::string reason;          // why this source answered, in a few words
    std::vector<Config> scored;  // what the trees were asked about, the heuristic's pick first
    std::vector<double> scores;  // predicted log(time / time of that pick) of each; infinite outside the training hull
};

const char* source_name(Choice::Source source);

// Where an artefact was made, and how far it fits this package.
struct Origin {
    std::string sku;
    int32_t sm_count = 0;
    std::string stale_reason;  // why the whole artefact must not be used, or ""
    // Whether the forests were trained on this package's features, and against this package's heuristic, as far as
    // both are the same for all op kinds (OpParts has the estimate of its own).
    bool has_own_features = false, has_own_heuristic = false;
};

// The configs with the smallest estimates that the trees are asked about: six to twelve tiles, each with and without
// the knobs of the main loop where it has some (make_shortlist).
inline constexpr size_t kNumRanked = FeatureTable::kRows;
// A residual beyond this (log time) counts as this: no tree knows of more.
inline constexpr double kMaxResidual = 0.5;

class Selector {
 public:
    // Throws Error(kModel) for values that would make a choice unsafe or that contradict each other.
    Selector(Origin origin, std::map<Op, OpParts> ops);

    // A choice for any device: the heuristic's wherever a guard refuses. An empty `kernel_hash` is unknown, not a
    // mismatch. `exact_key`: the problem's key in the exact table; without one the table is left out.
    Choice choose(const Problem& problem, const Device& device, std::string_view kernel_hash,
                  std::optional<uint64_t> exact_key) const;

    // A choice of the trees alone, whatever the device, the kernels and the heuristic; throws Error(kModel) for an op
    // kind that is not there, or other features.
    Choice choose_learned(const Problem& problem, const Device& device) const;

    // Why the library does not use the part of an op kind, or only its exact table; "" where it does, and where the
    // artefact has no such part. An empty `kernel_hash` is unknown, not a mismatch.
    std::string find_fault(Op op, std::string_view kernel_hash) const;

    // Number of golden problems whose scores (bit by bit) or choice differ from the recorded ones, by vectors of at
    // most `lanes` numbers.
    int64_t replay_golden(size_t lanes) const;

    const std::string& sku() const { return origin_.sku; }
    const OpModel* find_model(Op op) const;

 private:
    Choice ask_trees(const OpModel& model, const Problem& problem, const Device& device) const;
    std::string guard_artifact(const Problem& problem, const Device& device, std::string_view kernel_hash) const;
    std::string guard_kernels(const OpModel* model, std::string_view kernel_hash) const;
    std::string guard_versions(const OpModel& model) const;

    Origin origin_;
    std::map<Op, OpModel> models_;
};

}  // namespace deep_gemm
