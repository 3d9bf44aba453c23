#include "runtime/checks.hpp"

#include <string>

#include "runtime/operand_checks.hpp"
#include "runtime/operand_text.hpp"

namespace deep_gemm {
namespace {

void check_devices(const GemmOperands& operands) {
    for (const Operand* operand :
         {&operands.a, &operands.scale_a, &operands.b, &operands.scale_b, &operands.d, &operands.c})
        if (operand->is_present()) check_device(*operand, operands.a);
}

void check_output_dtypes(const GemmOperands& operands, const GemmOptions& options) {
    const Dtype dtype = operands.d.view.dtype;
    if (options.heads.is_given()) check_dtype(operands.d, Dtype::kBfloat16, "allocate d as torch.bfloat16.");
    if (dtype != Dtype::kBfloat16 && dtype != Dtype::kFloat32)
        fail_dtype(operands.d, "must be torch.bfloat16 or torch.float32; allocate d as one of them.");
    if (operands.c.is_present() && operands.c.view.dtype != dtype)
        fail_dtype(operands.c, std::string("must be the dtype of d, ") + dtype_name(dtype) + "; convert c.");
}

const char* d_columns_name(const GemmOptions& options) {
    return options.heads.is_given() ? "heads * (left + mid + right)" : "n";
}

void check_ranks(const GemmOperands& operands, const GemmOptions& options) {
    check_rank(operands.a, {"m", "k"});
    check_rank(operands.b, {"n", "k"});
    check_rank(operands.d, {"m", d_columns_name(options)});
    if (operands.c.is_present()) check_rank(operands.c, {"m", "n"});
    if (options.op != Op::kFp8Gemm || options.recipe == Recipe::kPerRow) return;
    check_rank(operands.scale_a, {"m", "ceil(k / 128)"});
    check_rank(operands.scale_b, {options.recipe == Recipe::k1d1d ? "n" : "ceil(n / 128)", "ceil(k / 128)"});
}

void check_row_scales(const Operand& scales, int64_t rows, const char* dim) {
    if (scales.view.shape[0] == rows) return;
    fail_shape(std::string(scales.name) + ".shape = " + shape_text(scales) + ": must be [" + dim + "] = [" +
               std::to_string(rows) + "] for scales per row; reshape or slice it.");
}

GemmSizes check_sizes(const GemmOperands& operands) {
    const GemmSizes sizes{operands.a.view.shape[0], operands.b.view.shape[0], operands.a.view.shape[1]};
    const int64_t k_of_b = operands.b.view.shape[1];
    if (k_of_b != sizes.k)
        fail_shape("k = " + std::to_string(sizes.k) + " of a and " + std::to_string(k_of_b) +
                   " of b: must be equal; a is " + dims_text(operands.a, {"m", "k"}) + " and b is " +
                   dims_text(operands.b, {"n", "k"}) + ".");
    check_limit("m", sizes.m);
    check_limit("n", sizes.n);
    check_limit("k", sizes.k);
    return sizes;
}

void check_scale_shapes(const GemmOperands& operands, const GemmOptions& options, const GemmSizes& sizes) {
    if (options.recipe == Recipe::kPerRow) {
        check_row_scales(operands.scale_a, sizes.m, "m");
        return check_row_scales(operands.scale_b, sizes.n, "n");
    }
    const Dim steps{"ceil(k / 128)", ceil_div(sizes.k, kScaleGranularity)};
    check_shape(operands.scale_a, {{"m", sizes.m}, steps});
    if (options.recipe == Recipe::k1d1d) return check_shape(operands.scale_b, {{"n", sizes.n}, steps});
    check_shape(operands.scale_b, {{"ceil(n / 128)", ceil_div(sizes.n, kScaleGranularity)}, steps});
}

void check_heads(const HeadSplits& heads, int64_t n) {
    if (!heads.is_given()) return;
    const int64_t width = heads.left + heads.right;
    if (n % width != 0)
        fail_shape("n = " + std::to_string(n) + ": must be a multiple of left + right = " + std::to_string(width) +
                   " of head_splits; pass whole heads.");
    check_limit("d.shape[1]", heads.d_columns(n));
}

ScaleLayout scale_layout(const GemmOperands& operands, const GemmOptions& options) {
    if (options.op != Op::kFp8Gemm || options.recipe == Recipe::kPerRow) return ScaleLayout::kMnMajor;
    const bool is_b_good = options.recipe != Recipe::k1d1d || is_mn_major(operands.scale_b.view);
    return is_b_good && is_mn_major(operands.scale_a.view) ? ScaleLayout::kMnMajor : ScaleLayout::kAny;
}

CMode c_mode(const GemmOperands& operands, const GemmOptions& options) {
    if (options.heads.is_given()) return CMode::kHeadSplit;
    return check_c(operands.c, operands.d, options.alpha == 1.0f && options.beta == 1.0f);
}

Major check_input(const Operand& data, const Operand& scales, const Operand& d, const char* row_dim, Major preferred) {
    const Major major = check_major(data, row_dim, "k", preferred);
    check_alignment(data, kPitchAlignment);
    check_no_overlap(d, data);
    if (!scales.is_present()) return major;
    check_alignment(scales, sizeof(float));
    check_no_overlap(d, scales);
    return major;
}

}  // namespace

GemmSizes check_gemm(const GemmOperands& operands, const GemmOptions& options) {
    check_devices(operands);
    check_input_dtypes(operands, options.op);
    check_output_dtypes(operands, options);
    check_ranks(operands, options);
    const GemmSizes sizes = check_sizes(operands);
    if (options.op == Op::kFp8Gemm) check_scale_shapes(operands, options, sizes);
    check_heads(options.heads, sizes.n);
    check_shape(operands.d, {{"m", sizes.m}, {d_columns_name(options), options.heads.d_columns(sizes.n)}});
    if (operands.c.is_present()) check_shape(operands.c, {{"m", sizes.m}, {"n", sizes.n}});
    return sizes;
}

GemmLayouts check_gemm_layout(const GemmOperands& operands, const GemmOptions& options, const GemmSizes& sizes,
                              const GemmLayouts& preferred) {
    check_rows(operands.d, options.heads.is_given() ? "heads" : "n");
    check_alignment(operands.d, kPitchAlignment);
    GemmLayouts layouts{.c = c_mode(operands, options)};
    if (sizes.k == 0) return layouts;  // a and b hold nothing
    layouts.a = check_input(operands.a, operands.scale_a, operands.d, "m", preferred.a);
    layouts.b = check_input(operands.b, operands.scale_b, operands.d, "n", preferred.b);
    layouts.scales = scale_layout(operands, options);
    return layouts;
}

}  // namespace deep_gemm
