// A call of an op, as every op states it: D[m, n] = alpha * (A[m, k] with scales) @ (B[n, k] with scales).T + beta * C.
// The memory layouts nn, tn and tt arrive as transposed views of what the caller passed. Operands of grouped ops have a
// leading dim of groups, or share one matrix among the groups; each family says which (family_*.cpp).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/problem.hpp"
#include "runtime/tensor_view.hpp"

namespace deep_gemm {

// Sizes of one matrix product. Rows of all groups together where groups share the rows of A, K of all groups together
// where they divide K. A dense product is one group.
struct Sizes {
    int64_t m, n, k;
    int64_t num_groups = 1;

    bool is_empty() const { return m == 0 || n == 0 || num_groups == 0; }
};

// Columns of D: each head of left + right columns of the product leaves `mid` columns between its two parts alone. Not
// given: all zero.
struct HeadSplits {
    int64_t left = 0, mid = 0, right = 0;

    bool is_given() const { return left + right > 0; }
    int64_t d_columns(int64_t n) const { return is_given() ? n / (left + right) * (left + mid + right) : n; }
};

// The memory layout of the operands, as far as kernels differ by it.
struct Layouts {
    Major a = Major::kK, b = Major::kK;
    ScaleLayout scales = ScaleLayout::kMnMajor;
    CMode c = CMode::kNone;
};

struct LogitsOperands;

struct Call {
    Op op{};
    Recipe recipe = Recipe::k1d2d;
    GroupLayout group_layout = GroupLayout::kJoint;
    uint8_t compiled_dims = 0;
    float alpha = 1.0f, beta = 1.0f;  // grouped ops: 1
    HeadSplits heads{};
    int alignment = Problem::kDefaultAlignment;  // m-grouped contiguous: each group's rows start at a multiple of it
    std::optional<int64_t> expected_m{};         // rows of a group on average, a hint; absent = not known
    std::optional<std::vector<int64_t>> ks{};    // K divided: K of each group; absent where only `groups` has it
    bool ensures_zero_padding = false;           // groups of rows with ends: D becomes +0 where padding is
    PyObject* stream = nullptr;                  // borrowed, may be null
    bool use_vendor = false;                     // on a GPU, let torch call the vendor's library

    Operand a{}, b{};
    Operand scale_a{}, scale_b{};  // FP8 only
    Operand d{}, c{};              // C is absent where the caller gave none or beta is 0
    Operand groups{};  // int32: m_indices, masked_m, ks_tensor or ends; K divided: absent where only `ks` is given
    Operand signal{};  // int32, written; masked, and only where the caller asks for signals (signals.hpp)

    LogitsOperands* logits = nullptr;  // borrowed: what attention logits have besides (runtime/logits.hpp)

    bool has_blocks() const { return group_layout == GroupLayout::kBlocks; }
    // Whether the kernel makes tensor maps for each group: of blocks, and of groups of K that end anywhere.
    bool needs_group_maps() const { return has_blocks() || grouping_of(op) == Grouping::kKPsum; }
};

// All operands, in the order in which they are checked.
inline constexpr Operand Call::* kOperands[] = {&Call::a, &Call::scale_a, &Call::b,     &Call::scale_b,
                                                &Call::d, &Call::c,       &Call::groups};

}  // namespace deep_gemm
