// Boosted regression trees, asked about a few rows at once: the feature as float32 goes left when it is <= the float64
// threshold, and the trees' values are added in float64 in the order of the trees. Results are equal to
// HistGradientBoostingRegressor.predict bit by bit; its first value, which all rows share, is a tree of one leaf.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "selector/feature_table.hpp"

namespace deep_gemm {

// The arrays of an artefact that make up the trees, not yet checked; deep_gemm/artifact.py says what they mean.
struct ForestArrays {
    std::vector<int32_t> tree_start, feature, left, right;
    std::vector<double> threshold, leaf_value;
};

// The largest float32 that is <= a finite float64: float32 numbers compare with both alike.
float round_down(double value);

class Forest {
 public:
    static constexpr int32_t kMaxLeaves = 32;  // of a tree: one bit each

    // Throws Error(kModel) unless all trees are trees of at most kMaxLeaves leaves that read nothing outside the
    // arrays.
    Forest(ForestArrays arrays, size_t num_features);

    // The sums over the trees of the value of the leaf that each finds for a row of `table`. At most `lanes` numbers
    // are compared at once, as far as this host can: 16 (for trees of up to 16 leaves), 8, else 4.
    using Sums = std::array<double, FeatureTable::kRows>;
    Sums predict(const FeatureTable& table, size_t lanes = FeatureTable::kMostLanes) const;

 private:
    // A comparison of any tree: a row whose feature is above the threshold does not reach the leaves to the left.
    struct Node {
        float threshold;
        uint32_t kept;  // all other leaves
        int32_t feature;
    };
    struct Tree {
        size_t end, first_leaf;  // one past its last node, and its leftmost value
    };

    // Adds to the sums of the rows: one body, compiled for each width of vectors.
    template <size_t kLanes>
    void add_up(const FeatureTable& table, Sums& sums) const;
    void add_avx2(const FeatureTable& table, Sums& sums) const;
    void add_avx512(const FeatureTable& table, Sums& sums) const;
    void add_tree(const ForestArrays& arrays, int64_t begin, int64_t end);

    static constexpr size_t kMaxPickedLeaves = 16;  // see add_avx512

    size_t most_leaves_ = 0;  // of a tree
    std::vector<Node> nodes_;
    std::vector<Tree> trees_;
    std::vector<double> values_;
};

}  // namespace deep_gemm
