// The checks of a call's operands, made before any side effect: typed errors that say value, rule and remedy
// (operand_checks.hpp).
#pragma once

#include "runtime/call.hpp"

namespace deep_gemm {

// Check devices (all one), dtypes, ranks, sizes and shapes. Throws Error: kDevice, kDtype, kShape.
Sizes check_operands(const Call& call);

// Check strides, alignment and overlap of a call that passed check_operands and is not empty. Where an operand can be
// seen in both majors, its `preferred` one wins. Throws Error(kLayout).
Layouts check_layout(const Call& call, const Sizes& sizes, const Layouts& preferred = {});

// The layout of the scales that a call gives.
ScaleLayout scale_layout(const Call& call);

}  // namespace deep_gemm
