#include "selector/forest.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "selector/op_model.hpp"

namespace deep_gemm {
namespace {

constexpr int32_t kMaxDepth = 16;      // bounds the time of one choice
constexpr double kMaxMagnitude = 1e6;  // a log ratio is far smaller; keeps sums finite

float round_down(double threshold) {
    const float nearest = float(threshold);
    return double(nearest) > threshold ? std::nextafter(nearest, -INFINITY) : nearest;
}

void check_sizes(const ForestArrays& arrays) {
    const size_t nodes = arrays.feature.size();
    if (arrays.left.size() != nodes || arrays.right.size() != nodes || arrays.threshold.size() != nodes)
        refuse("the arrays of a forest's nodes differ in length");
}

void check_tree_starts(const ForestArrays& arrays) {
    const auto& starts = arrays.tree_start;
    if (starts.size() < 2) refuse("a forest must have a tree");
    if (starts.front() != 0 || starts.back() != int64_t(arrays.feature.size()))
        refuse("tree_start must cover all nodes");
    for (size_t tree = 0; tree + 1 < starts.size(); ++tree)
        if (starts[tree] >= starts[tree + 1]) refuse("tree_start must ascend");
}

class NodeChecker {
 public:
    NodeChecker(const ForestArrays& arrays, size_t num_features)
        : arrays_(arrays), num_features_(int64_t(num_features)), num_leaves_(int64_t(arrays.leaf_value.size())) {}

    // Returns the depth of the tree with the nodes begin..end-1.
    int32_t check_tree(int64_t begin, int64_t end) const {
        std::vector<int32_t> depth(size_t(end - begin), 0);
        for (int64_t node = begin; node < end; ++node) {
            check_node(node, end);
            if (arrays_.feature[node] == -1) continue;
            const int32_t child_depth = depth[node - begin] + 1;
            if (child_depth > kMaxDepth) refuse("a tree is deeper than 16");
            for (int64_t child : {arrays_.left[node], arrays_.right[node]})
                depth[child - begin] = std::max(depth[child - begin], child_depth);
        }
        return *std::max_element(depth.begin(), depth.end());
    }

 private:
    // `end` is one past the last node of the tree. Children after their parent, inside the tree: hence no cycle.
    void check_node(int64_t node, int64_t end) const {
        const int64_t feature = arrays_.feature[node], left = arrays_.left[node], right = arrays_.right[node];
        if (!std::isfinite(arrays_.threshold[node])) refuse("a threshold is not finite");
        if (feature == -1) {
            if (left < 0 || left >= num_leaves_ || right != -1) refuse("a leaf points outside the leaf values");
            return;
        }
        if (feature < 0 || feature >= num_features_) refuse("a node compares a feature that does not exist");
        if (left <= node || left >= end || right <= node || right >= end)
            refuse("a child does not come after its parent in the same tree");
    }

    const ForestArrays& arrays_;
    int64_t num_features_, num_leaves_;
};

}  // namespace

Forest::Forest(ForestArrays arrays, size_t num_features) {
    check_sizes(arrays);
    check_tree_starts(arrays);
    const NodeChecker checker(arrays, num_features);
    for (size_t tree = 0; tree + 1 < arrays.tree_start.size(); ++tree)
        depths_.push_back(checker.check_tree(arrays.tree_start[tree], arrays.tree_start[tree + 1]));
    for (double value : arrays.leaf_value)
        if (!(std::abs(value) <= kMaxMagnitude)) refuse("a leaf value is not finite or above 1e6");
    roots_.assign(arrays.tree_start.begin(), arrays.tree_start.end() - 1);
    values_.resize(arrays.feature.size());
    for (int32_t i = 0; i < int32_t(arrays.feature.size()); ++i) {
        const bool is_leaf = arrays.feature[i] < 0;
        if (is_leaf) values_[i] = arrays.leaf_value[arrays.left[i]];
        nodes_.push_back(
            is_leaf ? Node{INFINITY, 0, {i, i}}
                    : Node{round_down(arrays.threshold[i]), arrays.feature[i], {arrays.left[i], arrays.right[i]}});
    }
}

// All rows walk a tree together, because each step of one row waits for the memory of the step before, and a tree is
// then read once. The side is an index and not a branch, because the processor cannot predict which way a split goes;
// for the same reason a walk that has reached its leaf stays there until the deepest one is done.
void Forest::predict(std::span<const float> rows, size_t width, std::span<double> sums) const {
    constexpr size_t kTogether = 12;  // a whole shortlist; a constant, so that the compiler keeps it in registers
    std::fill(sums.begin(), sums.end(), 0.0);
    for (size_t first = 0; first < sums.size(); first += kTogether) {
        const size_t count = std::min(kTogether, sums.size() - first);
        const float* features[kTogether];
        for (size_t row = 0; row < kTogether; ++row) features[row] = &rows[(first + std::min(row, count - 1)) * width];
        for (size_t tree = 0; tree < roots_.size(); ++tree) {
            const Node* places[kTogether];
            std::fill_n(places, kTogether, &nodes_[size_t(roots_[tree])]);
            for (int32_t step = 0; step < depths_[tree]; ++step)
#pragma GCC unroll 12
                for (size_t row = 0; row < kTogether; ++row) {
                    const Node& node = *places[row];
                    places[row] = &nodes_[size_t(node.children[features[row][node.feature] > node.threshold])];
                }
            for (size_t row = 0; row < count; ++row) sums[first + row] += values_[size_t(places[row] - nodes_.data())];
        }
    }
}

}  // namespace deep_gemm
