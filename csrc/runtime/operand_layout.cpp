// The part of operand_checks.hpp about strides, alignment and overlap.
#include <algorithm>
#include <string>

#include "runtime/operand_checks.hpp"
#include "runtime/operand_text.hpp"
#include "runtime/overlap.hpp"

namespace deep_gemm {
namespace {

constexpr int64_t kMaxPitchBytes = int64_t(1) << 40;  // cuTensorMapEncodeTiled: strides below 2^40

int row_dim_of(const TensorView& view) { return view.rank - 2; }
int column_dim_of(const TensorView& view) { return view.rank - 1; }

bool is_good_pitch(int64_t bytes) { return bytes % kPitchAlignment == 0 && bytes < kMaxPitchBytes; }

bool has_contiguous_rows(const TensorView& view) {
    const int column = column_dim_of(view);
    return view.shape[column] <= 1 || view.strides[column] == 1;
}

bool has_separate_rows(const TensorView& view) {
    const int row = row_dim_of(view);
    return view.shape[row] <= 1 || view.strides[row] >= view.shape[row + 1];
}

bool has_good_groups(const TensorView& view) { return view.rank == 2 || is_good_pitch(group_pitch_bytes(view)); }

// What to do about elements that lie wrongly. A copy of the output would take the result in its place.
std::string contiguous_remedy(const Operand& operand) {
    const std::string name = operand.name;
    return is_output(operand) ? "allocate " + name + " contiguous." : "pass " + name + ".contiguous().";
}

// What to do about a pitch that TMA does not take.
std::string padding_remedy(const Operand& operand, const std::string& along) {
    const std::string name = operand.name;
    return is_output(operand) ? "allocate " + name + " padded along " + along + " and slice it."
                              : "pad " + name + " along " + along + ".";
}

// Whether check_rows would pass.
bool has_good_rows(const TensorView& view) {
    return has_contiguous_rows(view) && has_separate_rows(view) && is_good_pitch(row_pitch_bytes(view)) &&
           has_good_groups(view);
}

void check_pitch(const Operand& operand, const char* column_dim) {
    const TensorView& view = operand.view;
    const int64_t pitch = row_pitch_bytes(view);
    if (is_good_pitch(pitch)) return;
    const std::string stride = stride_text(operand, row_dim_of(view));
    if (pitch >= kMaxPitchBytes)
        fail_layout(stride + ": rows must be less than 2^40 bytes apart; " + contiguous_remedy(operand));
    fail_layout(stride + " (" + column_dim + " = " + std::to_string(view.shape[column_dim_of(view)]) +
                "): " + short_dtype_name(view.dtype) + " rows must be a multiple of 16 bytes apart, these are " +
                std::to_string(pitch) + "; " + padding_remedy(operand, column_dim));
}

void check_groups(const Operand& operand) {
    if (has_good_groups(operand.view)) return;
    fail_layout(stride_text(operand, 0) + ": groups of " + short_dtype_name(operand.view.dtype) +
                " rows must be a multiple of 16 bytes apart and less than 2^40, these are " +
                std::to_string(group_pitch_bytes(operand.view)) + "; where its rows are whole, " +
                contiguous_remedy(operand) + " Else " + padding_remedy(operand, "its rows"));
}

}  // namespace

void fail_layout(const std::string& message) { throw Error(ErrorKind::kLayout, message); }

void check_contiguous(const Operand& operand) {
    const TensorView& view = operand.view;
    int64_t stride = 1;
    for (int dim = view.rank - 1; dim >= 0; stride *= view.shape[dim--])
        if (view.shape[dim] > 1 && view.strides[dim] != stride)
            fail_layout(stride_text(operand, dim) + ": must be contiguous; " + contiguous_remedy(operand));
}

// Groups of D lie behind one another, or each row of a group lies beside the same row of the next.
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

void check_contiguous_rows(const Operand& operand, const char* column_dim) {
    if (has_contiguous_rows(operand.view)) return;
    fail_layout(stride_text(operand, column_dim_of(operand.view)) + ": " + short_dtype_name(operand.view.dtype) +
                " rows must be contiguous along " + column_dim + "; " + contiguous_remedy(operand));
}

void check_rows(const Operand& operand, const char* column_dim) {
    const TensorView& view = operand.view;
    check_contiguous_rows(operand, column_dim);
    if (!has_separate_rows(view))
        fail_layout(stride_text(operand, row_dim_of(view)) + ": rows of " +
                    std::to_string(view.shape[column_dim_of(view)]) + " elements must not overlap; " +
                    contiguous_remedy(operand));
    check_pitch(operand, column_dim);
    check_groups(operand);
}

void check_alignment(const Operand& operand, uint64_t alignment) {
    const TensorView& view = operand.view;
    if (is_meta(view) || view.address % alignment == 0) return;
    const std::string copy =
        is_output(operand) ? "allocate it apart" : "pass " + std::string(operand.name) + ".clone()";
    fail_layout(std::string(operand.name) + ".data_ptr() = " + std::to_string(view.address) + " (" +
                std::to_string(view.address % alignment) + " bytes past a multiple of " + std::to_string(alignment) +
                "): must be " + std::to_string(alignment) + "-byte aligned; " + copy + " or slice at a multiple of " +
                std::to_string(alignment) + " bytes.");
}

void check_no_overlap(const Operand& output, const Operand& other) {
    if (is_meta(output.view) || !may_overlap(output.view, other.view)) return;
    const std::string name = output.name;
    fail_layout(name + " overlaps " + other.name + " in memory: the output must be separate; pass another tensor as " +
                name + ".");
}

Major check_major(const Operand& operand, const char* row_dim, const char* column_dim, Major preferred) {
    const bool is_k = has_good_rows(operand.view);
    if (is_k && preferred == Major::kK) return Major::kK;
    const Operand flipped = transposed(operand);
    if (has_good_rows(flipped.view)) return is_k ? preferred : Major::kMn;
    if (is_k) return Major::kK;
    const TensorView& view = operand.view;
    const int row = row_dim_of(view);
    if (view.shape[row] > 1 && view.strides[row] == 1 && view.shape[row + 1] > 1)
        check_rows(flipped, row_dim);
    else
        check_rows(operand, column_dim);
    return Major::kK;
}

CMode check_c(const Operand& c, const Operand& d, bool is_plain_sum) {
    if (!c.is_present()) return CMode::kNone;
    check_contiguous_rows(c, "n");
    check_alignment(c, uint64_t(element_bytes(c.view.dtype)));
    const bool is_d = !is_meta(c.view) && is_same_memory(c.view, d.view);
    if (!is_d && !is_meta(c.view) && may_overlap(d.view, c.view))
        fail_layout("d overlaps c in memory: they must be the same tensor or separate; pass another tensor as c.");
    return is_d && is_plain_sum && c.view.dtype == Dtype::kFloat32 ? CMode::kAccumulate : CMode::kGeneral;
}

bool is_mn_major(const TensorView& scales) {
    const int row = row_dim_of(scales), step = column_dim_of(scales);
    if (scales.shape[row] > 1 && scales.strides[row] != 1) return false;
    if (!is_meta(scales) && scales.address % kPitchAlignment != 0) return false;
    if (scales.rank == 3 && !is_good_pitch(group_pitch_bytes(scales))) return false;
    if (scales.shape[step] <= 1) return true;
    const int64_t pitch = scales.strides[step];
    return pitch >= scales.shape[row] && pitch % 4 == 0 && pitch < kMaxPitchBytes / int64_t(sizeof(float));
}

int64_t row_pitch_bytes(const TensorView& view) {
    const int64_t bytes = element_bytes(view.dtype);
    const int row = row_dim_of(view);
    if (view.shape[row] > 1) return std::min(view.strides[row], kMaxPitchBytes) * bytes;  // the product cannot wrap
    return ceil_div(view.shape[row + 1] * bytes, kPitchAlignment) * kPitchAlignment;
}

int64_t group_pitch_bytes(const TensorView& view) {
    if (view.rank == 2 || view.shape[0] <= 1) return kPitchAlignment;
    return std::min(view.strides[0], kMaxPitchBytes) * element_bytes(view.dtype);
}

bool is_same_memory(const TensorView& c, const TensorView& d) {
    if (c.address != d.address) return false;
    for (int i = 0; i < d.rank - 1; ++i)
        if (d.shape[i] > 1 && c.strides[i] != d.strides[i]) return false;
    return true;
}

}  // namespace deep_gemm
