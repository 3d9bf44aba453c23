// BF16 GEMM for SM90 (gemm.cuh); operands of either major, which WGMMA reads through the descriptor.
#pragma once

#include "deep_gemm/bf16_mainloop.cuh"
#include "deep_gemm/gemm.cuh"

namespace deep_gemm {

template <class Wgmma>
struct Bf16 {
    template <class Config>
    struct MainloopOf {
        using Type = Bf16Mainloop<Config, Wgmma>;
        __device__ static __forceinline__ Type make(const Pipeline<Config>& stages, const ScaleRing<Config>&, u32 row) { return Type(stages, row); }
    };
};

template <class Config, class Wgmma>
using Bf16Gemm = Gemm<Config, Bf16<Wgmma>::template MainloopOf>;

}  // namespace deep_gemm
