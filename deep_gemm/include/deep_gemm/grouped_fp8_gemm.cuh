// Grouped FP8 GEMM with FP32 scales for SM90 (grouped_gemm.cuh).
#pragma once

#include "deep_gemm/fp8_gemm.cuh"
#include "deep_gemm/grouped_gemm.cuh"

namespace deep_gemm {

template <class Config, class Wgmma, class Scheduler>
using GroupedFp8Gemm = GroupedGemm<Config, Fp8<Wgmma>::template MainloopOf, Scheduler>;

}  // namespace deep_gemm
