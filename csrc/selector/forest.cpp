#include "selector/forest.hpp"

#include <algorithm>
#include <cmath>

namespace deep_gemm {
namespace {

constexpr int64_t kMaxNodes = 1000000, kMaxTrees = 1024;
constexpr int32_t kMaxDepth = 64;      // bounds the time of one choice
constexpr double kMaxMagnitude = 1e6;  // a log ratio is far smaller; keeps sums finite

float round_down(double threshold) {
    const float nearest = float(threshold);
    return double(nearest) > threshold ? std::nextafter(nearest, -INFINITY) : nearest;
}

struct NodeArrays {
    std::vector<int32_t> tree_start, feature, left, right;
    std::vector<double> threshold;
    int64_t num_features, num_leaves;
};

void check_tree_starts(const NodeArrays& arrays) {
    const auto& starts = arrays.tree_start;
    if (starts.size() < 2 || starts.size() > kMaxTrees + 1) refuse("a forest must have 1 to 1024 trees");
    if (starts.front() != 0 || starts.back() != int64_t(arrays.feature.size()))
        refuse("tree_start must cover all nodes");
    for (size_t tree = 0; tree + 1 < starts.size(); ++tree)
        if (starts[tree] >= starts[tree + 1]) refuse("tree_start must ascend");
}

// `end` is one past the last node of the tree. Children after their parent, inside the tree: hence no cycle.
void check_node(const NodeArrays& arrays, int64_t node, int64_t end) {
    const int64_t feature = arrays.feature[node], left = arrays.left[node], right = arrays.right[node];
    if (!std::isfinite(arrays.threshold[node])) refuse("a threshold is not finite");
    if (feature == -1) {
        if (left < 0 || left >= arrays.num_leaves || right != -1) refuse("a leaf points outside the leaf values");
        return;
    }
    if (feature < 0 || feature >= arrays.num_features) refuse("a node asks for a feature that does not exist");
    if (left <= node || left >= end || right <= node || right >= end)
        refuse("a child does not come after its parent in the same tree");
}

void check_tree(const NodeArrays& arrays, int64_t begin, int64_t end) {
    std::vector<int32_t> depth(size_t(end - begin), 0);
    for (int64_t node = begin; node < end; ++node) {
        check_node(arrays, node, end);
        if (arrays.feature[node] == -1) continue;
        const int32_t child_depth = depth[node - begin] + 1;
        if (child_depth > kMaxDepth) refuse("a tree is deeper than 64");
        for (int64_t child : {arrays.left[node], arrays.right[node]})
            depth[child - begin] = std::max(depth[child - begin], child_depth);
    }
}

NodeArrays read_nodes(const Artifact& artifact, const std::string& prefix, int64_t num_features) {
    const int64_t nodes = array_size(artifact, prefix + "feature", 0),
                  starts = array_size(artifact, prefix + "tree_start", 0);
    if (nodes > kMaxNodes) refuse("more than a million nodes");
    return {.tree_start = take_array<int32_t>(artifact, prefix + "tree_start", {starts}),
            .feature = take_array<int32_t>(artifact, prefix + "feature", {nodes}),
            .left = take_array<int32_t>(artifact, prefix + "left", {nodes}),
            .right = take_array<int32_t>(artifact, prefix + "right", {nodes}),
            .threshold = take_array<double>(artifact, prefix + "threshold", {nodes}),
            .num_features = num_features,
            .num_leaves = array_size(artifact, prefix + "leaf_value", 0)};
}

}  // namespace

Forest::Forest(const Artifact& artifact, const std::string& prefix, int64_t num_features, int64_t num_outputs)
    : num_outputs_(size_t(num_outputs)) {
    const NodeArrays arrays = read_nodes(artifact, prefix, num_features);
    check_tree_starts(arrays);
    for (size_t tree = 0; tree + 1 < arrays.tree_start.size(); ++tree)
        check_tree(arrays, arrays.tree_start[tree], arrays.tree_start[tree + 1]);
    leaf_values_ = take_array<double>(artifact, prefix + "leaf_value", {arrays.num_leaves, num_outputs});
    for (double value : leaf_values_)
        if (!(std::abs(value) <= kMaxMagnitude)) refuse("a leaf value is not finite or above 1e6");
    roots_.assign(arrays.tree_start.begin(), arrays.tree_start.end() - 1);
    nodes_.reserve(arrays.feature.size());
    for (size_t i = 0; i < arrays.feature.size(); ++i)
        nodes_.push_back({round_down(arrays.threshold[i]), arrays.feature[i], {arrays.left[i], arrays.right[i]}});
}

// Several trees step down together, because one step waits for the memory of the one before it; and the side is an
// index, not a branch, because which way a split goes is as good as random to the processor.
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
