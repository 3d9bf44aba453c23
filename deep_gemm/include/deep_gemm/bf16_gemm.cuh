// BF16 GEMM for SM90 (sm90/gemm.cuh); operands of either major, which WGMMA reads through the descriptor.
#pragma once

#include "deep_gemm/sm90/gemm.cuh"
#include "deep_gemm/sm90/mainloop/bf16_mainloop.cuh"

namespace deep_gemm {

template <class Config, class Wgmma, class Scheduler>
using Bf16Gemm = Gemm<Config, Bf16Mainloop<Config, Wgmma>, Scheduler>;

}  // namespace deep_gemm
