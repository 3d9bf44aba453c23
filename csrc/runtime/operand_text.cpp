#include "runtime/operand_text.hpp"

#include <utility>

#include "core/python.hpp"

namespace deep_gemm {
namespace {

std::vector<std::string> in_callers_order(const DimOrder& order, const std::vector<std::string>& dims) {
    std::vector<std::string> callers(dims.size());
    for (size_t i = 0; i < dims.size(); ++i) callers[order[i]] = dims[i];
    return callers;
}

}  // namespace

std::string dims_text(const Operand& operand, std::vector<std::string> dims) {
    if (operand.is_transposed && dims.size() >= 2) std::swap(dims[dims.size() - 2], dims[dims.size() - 1]);
    if (operand.order != nullptr && dims.size() == operand.order->size()) dims = in_callers_order(*operand.order, dims);
    std::string text = "[";
    for (size_t i = 0; i < dims.size(); ++i) text += (i ? ", " : "") + dims[i];
    return text + "]";
}

std::string shape_text(const Operand& operand) {
    const TensorView& view = operand.view;
    if (view.rank > kMaxRank) return "a shape of " + std::to_string(view.rank) + " dims";
    std::vector<std::string> sizes;
    for (int i = 0; i < view.rank; ++i) sizes.push_back(std::to_string(view.shape[i]));
    Operand seen = operand;
    seen.is_transposed = operand.is_transposed && (view.rank == 2 || view.rank == 3);  // no other rank is exchanged
    return dims_text(seen, std::move(sizes));
}

std::string stride_text(const Operand& operand, int dim) {
    const int row = operand.view.rank - 2;
    const int seen = operand.is_transposed && dim >= row ? 2 * row + 1 - dim : dim;
    const int callers = operand.order != nullptr ? (*operand.order)[size_t(seen)] : seen;
    return std::string(operand.name) + ".stride(" + std::to_string(callers) +
           ") = " + std::to_string(operand.view.strides[dim]);
}

std::string dtype_text(const Operand& operand) {
    if (operand.view.dtype != Dtype::kOther || operand.view.is_described) return dtype_name(operand.view.dtype);
    return str(Reference::take(PyObject_GetAttrString(operand.object, "dtype")).get());
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
