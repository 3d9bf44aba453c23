// Sums over groups: the GEMM kernel leaves a matrix for each part of the sum (summed_scheduler.cuh), and a second one
// adds those up in their order, so that the result does not depend on timing.
#pragma once

#include "runtime/call.hpp"
#include "runtime/launch.hpp"
#include "runtime/sum_kernels.hpp"

namespace deep_gemm {

// Launch both on `stream`, or the first alone where it can write D itself: one part, an FP32 D and no C; or the one
// kernel of a small sum in their place. The parts lie in memory of torch's allocator. `kernel` was made for the
// operands; a small sum reads nothing but its GPU. Throws as `launch` does, and PythonError.
void launch_summed(const LoadedKernel& kernel, const LaunchGeometry& geometry, const Call& call, const Sizes& sizes,
                   int num_sms, void* stream);

// Compile and load what such a call launches: after the first one, or in place of both where it is small. Throws as
// launch_summed.
void load_sum_kernel(const Gpu& gpu, bool is_small, const SumVariant& variant);

}  // namespace deep_gemm
