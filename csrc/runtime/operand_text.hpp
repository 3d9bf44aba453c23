// How messages describe an operand: with the caller's dims, even where the op works on a transposed view.
#pragma once

#include <string>
#include <vector>

#include "runtime/tensor_view.hpp"

namespace deep_gemm {

// "[m, k]": the texts of the op's dims, in the caller's order.
std::string dims_text(const Operand& operand, std::vector<std::string> dims);

// The caller's shape.
std::string shape_text(const Operand& operand);

// "a.stride(0) = 280": the stride of dim `dim` of the op's view, numbered as the caller sees it.
std::string stride_text(const Operand& operand, int dim);

std::string dtype_text(const Operand& operand);
std::string device_text(const TensorView& view);

// "FP8", "BF16", "FP32".
const char* short_dtype_name(Dtype dtype);

}  // namespace deep_gemm
