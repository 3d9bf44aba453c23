#include "runtime/checks.hpp"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <string>

#include "core/error.hpp"
#include "core/problem.hpp"
#include "runtime/overlap.hpp"

namespace py = pybind11;

namespace deep_gemm {
namespace {

constexpr int64_t kPitchAlignment = 16;               // TMA: addresses and pitches are multiples of 16 bytes
constexpr int64_t kMaxPitchBytes = int64_t(1) << 40;  // cuTensorMapEncodeTiled: strides below 2^40
constexpr int64_t kScaleGranularity = 128;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::string shape_text(const TensorView& view) {
    if (view.rank > kMaxRank) return "a shape of " + std::to_string(view.rank) + " dims";
    std::string text = "[";
    for (int i = 0; i < view.rank; ++i) text += (i ? ", " : "") + std::to_string(view.shape[i]);
    return text + "]";
}

std::string shape_text(int64_t rows, int64_t columns) { return "[" + std::to_string(rows) + ", " + std::to_string(columns) + "]"; }

std::string dtype_text(const Operand& operand) {
    if (operand.view.dtype != Dtype::kOther || operand.view.is_described) return dtype_name(operand.view.dtype);
    return py::str(py::handle(operand.object).attr("dtype"));
}

std::string device_text(const TensorView& view) {
    switch (view.device_kind) {
        case DeviceKind::kCpu: return "cpu";
        case DeviceKind::kCuda: return "cuda:" + std::to_string(view.ordinal);
        case DeviceKind::kMeta: return "meta";
        default: return "an unknown device";
    }
}

[[noreturn]] void fail_shape(const std::string& message) { throw Error(ErrorKind::kShape, message); }

[[noreturn]] void fail_layout(const Operand& operand, const std::string& rest) { throw Error(ErrorKind::kLayout, operand.name + rest); }

void check_device(const Operand& operand, const Operand& first) {
    const TensorView& view = operand.view;
    if (view.device_kind == DeviceKind::kOther)
        throw Error(ErrorKind::kDevice,
                    std::string(operand.name) + ": on a device that is neither CUDA nor CPU; move all operands to one CUDA device.");
    if (view.device_kind != first.view.device_kind || view.ordinal != first.view.ordinal)
        throw Error(ErrorKind::kDevice, std::string(operand.name) + " is on " + device_text(view) + " and " + first.name + " on " +
                                            device_text(first.view) + ": all operands must be on one device; move them with .to(...).");
}

void check_dtype(const Operand& operand, Dtype wanted, const char* remedy) {
    if (operand.view.dtype == wanted) return;
    throw Error(ErrorKind::kDtype,
                std::string(operand.name) + ".dtype = " + dtype_text(operand) + ": must be " + dtype_name(wanted) + "; " + remedy);
}

void check_dtypes(const Fp8GemmOperands& operands) {
    constexpr const char* kQuantise = "quantise it, e.g. with per_token_cast_to_fp8 or per_block_cast_to_fp8.";
    constexpr const char* kScales = "scales stay FP32 on SM90.";
    check_dtype(operands.a, Dtype::kFloat8E4M3, kQuantise);
    check_dtype(operands.scale_a, Dtype::kFloat32, kScales);
    check_dtype(operands.b, Dtype::kFloat8E4M3, kQuantise);
    check_dtype(operands.scale_b, Dtype::kFloat32, kScales);
    check_dtype(operands.d, Dtype::kBfloat16, "allocate d as torch.bfloat16.");
}

void check_matrix(const Operand& operand, const char* dims) {
    if (operand.view.rank != 2)
        fail_shape(std::string(operand.name) + ".ndim = " + std::to_string(operand.view.rank) + ": must be a matrix " + dims +
                   "; reshape it.");
}

void check_matrices(const Fp8GemmOperands& operands) {
    check_matrix(operands.a, "[m, k]");
    check_matrix(operands.scale_a, "[m, ceil(k / 128)]");
    check_matrix(operands.b, "[n, k]");
    check_matrix(operands.scale_b, "[ceil(n / 128), ceil(k / 128)]");
    check_matrix(operands.d, "[m, n]");
}

void check_limit(const char* dim, int64_t value) {
    if (value > Problem::kMaxDim)
        fail_shape(std::string(dim) + " = " + std::to_string(value) + ": sizes must be below 2^31; split the product along " + dim + ".");
}

void check_shape(const Operand& operand, int64_t rows, int64_t columns, const char* rule) {
    if (operand.view.shape[0] == rows && operand.view.shape[1] == columns) return;
    fail_shape(std::string(operand.name) + ".shape = " + shape_text(operand.view) + ": must be " + rule + " = " +
               shape_text(rows, columns) + "; reshape or slice it.");
}

GemmSizes check_sizes(const Fp8GemmOperands& operands) {
    const GemmSizes sizes{operands.a.view.shape[0], operands.b.view.shape[0], operands.a.view.shape[1]};
    const int64_t k_of_b = operands.b.view.shape[1];
    if (k_of_b != sizes.k)
        fail_shape("k = " + std::to_string(sizes.k) + " of a and " + std::to_string(k_of_b) +
                   " of b: must be equal; a is [m, k] and b is [n, k].");
    check_limit("m", sizes.m);
    check_limit("n", sizes.n);
    check_limit("k", sizes.k);
    return sizes;
}

// "k = 100: ..." for contiguous rows, else "a.stride(0) = 100: ...".
void check_pitch(const Operand& operand, const char* kind, const char* column_dim) {
    const TensorView& view = operand.view;
    const int64_t pitch = row_pitch_bytes(view);
    if (pitch % kPitchAlignment == 0 && pitch < kMaxPitchBytes) return;
    const std::string stride = std::string(".stride(0) = ") + std::to_string(view.strides[0]);
    if (pitch >= kMaxPitchBytes) fail_layout(operand, stride + ": rows must be less than 2^40 bytes apart; make it contiguous.");
    fail_layout(operand, stride + " (" + column_dim + " = " + std::to_string(view.shape[1]) + "): " + kind +
                             " rows must be a multiple of 16 bytes apart, these are " + std::to_string(pitch) + "; pad " + operand.name +
                             " along " + column_dim + ".");
}

void check_rows(const Operand& operand, const char* kind, const char* column_dim) {
    const TensorView& view = operand.view;
    if (view.shape[1] > 1 && view.strides[1] != 1)
        fail_layout(operand, ".stride(1) = " + std::to_string(view.strides[1]) + ": " + kind + " rows must be contiguous along " +
                                 column_dim + "; pass " + operand.name + ".contiguous().");
    if (view.shape[0] > 1 && view.strides[0] < view.shape[1])
        fail_layout(operand, ".stride(0) = " + std::to_string(view.strides[0]) + ": rows of " + std::to_string(view.shape[1]) +
                                 " elements must not overlap; pass " + operand.name + ".contiguous().");
    check_pitch(operand, kind, column_dim);
}

void check_alignment(const Operand& operand, uint64_t alignment) {
    const TensorView& view = operand.view;
    if (view.device_kind == DeviceKind::kMeta || view.address % alignment == 0) return;
    fail_layout(operand, ".data_ptr() = " + std::to_string(view.address) + " (" + std::to_string(view.address % alignment) +
                             " bytes past a multiple of " + std::to_string(alignment) + "): must be " + std::to_string(alignment) +
                             "-byte aligned; pass " + operand.name + ".clone() or slice at a multiple of " + std::to_string(alignment) +
                             " bytes.");
}

void check_no_overlap(const Operand& d, const Operand& input) {
    if (d.view.device_kind == DeviceKind::kMeta || !may_overlap(d.view, input.view)) return;
    fail_layout(d, " overlaps " + std::string(input.name) + " in memory: the output must be separate; pass another tensor as d.");
}

void check_input(const Operand& data, const Operand& scales, const Operand& d) {
    check_rows(data, "FP8", "k");
    check_alignment(data, kPitchAlignment);
    check_alignment(scales, sizeof(float));
    check_no_overlap(d, data);
    check_no_overlap(d, scales);
}

}  // namespace

GemmSizes check_fp8_gemm(const Fp8GemmOperands& operands) {
    for (const Operand* operand : {&operands.a, &operands.scale_a, &operands.b, &operands.scale_b, &operands.d})
        check_device(*operand, operands.a);
    check_dtypes(operands);
    check_matrices(operands);
    const GemmSizes sizes = check_sizes(operands);
    const int64_t scale_columns = ceil_div(sizes.k, kScaleGranularity);
    check_shape(operands.scale_a, sizes.m, scale_columns, "[m, ceil(k / 128)]");
    check_shape(operands.scale_b, ceil_div(sizes.n, kScaleGranularity), scale_columns, "[ceil(n / 128), ceil(k / 128)]");
    check_shape(operands.d, sizes.m, sizes.n, "[m, n]");
    return sizes;
}

void check_fp8_gemm_layout(const Fp8GemmOperands& operands, const GemmSizes& sizes) {
    check_rows(operands.d, "BF16", "n");
    check_alignment(operands.d, kPitchAlignment);
    if (sizes.k == 0) return;  // a and b hold nothing
    check_input(operands.a, operands.scale_a, operands.d);
    check_input(operands.b, operands.scale_b, operands.d);
}

int64_t row_pitch_bytes(const TensorView& view) {
    const int64_t bytes = element_bytes(view.dtype);
    if (view.shape[0] > 1) return std::min(view.strides[0], kMaxPitchBytes) * bytes;  // the product cannot wrap
    return ceil_div(view.shape[1] * bytes, kPitchAlignment) * kPitchAlignment;
}

}  // namespace deep_gemm
