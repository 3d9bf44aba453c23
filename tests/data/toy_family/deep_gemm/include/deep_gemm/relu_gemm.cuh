// ReLU of a BF16 GEMM for SM90 (sm90/gemm.cuh): the main loop hands max(sum, 0) to the epilogue. It is wrong for split
// K, where the sum of one CTA is a part, so the row of the op kind leaves that knob out.
#pragma once

#include "deep_gemm/bf16_gemm.cuh"

namespace deep_gemm {

template <class Config, class Wgmma>
struct ReluMainloop : Bf16Mainloop<Config, Wgmma> {
    using Base = Bf16Mainloop<Config, Wgmma>;
    using typename Base::Layout;
    using typename Base::StageRing;
    using Base::Base;

    __device__ __forceinline__ void accumulate(float (&final)[Layout::kWaves][Layout::kAccumulators], StageRing& ring,
                                               u32 num_steps, u32 boundary, u32 offset) {
        Base::accumulate(final, ring, num_steps, boundary, offset);
#pragma unroll
        for (u32 wave = 0; wave < Layout::kWaves; ++wave)
#pragma unroll
            for (u32 i = 0; i < Layout::kAccumulators; ++i)
                if (final[wave][i] < 0.0f) final[wave][i] = 0.0f;
    }
};

template <class Config, class Wgmma, class Scheduler>
using ReluGemm = Gemm<Config, ReluMainloop<Config, Wgmma>, Scheduler>;

}  // namespace deep_gemm
