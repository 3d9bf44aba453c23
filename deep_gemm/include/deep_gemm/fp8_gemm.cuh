// FP8 GEMM with FP32 scales for SM90 (gemm.cuh), promotion every 128 of K.
#pragma once

#include "deep_gemm/fp8_mainloop.cuh"
#include "deep_gemm/gemm.cuh"

namespace deep_gemm {

template <class Wgmma>
struct Fp8 {
    template <class Config, bool kRing>
    struct ReaderOf {
        using Type = StageReader<Config>;
        __device__ static __forceinline__ Type make(const Pipeline<Config>& stages, const ScaleRing<Config>&) { return {stages.scales_a(0)}; }
    };

    template <class Config>
    struct ReaderOf<Config, true> {
        using Type = RingReader<Config>;
        __device__ static __forceinline__ Type make(const Pipeline<Config>& stages, const ScaleRing<Config>& scales) { return Type(scales, stages.zero); }
    };

    template <class Config>
    struct MainloopOf {
        using Reader = ReaderOf<Config, GemmLayout<Config>::kRing>;
        using Type = Fp8Mainloop<Config, Wgmma, typename Reader::Type>;
        __device__ static __forceinline__ Type make(const Pipeline<Config>& stages, const ScaleRing<Config>& scales, u32 row) {
            return Type(stages, Reader::make(stages, scales), row);
        }
    };
};

template <class Config, class Wgmma>
using Fp8Gemm = Gemm<Config, Fp8<Wgmma>::template MainloopOf>;

}  // namespace deep_gemm
