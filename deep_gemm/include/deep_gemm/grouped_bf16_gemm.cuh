// Grouped BF16 GEMM for SM90 (grouped_gemm.cuh).
#pragma once

#include "deep_gemm/bf16_gemm.cuh"
#include "deep_gemm/grouped_gemm.cuh"

namespace deep_gemm {

template <class Config, class Wgmma, class Scheduler>
using GroupedBf16Gemm = GroupedGemm<Config, Bf16<Wgmma>::template MainloopOf, Scheduler>;

}  // namespace deep_gemm
