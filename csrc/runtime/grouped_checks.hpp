// The checks of a grouped op's operands, made before any side effect: typed errors that say value, rule and remedy
// (operand_checks.hpp).
#pragma once

#include "runtime/grouped_call.hpp"

namespace deep_gemm {

// Check devices (all one), dtypes, ranks, sizes and scale shapes, and the host's ks. Throws Error: kDevice, kDtype,
// kShape.
GroupedSizes check_grouped(const GroupedCall& call);

// Check strides, alignment and overlap of a call that passed check_grouped and is not empty. `preferred` as for
// check_gemm_layout. Throws Error(kLayout).
GemmLayouts check_grouped_layout(const GroupedCall& call, const GroupedSizes& sizes, const GemmLayouts& preferred = {});

// Check what the groups tensor of a call on the CPU holds; the kernels can only be safe against wrong values. Throws
// Error(kArgument).
void check_group_values(const GroupedCall& call, const GroupedSizes& sizes);

}  // namespace deep_gemm
