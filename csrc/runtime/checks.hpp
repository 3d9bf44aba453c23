// The checks of an op's operands, made before any side effect. Every failure is a typed error that says value, rule and remedy.
#pragma once

#include <cstdint>

#include "runtime/tensor_view.hpp"

namespace deep_gemm {

// Operands of D[m, n] = alpha * (A[m, k] with scales) @ (B[n, k] with scales).T
struct Fp8GemmOperands {
    Operand a, scale_a, b, scale_b, d;
};

struct GemmSizes {
    int64_t m, n, k;

    bool is_empty() const { return m == 0 || n == 0; }
};

// Check devices (all one), dtypes, ranks, sizes and scale shapes.
// Throws Error: kDevice, kDtype, kShape.
GemmSizes check_fp8_gemm(const Fp8GemmOperands& operands);

// Check strides, alignment and overlap of operands that passed check_fp8_gemm and are not empty. Throws Error(kLayout).
void check_fp8_gemm_layout(const Fp8GemmOperands& operands, const GemmSizes& sizes);

// Bytes from one row of a matrix to the next, as a tensor map wants it: the stride of a single row counts for nothing.
int64_t row_pitch_bytes(const TensorView& view);

}  // namespace deep_gemm
