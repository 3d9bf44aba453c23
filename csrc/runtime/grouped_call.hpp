// A grouped product as every op states it. Operands are in nt orientation, each a matrix or one matrix for each group:
//   rows of A divided, contiguous:  A [m, k], B [num_groups, n, k], D [m, n]; groups is m_indices [m], the group of
//   each row or -1 rows of A divided, masked:      A [num_groups, m, k], B [num_groups, n, k], D [num_groups, m, n];
//   groups is masked_m [num_groups] K divided:                      A [m, sum_k], B [n, sum_k], C and D [num_groups, m,
//   n]; groups is ks_tensor [num_groups];
//                                   of layout kBlocks A and B are 1-D, matrices [m, k] and [n, k] of every group one
//                                   after the other
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/operands.hpp"

namespace deep_gemm {

struct GroupedCall {
    GemmOperands operands{};
    Operand groups{};       // int32; K divided: absent where the caller gave ks alone
    GemmOptions options{};  // alpha and beta are 1, and there are no heads
    GroupLayout layout = GroupLayout::kJoint;
    std::optional<int64_t> expected_m{};  // masked: rows of a group on average, any number: a hint; absent = not known
    int alignment = Problem::kDefaultAlignment;  // contiguous: the rows of every group start at a multiple of it
    std::optional<std::vector<int64_t>> ks{};    // K divided: that of each group; absent where only groups has it

    Grouping grouping() const { return grouping_of(options.op); }
    bool is_k_divided() const { return grouping() == Grouping::kKContiguous; }
    bool has_blocks() const { return layout == GroupLayout::kBlocks; }
};

// `gemm.k`: of all groups together where K is divided.
struct GroupedSizes {
    GemmSizes gemm;
    int64_t num_groups;

    bool is_empty() const { return gemm.is_empty() || num_groups == 0; }
};

}  // namespace deep_gemm
