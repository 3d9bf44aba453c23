// The checks of an op's operands, made before any side effect. Every failure is a typed error that says value, rule and remedy, in the
// words of the caller: a transposed operand is named with the dims and strides that it has there.
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "runtime/operands.hpp"

namespace deep_gemm {

inline constexpr int64_t kPitchAlignment = 16;  // TMA: addresses and pitches are multiples of 16 bytes

// Check devices (all one), dtypes, ranks, sizes, scale shapes and head splits.
// Throws Error: kDevice, kDtype, kShape.
GemmSizes check_gemm(const GemmOperands& operands, const GemmOptions& options);

// What memory the operands lie in, as far as kernels differ by it.
struct GemmLayouts {
    Major a = Major::kK, b = Major::kK;
    ScaleLayout scales = ScaleLayout::kMnMajor;
    CMode c = CMode::kNone;
};

// Check strides, alignment and overlap of operands that passed check_gemm and are not empty. `preferred` majors win where an operand can
// be seen in both. Throws Error(kLayout).
GemmLayouts check_gemm_layout(const GemmOperands& operands, const GemmOptions& options, const GemmSizes& sizes,
                              const GemmLayouts& preferred = {});

// Bytes from one row of a matrix to the next, as a tensor map wants it: the stride of a single row counts for nothing.
int64_t row_pitch_bytes(const TensorView& view);

// Whether C is D: the same elements at the same addresses.
bool is_same_memory(const TensorView& c, const TensorView& d);

}  // namespace deep_gemm
