// A product as every op states it: D[m, n] = alpha * (A[m, k] with scales) @ (B[n, k] with scales).T + beta * C. The
// layouts nn, tn and tt come here as transposed views of what the caller passed. Operands of grouped ops have groups of
// such matrices (grouped_call.hpp).
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "runtime/tensor_view.hpp"

namespace deep_gemm {

struct GemmSizes {
    int64_t m, n, k;

    bool is_empty() const { return m == 0 || n == 0; }
};

// Columns of D: each head of left + right columns of the product leaves `mid` columns between its two parts alone. Not
// given: all zero.
struct HeadSplits {
    int64_t left = 0, mid = 0, right = 0;

    bool is_given() const { return left + right > 0; }
    int64_t d_columns(int64_t n) const { return is_given() ? n / (left + right) * (left + mid + right) : n; }
};

// What memory the operands lie in, as far as kernels differ by it.
struct GemmLayouts {
    Major a = Major::kK, b = Major::kK;
    ScaleLayout scales = ScaleLayout::kMnMajor;
    CMode c = CMode::kNone;
};

// Scales are absent for BF16; C is absent where the caller gave none or beta is 0.
struct GemmOperands {
    Operand a, scale_a, b, scale_b, d, c;
};

// What a call says besides its operands. `stream` is borrowed and may be null.
struct GemmOptions {
    Op op = Op::kFp8Gemm;
    Recipe recipe = Recipe::k1d2d;
    float alpha = 1.0f, beta = 1.0f;
    HeadSplits heads{};
    uint8_t compiled_dims = 0;
    PyObject* stream = nullptr;
};

}  // namespace deep_gemm
