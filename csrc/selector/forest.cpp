#include "selector/forest.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "selector/lanes.hpp"
#include "selector/op_model.hpp"

namespace deep_gemm {
namespace {

constexpr double kMaxMagnitude = 1e6;  // a log ratio is far smaller; keeps sums finite

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

// A leaf or a comparison. `end` is one past the last node of the tree. Children after their parent, inside the tree:
// hence no cycle.
void check_node(const ForestArrays& arrays, int64_t num_features, int64_t node, int64_t end) {
    const int64_t feature = arrays.feature[node], left = arrays.left[node], right = arrays.right[node];
    if (!std::isfinite(arrays.threshold[node])) refuse("a threshold is not finite");
    if (feature == -1) {
        if (left < 0 || left >= int64_t(arrays.leaf_value.size()) || right != -1)
            refuse("a leaf points outside the leaf values");
        return;
    }
    if (feature < 0 || feature >= num_features) refuse("a node compares a feature that does not exist");
    if (left <= node || left >= end || right <= node || right >= end)
        refuse("a child does not come after its parent in the same tree");
}

// Leaves below each node of the nodes begin..end-1, at most one more than a tree may have.
std::vector<int32_t> count_leaves(const ForestArrays& arrays, int64_t begin, int64_t end) {
    std::vector<int32_t> leaves(size_t(end - begin), 1);
    for (int64_t node = end - 1; node >= begin; --node)
        if (arrays.feature[node] >= 0)
            leaves[node - begin] = std::min(leaves[arrays.left[node] - begin] + leaves[arrays.right[node] - begin],
                                            Forest::kMaxLeaves + 1);
    return leaves;
}

uint32_t low_bits(int32_t count) { return uint32_t((uint64_t(1) << count) - 1); }

}  // namespace

float round_down(double value) {
    const float nearest = float(value);
    return double(nearest) > value ? std::nextafter(nearest, -INFINITY) : nearest;
}

Forest::Forest(ForestArrays arrays, size_t num_features) {
    check_sizes(arrays);
    check_tree_starts(arrays);
    for (double value : arrays.leaf_value)
        if (!(std::abs(value) <= kMaxMagnitude)) refuse("a leaf value is not finite or above 1e6");
    for (size_t tree = 0; tree + 1 < arrays.tree_start.size(); ++tree) {
        const int64_t begin = arrays.tree_start[tree], end = arrays.tree_start[tree + 1];
        for (int64_t node = begin; node < end; ++node) check_node(arrays, int64_t(num_features), node, end);
        add_tree(arrays, begin, end);
    }
    values_.resize(values_.size() + kMaxPickedLeaves);  // may be read behind a tree's own
}

// Walks the tree from left to right, so that leaves are numbered in this order.
void Forest::add_tree(const ForestArrays& arrays, int64_t begin, int64_t end) {
    const std::vector<int32_t> leaves = count_leaves(arrays, begin, end);
    if (leaves[0] > kMaxLeaves) refuse("a tree has more than 32 leaves");
    most_leaves_ = std::max(most_leaves_, size_t(leaves[0]));
    const size_t first_leaf = values_.size();
    std::vector<int32_t> rest = {int32_t(begin)};
    while (!rest.empty()) {
        const int32_t node = rest.back();
        rest.pop_back();
        const int32_t left = arrays.left[node];
        if (arrays.feature[node] < 0) {
            values_.push_back(arrays.leaf_value[left]);
            continue;
        }
        const uint32_t left_leaves = low_bits(leaves[left - begin]) << (values_.size() - first_leaf);
        nodes_.push_back({round_down(arrays.threshold[node]), ~left_leaves, arrays.feature[node]});
        rest.insert(rest.end(), {arrays.right[node], left});
    }
    trees_.push_back({nodes_.size(), first_leaf});
}

// Every comparison of a tree is made for every row: a walk depends on the data, and each of its steps would wait for
// the one before. The leftmost leaf that is left to a row is its own: those further left were taken away by comparisons
// on the way to it, and these do not take away its own. A few trees at a time, so that the sums stay in registers.
template <size_t kLanes>
inline __attribute__((always_inline)) void Forest::add_up(const FeatureTable& table, Sums& sums) const {
    using Floats = typename Lanes<kLanes>::Floats;
    using Bits = typename Lanes<kLanes>::Bits;
    constexpr size_t kTogether = 16, kVectors = (FeatureTable::kRows + kLanes - 1) / kLanes;
    const Node* node = nodes_.data();
    const double* leaf_values = values_.data();
    double total[FeatureTable::kRows] = {};  // of no other address, so that it stays in registers
    for (size_t first = 0; first < trees_.size(); first += kTogether) {
        const size_t count = std::min(kTogether, trees_.size() - first);
        uint32_t leaves[kTogether][kVectors * kLanes];
        for (size_t i = 0; i < count; ++i) {
            Bits reachable[kVectors];
            for (Bits& bits : reachable) bits = ~Bits{};
            for (const Node* end = nodes_.data() + trees_[first + i].end; node != end; ++node) {
                const float* rows = table.rows(size_t(node->feature));
#pragma GCC unroll 3
                for (size_t vector = 0; vector < kVectors; ++vector) {
                    Floats values;
                    std::memcpy(&values, rows + vector * kLanes, sizeof values);
                    reachable[vector] &= Bits(values <= node->threshold) | node->kept;
                }
            }
            std::memcpy(leaves[i], reachable, sizeof leaves[i]);
        }
        for (size_t i = 0; i < count; ++i)
#pragma GCC unroll 12
            for (size_t row = 0; row < FeatureTable::kRows; ++row)
                total[row] += leaf_values[trees_[first + i].first_leaf + uint32_t(__builtin_ctz(leaves[i][row]))];
    }
    std::copy_n(total, sums.size(), sums.begin());
}

#ifdef __x86_64__
__attribute__((target("avx2"))) void Forest::add_avx2(const FeatureTable& table, Sums& sums) const {
    add_up<8>(table, sums);
}

// Two instructions a comparison, and the values of a tree picked from two registers: for trees of up to
// kMaxPickedLeaves leaves.
__attribute__((target("avx512f"))) void Forest::add_avx512(const FeatureTable& table, Sums& sums) const {
    using Floats = Lanes<16>::Floats;
    using Bits = Lanes<16>::Bits;
    using Ints __attribute__((vector_size(sizeof(Bits)))) = int32_t;
    constexpr uint32_t kExponentShift = 23, kExponentBias = 127;  // of float
    __m512d first_rows = _mm512_setzero_pd(), last_rows = first_rows;
    const Node* node = nodes_.data();
    for (const Tree& tree : trees_) {
        __m512i leaves = _mm512_set1_epi32(-1);
#pragma GCC unroll 4
        for (const Node* end = nodes_.data() + tree.end; node != end; ++node) {
            const __m512 features = _mm512_load_ps(table.rows(size_t(node->feature)));
            const __mmask16 above = _mm512_cmp_ps_mask(features, _mm512_set1_ps(node->threshold), _CMP_NLE_UQ);
            leaves = _mm512_mask_and_epi32(leaves, above, leaves, _mm512_set1_epi32(int32_t(node->kept)));
        }
        // The number of the lowest bit is the exponent of what it is worth.
        const Bits lowest = Bits(leaves) & -Bits(leaves);
        const Bits power = Bits(__builtin_convertvector(Ints(lowest), Floats)) >> kExponentShift;
        const __m512i leaf = __m512i(power - kExponentBias);
        const double* values = values_.data() + tree.first_leaf;
        const __m512d left = _mm512_loadu_pd(values), right = _mm512_loadu_pd(values + kMaxPickedLeaves / 2);
        // With a mask, because GCC warns of what the intrinsics without one leave undefined.
        const __m512i first = _mm512_maskz_cvtepu32_epi64(0xff, _mm512_maskz_extracti64x4_epi64(0xf, leaf, 0)),
                      last = _mm512_maskz_cvtepu32_epi64(0xff, _mm512_maskz_extracti64x4_epi64(0xf, leaf, 1));
        first_rows = _mm512_add_pd(first_rows, _mm512_permutex2var_pd(left, first, right));
        last_rows = _mm512_add_pd(last_rows, _mm512_permutex2var_pd(left, last, right));
    }
    double rows[FeatureTable::kMostLanes];
    _mm512_storeu_pd(rows, first_rows), _mm512_storeu_pd(rows + 8, last_rows);
    std::copy_n(rows, sums.size(), sums.begin());
}
#endif

// All give the same sums bit by bit: comparisons are exact, and each row's sum is added up in the order of the trees.
Forest::Sums Forest::predict(const FeatureTable& table, [[maybe_unused]] size_t lanes) const {
    Sums sums{};
#ifdef __x86_64__
    if (lanes >= 16 && most_leaves_ <= kMaxPickedLeaves && __builtin_cpu_supports("avx512f"))
        return add_avx512(table, sums), sums;
    if (lanes >= 8 && __builtin_cpu_supports("avx2")) return add_avx2(table, sums), sums;
#endif
    add_up<4>(table, sums);
    return sums;
}

}  // namespace deep_gemm
