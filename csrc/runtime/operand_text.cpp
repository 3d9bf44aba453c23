#include "runtime/operand_text.hpp"

#include <pybind11/pybind11.h>

#include <algorithm>

namespace py = pybind11;

namespace deep_gemm {

std::string dims_text(const Operand& operand, const std::string& rows, const std::string& columns) {
    return operand.is_transposed ? "[" + columns + ", " + rows + "]" : "[" + rows + ", " + columns + "]";
}

std::string shape_text(const Operand& operand) {
    const TensorView& view = operand.view;
    if (view.rank > kMaxRank) return "a shape of " + std::to_string(view.rank) + " dims";
    if (view.rank == 2) return dims_text(operand, std::to_string(view.shape[0]), std::to_string(view.shape[1]));
    std::string text = "[";
    for (int i = 0; i < view.rank; ++i) text += (i ? ", " : "") + std::to_string(view.shape[i]);
    return text + "]";
}

std::string stride_text(const Operand& operand, int dim) {
    return std::string(operand.name) + ".stride(" + std::to_string(operand.is_transposed ? 1 - dim : dim) +
           ") = " + std::to_string(operand.view.strides[dim]);
}

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

const char* short_dtype_name(Dtype dtype) {
    switch (dtype) {
        case Dtype::kFloat8E4M3: return "FP8";
        case Dtype::kBfloat16: return "BF16";
        case Dtype::kFloat32: return "FP32";
        default: return "these";
    }
}

}  // namespace deep_gemm
