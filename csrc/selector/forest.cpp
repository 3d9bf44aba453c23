#include "selector/forest.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "selector/op_model.hpp"

namespace deep_gemm {
namespace {

constexpr int32_t kMaxDepth = 64;      // bounds the time of one choice
constexpr double kMaxMagnitude = 1e6;  // a log ratio is far smaller; keeps sums finite

float round_down(double threshold) {
    const float nearest = float(threshold);
    return double(nearest) > threshold ? std::nextafter(nearest, -INFINITY) : nearest;
}

void check_sizes(const ForestArrays& arrays, size_t num_outputs) {
    const size_t nodes = arrays.feature.size();
    if (arrays.left.size() != nodes || arrays.right.size() != nodes || arrays.threshold.size() != nodes)
        refuse("the arrays of a forest's nodes differ in length");
    if (arrays.leaf_value.size() % num_outputs != 0) refuse("leaf_value must have a column per portfolio config");
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
    NodeChecker(const ForestArrays& arrays, size_t num_features, size_t num_outputs)
        : arrays_(arrays),
          num_features_(int64_t(num_features)),
          num_leaves_(int64_t(arrays.leaf_value.size() / num_outputs)) {}

    void check_tree(int64_t begin, int64_t end) const {
        std::vector<int32_t> depth(size_t(end - begin), 0);
        for (int64_t node = begin; node < end; ++node) {
            check_node(node, end);
            if (arrays_.feature[node] == -1) continue;
            const int32_t child_depth = depth[node - begin] + 1;
            if (child_depth > kMaxDepth) refuse("a tree is deeper than 64");
            for (int64_t child : {arrays_.left[node], arrays_.right[node]})
                depth[child - begin] = std::max(depth[child - begin], child_depth);
        }
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

Forest::Forest(ForestArrays arrays, size_t num_features, size_t num_outputs) : num_outputs_(num_outputs) {
    check_sizes(arrays, num_outputs);
    check_tree_starts(arrays);
    const NodeChecker checker(arrays, num_features, num_outputs);
    for (size_t tree = 0; tree + 1 < arrays.tree_start.size(); ++tree)
        checker.check_tree(arrays.tree_start[tree], arrays.tree_start[tree + 1]);
    for (double value : arrays.leaf_value)
        if (!(std::abs(value) <= kMaxMagnitude)) refuse("a leaf value is not finite or above 1e6");
    leaf_values_ = std::move(arrays.leaf_value);
    roots_.assign(arrays.tree_start.begin(), arrays.tree_start.end() - 1);
    nodes_.reserve(arrays.feature.size());
    for (size_t i = 0; i < arrays.feature.size(); ++i)
        nodes_.push_back({round_down(arrays.threshold[i]), arrays.feature[i], {arrays.left[i], arrays.right[i]}});
}

// Several trees are walked together, because each step of one tree waits for the memory of the step before. The side is
// an index and not a branch, because the processor cannot predict which way a split goes.
void Forest::find_leaves(std::span<const float> features, std::span<int32_t> leaves) const {
    constexpr size_t kTogether = 8;
    for (size_t first = 0; first < roots_.size(); first += kTogether) {
        const size_t count = std::min(kTogether, roots_.size() - first);
        std::copy_n(&roots_[first], count, &leaves[first]);
        for (bool is_inner = true; is_inner;) {
            is_inner = false;
            for (size_t tree = first; tree < first + count; ++tree) {
                const Node& node = nodes_[size_t(leaves[tree])];
                if (node.feature < 0) continue;
                leaves[tree] = node.children[features[size_t(node.feature)] > node.threshold];
                is_inner = true;
            }
        }
    }
    for (int32_t& leaf : leaves) leaf = nodes_[size_t(leaf)].children[0];
}

void Forest::score(std::span<const float> features, std::span<int32_t> leaves, std::span<double> scores) const {
    std::fill(scores.begin(), scores.end(), 0.0);
    find_leaves(features, leaves);
    for (int32_t leaf : leaves) {
        const double* values = &leaf_values_[size_t(leaf) * num_outputs_];
        for (size_t output = 0; output < num_outputs_; ++output) scores[output] += values[output];
    }
    for (double& score : scores) score /= double(roots_.size());
}

double Forest::spread(std::span<const int32_t> leaves, size_t output, double mean) const {
    double sum = 0.0;
    for (int32_t leaf : leaves) {
        const double difference = leaf_values_[size_t(leaf) * num_outputs_ + output] - mean;
        sum += difference * difference;
    }
    return std::sqrt(sum / double(leaves.size()));
}

}  // namespace deep_gemm
