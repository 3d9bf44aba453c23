// The checks of a dense op's operands, made before any side effect: typed errors that say value, rule and remedy
// (operand_checks.hpp).
#pragma once

#include "core/problem.hpp"
#include "runtime/operands.hpp"

namespace deep_gemm {

// Check devices (all one), dtypes, ranks, sizes, scale shapes and head splits.
// Throws Error: kDevice, kDtype, kShape.
GemmSizes check_gemm(const GemmOperands& operands, const GemmOptions& options);

// Check strides, alignment and overlap of operands that passed check_gemm and are not empty. `preferred` majors win
// where an operand can be seen in both. Throws Error(kLayout).
GemmLayouts check_gemm_layout(const GemmOperands& operands, const GemmOptions& options, const GemmSizes& sizes,
                              const GemmLayouts& preferred = {});

}  // namespace deep_gemm
