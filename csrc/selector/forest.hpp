// A forest of regression trees with one output per portfolio config, walked as scikit-learn walks it: the feature as
// float32 goes left when it is <= the float64 threshold, and the trees' values are summed in float64 in the order of
// the trees, then divided by their number. Results are equal to RandomForestRegressor.predict bit by bit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deep_gemm {

// The arrays of an artefact that make up a forest, not yet checked; deep_gemm/artifact.py says what they mean.
struct ForestArrays {
    std::vector<int32_t> tree_start, feature, left, right;
    std::vector<double> threshold, leaf_value;
};

class Forest {
 public:
    // Throws Error(kModel) unless every walk ends at a leaf and reads nothing outside the arrays.
    Forest(ForestArrays arrays, size_t num_features, size_t num_outputs);

    size_t num_trees() const { return roots_.size(); }

    // Find each tree's leaf for `features` (num_features float32) and average the leaves' values into `scores`
    // (num_outputs). `leaves` (num_trees) receives the leaf rows.
    void score(std::span<const float> features, std::span<int32_t> leaves, std::span<double> scores) const;

    // Standard deviation over the trees of one output, whose mean is `mean`.
    double spread(std::span<const int32_t> leaves, size_t output, double mean) const;

 private:
    struct Node {
        // The largest float32 that is <= the float64 threshold: float32 features compare with both alike.
        float threshold;
        int32_t feature;      // -1 for a leaf
        int32_t children[2];  // left, right; of a leaf its row and -1
    };

    void find_leaves(std::span<const float> features, std::span<int32_t> leaves) const;

    size_t num_outputs_;
    std::vector<int32_t> roots_;
    std::vector<Node> nodes_;
    std::vector<double> leaf_values_;  // [leaves, num_outputs]
};

}  // namespace deep_gemm
