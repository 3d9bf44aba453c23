// The part of checks.hpp about strides, alignment and overlap.
#include <algorithm>
#include <string>

#include "core/error.hpp"
#include "runtime/checks.hpp"
#include "runtime/operand_text.hpp"
#include "runtime/overlap.hpp"

namespace deep_gemm {
namespace {

constexpr int64_t kMaxPitchBytes = int64_t(1) << 40;  // cuTensorMapEncodeTiled: strides below 2^40

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

[[noreturn]] void fail(const std::string& message) { throw Error(ErrorKind::kLayout, message); }

bool is_meta(const TensorView& view) { return view.device_kind == DeviceKind::kMeta; }

void check_contiguous_rows(const Operand& operand, const char* column_dim) {
    const TensorView& view = operand.view;
    if (view.shape[1] > 1 && view.strides[1] != 1)
        fail(stride_text(operand, 1) + ": " + short_dtype_name(view.dtype) + " rows must be contiguous along " + column_dim + "; pass " +
             operand.name + ".contiguous().");
}

void check_pitch(const Operand& operand, const char* column_dim) {
    const TensorView& view = operand.view;
    const int64_t pitch = row_pitch_bytes(view);
    if (pitch % kPitchAlignment == 0 && pitch < kMaxPitchBytes) return;
    if (pitch >= kMaxPitchBytes) fail(stride_text(operand, 0) + ": rows must be less than 2^40 bytes apart; make it contiguous.");
    fail(stride_text(operand, 0) + " (" + column_dim + " = " + std::to_string(view.shape[1]) + "): " + short_dtype_name(view.dtype) +
         " rows must be a multiple of 16 bytes apart, these are " + std::to_string(pitch) + "; pad " + operand.name + " along " +
         column_dim + ".");
}

void check_rows(const Operand& operand, const char* column_dim) {
    const TensorView& view = operand.view;
    check_contiguous_rows(operand, column_dim);
    if (view.shape[0] > 1 && view.strides[0] < view.shape[1])
        fail(stride_text(operand, 0) + ": rows of " + std::to_string(view.shape[1]) + " elements must not overlap; pass " + operand.name +
             ".contiguous().");
    check_pitch(operand, column_dim);
}

// Whether check_rows would pass.
bool has_good_rows(const TensorView& view) {
    if (view.shape[1] > 1 && view.strides[1] != 1) return false;
    if (view.shape[0] > 1 && view.strides[0] < view.shape[1]) return false;
    const int64_t pitch = row_pitch_bytes(view);
    return pitch % kPitchAlignment == 0 && pitch < kMaxPitchBytes;
}

void check_alignment(const Operand& operand, uint64_t alignment) {
    const TensorView& view = operand.view;
    if (is_meta(view) || view.address % alignment == 0) return;
    fail(std::string(operand.name) + ".data_ptr() = " + std::to_string(view.address) + " (" + std::to_string(view.address % alignment) +
         " bytes past a multiple of " + std::to_string(alignment) + "): must be " + std::to_string(alignment) + "-byte aligned; pass " +
         operand.name + ".clone() or slice at a multiple of " + std::to_string(alignment) + " bytes.");
}

void check_no_overlap(const Operand& d, const Operand& input) {
    if (is_meta(d.view) || !may_overlap(d.view, input.view)) return;
    fail("d overlaps " + std::string(input.name) + " in memory: the output must be separate; pass another tensor as d.");
}

// The major in which TMA can read `operand`. Where it can in neither, complain of the one that was probably meant.
Major check_major(const Operand& operand, const char* row_dim, Major preferred) {
    const Operand flipped = transposed(operand);
    const bool is_k = has_good_rows(operand.view), is_mn = has_good_rows(flipped.view);
    if (is_k || is_mn) return is_k && is_mn ? preferred : is_k ? Major::kK : Major::kMn;
    const TensorView& view = operand.view;
    if (view.shape[0] > 1 && view.strides[0] == 1 && view.shape[1] > 1)
        check_rows(flipped, row_dim);
    else
        check_rows(operand, "k");
    return Major::kK;
}

// Whether TMA can read vectors of scales along the rows of [rows, steps].
bool is_mn_major(const TensorView& scales) {
    if (scales.shape[0] > 1 && scales.strides[0] != 1) return false;
    if (!is_meta(scales) && scales.address % kPitchAlignment != 0) return false;
    const int64_t pitch = scales.strides[1];
    if (scales.shape[1] <= 1) return true;
    return pitch >= scales.shape[0] && pitch % 4 == 0 && pitch < kMaxPitchBytes / int64_t(sizeof(float));
}

ScaleLayout scale_layout(const GemmOperands& operands, const GemmOptions& options) {
    if (options.op != Op::kFp8Gemm || options.recipe == Recipe::kPerRow) return ScaleLayout::kMnMajor;
    const bool is_b_good = options.recipe != Recipe::k1d1d || is_mn_major(operands.scale_b.view);
    return is_b_good && is_mn_major(operands.scale_a.view) ? ScaleLayout::kMnMajor : ScaleLayout::kAny;
}

CMode check_c(const GemmOperands& operands, const GemmOptions& options) {
    const Operand& c = operands.c;
    if (options.heads.is_given()) return CMode::kHeadSplit;
    if (!c.is_present()) return CMode::kNone;
    check_contiguous_rows(c, "n");
    check_alignment(c, uint64_t(element_bytes(c.view.dtype)));
    const bool is_d = !is_meta(c.view) && is_same_memory(c.view, operands.d.view);
    if (!is_d && !is_meta(c.view) && may_overlap(operands.d.view, c.view))
        fail("d overlaps c in memory: they must be the same tensor or separate; pass another tensor as c.");
    const bool is_plain_sum = options.alpha == 1.0f && options.beta == 1.0f && c.view.dtype == Dtype::kFloat32;
    return is_d && is_plain_sum ? CMode::kAccumulate : CMode::kGeneral;
}

Major check_input(const Operand& data, const Operand& scales, const Operand& d, const char* row_dim, Major preferred) {
    const Major major = check_major(data, row_dim, preferred);
    check_alignment(data, kPitchAlignment);
    check_no_overlap(d, data);
    if (!scales.is_present()) return major;
    check_alignment(scales, sizeof(float));
    check_no_overlap(d, scales);
    return major;
}

}  // namespace

GemmLayouts check_gemm_layout(const GemmOperands& operands, const GemmOptions& options, const GemmSizes& sizes,
                              const GemmLayouts& preferred) {
    check_rows(operands.d, options.heads.is_given() ? "heads" : "n");
    check_alignment(operands.d, kPitchAlignment);
    GemmLayouts layouts{.c = check_c(operands, options)};
    if (sizes.k == 0) return layouts;  // a and b hold nothing
    layouts.a = check_input(operands.a, operands.scale_a, operands.d, "m", preferred.a);
    layouts.b = check_input(operands.b, operands.scale_b, operands.d, "n", preferred.b);
    layouts.scales = scale_layout(operands, options);
    return layouts;
}

int64_t row_pitch_bytes(const TensorView& view) {
    const int64_t bytes = element_bytes(view.dtype);
    if (view.shape[0] > 1) return std::min(view.strides[0], kMaxPitchBytes) * bytes;  // the product cannot wrap
    return ceil_div(view.shape[1] * bytes, kPitchAlignment) * kPitchAlignment;
}

bool is_same_memory(const TensorView& c, const TensorView& d) {
    return c.address == d.address && (d.shape[0] <= 1 || c.strides[0] == d.strides[0]);
}

}  // namespace deep_gemm
