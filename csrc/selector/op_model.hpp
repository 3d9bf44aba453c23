// What one artefact knows of one op kind: exact table, configs, trees, guards and golden vectors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "core/device.hpp"
#include "core/heuristic.hpp"
#include "core/problem.hpp"
#include "selector/forest.hpp"

namespace deep_gemm {

// What a feature may lie outside the hull, as a share of the bound: float32 rounding of a stored bound is 6e-8.
inline constexpr double kHullSlack = 1e-6;

[[noreturn]] void refuse(const std::string& what);  // throws Error(kModel) with the remedy

// An op kind's metadata and arrays as an artefact holds them, with the names and the meaning that deep_gemm/artifact.py
// lists. Arrays are flat, rows first. Not yet checked.
struct OpParts {
    std::string kernel_hash;
    bool has_own_estimate = true;  // trained against this package's estimate of the op kind
    double margin = 0.0;
    std::vector<int64_t> quarantined;
    // For each of these the variants (see kernel_identity) that it may still be chosen for: those it built for.
    std::vector<std::vector<Problem>> built;
    std::vector<int32_t> configs;
    std::vector<uint64_t> exact_key;
    std::vector<int32_t> exact_config;
    ForestArrays forest;
    std::vector<double> feature_min, feature_max;
    std::vector<float> golden_features;
    std::vector<double> golden_scores;
    std::vector<int32_t> golden_start, golden_choice;
};

// The same after every check that the selector relies on.
struct OpModel {
    // The configs must be possible on `device`. `has_own_features`: the artefact has the features of this package.
    // Throws Error(kModel).
    OpModel(Op op, OpParts parts, const Device& device, bool has_own_features);

    size_t num_features() const { return parts.feature_min.size(); }

    // Whether the config must not be chosen for the problem.
    bool is_banned(const Problem& problem, const Config& config) const;

    Op op;
    OpParts parts;  // without the forest's arrays
    std::vector<Config> configs;
    std::vector<bool> is_quarantined;
    // Of the features, with a slack for the rounding of stored bounds; float32, which compares alike.
    std::vector<float> hull_min, hull_max;
    LateKinds known;  // by the rows that the trees were trained on
    Forest forest;
};

}  // namespace deep_gemm
