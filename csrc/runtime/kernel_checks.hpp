// Whether operands are what an explicit kernel was made for. All throw Error where they are not.
#pragma once

#include "runtime/call.hpp"
#include "runtime/kernel.hpp"

namespace deep_gemm {

void check_kernel_device(const LoadedKernel& kernel, const TensorView& view);
void check_compiled_dims(const Problem& problem, const Sizes& sizes);

// Throws unless `given`, the problem of the operands, has the kernel's variant. A kernel with C takes any C (`has_c`),
// and one that copies its scales through the ring takes them in any layout.
void check_variant(const LoadedKernel& kernel, const Problem& given, const Layouts& layouts, bool has_c);

// Throws where groups may start inside a tile of the kernel's config.
void check_kernel_alignment(const LoadedKernel& kernel, const Problem& given);

// Throws where the launch is limited to `num_sms` SMs and the kernel takes all.
void check_kernel_sms(const LoadedKernel& kernel, int num_sms);

}  // namespace deep_gemm
