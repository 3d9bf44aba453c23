// Boosted regression trees, walked as scikit-learn walks them: the feature as float32 goes left when it is <= the
// float64 threshold, and the trees' values are added in float64 in the order of the trees. Results are equal to
// HistGradientBoostingRegressor.predict bit by bit; its first value, which all rows share, is a tree of one leaf.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deep_gemm {

// The arrays of an artefact that make up the trees, not yet checked; deep_gemm/artifact.py says what they mean.
struct ForestArrays {
    std::vector<int32_t> tree_start, feature, left, right;
    std::vector<double> threshold, leaf_value;
};

class Forest {
 public:
    // Throws Error(kModel) unless every walk ends at a leaf and reads nothing outside the arrays.
    Forest(ForestArrays arrays, size_t num_features);

    // The sums over the trees of the value of the leaf that each finds for a row of `width` float32; `rows` holds
    // sums.size() of them.
    void predict(std::span<const float> rows, size_t width, std::span<double> sums) const;

 private:
    struct Node {
        // The largest float32 that is <= the float64 threshold: float32 features compare with both alike.
        float threshold;
        int32_t feature;
        int32_t children[2];  // left, right; of a leaf the leaf itself
    };

    std::vector<int32_t> roots_, depths_;
    std::vector<Node> nodes_;
    std::vector<double> values_;  // of leaves, by node
};

}  // namespace deep_gemm
