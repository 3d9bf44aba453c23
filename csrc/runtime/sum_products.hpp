// Small sums over groups in one launch without memory for parts: clusters add up what their CTAs have
// (sum_products.cuh).
#pragma once

#include "runtime/call.hpp"
#include "runtime/gpu.hpp"
#include "runtime/sum_kernels.hpp"

namespace deep_gemm {

// Whether a call of `problem` is such a sum on a GPU of `sm_count` SMs: it has a whole GPU without a limit on SMs, with
// room for all clusters at once, and no CTA reads more than 128 KiB. Beyond that the kernels of two launches
// (sum_parts.hpp) are faster, whose tiles are larger and whose parts are more. Where bits must depend on neither m nor
// n, all sizes take those.
bool is_small_sum(const Problem& problem, int sm_count);

// Launch it on `stream`. Throws as launch_plain.
void launch_small_sum(const Gpu& gpu, const Call& call, const Sizes& sizes, void* stream);

PlainKernel& sum_products_kernel(const SumVariant& variant);

}  // namespace deep_gemm
