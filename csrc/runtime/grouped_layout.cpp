// The part of grouped_checks.hpp about strides, alignment, overlap and, on the CPU, values.
#include <algorithm>
#include <string>

#include "runtime/grouped_checks.hpp"
#include "runtime/operand_checks.hpp"
#include "runtime/operand_text.hpp"

namespace deep_gemm {
namespace {

[[noreturn]] void fail_value(const std::string& message) { throw Error(ErrorKind::kArgument, message); }

void check_contiguous(const Operand& operand) {
    const TensorView& view = operand.view;
    if (view.shape[0] > 1 && view.strides[0] != 1)
        fail_layout(stride_text(operand, 0) + ": must be contiguous; pass " + operand.name + ".contiguous().");
}

// Groups of D lie behind one another, or each row of one beside the same row of the next.
void check_groups_apart(const Operand& d) {
    const TensorView& view = d.view;
    if (view.rank != 3 || view.shape[0] <= 1) return;
    const __int128 group = view.strides[0], row = view.shape[1] > 1 ? view.strides[1] : 0, columns = view.shape[2];
    const bool is_behind = group >= (view.shape[1] - 1) * row + columns;
    const bool is_beside = group >= columns && (view.shape[0] - 1) * group + columns <= row;
    if (!is_behind && !is_beside)
        fail_layout(stride_text(d, 0) + ": the matrices " + shape_text(d) +
                    " of the groups must not overlap; pass another tensor as d.");
}

// What the kernels read along one major alone.
Major check_fixed_major(const Operand& data, const char* row_dim, const char* column_dim, Major major) {
    if (major == Major::kK)
        check_rows(data, column_dim);
    else
        check_rows(transposed(data), row_dim);
    return major;
}

Major check_a_major(const GroupedCall& call, Major preferred) {
    const Operand& a = call.operands.a;
    if (call.has_blocks()) return check_contiguous(a), Major::kK;
    if (!call.is_k_divided()) return check_fixed_major(a, "m", "k", Major::kK);
    if (!is_fp8(call.options.op)) return check_fixed_major(a, "m", "sum_k", Major::kMn);
    return check_major(a, "m", "sum_k", preferred);
}

Major check_b_major(const GroupedCall& call, Major preferred) {
    const Operand& b = call.operands.b;
    if (call.has_blocks()) return check_contiguous(b), Major::kK;
    if (is_fp8(call.options.op) || call.grouping() == Grouping::kMContiguous)
        return check_major(b, "n", call.is_k_divided() ? "sum_k" : "k", preferred);
    if (call.is_k_divided()) return check_fixed_major(b, "n", "sum_k", Major::kMn);
    return check_fixed_major(b, "n", "k", Major::kK);
}

void check_memory(const Operand& data, const Operand& scales, const Operand& d) {
    check_alignment(data, kPitchAlignment);
    check_no_overlap(d, data);
    if (!scales.is_present()) return;
    check_alignment(scales, sizeof(float));
    check_no_overlap(d, scales);
}

ScaleLayout scale_layout(const GroupedCall& call) {
    const GemmOperands& operands = call.operands;
    if (!is_fp8(call.options.op)) return ScaleLayout::kMnMajor;
    const bool is_b_good = call.options.recipe != Recipe::k1d1d || is_mn_major(operands.scale_b.view);
    return is_b_good && is_mn_major(operands.scale_a.view) ? ScaleLayout::kMnMajor : ScaleLayout::kAny;
}

const int32_t* values_of(const Operand& groups) { return reinterpret_cast<const int32_t*>(groups.view.address); }

std::string entry_text(const char* name, int64_t index, int64_t value) {
    return std::string(name) + "[" + std::to_string(index) + "] = " + std::to_string(value);
}

void check_values_within(const Operand& groups, int64_t minimum, int64_t maximum, const std::string& rule) {
    const int32_t* values = values_of(groups);
    for (int64_t i = 0; i < groups.view.shape[0]; ++i)
        if (values[i] < minimum || values[i] > maximum)
            fail_value(entry_text(groups.name, i, values[i]) + ": must be " + rule);
}

// `first`: the first row of an aligned block that is not padding.
void check_row_group(const GroupedCall& call, int64_t first, int64_t row) {
    const int32_t* values = values_of(call.groups);
    if (values[row] == values[first]) return;
    const std::string alignment = std::to_string(call.alignment);
    fail_value(
        entry_text(call.groups.name, row, values[row]) + " and " + entry_text(call.groups.name, first, values[first]) +
        ": rows of a block of " + alignment +
        " (get_mk_alignment_for_contiguous_layout()) must be of one group, or -1; start every group at a multiple of " +
        alignment + ".");
}

void check_row_groups(const GroupedCall& call, int64_t m) {
    const int32_t* values = values_of(call.groups);
    for (int64_t start = 0; start < m; start += call.alignment) {
        int64_t first = -1;
        for (int64_t row = start; row < std::min<int64_t>(start + call.alignment, m); ++row) {
            if (values[row] == -1) continue;
            if (first < 0) first = row;
            check_row_group(call, first, row);
        }
    }
}

void check_same_ks(const GroupedCall& call) {
    const int32_t* values = values_of(call.groups);
    for (size_t i = 0; i < call.ks->size(); ++i)
        if (values[i] != (*call.ks)[i])
            fail_value(entry_text(call.groups.name, int64_t(i), values[i]) + " and " +
                       entry_text("ks", int64_t(i), (*call.ks)[i]) + ": must be equal; pass the same numbers in both.");
}

}  // namespace

GemmLayouts check_grouped_layout(const GroupedCall& call, const GroupedSizes& sizes, const GemmLayouts& preferred) {
    const GemmOperands& operands = call.operands;
    check_rows(operands.d, "n");
    check_groups_apart(operands.d);
    check_alignment(operands.d, kPitchAlignment);
    if (call.groups.is_present()) {
        check_contiguous(call.groups);
        check_alignment(call.groups, sizeof(int32_t));
        check_no_overlap(operands.d, call.groups);
    }
    GemmLayouts layouts{.c = check_c(operands.c, operands.d, true)};
    if (sizes.gemm.k == 0) return layouts;  // a and b hold nothing
    layouts.a = check_a_major(call, preferred.a);
    layouts.b = check_b_major(call, preferred.b);
    check_memory(operands.a, operands.scale_a, operands.d);
    check_memory(operands.b, operands.scale_b, operands.d);
    layouts.scales = scale_layout(call);
    return layouts;
}

void check_group_values(const GroupedCall& call, const GroupedSizes& sizes) {
    const std::string groups = "0.." + std::to_string(sizes.num_groups - 1), m = "0.." + std::to_string(sizes.gemm.m);
    switch (call.grouping()) {
        case Grouping::kMContiguous:
            check_values_within(call.groups, -1, sizes.num_groups - 1,
                                "a group within " + groups + ", or -1 for padding; correct it.");
            return check_row_groups(call, sizes.gemm.m);
        case Grouping::kMMasked:
            return check_values_within(call.groups, 0, sizes.gemm.m,
                                       "within " + m + " (max_m); pass the rows that there are.");
        default:
            if (call.groups.is_present()) check_same_ks(call);
    }
}

}  // namespace deep_gemm
