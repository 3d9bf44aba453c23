// Whether the memory of two operands overlaps.
#pragma once

#include "runtime/tensor_view.hpp"

namespace deep_gemm {

// For two non-empty views. Exact for matrices of equal row pitch that lie side by side in one buffer; otherwise
// conservative: views whose address ranges interleave count as overlapping.
bool may_overlap(const TensorView& x, const TensorView& y);

}  // namespace deep_gemm
