// Whether operands are what an explicit kernel was made for. Throw Error.
#pragma once

#include "runtime/kernel.hpp"
#include "runtime/operands.hpp"

namespace deep_gemm {

void check_kernel_device(const LoadedKernel& kernel, const TensorView& view);
void check_compiled_dims(const Problem& problem, const GemmSizes& sizes);

// `asked`: the variant that the operands ask for. What the kernel takes as well it may have of the kernel.
void check_variant(const LoadedKernel& kernel, const Problem& asked);

// `given`, the problem of the operands, as a variant: any C where the kernel adds one, scales anywhere where its ring
// copies them.
Problem asked_variant(const LoadedKernel& kernel, const Problem& given, const GemmLayouts& layouts, bool has_c);

}  // namespace deep_gemm
