#include "runtime/checks.hpp"

#include <string>

#include "core/error.hpp"
#include "runtime/operand_text.hpp"

namespace deep_gemm {
namespace {

constexpr int64_t kScaleGranularity = 128;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

[[noreturn]] void fail_shape(const std::string& message) { throw Error(ErrorKind::kShape, message); }

void check_device(const Operand& operand, const Operand& first) {
    const TensorView& view = operand.view;
    if (view.device_kind == DeviceKind::kOther)
        throw Error(ErrorKind::kDevice,
                    std::string(operand.name) + ": on a device that is neither CUDA nor CPU; move all operands to one CUDA device.");
    if (view.device_kind != first.view.device_kind || view.ordinal != first.view.ordinal)
        throw Error(ErrorKind::kDevice, std::string(operand.name) + " is on " + device_text(view) + " and " + first.name + " on " +
                                            device_text(first.view) + ": all operands must be on one device; move them with .to(...).");
}

void check_devices(const GemmOperands& operands) {
    for (const Operand* operand : {&operands.a, &operands.scale_a, &operands.b, &operands.scale_b, &operands.d, &operands.c})
        if (operand->is_present()) check_device(*operand, operands.a);
}

[[noreturn]] void fail_dtype(const Operand& operand, const std::string& rule) {
    throw Error(ErrorKind::kDtype, std::string(operand.name) + ".dtype = " + dtype_text(operand) + ": " + rule);
}

void check_dtype(const Operand& operand, Dtype wanted, const char* remedy) {
    if (operand.view.dtype != wanted) fail_dtype(operand, std::string("must be ") + dtype_name(wanted) + "; " + remedy);
}

void check_input_dtypes(const GemmOperands& operands, Op op) {
    constexpr const char* kQuantise = "quantise it, e.g. with per_token_cast_to_fp8 or per_block_cast_to_fp8.";
    constexpr const char* kScales = "scales stay FP32 on SM90.";
    const bool is_fp8 = op == Op::kFp8Gemm;
    for (const Operand* operand : {&operands.a, &operands.b})
        check_dtype(*operand, is_fp8 ? Dtype::kFloat8E4M3 : Dtype::kBfloat16, is_fp8 ? kQuantise : "convert it with .bfloat16().");
    for (const Operand* scales : {&operands.scale_a, &operands.scale_b})
        if (scales->is_present()) check_dtype(*scales, Dtype::kFloat32, kScales);
}

void check_output_dtypes(const GemmOperands& operands, const GemmOptions& options) {
    const Dtype dtype = operands.d.view.dtype;
    if (options.heads.is_given()) check_dtype(operands.d, Dtype::kBfloat16, "allocate d as torch.bfloat16.");
    if (dtype != Dtype::kBfloat16 && dtype != Dtype::kFloat32)
        fail_dtype(operands.d, "must be torch.bfloat16 or torch.float32; allocate d as one of them.");
    if (operands.c.is_present() && operands.c.view.dtype != dtype)
        fail_dtype(operands.c, std::string("must be the dtype of d, ") + dtype_name(dtype) + "; convert c.");
}

void check_matrix(const Operand& operand, const char* rows, const char* columns) {
    if (operand.view.rank != 2)
        fail_shape(std::string(operand.name) + ".ndim = " + std::to_string(operand.view.rank) + ": must be a matrix " +
                   dims_text(operand, rows, columns) + "; reshape it.");
}

const char* d_columns_name(const GemmOptions& options) { return options.heads.is_given() ? "heads * (left + mid + right)" : "n"; }

void check_ranks(const GemmOperands& operands, const GemmOptions& options) {
    check_matrix(operands.a, "m", "k");
    check_matrix(operands.b, "n", "k");
    check_matrix(operands.d, "m", d_columns_name(options));
    if (operands.c.is_present()) check_matrix(operands.c, "m", "n");
    if (options.op != Op::kFp8Gemm || options.recipe == Recipe::kPerRow) return;
    check_matrix(operands.scale_a, "m", "ceil(k / 128)");
    check_matrix(operands.scale_b, options.recipe == Recipe::k1d1d ? "n" : "ceil(n / 128)", "ceil(k / 128)");
}

void check_limit(const char* dim, int64_t value) {
    if (value > Problem::kMaxDim)
        fail_shape(std::string(dim) + " = " + std::to_string(value) + ": sizes must be below 2^31; split the product along " + dim + ".");
}

void check_shape(const Operand& operand, int64_t rows, int64_t columns, const char* rows_name, const char* columns_name) {
    if (operand.view.shape[0] == rows && operand.view.shape[1] == columns) return;
    fail_shape(std::string(operand.name) + ".shape = " + shape_text(operand) + ": must be " + dims_text(operand, rows_name, columns_name) +
               " = " + dims_text(operand, std::to_string(rows), std::to_string(columns)) + "; reshape or slice it.");
}

void check_row_scales(const Operand& scales, int64_t rows, const char* dim) {
    if (scales.view.shape[0] == rows) return;
    fail_shape(std::string(scales.name) + ".shape = " + shape_text(scales) + ": must be [" + dim + "] = [" + std::to_string(rows) +
               "] for scales per row; reshape or slice it.");
}

GemmSizes check_sizes(const GemmOperands& operands) {
    const GemmSizes sizes{operands.a.view.shape[0], operands.b.view.shape[0], operands.a.view.shape[1]};
    const int64_t k_of_b = operands.b.view.shape[1];
    if (k_of_b != sizes.k)
        fail_shape("k = " + std::to_string(sizes.k) + " of a and " + std::to_string(k_of_b) + " of b: must be equal; a is " +
                   dims_text(operands.a, "m", "k") + " and b is " + dims_text(operands.b, "n", "k") + ".");
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
    const int64_t steps = ceil_div(sizes.k, kScaleGranularity);
    check_shape(operands.scale_a, sizes.m, steps, "m", "ceil(k / 128)");
    if (options.recipe == Recipe::k1d1d) return check_shape(operands.scale_b, sizes.n, steps, "n", "ceil(k / 128)");
    check_shape(operands.scale_b, ceil_div(sizes.n, kScaleGranularity), steps, "ceil(n / 128)", "ceil(k / 128)");
}

void check_heads(const HeadSplits& heads, int64_t n) {
    if (!heads.is_given()) return;
    const int64_t width = heads.left + heads.right;
    if (n % width != 0)
        fail_shape("n = " + std::to_string(n) + ": must be a multiple of left + right = " + std::to_string(width) +
                   " of head_splits; pass whole heads.");
    check_limit("d.shape[1]", heads.d_columns(n));
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
    check_shape(operands.d, sizes.m, options.heads.d_columns(sizes.n), "m", d_columns_name(options));
    if (operands.c.is_present()) check_shape(operands.c, sizes.m, sizes.n, "m", "n");
    return sizes;
}

}  // namespace deep_gemm
